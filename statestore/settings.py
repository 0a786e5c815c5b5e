"""Every knob: Kafka Streams' key where it has one, default, limits, unit. Frozen once built.

`Settings.from_mapping` takes string keys, `Settings.load` a section of an applications file
(INTERFACE rule 9). An unknown key is an error that names the nearest known one. `consumer.*`,
`producer.*`, `admin.*`, `sasl.*`, `ssl.*` and `security.protocol` go to the Kafka clients; their
`"${NAME}"`, an environment variable, is expanded only there: no repr, log or plan row has secrets.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from statestore.applications import Application, nearest
from statestore.errors import InvalidSetting
from statestore.model.modes import IsolationLevel, OnError, ProcessingGuarantee

NO_LIMIT = -1


class Optimization(StrEnum):
    """What may be done about a topology beside running it as it is written."""

    NONE = "none"
    ALL = "all"
    REUSE_SOURCE_TOPICS = "reuse.ktable.source.topics"


_APPLICATION_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_CLIENT_PREFIXES = ("consumer.", "producer.", "admin.", "sasl.", "ssl.")
_INT_MAX = (1 << 63) - 1
"""What RocksDB and Kafka take, and call no limit."""
_SECRET = re.compile(r"password|secret|jaas|token|\.key(\.pem|string)?$|private", re.IGNORECASE)


def _knob(
    key: str, default: Any, unit: str, about: str, *, least: int | None = None, shown: bool = True
) -> Any:
    """One setting: its Kafka-style key, default, unit, meaning and least allowed number.

    `shown` False: it may hold a secret, so no repr has it.
    """
    return field(
        default=default,
        repr=shown,
        metadata={"key": key, "unit": unit, "about": about, "least": least},
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one application; -1 means no limit where it is allowed."""

    application_id: str = _knob(
        "application.id", "", "", "Names the state folder, topics, group and transactional ids."
    )
    bootstrap_servers: str = _knob("bootstrap.servers", "", "", "Kafka brokers, host:port,…")
    state_dir: str = _knob("state.dir", "", "", "Root of all state, on a volume every worker sees.")
    processing_guarantee: ProcessingGuarantee = _knob(
        "processing.guarantee",
        ProcessingGuarantee.AT_LEAST_ONCE,
        "",
        "at_least_once or exactly_once (exactly_once_v2 is accepted).",
    )
    commit_interval_ms: int = _knob(
        "commit.interval.ms", 0, "ms", "0: 100 under exactly_once, else 30 000.", least=0
    )
    transaction_timeout_ms: int = _knob(
        "transaction.timeout.ms", 60_000, "ms", "A transaction open longer is aborted.", least=1
    )
    request_timeout_ms: int = _knob(
        "default.api.timeout.ms", 60_000, "ms", "How long a broker may stay silent.", least=1
    )
    isolation_level: IsolationLevel | None = _knob(
        "default.state.isolation.level",
        None,
        "",
        "What readers see; unset: READ_COMMITTED under exactly_once, else READ_UNCOMMITTED.",
    )
    uncommitted_max_bytes: int = _knob(
        "statestore.uncommitted.max.bytes",
        64 << 20,
        "bytes",
        "Pending writes of an executor host before a commit is forced; -1 none.",
        least=NO_LIMIT,
    )
    uncommitted_max_records: int = _knob(
        "statestore.uncommitted.max.records",
        NO_LIMIT,
        "records",
        "The same in records; -1 none.",
        least=NO_LIMIT,
    )
    flush_lag_max_bytes: int = _knob(
        "statestore.flush.lag.max.bytes",
        8 << 20,
        "bytes",
        "Committed but not yet durable bytes of a store before a flush.",
        least=1,
    )
    flush_lag_max_records: int = _knob(
        "statestore.flush.lag.max.records", 200_000, "records", "The same in records.", least=1
    )
    flush_lag_max_ms: int = _knob(
        "statestore.flush.lag.max.ms",
        300_000,
        "ms",
        "The same in time, on an idle store too.",
        least=1,
    )
    write_ahead_log: bool | None = _knob(
        "statestore.wal", None, "", "RocksDB's log; unset: on in a standalone store, off in a task."
    )
    memory_bytes: int = _knob(
        "statestore.memory.bytes",
        128 << 20,
        "bytes",
        "Block cache and write buffers of all stores of an executor host.",
        least=1 << 20,
    )
    config_setter: str = _knob(
        "rocksdb.config.setter", "", "", "module:function, called with (store, Options) at open."
    )
    lock_wait_ms: int = _knob(
        "statestore.lock.wait.ms", 60_000, "ms", "Wait for a folder's owner to let go.", least=0
    )
    volume_locks: bool = _knob(
        "statestore.volume.locks",
        True,
        "",
        "Whether file locks work across hosts on the state volume.",
    )
    snapshot_wait_ms: int = _knob(
        "statestore.snapshot.wait.ms",
        60_000,
        "ms",
        "Wait for the owner of a task in use to take a snapshot.",
        least=0,
    )
    snapshot_lease_ms: int = _knob(
        "statestore.snapshot.lease.ms",
        600_000,
        "ms",
        "A snapshot nobody renews or releases is removed after that.",
        least=1000,
    )
    quarantine_retention_ms: int = _knob(
        "statestore.quarantine.retention.ms",
        7 * 86_400_000,
        "ms",
        "How long a quarantined store is kept after the restored one's first commit.",
        least=0,
    )
    audit_superseded_max_percent: int = _knob(
        "statestore.audit.superseded.max.percent",
        1,
        "%",
        "Of a store's rows that compaction kept from being compared, before an audit is no pass.",
        least=0,
    )
    export_target: str = _knob(
        "statestore.export.target",
        "",
        "",
        "Where exports lie: a folder or URL, as s3://bucket/a.",
        shown=False,
    )
    batch_max_records: int = _knob(
        "statestore.batch.max.records", 500_000, "records", "Records handed on at once.", least=1
    )
    max_task_idle_ms: int = _knob(
        "max.task.idle.ms",
        0,
        "ms",
        "Continuous mode: wait for a silent input; 0: for records known to be there; -1: never.",
        least=-1,
    )
    replication_factor: int = _knob(
        "replication.factor", -1, "", "Of internal topics; -1 is the broker's default.", least=-1
    )
    automatic_state_relocation: bool = _knob(
        "automatic.state.relocation", True, "", "Move stores after a topology change (KAFKA-13627)."
    )
    explicit_naming: bool = _knob(
        "ensure.explicit.internal.resource.naming",
        True,
        "",
        "Refuse stores and repartitions without a name of their own (KIP-1111).",
    )
    topology_optimization: Optimization = _knob(
        "topology.optimization",
        Optimization.NONE,
        "",
        "all or reuse.ktable.source.topics: a table's source topic serves as its changelog.",
    )
    partitioner: str = _knob(
        "partitioner", "murmur2_random", "", "How keys map to partitions, as Java Kafka by default."
    )
    on_deserialization_error: OnError = _knob(
        "deserialization.exception.handler",
        OnError.FAIL,
        "",
        "A record that cannot be decoded: fail, continue without it, or dead_letter.",
    )
    on_processing_error: OnError = _knob(
        "processing.exception.handler",
        OnError.FAIL,
        "",
        "A record or punctuation for which the pipeline's code raises: the same three.",
    )
    on_production_error: OnError = _knob(
        "production.exception.handler",
        OnError.FAIL,
        "",
        "A record whose output fits no serde or is refused by the log: the same three.",
    )
    dead_letter_topic: str = _knob(
        "errors.dead.letter.queue.topic.name",
        "",
        "",
        "Where dead_letter handlers write; it must exist, and be no input.",
    )
    clients: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for knob in _knobs():
            coerced = _coerce(knob, getattr(self, knob.name))
            object.__setattr__(self, knob.name, coerced)
        if self.application_id and not _APPLICATION_ID.fullmatch(self.application_id):
            what = "want 1 to 200 of A-Z a-z 0-9 . _ - and no dot in front: it names folders"
            raise InvalidSetting(f"application.id {self.application_id!r}: {what}")
        if self.effective_commit_interval_ms >= self.transaction_timeout_ms and self.exactly_once:
            raise InvalidSetting(
                f"commit.interval.ms {self.effective_commit_interval_ms} must be less than "
                f"transaction.timeout.ms {self.transaction_timeout_ms}"
            )
        if self.writes_dead_letters and not self.dead_letter_topic:
            raise InvalidSetting(
                "a dead_letter handler needs errors.dead.letter.queue.topic.name: name the topic"
            )

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> "Settings":
        """From string keys; InvalidSetting names the key, the value and the nearest known key."""
        names = {knob.metadata["key"]: knob.name for knob in _knobs()}
        values: dict[str, Any] = {}
        clients: dict[str, str] = {}
        for key, value in mapping.items():
            if key in names:
                values[names[key]] = value
            elif key.startswith(_CLIENT_PREFIXES) or key == "security.protocol":
                clients[key] = _text(value)
            else:
                raise InvalidSetting(f"unknown setting {key!r}{nearest(key, names)}")
        return cls(**values, clients=clients)

    @classmethod
    def load(cls, path: str | Path, application_id: str) -> "Settings":
        """One application of an applications file, `[applications.<id>]` and its `.settings`."""
        return cls.from_mapping(Application.load(path, application_id).mapping())

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, object] | None") -> "Settings":
        """What every public function accepts as `settings`."""
        if settings is None:
            return cls()
        return settings if isinstance(settings, Settings) else cls.from_mapping(settings)

    def to_mapping(self) -> dict[str, str]:
        """The settings that differ from the default, by key, with `${…}` unexpanded."""
        changed = {
            knob.metadata["key"]: _text(getattr(self, knob.name))
            for knob in _knobs()
            if getattr(self, knob.name) != knob.default
        }
        return changed | dict(self.clients)

    @property
    def exactly_once(self) -> bool:
        """Whether processing.guarantee is exactly_once."""
        return self.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE

    @property
    def reuses_source_topics(self) -> bool:
        """Whether a table's source topic serves as its changelog where it can."""
        return self.topology_optimization is not Optimization.NONE

    @property
    def effective_commit_interval_ms(self) -> int:
        """commit.interval.ms with its default by guarantee (SEMANTICS E7)."""
        return self.commit_interval_ms or (100 if self.exactly_once else 30_000)

    @property
    def effective_isolation_level(self) -> IsolationLevel:
        """default.state.isolation.level with its default by guarantee (SEMANTICS S9)."""
        if self.isolation_level is not None:
            return self.isolation_level
        return (
            IsolationLevel.READ_COMMITTED if self.exactly_once else IsolationLevel.READ_UNCOMMITTED
        )

    def client_config(self, role: str) -> dict[str, str]:
        """Client properties for `consumer`, `producer` or `admin`, with `${…}` expanded."""
        config = {"bootstrap.servers": expand(self.bootstrap_servers, "bootstrap.servers")}
        for key, value in self.clients.items():
            prefix, _, rest = key.partition(".")
            if prefix == role:
                config[rest] = expand(value, key)
            elif prefix not in {"consumer", "producer", "admin"}:
                config[key] = expand(value, key)
        return config

    def require(self, *keys: str) -> None:
        """InvalidSetting unless each of these keys has a value."""
        by_key = {knob.metadata["key"]: knob.name for knob in _knobs()}
        for key in keys:
            if not getattr(self, by_key[key]):
                raise InvalidSetting(f"{key} is not set: pass it as a flag or in statestore.toml")

    @property
    def writes_dead_letters(self) -> bool:
        """Whether a handler is dead_letter."""
        handlers = (
            self.on_deserialization_error,
            self.on_processing_error,
            self.on_production_error,
        )
        return OnError.DEAD_LETTER in handlers


def expand(text: str, key: str) -> str:
    """`${NAME}` replaced by the environment's value; InvalidSetting if it is not set."""

    def value_of(match: re.Match[str]) -> str:
        name, has_default, default = match[1], match[2], match[3]
        if name in os.environ:
            return os.environ[name]
        if has_default:
            return default
        raise InvalidSetting(f"{key} refers to ${{{name}}}: set that environment variable")

    return re.sub(r"\$\{(\w+)(:-)?([^}]*)\}", value_of, text)


def is_secret(key: str) -> bool:
    """Whether a key's value must stay out of flags, plan rows, logs and process lists."""
    return bool(_SECRET.search(key))


def describe_settings() -> Iterator[tuple[str, str, str, str]]:
    """(key, default, unit, meaning) of each setting, for documentation."""
    for knob in _knobs():
        default = "" if knob.default is None else _text(knob.default)
        yield knob.metadata["key"], default, knob.metadata["unit"], knob.metadata["about"]


def _knobs() -> tuple["dataclasses.Field[Any]", ...]:
    return tuple(knob for knob in dataclasses.fields(Settings) if "key" in knob.metadata)


def _coerce(knob: "dataclasses.Field[Any]", value: object) -> object:
    key = knob.metadata["key"]
    if value is None:
        return knob.default
    if isinstance(value, str):
        value = expand(value, key)
    kind = type(knob.default)
    try:
        coerced = (_READERS.get(knob.name) or _READERS.get(kind, kind))(value)
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"{key} = {value!r}: {error}") from error
    if isinstance(coerced, int) and coerced > _INT_MAX:
        raise InvalidSetting(f"{key}: the most allowed is {_INT_MAX}")
    least = knob.metadata["least"]
    if least is not None and isinstance(coerced, int) and coerced < least:
        raise InvalidSetting(f"{key} = {coerced}: the least allowed is {least}")
    return coerced


def _bool(value: object) -> bool:
    match value:
        case bool():
            return value
        case str() if value.lower() in {"true", "false"}:
            return value.lower() == "true"
    raise ValueError("want true or false")


def _int(value: object) -> int:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return int(value)
    raise ValueError("want a whole number")


def _str(value: object) -> str:
    if isinstance(value, str | int | Path):
        return str(value)
    raise ValueError("want a text")


_READERS: dict[type | str, Callable[[Any], object]] = {
    "isolation_level": IsolationLevel,
    "write_ahead_log": _bool,
    bool: _bool,
    int: _int,
    str: _str,
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

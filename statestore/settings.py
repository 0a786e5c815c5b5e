"""All settings, with their keys, defaults, limits and units; frozen once built.

Keys are those of Kafka Streams where it has the setting. `Settings.from_mapping` takes string
keys, `Settings.load` reads a section of an applications file (INTERFACE rule 9). An unknown key is
an error that suggests the nearest known one. `consumer.*`, `producer.*`, `admin.*`, `sasl.*`,
`ssl.*` and `security.protocol` are passed to the Kafka clients. Environment variables in them,
written `"${NAME}"`, are expanded only when a client is created, so no repr, log or plan row
contains a secret.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from statestore.applications import ConfiguredApplication
from statestore.errors import InvalidSetting
from statestore.model.broker_addresses import addresses_of
from statestore.model.modes import (
    ExportRestore,
    IsolationLevel,
    KafkaClient,
    OnError,
    Optimization,
    ProcessingGuarantee,
    span_ms,
)
from statestore.unknown_settings import answer

NO_LIMIT = -1
CONNECTION_VARIABLE = "STATESTORE_CONNECTION_"
"""How the variables begin in which a scheduler hands settings of a connection to jobs."""

_APPLICATION_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
SECURITY_PREFIXES = ("sasl.", "ssl.", "security.protocol", "enable.sasl.", "enable.ssl.", "https.")
"""How properties of all clients begin that say how they prove who they are, and to whom."""
_CLIENT_PREFIXES = ("consumer.", "producer.", "admin.", "sasl.", "ssl.")
# Of properties without such a prefix, those that say how clients prove who they are, and to whom.
_CLIENT_KEYS = frozenset(
    {
        "enable.sasl.oauthbearer.unsecure.jwt",
        "enable.ssl.certificate.verification",
        "https.ca.location",
        "https.ca.pem",
        "security.protocol",
    }
)
_OFFSET_RESET = "auto.offset.reset"
_INT_MAX = (1 << 63) - 1
"""The largest number that RocksDB and Kafka accept; they treat it as no limit."""
_NAMED = re.compile(r"\$\{[^}]*\}")
_CREDENTIALS = re.compile(r"\w://([^/?@]*:[^?@]*[^:/?@][^?@]*@|[^?]*\?[^?]*=[^&])")
_SECRET = re.compile(
    r"password|secret|jaas|token(?!\.endpoint\.)|\.key(\.pem|string)?$|private|user[._]info$",
    re.IGNORECASE,
)


def _setting(
    key: str, default: Any, unit: str, about: str, *, least: int | None = None, shown: bool = True
) -> Any:
    """Define one setting by its key, default, unit, meaning and smallest allowed number.

    With `shown` False its value may contain a secret, so no repr shows it.
    """
    return field(
        default=default,
        repr=shown,
        metadata={"key": key, "unit": unit, "about": about, "least": least},
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one application; -1 means no limit where it is allowed."""

    application_id: str = _setting(
        "application.id", "", "", "Names the state folder, topics, group and transactional ids."
    )
    bootstrap_servers: str = _setting("bootstrap.servers", "", "", "Kafka brokers, host:port,…")
    state_dir: str = _setting(
        "state.dir", "", "", "Root of all state, on a volume every worker sees."
    )
    processing_guarantee: ProcessingGuarantee = _setting(
        "processing.guarantee",
        ProcessingGuarantee.AT_LEAST_ONCE,
        "",
        "at_least_once or exactly_once (exactly_once_v2, exactly-once will do).",
    )
    commit_interval_ms: int = _setting(
        "commit.interval.ms",
        0,
        "ms",
        "Time between commits; 0 means 100 under exactly_once, else 30 000.",
        least=0,
    )
    transaction_timeout_ms: int = _setting(
        "transaction.timeout.ms",
        60_000,
        "ms",
        "The broker aborts a transaction that is open for longer.",
        least=1,
    )
    request_timeout_ms: int = _setting(
        "default.api.timeout.ms",
        60_000,
        "ms",
        "How long to wait for an answer of a broker.",
        least=1,
    )
    kafka_client: KafkaClient = _setting(
        "kafka.client",
        KafkaClient.WIRE,
        "",
        "wire: our own (KIP-890), or librdkafka where it cannot do what is asked; librdkafka.",
    )
    isolation_level: IsolationLevel | None = _setting(
        "default.state.isolation.level",
        None,
        "",
        "What readers see; if unset, READ_COMMITTED under exactly_once, else READ_UNCOMMITTED.",
    )
    uncommitted_max_bytes: int = _setting(
        "statestore.uncommitted.max.bytes",
        64 << 20,
        "bytes",
        "Pending writes of an executor host that force a commit; -1 means no limit.",
        least=NO_LIMIT,
    )
    uncommitted_max_records: int = _setting(
        "statestore.uncommitted.max.records",
        NO_LIMIT,
        "records",
        "The same limit in records; -1 means no limit.",
        least=NO_LIMIT,
    )
    flush_lag_max_bytes: int = _setting(
        "statestore.flush.lag.max.bytes",
        8 << 20,
        "bytes",
        "Committed bytes of a store, not yet durable, that start a flush.",
        least=1,
    )
    flush_lag_max_records: int = _setting(
        "statestore.flush.lag.max.records",
        200_000,
        "records",
        "The same limit in records.",
        least=1,
    )
    flush_lag_max_ms: int = _setting(
        "statestore.flush.lag.max.ms",
        300_000,
        "ms",
        "The same limit in time; it applies to idle stores too.",
        least=1,
    )
    global_refresh_ms: int = _setting(
        "statestore.global.refresh.ms",
        10_000,
        "ms",
        "How often a continuous run refreshes global tables; a bounded one does before each wave.",
        least=1,
    )
    pattern_refresh_ms: int = _setting(
        "statestore.pattern.refresh.ms",
        60_000,
        "ms",
        "How often a continuous run looks for other topics that the patterns of its sources match.",
        least=1,
    )
    write_ahead_log: bool | None = _setting(
        "statestore.wal",
        None,
        "",
        "RocksDB's write-ahead log; if unset, on in a standalone store, off in a task.",
    )
    memory_bytes: int = _setting(
        "statestore.memory.bytes",
        128 << 20,
        "bytes",
        "Block cache and write buffers of all stores of an executor host.",
        least=1 << 20,
    )
    config_setter: str = _setting(
        "rocksdb.config.setter",
        "",
        "",
        "module:function, called with (store, Options) when a database opens.",
    )
    lock_wait_ms: int = _setting(
        "statestore.lock.wait.ms",
        60_000,
        "ms",
        "How long to wait for a folder's owner to release it.",
        least=0,
    )
    volume_locks: bool = _setting(
        "statestore.volume.locks",
        True,
        "",
        "Whether file locks work across hosts on the state volume.",
    )
    snapshot_wait_ms: int = _setting(
        "statestore.snapshot.wait.ms",
        60_000,
        "ms",
        "How long to wait for the owner of a task to take a snapshot.",
        least=0,
    )
    snapshot_lease_ms: int = _setting(
        "statestore.snapshot.lease.ms",
        600_000,
        "ms",
        "A snapshot that is neither renewed nor released is removed after this time.",
        least=1000,
    )
    quarantine_retention_ms: int = _setting(
        "statestore.quarantine.retention.ms",
        7 * 86_400_000,
        "ms",
        "How long a quarantined store is kept after the restored one's first commit.",
        least=0,
    )
    audit_superseded_max_percent: int = _setting(
        "statestore.audit.superseded.max.percent",
        1,
        "%",
        "An audit does not pass if compaction kept more of a store's rows from being compared.",
        least=0,
    )
    export_target: str = _setting(
        "statestore.export.target",
        "",
        "",
        "Where exports are stored: a folder or a URL such as s3://bucket/a.",
        shown=False,
    )
    export_interval_ms: int = _setting(
        "statestore.export.interval.ms",
        0,
        "ms",
        "How old the newest export may be before a run makes another one; 0: runs make none.",
        least=0,
    )
    export_retention_ms: int = _setting(
        "statestore.export.retention.ms",
        -1,
        "ms",
        "Runs that export remove exports older than that, but for the newest 3; -1: none.",
        least=-1,
    )
    export_restore: ExportRestore = _setting(
        "statestore.export.restore",
        ExportRestore.MOUNTED,
        "",
        "How a start restores lost stores from the export target: mounted (links), copied, or off.",
    )
    batch_max_records: int = _setting(
        "statestore.batch.max.records",
        500_000,
        "records",
        "The largest number of records in a batch.",
        least=1,
    )
    max_task_idle_ms: int = _setting(
        "max.task.idle.ms",
        0,
        "ms",
        "How long a continuous run waits for an idle input; 0: for known records; -1: never.",
        least=-1,
    )
    idle_input_ms: int = _setting(
        "statestore.idle.input.ms",
        1_000,
        "ms",
        "How long a stream task of a continuous run is without input before it holds back the "
        "stream time of nobody below it.",
        least=0,
    )
    replication_factor: int = _setting(
        "replication.factor",
        -1,
        "",
        "Replicas of internal topics; -1 is the broker's default.",
        least=-1,
    )
    automatic_state_relocation: bool = _setting(
        "automatic.state.relocation",
        True,
        "",
        "Whether to move stores after a topology change (KAFKA-13627).",
    )
    explicit_naming: bool = _setting(
        "ensure.explicit.internal.resource.naming",
        True,
        "",
        "Whether to refuse stores and repartition topics without an explicit name (KIP-1111).",
    )
    topology_optimization: Optimization = _setting(
        "topology.optimization",
        Optimization.NONE,
        "",
        "With all or reuse.ktable.source.topics a table's source topic serves as its changelog.",
    )
    partitioner: str = _setting(
        "partitioner",
        "murmur2_random",
        "",
        "How keys map to partitions; the default is that of Kafka's Java clients.",
    )
    on_deserialization_error: OnError = _setting(
        "deserialization.exception.handler",
        OnError.FAIL,
        "",
        "What to do with a record that cannot be decoded: fail, continue or dead_letter.",
    )
    on_processing_error: OnError = _setting(
        "processing.exception.handler",
        OnError.FAIL,
        "",
        "The same for a record or punctuation for which the pipeline's code raises an error.",
    )
    on_production_error: OnError = _setting(
        "production.exception.handler",
        OnError.FAIL,
        "",
        "The same for a record whose output does not fit its serde or is refused by the broker.",
    )
    dead_letter_topic: str = _setting(
        "errors.dead.letter.queue.topic.name",
        "",
        "",
        "Where dead_letter handlers write; it must exist and must not be an input.",
    )
    clients: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for setting in _described():
            coerced = _coerce(setting, getattr(self, setting.name))
            object.__setattr__(self, setting.name, coerced)
        if self.application_id and not _APPLICATION_ID.fullmatch(self.application_id):
            what = "use 1 to 200 of A-Z a-z 0-9 . _ -, not beginning with a dot: it names folders"
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
        """Create settings from string keys.

        InvalidSetting names the key and its value, or the nearest known key.
        """
        names = {setting.metadata["key"]: setting.name for setting in _described()}
        values: dict[str, Any] = {}
        clients: dict[str, str] = {}
        for key, value in mapping.items():
            if key in names:
                values[names[key]] = value
            elif key.startswith(_CLIENT_PREFIXES) or key in _CLIENT_KEYS:
                if key.endswith(_OFFSET_RESET):
                    raise InvalidSetting(f"unknown setting {key!r}{answer(_OFFSET_RESET, ())}")
                clients[key] = _text(_in_ms(key, value))
            else:
                raise InvalidSetting(f"unknown setting {key!r}{answer(key, names)}")
        return cls(**values, clients=clients)

    @classmethod
    def load(cls, path: str | Path, application_id: str) -> "Settings":
        """Read `[applications.<id>]` and its `.settings` from an applications file."""
        return cls.from_mapping(ConfiguredApplication.load(path, application_id).mapping())

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, object] | None") -> "Settings":
        """Convert what public functions accept as `settings`; None gives the defaults.

        InvalidSetting if it is not a mapping, or if one of its keys or values is not allowed.
        """
        if settings is None:
            return cls()
        if isinstance(settings, Settings):
            return settings
        given: object = settings
        if not isinstance(given, Mapping):
            raise InvalidSetting(
                f"settings are a mapping or ss.Settings, not {given!r:.99}: "
                "ss.Settings.load(path, application_id) reads them from a file"
            )
        return cls.from_mapping(settings)

    def to_mapping(self) -> dict[str, str]:
        """Return the settings that differ from their defaults, by key.

        `${…}` in the settings of Kafka clients is not expanded.
        """
        changed = {
            setting.metadata["key"]: _text(getattr(self, setting.name))
            for setting in _described()
            if getattr(self, setting.name) != setting.default
        }
        return changed | dict(self.clients)

    @property
    def exactly_once(self) -> bool:
        """True if processing.guarantee is exactly_once."""
        return self.processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE

    @property
    def reuses_source_topics(self) -> bool:
        """True if a table's source topic serves as its changelog where that is possible."""
        return self.topology_optimization is not Optimization.NONE

    @property
    def partitioner_hash(self) -> str:
        """The hash by which the client places keys: crc32 if partitioner says so, or murmur2."""
        return "crc32" if self.partitioner.startswith("consistent") else "murmur2"

    @property
    def effective_commit_interval_ms(self) -> int:
        """The value of commit.interval.ms; its default depends on the guarantee (SEMANTICS E7)."""
        return self.commit_interval_ms or (100 if self.exactly_once else 30_000)

    @property
    def effective_isolation_level(self) -> IsolationLevel:
        """The value of default.state.isolation.level.

        Its default depends on the guarantee (SEMANTICS S9).
        """
        if self.isolation_level is not None:
            return self.isolation_level
        return (
            IsolationLevel.READ_COMMITTED if self.exactly_once else IsolationLevel.READ_UNCOMMITTED
        )

    def client_config(self, role: str) -> dict[str, str]:
        """Return the properties of a `consumer`, `producer` or `admin`, with `${…}` expanded.

        InvalidSetting if a variable is not set, or an address of a broker is none.
        """
        config = {"bootstrap.servers": expand(self.bootstrap_servers, "bootstrap.servers")}
        for key, value in self.clients.items():
            prefix, _, rest = key.partition(".")
            if prefix == role:
                config[rest] = expand(value, key)
            elif prefix not in {"consumer", "producer", "admin"}:
                config[key] = expand(value, key)
        addresses_of(config["bootstrap.servers"])
        return config

    def require(self, *keys: str) -> None:
        """Raise InvalidSetting unless each of these keys has a value."""
        by_key = {setting.metadata["key"]: setting.name for setting in _described()}
        for key in keys:
            if not getattr(self, by_key[key]):
                raise InvalidSetting(
                    f"{key} is not set: pass it as a flag, in the settings or in statestore.toml"
                )

    @property
    def writes_dead_letters(self) -> bool:
        """True if a handler is dead_letter."""
        handlers = (
            self.on_deserialization_error,
            self.on_processing_error,
            self.on_production_error,
        )
        return OnError.DEAD_LETTER in handlers


def expand(text: str, key: str) -> str:
    """Replace `${NAME}` and `${NAME:-default}` by the value of that environment variable.

    InvalidSetting if it is not set and has no default.
    """

    def value_of(match: re.Match[str]) -> str:
        name, has_default, default = match[1], match[2], match[3]
        if name in os.environ:
            return os.environ[name]
        if has_default:
            return default
        raise InvalidSetting(f"{key} refers to ${{{name}}}: set that environment variable")

    return re.sub(r"\$\{(\w+)(:-)?([^}]*)\}", value_of, text)


def is_secret(key: str) -> bool:
    """Return whether a key's value must stay out of flags, plan rows, logs and process lists."""
    return bool(_SECRET.search(key))


def shows_secret(key: str, value: object) -> bool:
    """Return whether a flag or a DAG file with this value would show a secret, or only name it.

    That is a value of a secret key, or the password, token or query of a URL, unless it is a
    `${VARIABLE}`.
    """
    text = str(value)
    if is_secret(key):
        return not text.startswith("${")
    return bool(_CREDENTIALS.search(_NAMED.sub("", text)))


def describe_settings() -> Iterator[tuple[str, str, str, str]]:
    """Yield the key, default, unit and meaning of each setting, for documentation."""
    for setting in _described():
        default = "" if setting.default is None else _text(setting.default)
        yield setting.metadata["key"], default, setting.metadata["unit"], setting.metadata["about"]


def _described() -> tuple["dataclasses.Field[Any]", ...]:
    return tuple(setting for setting in dataclasses.fields(Settings) if "key" in setting.metadata)


def _coerce(setting: "dataclasses.Field[Any]", value: object) -> object:
    key = setting.metadata["key"]
    if value is None:
        return setting.default
    if isinstance(value, str):
        value = expand(value, key)
    value = _in_ms(key, value)
    kind = type(setting.default)
    try:
        coerced = (_READERS.get(setting.name) or _READERS.get(kind, kind))(value)
    except (ValueError, TypeError) as error:
        raise InvalidSetting(f"{key} = {value!r}: {error}") from error
    if isinstance(coerced, int) and coerced > _INT_MAX:
        raise InvalidSetting(f"{key}: the largest allowed value is {_INT_MAX}")
    least = setting.metadata["least"]
    if least is not None and isinstance(coerced, int) and coerced < least:
        raise InvalidSetting(f"{key} = {coerced}: the smallest allowed value is {least}")
    return coerced


def _in_ms(key: str, value: object) -> object:
    """A timedelta in milliseconds if the setting is a span; any other value as it is."""
    if not isinstance(value, timedelta):
        return value
    if not key.endswith(".ms"):
        raise InvalidSetting(f"{key} = {value!r}: it is not a span of time: use what it counts")
    return span_ms(value)


def _bool(value: object) -> bool:
    match value:
        case bool():
            return value
        case str() if value.lower() in {"true", "false"}:
            return value.lower() == "true"
    raise ValueError("use true or false")


def _int(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise ValueError("use a whole number")


def _str(value: object) -> str:
    if isinstance(value, str | int | Path):
        return str(value)
    raise ValueError("use a string")


_READERS: dict[type | str, Callable[[Any], object]] = {
    "isolation_level": IsolationLevel,
    "write_ahead_log": _bool,
    bool: _bool,
    int: _int,
    str: _str,
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The options of the format `transactional_kafka`, and what they ask for."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from statestore import SchemaRegistry
from statestore.errors import Misuse
from statestore.model.records import Side
from statestore.model.texts import whole_number
from statestore.runtime import Runtime
from statestore.settings import SECURITY_PREFIXES, Settings
from statestore.spark.registry_options import REGISTRY, registry_of
from statestore.spark.writing.attempts import Output
from statestore.spark.writing.checkpoints import Checkpoint, id_of, local_folder
from statestore.spark.writing.column_serdes import ColumnSerde
from statestore.spark.writing.java_names import of_clients

NAME: Final = "transactional_kafka"
_KAFKA: Final = "kafka."
# As Spark spells them; Spark itself does not tell upper case from lower.
_KNOWN: Final = (
    "topic", "query", "atomic", "batchId", "firstBatch", "markerTopic", "includeHeaders",
    "keySerde", "valueSerde", "keySchema", "valueSchema", REGISTRY, "checkpointLocation",
)  # fmt: skip
_QUERY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,179}")
# A task may compute for long between two rows, and its transaction is open for all that time. This
# is what brokers allow by default (transaction.max.timeout.ms).
_TRANSACTION_MS: Final = 900_000
_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "enable.idempotence": ("true",),
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
}
"""What a producer must have, by the values that say so."""
_NEVER: Final = {
    "transactional.id": "each Spark partition has an id of its own, which `query` begins",
    "key.serializer": "columns are written as they are, or by keySerde",
    "value.serializer": "columns are written as they are, or by valueSerde",
    "application.id": "`query` names the output",
    "processing.guarantee": "rows are written exactly once",
}
_OF_SETTINGS: Final = ("bootstrap.servers", "transaction.timeout.ms", "default.api.timeout.ms")


class Atomic(StrEnum):
    """What readers of committed records see at once."""

    PARTITION = "partition"
    BATCH = "batch"


class WritePlan(NamedTuple):
    """What to write where; it travels to the tasks.

    `batch` None: the number of the stream's batch, or a write without a number. `sides`: the serdes
    of keys and values; None: the column has their bytes. `first_batch`: that with which a stream
    begins to write to an output that has nothing yet. `checkpoint`: that of a
    stream, if it is local.
    """

    output: Output
    topic: str | None
    atomic: Atomic
    batch: int | None
    headers: bool
    sides: tuple[ColumnSerde | None, ColumnSerde | None] = (None, None)
    first_batch: int = 0
    checkpoint: Checkpoint | None = None


def plan_of(options: Mapping[str, str], *, streaming: bool) -> WritePlan:
    """Return what the options ask for; Misuse names one that is wrong."""
    options = {name.lower(): text for name, text in options.items()}
    known = {name.lower(): name for name in _KNOWN}
    for name in sorted(options):
        if name not in known and not name.startswith((_KAFKA, f"{REGISTRY}.")):
            told = ", ".join(_KNOWN[:-1])
            raise Misuse(f"{NAME} has no option {name!r}; it has {told}, {REGISTRY}.*, and kafka.*")
    topic = options.get("topic") or None
    where = options.get("checkpointlocation") if streaming else None
    query = options.get("query") or _query_of_stream(where)
    if not _QUERY.fullmatch(query):
        raise Misuse(
            f"{NAME}: query = {query!r}: use 1 to 180 of A-Z a-z 0-9 . _ -, not beginning with a "
            "dot: it names a topic and transactional ids"
        )
    marker_topic = options.get("markertopic") or f"{query}-spark-markers"
    if marker_topic == topic:
        raise Misuse(
            f"{NAME}: markerTopic = {marker_topic!r} is the topic of the rows, too: name another "
            "one, or leave it out"
        )
    settings = _settings(options, query)
    plan = WritePlan(
        Output(query, marker_topic, settings, topic),
        topic,
        _atomic(options.get("atomic", Atomic.PARTITION)),
        _batch(options.get("batchid"), streaming),
        _is_true(options, "includeheaders"),
        _sides(options),
        _first_batch(options.get("firstbatch"), streaming),
        Checkpoint.of(where, given="firstbatch" in options),
    )
    with Runtime(Settings.of(settings)) as runtime:
        runtime.check_settings()
    return plan


def _query_of_stream(where: str | None) -> str:
    """Return Spark's id of a stream, which its checkpoint has; Misuse if it cannot be read."""
    wanted = (
        f'{NAME}: which output is it? pass .option("query", "a name"), which stays the same when '
        "the program starts again: it tells what was written already"
    )
    if not where:
        raise Misuse(wanted)
    folder = local_folder(where)
    if folder is None:
        scheme = where.partition(":")[0]
        raise Misuse(f"{wanted}; the checkpoint, which has an id too, is in {scheme}")
    try:
        return id_of(folder)
    except Misuse as error:
        raise Misuse(f"{wanted}; {error}") from error


def _settings(options: Mapping[str, str], query: str) -> dict[str, object]:
    kafka = {
        name.removeprefix(_KAFKA): text for name, text in options.items() if name.startswith(_KAFKA)
    }
    if not kafka.get("bootstrap.servers"):
        raise Misuse(f'{NAME}: pass .option("kafka.bootstrap.servers", "host:9092")')
    made: dict[str, object] = {
        "application.id": query,
        "processing.guarantee": "exactly_once",
        "transaction.timeout.ms": _TRANSACTION_MS,
    }
    for name, text in of_clients(kafka).items():
        if name in _NEVER:
            raise Misuse(f"{NAME}: leave kafka.{name} out: {_NEVER[name]}")
        if name in _OURS:
            if text.lower() not in _OURS[name]:
                raise Misuse(
                    f"{NAME}: kafka.{name} = {text!r}: the guarantees depend on "
                    f"{_OURS[name][0]!r}: leave it out"
                )
        elif name == "client":
            made["kafka.client"] = text
        elif name in _OF_SETTINGS or name == "partitioner" or name.startswith(SECURITY_PREFIXES):
            made[name] = text
        else:
            made[f"producer.{name}"] = text
    return made


def _atomic(text: str) -> Atomic:
    try:
        return Atomic(text.lower())
    except ValueError:
        raise Misuse(f"{NAME}: atomic = {text!r}: want {' or '.join(Atomic)}") from None


def _batch(text: str | None, streaming: bool) -> int | None:  # noqa: FBT001 - private
    if text is None:
        return None
    if streaming:
        raise Misuse(f"{NAME}: a stream numbers its batches itself: leave batchId out")
    return _number("batchId", text)


def _first_batch(text: str | None, streaming: bool) -> int:  # noqa: FBT001 - private
    if text is None:
        return 0
    if not streaming:
        raise Misuse(f"{NAME}: firstBatch is for streams: leave it out")
    return _number("firstBatch", text)


def _number(name: str, text: str) -> int:
    number = whole_number(text)
    if number is None or number >= 2**63:
        raise Misuse(f"{NAME}: {name} = {text!r:.99}: want a whole number from 0")
    return number


def _is_true(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "true").lower()
    if text not in {"true", "false"}:
        raise Misuse(f"{NAME}: {name} = {text!r}: want true or false")
    return text == "true"


def _sides(options: Mapping[str, str]) -> tuple[ColumnSerde | None, ColumnSerde | None]:
    registry = registry_of(options, NAME)
    key, value = _side(options, "key", registry), _side(options, "value", registry)
    if registry is not None and not any(side and side.has_schema for side in (key, value)):
        raise Misuse(
            f"{NAME}: {REGISTRY}: neither keys nor values are of a registry: set keySerde or "
            "valueSerde to AVRO, JSON_SCHEMA or PROTOBUF, or leave it out"
        )
    return key, value


def _side(
    options: Mapping[str, str], column: Side, registry: SchemaRegistry | None
) -> ColumnSerde | None:
    name, schema = options.get(f"{column}serde"), options.get(f"{column}schema")
    if name is None:
        if schema is not None:
            raise Misuse(f"{NAME}: {column}Schema without {column}Serde: pass it, too")
        return None
    made = ColumnSerde(column, name.upper() if name.islower() else name, schema, registry)
    try:
        made.made()
    except Misuse as wrong:
        raise Misuse(f"{NAME}: {column}Serde: {wrong}") from wrong
    return made

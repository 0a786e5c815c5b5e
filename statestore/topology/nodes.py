"""The nodes of a topology, and what a stream task gives each of them when it builds it.

A topology consists of source nodes, operator nodes and sink nodes. A source and a sink are plain
data. An operator has a `build(context, forward)`, which a stream task calls once per start; it
returns the function that takes the operator's batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from operator import gt
from typing import Any, NamedTuple, Protocol

from statestore.errors import Misuse
from statestore.model.batch import Batch
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import AutoOffsetReset, PunctuationType, Span
from statestore.model.records import Serde
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.migration import outside
from statestore.stores.row_times import WriteTime
from statestore.stores.specs import GlobalSpec, KeyValueSpec
from statestore.stores.staged_table import StagedTable
from statestore.stores.versioned.table import VersionedTable
from statestore.topology.callbacks import takes_partition_time
from statestore.topology.punctuation import Alarm, Fire, Punctuation

Partitioner = Callable[[str, Any, Any, int], int | None]
"""From topic, key, value and the number of partitions to a partition; None: by the key's hash."""
TimestampExtractor = Callable[..., int]
"""From a record, or a record and the time of its partition so far, to its time."""
Push = Callable[[Batch], None]
Forward = Callable[[Batch, str | None], None]
Earliest = Callable[[int], int]
"""From stream time to the earliest time of a record that a node may still forward, both in ms."""
Advance = Callable[[int, int], None]
"""Takes stream time, and the bound that the times of a node's own records cannot pass, both in ms.

Stream time is below every time where a function of the pipeline sets the times of the node's
records: then only these say how late it is.
"""
Origin = tuple[TopicPartition, int]
"""An input record, by its partition and offset."""


class HeldBack:
    """How many records wait in the operators of a stream task until later input releases them.

    There is one per stream task, and it outlives the task's rewinds. The operators count as they
    add and release records: the rows of a store are counted only once, when the store was opened or
    restored. The owner reports what became of each transaction.
    """

    def __init__(self) -> None:
        self._now: dict[str, int] = {}
        self._committed: dict[str, int] = {}

    def opened(self, store: str, count: Callable[[], int]) -> None:
        """Register a store in which an operator keeps records, while nothing in it is pending.

        `count` reads how many records it has; it is called only if that is not known yet.
        """
        if store not in self._now:
            self._now[store] = self._committed[store] = count()

    def changed(self, store: str, by: int) -> None:
        """Note that `by` more records wait in the store; negative: fewer."""
        self._now[store] += by

    def committed(self) -> None:
        """Note that the changes so far were committed."""
        self._committed = dict(self._now)

    def went_back(self) -> None:
        """Note that all stores are again as the last commit left them."""
        self._now = dict(self._committed)

    def restored(self) -> None:
        """Forget all counts, because a restored store may hold other records."""
        self._now, self._committed = {}, {}

    def by_store(self) -> dict[str, int]:
        """Return how many records wait in each store that has any, as of the last commit."""
        return {store: records for store, records in self._committed.items() if records}


class Held(NamedTuple):
    """Records that waited in the store of a node until their time came, as stored bytes.

    `origins` has, for each record of the batch, the input record that it was, as far as known.
    `what`: what each is, for messages. It may name the `{key}` and the `{time}`; of a key in a
    window or a session, its `{start}`, and the key alone as `{in_window}` or `{in_session}`.
    """

    store: str
    batch: Batch
    origins: Sequence[Origin | None] | None = None
    what: str = "the result of key {key} up to {time}"


class NodeContext(Protocol):
    """What a stream task gives a node when it builds it."""

    @property
    def task_id(self) -> TaskId: ...

    def stream_time(self) -> int | None:
        """Return the largest timestamp processed so far, in ms; None before the first record."""

    def time_bound(self) -> int | None:
        """Return what no time that an operator keeps may pass yet, in ms; None: there is no bound.

        Records behind a repartition are not in the order of their times, even if they came in it:
        the bound is how far all tasks that write there have come (SEMANTICS E4d). It is the same
        throughout a batch.
        """

    def when_time_passes(self, node: str, advance: Advance) -> None:
        """Have an operator told when its time may have risen without a record."""

    def keeps_back(self, node: str, earliest: Earliest) -> None:
        """Note that a node forwards results whose times have passed."""

    def sets_times(self, node: str) -> None:
        """Note that a function of the pipeline may give records other times in this node."""

    def keep_stream_times(self) -> None:
        """Ask that batches of the input carry the stream time at each of their records."""

    def table(self, store: str) -> StagedTable:
        """Return the rows of a store, in bytes."""

    def versions(self, store: str) -> VersionedTable:
        """Return the versions in a versioned store, in bytes."""

    def store(self, name: str) -> Any:
        """Return the store as a user's processor sees it."""

    def global_store(self, name: str) -> GlobalKeyValueStore[Any, Any]:
        """Return the store of a global table."""

    def clocks(self, stores: Sequence[str]) -> list[WriteTime]:
        """Return what has to know the time of a record whose processing writes these stores."""

    def request_commit(self) -> None:
        """Ask for a task commit after this batch."""

    def schedule(
        self,
        node: str,
        every: Span,
        by: PunctuationType,
        fire: Fire,
        start_ms: int | None = None,
    ) -> Punctuation:
        """Have `fire` called by stream time or wall-clock time, from `start_ms` on if given."""

    def keep_alarm(self, alarm: Alarm) -> None:
        """Have the timers of a node fired by stream time and wall-clock time."""

    def wall_clock_ms(self) -> int:
        """Return the wall-clock time, in ms since the epoch."""

    @property
    def held_back(self) -> HeldBack:
        """Where an operator counts the records that wait in it."""

    def release(self, node: str, held: Held, hand_on: Push) -> None:
        """Hand on records that waited, without those that a handler passes over (SEMANTICS E8a).

        Each record is judged by itself. The batch that `hand_on` receives has no topic, and its
        offsets are places in the batch that was released.
        """

    @property
    def judges_singly(self) -> bool:
        """Whether some of what `release` hands on may be left out.

        Then an operator that can do so releases its records one by one, as late as possible.
        """

    def drop(self, node: str, batch: Batch, indices: Sequence[int], reason: str) -> None:
        """Count records that the node does not take, as Kafka Streams does not take them either.

        The first drop for a node and reason is logged as a warning with its place, later ones for
        debugging.
        """

    def count_unmatched(self, node: str, records: int) -> None:
        """Count records of an inner join that met no row, and so have no result."""

    def on_close(self, action: Callable[[], None]) -> None:
        """Run `action` when the task closes."""


Build = Callable[[NodeContext, Forward], Push]


class StreamClock(Protocol):
    """The part of a NodeContext that tells stream time."""

    def stream_time(self) -> int | None: ...
    def time_bound(self) -> int | None: ...


def in_order(times: list[int]) -> bool:
    """Return whether no time is earlier than the one before it."""
    return not any(map(gt, times, times[1:]))


def running(before_ms: int | None, times: list[int]) -> list[int]:
    """Return the stream time at each of `times`, which is the largest one so far.

    `before_ms` is the stream time before them; None: there was none.
    """
    first = times[0] if before_ms is None else max(before_ms, times[0])
    if first == times[0] and in_order(times):
        return times
    return list(accumulate(times[1:], max, initial=first))


def stream_times(context: StreamClock, batch: Batch) -> list[int]:
    """Return the stream time at each record of a batch, wherever the batch ends.

    A batch passes one operator after another, and a record that an earlier operator dropped moves
    stream time, too. Therefore the task writes the times beside the records if a node asked for
    them, and operators carry them along. For records that no input brought, the result is what it
    would be if the input had brought them.
    """
    if batch.stream_times is not None:
        return batch.stream_times
    now_ms = context.stream_time()
    if context.time_bound() is not None:
        # Behind a repartition no record lets time pass.
        return [-1 if now_ms is None else now_ms] * len(batch)
    return running(now_ms, batch.timestamps)


@dataclass(slots=True)
class SendOldValues:
    """Whether the updates of a table carry the values that they replace (Kafka's sendOldValues).

    An operator below the table enables it while the topology is written.
    """

    enabled: bool = False

    def enable(self) -> None:
        """Ask for the old values."""
        self.enabled = True


@dataclass(frozen=True)
class TopicName:
    """A topic of the user's, or an internal one, whose name begins with the application id."""

    name: str
    internal: bool = False

    def full(self, application_id: str) -> str:
        """Return the name on the broker."""
        return f"{application_id}-{self.name}-repartition" if self.internal else self.name

    def without_application(self) -> str:
        """Return the name on the broker, less the application id of an internal topic."""
        return f"{self.name}-repartition" if self.internal else self.name


def check_topic(verb: str, topic: object) -> None:
    """Raise Misuse unless a topic is named by a text that is not empty."""
    if not isinstance(topic, str) or not topic:
        raise Misuse(f"{verb} takes the name of a topic, not {topic!r:.99}: pass its name as str")


def check_serdes(where: str, key_serde: object, value_serde: object) -> None:
    """Raise Misuse unless both are serdes, and not the types or names of what they encode."""
    for side, given in (("key", key_serde), ("value", value_serde)):
        if not isinstance(given, Serde):
            raise Misuse(
                f"{where}: {given!r:.99} is not a {side}_serde: pass one of statestore.serdes, "
                "such as serdes.STRING or serdes.JSON, or ss.Serde(name, serialize, deserialize)"
            )
        if outside(given) is not given:
            raise Misuse(
                f"{where}: {given.name} is the {side}_serde of a store that migrates its rows: "
                "pass the serde itself, because a topic has no such rows"
            )


@dataclass(frozen=True)
class SourceNode:
    """A node that reads topics.

    `pattern`: it reads all topics whose whole names this regular expression matches, and `topics`
    are empty until they were looked for (`Topology.matching`).
    """

    name: str
    topics: tuple[TopicName, ...]
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    timestamp_extractor: TimestampExtractor | None = None
    parents: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    offset_reset: AutoOffsetReset | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        check_serdes(f"node {self.name}", self.key_serde, self.value_serde)

    @property
    def takes_partition_time(self) -> bool:
        """Whether its extractor needs the time of the partition so far."""
        extractor = self.timestamp_extractor
        return extractor is not None and takes_partition_time(extractor)


@dataclass(frozen=True)
class OperatorNode:
    """A node that turns batches into batches.

    `copartitioned`: it joins, so the topics of its inputs need equal partition counts, and it only
    reads its stores, unless it `writes` them. `keeps`: its store has the last record of each key as
    it came. `global_stores`: of global tables, which it reads. `terms`: what a description says of
    it beside its stores. `fans_out`: a user's code is called for each record, and may make many of
    it. `says`: the expressions that it computes, for people only: a fingerprint leaves them out, as
    it does the functions of others.
    """

    name: str
    parents: tuple[str, ...]
    build: Build
    stores: tuple[str, ...] = ()
    copartitioned: bool = False
    keeps: bool = False
    writes: bool = False
    global_stores: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    fans_out: bool = False
    says: str = ""

    @property
    def only_reads(self) -> bool:
        """Whether it leaves its stores as they are."""
        return self.copartitioned and not self.writes


@dataclass(frozen=True)
class SinkNode:
    """A node that writes a topic.

    `taker` is the call that was given its serdes, for messages. `partitioner`: None leaves all
    records to the hash of their keys. `drops_null_keys`: its internal topic gets no record without
    a key, because nothing that reads it takes one.
    """

    name: str
    parents: tuple[str, ...]
    topic: TopicName
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    stores: tuple[str, ...] = ()
    taker: str = ""
    partitioner: Partitioner | None = None
    drops_null_keys: bool = False

    def __post_init__(self) -> None:
        check_serdes(f"node {self.name}", self.key_serde, self.value_serde)


class FileFormat(StrEnum):
    """How the file of a lookup is written."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


@dataclass(frozen=True)
class GlobalSource:
    """A topic of which every host has all rows, in a store that no stream task owns.

    `source` and `name` are its two nodes in a description, as in Kafka Streams.
    """

    source: str
    name: str
    spec: GlobalSpec[Any, Any]

    def __post_init__(self) -> None:
        check_serdes(f"node {self.name}", self.spec.key_serde, self.spec.value_serde)

    @property
    def topic(self) -> TopicName:
        return TopicName(self.spec.topic)


@dataclass(frozen=True)
class LookupSource:
    """A file of which every host has all rows, in a store that no stream task owns.

    `key` is the column or field whose values are the keys of the rows. `source` and `name` are its
    two nodes in a description.
    """

    source: str
    name: str
    spec: KeyValueSpec[Any, Any]
    url: str
    key: str
    format: FileFormat

    def __post_init__(self) -> None:
        check_serdes(f"node {self.name}", self.spec.key_serde, self.spec.value_serde)


Node = SourceNode | OperatorNode | SinkNode


@dataclass(frozen=True)
class Repartition:
    """An internal topic between two sub-topologies.

    `partitions` None: it gets as many as its writers have tasks. `explicit`: the user named it.
    """

    name: str
    partitions: int | None
    explicit: bool


def children_of(nodes: Sequence[Node]) -> dict[str, list[str]]:
    """Return, for each node that feeds others, the names of those others."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for parent in node.parents:
            found.setdefault(parent, []).append(node.name)
    return found

"""`topology.json`: what was deployed last, for the next start and for every command.

It is written as the last step of a deployment, so it always describes tasks that may have run.

Keeps I33.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec

from statestore.errors import InvalidTopology
from statestore.layout import documents, files
from statestore.layout.documents import Count, Ordinal, StoreName, Text, Topic, Word
from statestore.layout.folders import StateLayout
from statestore.model.decoders import converted
from statestore.model.ids import TaskId
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Schema
from statestore.serdes import composed
from statestore.stores import keyvalue
from statestore.stores.kinds.kind import StoreTerms
from statestore.stores.kinds.registry import kind_named, kind_of
from statestore.stores.migration import writers_of
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of
from statestore.topology.nodes import TopicName

VERSION = 1
TASKS_MAX = 100_000
"""The largest number of stream tasks: whoever shows an application looks at each of them."""


class DeployedSchema(msgspec.Struct, frozen=True):
    """A schema of keys or values, as `model.records.Schema` has it."""

    kind: Word
    text: Text

    @classmethod
    def of(cls, schema: Schema | None) -> "DeployedSchema | None":
        """The same schema; None if there is none."""
        return None if schema is None else cls(schema.kind, schema.text)

    def schema(self) -> Schema:
        """The inverse of `of`."""
        return Schema(self.kind, self.text)


class DeployedWriter(msgspec.Struct, frozen=True):
    """A serde that writes, or wrote, values of a store: of rows of this generation."""

    generation: Count
    serde: Word
    schema: DeployedSchema | None = None


class DeployedStore(msgspec.Struct, frozen=True):
    """What the last deployed topology says of a store.

    `retention_ms`: of a versioned, window or session store; how long rows of a key-value store live
    after their last put. `advance_ms`: how far apart hopping windows start. `includes_end`: the end
    of a window belongs to it, as that of a sliding one does. `source_topic`: the topic that the
    table is made of, if that is its log; None: it has a changelog. `changelog_id`: what the cluster
    calls that changelog; None: not known yet. `value_writers`: all that may have written rows that
    are there (docs/adr/0022); none: only `value_serde`, whose schema was not recorded.
    `placed_apart`: a partitioner of the user's, not the hash of their keys, puts rows into
    partitions; None: not recorded. `retention_least_ms`: the shortest retention that a store with
    history was deployed with, as a longer one brings no history back; None: not recorded.
    `row_times`: since the store was made, its rows have had the times that its changelog has; None:
    not recorded.
    """

    sub_topology: Ordinal
    key_serde: Word
    value_serde: Word
    persistent: bool
    kind: Word = keyvalue.KIND
    source_topic: Topic | None = None
    retention_ms: Count | None = None
    changelog_id: Word | None = None
    advance_ms: Count | None = None
    includes_end: bool = False
    key_schema: DeployedSchema | None = None
    value_writers: list[DeployedWriter] = []
    placed_apart: bool | None = None
    retention_least_ms: Count | None = None
    row_times: bool | None = None

    @property
    def terms(self) -> StoreTerms:
        """What the spec said beside its name and serdes."""
        windows = composed.of_windowed(self.key_serde)
        size_ms = None if windows is None else windows.size_ms
        return StoreTerms(self.retention_ms, size_ms, self.advance_ms, self.includes_end)

    def writers(self) -> list[DeployedWriter]:
        """All serdes that may have written values that are there."""
        return self.value_writers or [DeployedWriter(0, self.value_serde)]


class DeployedGlobal(msgspec.Struct, frozen=True):
    """What the last deployed topology says of the store of a global table, or of a lookup.

    `topic`: of which a global table is made; None: it is made of `file`.
    """

    key_serde: Word
    value_serde: Word
    topic: Topic | None = None
    file: Text | None = None

    def origin(self) -> str:
        """Where its rows come from, in words."""
        return f"file {self.file}" if self.topic is None else f"topic {self.topic}"


class DeployedPart(msgspec.Struct, frozen=True):
    """A sub-topology; `tasks` None: it was deployed without a broker, so they were not counted.

    `internal`: which of its topics bear the application's id as a prefix on the broker; None: a
    version that did not record it deployed the sub-topology. `sink_topics` are for people only, and
    empty if such a version did. `patterns`: of sources; `source_topics` has what they matched at
    the last start.
    """

    ordinal: Ordinal
    source_topics: list[Topic]
    tasks: Annotated[int, msgspec.Meta(ge=0, le=TASKS_MAX)] | None = None
    internal: list[Topic] | None = None
    sink_topics: list[Topic] = []
    patterns: list[Text] = []

    def __post_init__(self) -> None:
        """Raise ValueError, which makes a file unreadable, if a pattern of it is none."""
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"{pattern:.99} is no pattern of topics: {error}") from error

    def topics(self, application_id: str) -> list[str]:
        """The topics on the broker, under both names where it is not known which one is right."""
        full = {topic: f"{application_id}-{topic}" for topic in self.source_topics}
        if self.internal is not None:
            return [full[it] if it in self.internal else it for it in self.source_topics]
        guessed = [full[it] for it in self.source_topics if it.endswith("-repartition")]
        return [*self.source_topics, *guessed]


class Deployed(msgspec.Struct, frozen=True):
    """The content of `topology.json`; the default if nothing was deployed yet.

    `processing_guarantee` None: not recorded.
    """

    version: Count = VERSION
    fingerprint: Word = ""
    processing_guarantee: ProcessingGuarantee | None = None
    sub_topologies: list[DeployedPart] = []
    stores: dict[StoreName, DeployedStore] = {}
    global_stores: dict[StoreName, DeployedGlobal] = {}

    def __post_init__(self) -> None:
        """Raise ValueError, which makes a file unreadable, if it names more tasks than there are.

        Whoever shows the application would look for each of them.
        """
        if (count := sum(part.tasks or 0 for part in self.sub_topologies)) > TASKS_MAX:
            raise ValueError(f"{count} stream tasks, and there are at most {TASKS_MAX}")

    def tasks(self) -> set[TaskId] | None:
        """All stream tasks; None if their number is not known."""
        counts = {part.ordinal: part.tasks for part in self.sub_topologies}
        if not counts:
            return None
        found = set()
        for ordinal, count in counts.items():
            if count is None:
                return None
            found |= {TaskId(ordinal, partition) for partition in range(count)}
        return found

    def missing(self, store: str, there: Collection[TaskId], partition: int | None) -> list[TaskId]:
        """The stream tasks that should have files of the store and are not `there`.

        There are none for a store in memory, or if the tasks were not counted. `partition`: only
        that one. Tasks are compared by partition, because a store that is being moved may lie in
        the folder of another sub-topology.
        """
        known = self.stores.get(store)
        if known is None or not known.persistent:
            return []
        seen, every = {task.partition for task in there}, range(self.partitions(store) or 0)
        wanted = every if partition is None else every[partition:][:1]
        return [TaskId(known.sub_topology, each) for each in wanted if each not in seen]

    def kind(self, store: str) -> str:
        """The kind of a store by name; one that is not known is taken for a key-value store."""
        known = self.stores.get(store)
        return keyvalue.KIND if known is None else known.kind

    def partitions(self, store: str) -> int | None:
        """How many partitions the store was deployed with; None: that is not known."""
        known = self.stores.get(store)
        ordinal = None if known is None else known.sub_topology
        return next((part.tasks for part in self.sub_topologies if part.ordinal == ordinal), None)

    def log_of(self, application_id: str, store: str) -> str:
        """The topic that is the log of a store."""
        known = self.stores.get(store)
        topic = None if known is None else known.source_topic
        return log_of(application_id, store, {} if topic is None else {store: topic})

    def has_changelog(self, store: str) -> bool:
        """Whether that log is a changelog of its own, not the topic that the table is made of."""
        known = self.stores.get(store)
        return known is None or known.source_topic is None


def describe_deployment(
    topology: Topology,
    guarantee: ProcessingGuarantee,
    counts: Mapping[TopicName, int] | None = None,
    logs: Mapping[str, str] | None = None,
    changelog_ids: Mapping[str, str] | None = None,
    writers: Mapping[str, list[DeployedWriter]] | None = None,
) -> Deployed:
    """What to publish about a topology; `counts` None: no broker was asked for partitions.

    `logs`: by store, the source topic that is its log. `changelog_ids`: by store, where known.
    `writers`: by store, what may have written its values; None: what the topology itself says.
    """
    tasks = {} if counts is None else topology.tasks(counts)
    if (count := sum(map(len, tasks.values()))) > TASKS_MAX:
        raise InvalidTopology(
            f"the topology has {count} stream tasks, and an application has at most {TASKS_MAX}: "
            "divide it, or read topics of fewer partitions"
        )
    said = converted(topology.deployed(), Deployed)
    parts = [
        msgspec.structs.replace(part, tasks=len(tasks[part.ordinal]) if tasks else None)
        for part in said.sub_topologies
    ]
    stores = {}
    for name, store in said.stores.items():
        spec = topology.stores[name]
        terms = kind_of(spec).terms(spec)
        stores[name] = msgspec.structs.replace(
            store,
            source_topic=(logs or {}).get(name),
            retention_ms=terms.retention_ms,
            advance_ms=terms.advance_ms,
            includes_end=terms.includes_end,
            changelog_id=(changelog_ids or {}).get(name),
            key_schema=DeployedSchema.of(key_schema_of(spec)),
            value_writers=(writers or {}).get(name) or writers_in(spec),
            row_times=kind_of(spec).keeps_times(spec),
        )
    return msgspec.structs.replace(
        said, sub_topologies=parts, stores=stores, processing_guarantee=guarantee
    )


def continuing(said: Deployed, before: Mapping[str, DeployedStore]) -> Deployed:
    """Return the same with what holds since the stores were made, given what was deployed before.

    That is the shortest retention of each history, and whether its rows have always had times.
    """
    stores = {}
    for name, store in said.stores.items():
        was, known = before.get(name), [store.retention_ms]
        if was is not None and was.kind == store.kind:
            known += [was.retention_ms, was.retention_least_ms]
        least = min((one for one in known if one is not None), default=None)
        if not kind_named(store.kind).keeps_history:
            least = None
        timed = store.row_times if was is None or was.row_times else was.row_times
        stores[name] = msgspec.structs.replace(store, retention_least_ms=least, row_times=timed)
    return msgspec.structs.replace(said, stores=stores)


def read_deployed(layout: StateLayout) -> Deployed:
    """Read `topology.json`; HostFailure, FormatTooNew if it is not for this version."""
    way_out = "look whose state dir this is, then remove the file: the next run writes it again"
    found = documents.read(layout.topology_file, Deployed, way_out=way_out, version=VERSION)
    return Deployed() if found is None else found


def deployed_identity(layout: StateLayout) -> object:
    """Return what changes whenever `topology.json` is written; None if it is not there."""
    try:
        seen = layout.topology_file.stat()
    except FileNotFoundError:
        return None
    return seen.st_mtime_ns, seen.st_ino


def made_anew(before: Deployed, now: Deployed) -> set[str]:
    """Return the stores whose changelogs were created again, as with another partition count.

    Their tasks may have new folders under the same names, with owners of the same epochs, and their
    rows may lie in other partitions.
    """
    return {
        store
        for store, known in before.stores.items()
        if store in now.stores and is_made_anew(known, now.stores[store])
    }


def is_made_anew(before: DeployedStore, now: DeployedStore) -> bool:
    """Return whether the changelog of a store was created again in between."""
    return before.changelog_id is not None and now.changelog_id != before.changelog_id


def publish_deployed(layout: StateLayout, said: Deployed) -> None:
    """Write `topology.json`."""
    files.publish(layout.topology_file, msgspec.json.encode(said))


def key_schema_of(spec: StoreSpec) -> Schema | None:
    """The schema of a store's keys, without their windows."""
    return kind_of(spec).keys(spec).schema


def writers_in(spec: StoreSpec) -> list[DeployedWriter]:
    """What writes, or wrote, the values of a store."""
    return [
        DeployedWriter(one.generation, one.serde, DeployedSchema.of(one.schema))
        for one in writers_of(spec.value_serde)
    ]

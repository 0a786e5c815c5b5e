"""`topology.json`: what was deployed last, as the next start and every command read it.

Written last of all when a topology is deployed, so it always speaks of tasks that may have run.
"""

from collections.abc import Mapping

import msgspec

from statestore.errors import FormatTooNew, HostFailure
from statestore.layout import files
from statestore.layout.folders import StateLayout
from statestore.model import ProcessingGuarantee, TaskId
from statestore.stores import keyvalue
from statestore.stores.specs import StoreSpec, VersionedSpec, WindowSpec
from statestore.topology.graph import TopicName, Topology
from statestore.topology.logs import log_of

VERSION = 1


class DeployedStore(msgspec.Struct, frozen=True):
    """What the last deployed topology says of a store.

    `retention_ms`: of a versioned or window store. `source_topic`: the topic its table is made of,
    where that is its log; None: it has a changelog.
    """

    sub_topology: int
    key_serde: str
    value_serde: str
    persistent: bool
    kind: str = keyvalue.KIND
    source_topic: str | None = None
    retention_ms: int | None = None


class DeployedPart(msgspec.Struct, frozen=True):
    """A sub-topology; `tasks` None: deployed without a broker, so nobody counted them."""

    ordinal: int
    source_topics: list[str]
    tasks: int | None = None


class Deployed(msgspec.Struct, frozen=True):
    """The content of `topology.json`; a default one where nothing was deployed yet.

    `processing_guarantee` None: not recorded.
    """

    version: int = VERSION
    fingerprint: str = ""
    processing_guarantee: ProcessingGuarantee | None = None
    sub_topologies: list[DeployedPart] = []
    stores: dict[str, DeployedStore] = {}

    def tasks(self) -> set[TaskId] | None:
        """Every stream task of it; None where their number is not known."""
        counts = {part.ordinal: part.tasks for part in self.sub_topologies}
        if not counts:
            return None
        found = set()
        for ordinal, count in counts.items():
            if count is None:
                return None
            found |= {TaskId(ordinal, partition) for partition in range(count)}
        return found

    def log_of(self, application_id: str, store: str) -> str:
        """The topic that is a store's log."""
        known = self.stores.get(store)
        topic = None if known is None else known.source_topic
        return log_of(application_id, store, {} if topic is None else {store: topic})

    def has_changelog(self, store: str) -> bool:
        """Whether that log is the store's own, not the topic its table is made of."""
        known = self.stores.get(store)
        return known is None or known.source_topic is None


def deployed(
    topology: Topology,
    guarantee: ProcessingGuarantee,
    counts: Mapping[TopicName, int] | None = None,
    logs: Mapping[str, str] | None = None,
) -> Deployed:
    """What to publish of a topology; `counts` None: no broker was asked for partitions.

    `logs`: by store, the source topic that is its log.
    """
    tasks = {} if counts is None else topology.tasks(counts)
    said = msgspec.convert(topology.deployed(), Deployed)
    parts = [
        msgspec.structs.replace(part, tasks=len(tasks[part.ordinal]) if tasks else None)
        for part in said.sub_topologies
    ]
    stores = {
        name: msgspec.structs.replace(
            store,
            source_topic=(logs or {}).get(name),
            retention_ms=_retention_ms(topology.stores[name]),
        )
        for name, store in said.stores.items()
    }
    return msgspec.structs.replace(
        said, sub_topologies=parts, stores=stores, processing_guarantee=guarantee
    )


def read_deployed(layout: StateLayout) -> Deployed:
    """What `topology.json` says; HostFailure, FormatTooNew if it is not for this version."""
    path = layout.topology_file
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Deployed()
    except OSError as error:
        raise HostFailure(f"cannot read {path}: {error.strerror}; make it readable") from error
    try:
        found = msgspec.json.decode(data, type=_Versioned)
        if found.version > VERSION:
            raise FormatTooNew(
                f"{path} has version {found.version}, this statestore reads up to {VERSION}: "
                "upgrade statestore"
            )
        return msgspec.json.decode(data, type=Deployed)
    except msgspec.DecodeError as error:
        raise HostFailure(
            f"{path} is not what a run wrote: {error}; look whose state dir this is, then remove "
            "the file: the next run writes it anew"
        ) from error


def publish_deployed(layout: StateLayout, said: Deployed) -> None:
    """Write `topology.json`."""
    files.publish(layout.topology_file, msgspec.json.encode(said))


def _retention_ms(spec: StoreSpec) -> int | None:
    if isinstance(spec, VersionedSpec):
        return spec.history_retention_ms
    return spec.retention_ms if isinstance(spec, WindowSpec) else None


class _Versioned(msgspec.Struct, frozen=True):
    version: int = VERSION

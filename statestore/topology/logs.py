"""The log of each store: a changelog of its own, or the topic that its table is made of.

A table that keeps the records of one topic byte for byte needs no second copy of them in Kafka.
With `topology.optimization` (Kafka Streams' `reuse.ktable.source.topics`) it is restored from that
topic, up to the committed input offset (I16). This module decides which tables can be restored so;
tasks/store_log.py says what it means for a commit and a restore.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from statestore.errors import InvalidSetting
from statestore.model.modes import OnError
from statestore.settings import Settings
from statestore.stores.kinds.registry import keeps_history
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Topology
from statestore.topology.nodes import Node, OperatorNode, SourceNode


class Logs(NamedTuple):
    """`sources`: by store, the node whose topic is its log.

    `apart`: by store, why a table has a changelog of its own nevertheless.
    """

    sources: dict[str, SourceNode]
    apart: dict[str, str]

    def topics(self) -> dict[str, str]:
        """By store, the topic that is its log; the other stores have changelogs."""
        return {store: source.topics[0].name for store, source in self.sources.items()}


def logs(topology: Topology, settings: Settings) -> Logs:
    """The logs of a whole topology; see `logs_of`."""
    return logs_of(topology.nodes, topology.stores, settings)


def logs_of(nodes: Iterable[Node], specs: Mapping[str, StoreSpec], settings: Settings) -> Logs:
    """Which tables among these nodes have their source topic as their log.

    InvalidSetting if a handler could keep records out of a table that the topic still has.
    """
    found = Logs({}, {})
    if not settings.reuses_source_topics:
        return found
    nodes = tuple(nodes)
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if isinstance(node, OperatorNode) and node.keeps:
            (store,) = node.stores
            writers = [n for n in nodes if store in n.stores and not _only_reads(n)]
            parent = by_name[node.parents[0]]
            why = _why_apart(specs[store], parent, writers)
            if why is not None:
                found.apart[store] = why
            elif isinstance(parent, SourceNode):
                found.sources[store] = parent
    if found.sources:
        _check_handlers(found, settings)
    return found


def log_of(application_id: str, store: str, topics: Mapping[str, str]) -> str:
    """The topic that is a store's log; `topics`: as of `Logs.topics`."""
    return topics.get(store) or f"{application_id}-{store}-changelog"


def _only_reads(node: Node) -> bool:
    return isinstance(node, OperatorNode) and node.only_reads


def _why_apart(spec: StoreSpec, parent: Node, writers: list[Node]) -> str | None:
    """Why replaying the topic would not produce the store's rows; None: it would."""
    if keeps_history(spec):
        return "it keeps history, which the topic's compaction takes away (KIP-914)"
    if not isinstance(parent, SourceNode):
        return "an operator stands between the topic and it"
    if parent.pattern is not None or len(parent.topics) > 1:
        return "it is made of several topics"
    if parent.topics[0].internal:
        return "a repartition topic is purged once it was read"
    if parent.timestamp_extractor is not None:
        return "its timestamp_extractor may drop records"
    if parent.offset_reset is not None:
        return "it may not begin at the topic's start"
    # The very same serde: an equal one might write other bytes than those that were read.
    if spec.key_serde is not parent.key_serde or spec.value_serde is not parent.value_serde:
        return "its serdes are not those of the topic"
    if len(writers) > 1:
        return "a processor may write to it"
    return None


def _check_handlers(found: Logs, settings: Settings) -> None:
    handlers = {
        "processing.exception.handler": settings.on_processing_error,
        "production.exception.handler": settings.on_production_error,
    }
    for key, handler in handlers.items():
        if handler is not OnError.FAIL:
            tables = ", ".join(sorted(found.sources))
            raise InvalidSetting(
                f"{key} = {handler} passes over records whole, and a restore of {tables} from "
                "the source topic would bring them back: set it to fail, or "
                "topology.optimization to none"
            )

"""StreamsBuilder: where a pipeline begins; `build()` gives a Topology."""

from collections.abc import Sequence
from typing import Any

from statestore.errors import InvalidTopology
from statestore.model.records import Serde
from statestore.stores import serdes
from statestore.topology.callbacks import check_arity
from statestore.topology.collector import Collector, Materialized
from statestore.topology.flows import Flow
from statestore.topology.graph import SourceNode, TimestampExtractor, TopicName, Topology
from statestore.topology.streams import KStream, KTable


class StreamsBuilder:
    """Collects nodes; `key_serde` and `value_serde` serve every node that names none."""

    def __init__(
        self,
        *,
        key_serde: Serde[Any] = serdes.BYTES,
        value_serde: Serde[Any] = serdes.BYTES,
    ) -> None:
        self._nodes = Collector(key_serde, value_serde)

    def stream(
        self,
        topics: str | Sequence[str],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> KStream:
        """Records of one or more topics."""
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        if not names:
            raise InvalidTopology("stream() needs at least one topic")
        if timestamp_extractor is not None:
            check_arity("timestamp_extractor", timestamp_extractor, 1, name)
        node = SourceNode(
            name or self._nodes.number("KSTREAM-SOURCE"),
            tuple(TopicName(topic) for topic in names),
            key_serde or self._nodes.key_serde,
            value_serde or self._nodes.value_serde,
            timestamp_extractor,
        )
        self._nodes.add(node)
        return KStream(Flow(self._nodes, node.name, node.key_serde, node.value_serde))

    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        materialized: Materialized | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> KTable:
        """The latest value per key of a topic."""
        source = self.stream(
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            name=self._nodes.number("KSTREAM-SOURCE"),
        )
        return source.to_table(materialized, name=name)

    def build(self) -> Topology:
        """The topology; InvalidTopology names what is wrong."""
        return self._nodes.build()

"""StreamsBuilder: where a pipeline begins; `build()` returns its Topology."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from statestore import serdes
from statestore.errors import InvalidTopology
from statestore.model.modes import AutoOffsetReset
from statestore.model.records import K, Record, Serde, V
from statestore.topology import missing_methods
from statestore.topology.callbacks import check_extractor
from statestore.topology.collector import Collector
from statestore.topology.dsl.ktables import KTable
from statestore.topology.dsl.streams import KStream
from statestore.topology.flows import Flow
from statestore.topology.graph import Topology
from statestore.topology.joins.global_tables import GlobalKTable, global_table
from statestore.topology.joins.lookups import lookup
from statestore.topology.materialized import Materialized
from statestore.topology.nodes import SourceNode, TimestampExtractor, TopicName, check_topic
from statestore.topology.patterns import refuse_pattern, text_of

# Of the serdes of nodes that name none. A function that takes a builder of any serdes can say so.
KB = TypeVar("KB", default=Any)
VB = TypeVar("VB", default=Any)
Extractor = Callable[[Record[K, V]], int] | Callable[[Record[K, V], int | None], int]
"""From a record, or a record and the time of its partition so far, to its time."""


@missing_methods.explains(missing_methods.OF_BUILDERS)
class StreamsBuilder(Generic[KB, VB]):
    """Begins the streams and tables of one topology.

    `key_serde` and `value_serde`, BYTES unless given, serve every node that names none.
    """

    @overload
    def __init__(self: "StreamsBuilder[bytes, bytes]") -> None: ...
    @overload
    def __init__(self: "StreamsBuilder[KB, bytes]", *, key_serde: Serde[KB]) -> None: ...
    @overload
    def __init__(self: "StreamsBuilder[bytes, VB]", *, value_serde: Serde[VB]) -> None: ...
    @overload
    def __init__(self, *, key_serde: Serde[KB], value_serde: Serde[VB]) -> None: ...
    def __init__(
        self,
        *,
        key_serde: Serde[Any] = serdes.BYTES,
        value_serde: Serde[Any] = serdes.BYTES,
    ) -> None:
        self._nodes = Collector(key_serde, value_serde)

    @overload
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: None = None,
        value_serde: None = None,
        timestamp_extractor: Extractor[KB, VB] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[KB, VB]: ...
    @overload
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: Serde[K],
        value_serde: None = None,
        timestamp_extractor: Extractor[K, VB] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, VB]: ...
    @overload
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: None = None,
        value_serde: Serde[V],
        timestamp_extractor: Extractor[KB, V] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[KB, V]: ...
    @overload
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        timestamp_extractor: Extractor[K, V] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[K, V]: ...
    def stream(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KStream[Any, Any]:
        """Return the records of one or more topics, or of all whose names match a pattern.

        A compiled pattern must match a whole name, and each run takes the topics that match when it
        starts. It never matches names that begin with `__`, nor the application's own changelogs,
        repartition topics and dead letters. InvalidTopology if it matches a topic that another
        source reads or that the topology writes.

        `timestamp_extractor(record)` returns the time to use for a record, in ms since the epoch;
        a record for which it returns a negative time is dropped. If it takes two arguments, the
        other one is the latest time of the earlier records of the partition, None before the first;
        it is committed with each offset. `offset_reset` says where a topic
        begins that the application reads for the first time: at its start if None. All sources of
        a topic need the same extractor and the same beginning. InvalidTopology if no topic is
        given.
        """
        pattern = text_of("stream()", topics) if isinstance(topics, re.Pattern) else None
        names = _names(topics) if pattern is None else ()
        if timestamp_extractor is not None:
            check_extractor(timestamp_extractor, name)
        node = SourceNode(
            name or self._nodes.number("KSTREAM-SOURCE"),
            tuple(TopicName(topic) for topic in names),
            key_serde or self._nodes.key_serde,
            value_serde or self._nodes.value_serde,
            timestamp_extractor,
            offset_reset=None if offset_reset == AutoOffsetReset.earliest() else offset_reset,
            pattern=pattern,
        )
        self._nodes.add(node)
        return KStream(Flow(self._nodes, node.name, node.key_serde, node.value_serde))

    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        materialized: Materialized[KB, VB] | str | None = None,
        timestamp_extractor: Extractor[KB, VB] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[KB, VB]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: None = None,
        materialized: Materialized[K, VB] | str | None = None,
        timestamp_extractor: Extractor[K, VB] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, VB]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: Serde[V],
        materialized: Materialized[KB, V] | str | None = None,
        timestamp_extractor: Extractor[KB, V] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[KB, V]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        materialized: Materialized[K, V] | str | None = None,
        timestamp_extractor: Extractor[K, V] | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[K, V]: ...
    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        materialized: Materialized[Any, Any] | str | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: AutoOffsetReset | None = None,
        name: str | None = None,
    ) -> KTable[Any, Any]:
        """Return the table of the latest value per key of a topic.

        A null value deletes its key; records with a null key are dropped. If `materialized` sets a
        history retention, the table keeps its versions (KIP-889, KIP-914). For
        `timestamp_extractor` and `offset_reset`, see `stream`.
        """
        refuse_pattern("table()", topic)
        source = self.stream(
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            offset_reset=offset_reset,
            name=self._nodes.number("KSTREAM-SOURCE"),
        )
        return source.to_table(materialized, name=name)

    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: None = None,
        materialized: Materialized[KB, VB] | str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[KB, VB]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: None = None,
        value_serde: Serde[V],
        materialized: Materialized[KB, V] | str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[KB, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: None = None,
        materialized: Materialized[K, VB] | str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, VB]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        materialized: Materialized[K, V] | str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, V]: ...
    def global_table(
        self,
        topic: str,
        *,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        materialized: Materialized[Any, Any] | str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Return the table of the latest value per key of a topic, whole for every stream task.

        A stream joins it by any key, and its topic may have any number of partitions. Its rows are
        those of the last refresh: at the beginning of each wave of a run, and in a continuous run
        every `statestore.global.refresh.ms`. A null value deletes its key; records with a null key
        are dropped. InvalidTopology if `materialized` asks for a history, or for a store in memory.
        """
        refuse_pattern("global_table()", topic)
        return global_table(
            self._nodes,
            topic,
            key_serde=key_serde or self._nodes.key_serde,
            value_serde=value_serde or self._nodes.value_serde,
            materialized=materialized,
            name=name,
        )

    @overload
    def lookup(
        self,
        url: str,
        *,
        key: str,
        file_format: str | None = None,
        key_serde: None = None,
        value_serde: None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[str, Any]: ...
    @overload
    def lookup(
        self,
        url: str,
        *,
        key: str,
        file_format: str | None = None,
        key_serde: None = None,
        value_serde: Serde[V],
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[str, V]: ...
    @overload
    def lookup(
        self,
        url: str,
        *,
        key: str,
        file_format: str | None = None,
        key_serde: Serde[K],
        value_serde: None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, Any]: ...
    @overload
    def lookup(
        self,
        url: str,
        *,
        key: str,
        file_format: str | None = None,
        key_serde: Serde[K],
        value_serde: Serde[V],
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[K, V]: ...
    def lookup(
        self,
        url: str,
        *,
        key: str,
        file_format: str | None = None,
        key_serde: Serde[Any] | None = None,
        value_serde: Serde[Any] | None = None,
        store: str | None = None,
        name: str | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Return the rows of a small file as a table that is whole for every stream task.

        The file is CSV with a header, JSON lines or Parquet, by `file_format` (`csv`, `jsonl`,
        `parquet`) or the end of its name, at a path or any URL of fsspec. `key` names the column
        whose values are the keys, strings unless `key_serde` says otherwise. A row is a dict by
        column, or what `value_serde` reads from it as JSON. A run reads the file at the beginning
        of each wave, and in a continuous run every `statestore.global.refresh.ms`; all stream
        tasks of a wave see the same rows. A missing file, one without the column and a key that is
        there twice end the run.
        """
        return lookup(
            self._nodes,
            url,
            key=key,
            file_format=file_format,
            key_serde=key_serde or serdes.STRING,
            value_serde=value_serde or serdes.JSON,
            store=store,
            name=name,
        )

    def build(self) -> Topology:
        """Return the topology; InvalidTopology says what is wrong with it."""
        return self._nodes.build()


def _names(topics: object) -> tuple[str, ...]:
    """The topics that stream() was given by name."""
    listed: object = (topics,) if isinstance(topics, str) else topics
    names = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not names:
        raise InvalidTopology("stream() needs at least one topic")
    for topic in names:
        check_topic("stream()", topic)
    return names

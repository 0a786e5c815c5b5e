"""Appends a few records at a time outside of transactions, over our own connections."""

from collections.abc import Mapping, Sequence
from time import monotonic

from statestore.kafka.wire.appends import AppendOptions, Appends
from statestore.kafka.wire.cluster import ClusterMap, Links
from statestore.kafka.wire.coordinators import PlainId
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings


class WirePlainWriter:
    """`output_log.LogWriter`; it keeps its producer id, whose numbers tell what came twice."""

    def __init__(self, settings: Settings, cluster: ClusterMap) -> None:
        """`cluster` is the caller's."""
        self._cluster = cluster
        self._links = Links(cluster)
        self._appends = Appends(cluster, self._links, AppendOptions.of(settings, None))
        self._is_open = False

    def append(self, records: Sequence[Records]) -> Mapping[TopicPartition, int]:
        """Append in order; after an error the next call has a new producer id."""
        deadline_s = monotonic() + self._cluster.timeout_s
        is_open, self._is_open = self._is_open, False
        if not is_open:
            self._appends.begin(PlainId.of(self._cluster))
        self._appends.ends.clear()
        for some in records:
            self._appends.add(some, tracked=True)
        self._appends.finish(deadline_s)
        self._is_open = True
        return dict(self._appends.ends)

    def close(self) -> None:
        """Close its connections."""
        self._links.close()

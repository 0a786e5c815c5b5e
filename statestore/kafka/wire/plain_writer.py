"""Appends a few records at a time outside of transactions, over our own connections."""

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
        self._is_settled = False
        """Whether all that was sent with the present producer id was acknowledged."""

    def begin(self) -> None:
        """Forget the ends of before; after an error there is a new producer id."""
        if not self._is_settled:
            self._appends.begin(PlainId.of(self._cluster))
        self._appends.ends.clear()

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records in order; see `ports.Outbox`."""
        self._is_settled = False
        self._appends.add(records, tracked=tracked)

    def flush(self) -> None:
        """Wait until every record sent is acknowledged; raise the first failure."""
        self._appends.finish(monotonic() + self._cluster.timeout_s)
        self._is_settled = True

    def ends(self) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each tracked partition since `begin`."""
        return dict(self._appends.ends)

    def close(self) -> None:
        """Close its connections."""
        self._links.close()

"""The clients of one application that speak Kafka's protocol themselves (`kafka.client = wire`)."""

from collections.abc import Sequence

from statestore.errors import BrokerTooOld, StateStoreError
from statestore.kafka.clients import tell_unused
from statestore.kafka.groups import Groups
from statestore.kafka.outbox import NumberOf
from statestore.kafka.wire import codec
from statestore.kafka.wire.appends import AppendOptions
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.outbox import WireOutbox
from statestore.kafka.wire.plain_writer import WirePlainWriter
from statestore.kafka.wire.security import Security
from statestore.kafka.wire.source import WireSource, not_taken
from statestore.model.ids import TopicPartition
from statestore.ports import Outbox, Source
from statestore.settings import Settings


class WireClient:
    """Makes the clients; they share what they know of the cluster."""

    def __init__(self, settings: Settings, groups: Groups) -> None:
        self._settings = settings
        self._groups = groups
        self._consumers = ClusterMap(settings, "consumer")
        self._producers = ClusterMap(settings, "producer")

    @classmethod
    def of(cls, settings: Settings, groups: Groups) -> "WireClient | None":
        """Return the client, or None where librdkafka has to do its work, and log why.

        InvalidSetting or Unavailable as for any client.
        """
        if why := _lacks(settings):
            tell_unused(why)
            return None
        made = cls(settings, groups)
        try:
            why = made._brokers_lack()
        except StateStoreError:
            made.close()
            raise
        if not why:
            return made
        made.close()
        tell_unused(why)
        return None

    def outbox(
        self,
        transactional_ids: Sequence[str],
        *,
        group_id: str | None,
        inputs: Sequence[TopicPartition],
        number_of: NumberOf,
        batch_bytes: int | None,
    ) -> Outbox:
        """Return an outbox with transactions; without a group it has no inputs."""
        return WireOutbox(
            self._settings,
            self._producers,
            transactional_ids=transactional_ids,
            group_id=group_id,
            inputs=inputs,
            number_of=number_of,
            batch_bytes=batch_bytes,
            groups=self._groups,
        )

    def source(self) -> Source:
        """Return the source of a stream task."""
        return WireSource(self._settings, self._consumers)

    def writer(self) -> WirePlainWriter:
        """Return what appends outside of transactions; the caller closes it."""
        return WirePlainWriter(self._settings, self._producers)

    def forget_topics(self) -> None:
        """Ask anew about all topics."""
        self._consumers.forget_topics()
        self._producers.forget_topics()

    def close(self) -> None:
        """Close the connections that its clients share."""
        self._consumers.close()
        self._producers.close()

    def _brokers_lack(self) -> str:
        """Return what this client needs and the brokers have not."""
        try:
            if self._producers.has_transactions():
                return ""
        except BrokerTooOld as too_old:
            return str(too_old)
        return "the cluster's feature transaction.version is below 2 (KIP-890)"


def _lacks(settings: Settings) -> str:
    """Return what librdkafka has and this client has not, as far as settings ask for it."""
    if not codec.available():
        return codec.unavailable_reason()
    unknown = [
        *Security.not_taken(settings.client_config("producer")),
        *AppendOptions.not_taken(settings),
        *not_taken(settings),
    ]
    return f"it does not know {', '.join(dict.fromkeys(unknown))}" if unknown else ""

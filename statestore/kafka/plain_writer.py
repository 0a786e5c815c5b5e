"""Appends a few records at a time outside of transactions, by librdkafka."""

from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException

from statestore.kafka.clients import Trouble
from statestore.kafka.error_codes import translated
from statestore.kafka.sender import Sender
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings


class PlainWriter:
    """`output_log.LogWriter`; worth keeping.

    A new client waits for half a second before its first record: it asks for a producer id before
    it is connected, and again after that time.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sender: Sender | None = None

    def append(self, records: Sequence[Records]) -> Mapping[TopicPartition, int]:
        """Append in order; after an error the next call has a new client."""
        sender, self._sender = self._sender or Sender(self._settings, {}, Trouble()), None
        sender.forget()
        try:
            for some in records:
                sender.send(some, each=sender.on_report, last=sender.on_tracked)
            sender.flush()
            sender.raise_failure()
        except KafkaException as failure:
            raise translated(failure, "write to a log of an output") from failure
        self._sender = sender
        return dict(sender.ends)

    def close(self) -> None:
        """Drop the client."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

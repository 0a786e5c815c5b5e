"""What an output of a batch program, such as Spark, needs of the brokers."""

from statestore.kafka.outbox import TransactionalOutbox
from statestore.kafka.output_log import KafkaOutputLog
from statestore.ports import Outbox, OutputLog
from statestore.settings import Settings


def output_log(settings: Settings, topic: str) -> OutputLog:
    """Return the log of an output, in that topic; close it."""
    return KafkaOutputLog(settings, topic)


def output_outbox(settings: Settings, transactional_id: str) -> Outbox:
    """Return an outbox for one transaction that has no input offsets; open and close it."""
    return TransactionalOutbox(settings, transactional_ids=[transactional_id], group_id=None)

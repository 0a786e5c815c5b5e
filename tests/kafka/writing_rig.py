"""An output of Spark's side driven without Spark: attempts of a driver, and copies of its tasks.

What came of it is read with a plain consumer of committed records.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from statestore.spark.writing import attempts
from statestore.spark.writing.attempts import EncodedChunk, PartOutcome, WriteAttempt
from statestore.spark.writing.encoding import Encoder
from statestore.spark.writing.markers import WritePart
from statestore.spark.writing.write_options import WritePlan, plan_of
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually

Rows = Sequence[str]
Division = Mapping[int, Rows]
"""The values of each Spark partition."""


def committed(servers: str, topic: str, *, isolation: str = "read_committed") -> list[Message]:
    """All records of a topic, in the order of each partition."""
    config = {
        "bootstrap.servers": servers,
        "group.id": "looking",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    found: list[Message] = []
    with closing(Consumer(config)) as consumer:
        places = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, place, 0) for place in places])
        ended: set[int | None] = set()

        def all_ended() -> bool:
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    found.append(message)
                else:
                    ended.add(message.partition())
            return len(ended) == len(places)

        eventually(all_ended, f"the end of {topic}")
    return found


def values_of(messages: Iterable[Message]) -> "Counter[str]":
    """How often each value is there."""
    return Counter((message.value() or b"").decode() for message in messages)


def batches_of(rows: Rows, size: int = 3) -> Iterator[pa.RecordBatch]:
    """Arrow batches with keys and values, as Spark gives them to a writer."""
    for start in range(0, len(rows), size):
        values = list(rows[start : start + size])
        keys = [value[:1] for value in values]
        yield pa.RecordBatch.from_pydict({"key": keys, "value": values})


@dataclass
class Sink:
    """An output named after a test, and its topic."""

    kafka: LocalKafka
    name: str
    options: dict[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> WritePlan:
        """What the options ask for."""
        given = {
            "kafka.bootstrap.servers": self.kafka.bootstrap_servers,
            "kafka.default.api.timeout.ms": "30000",
            "topic": self.name,
            "query": self.name,
        }
        return plan_of(given | self.options, streaming=False)

    def create(self, partitions: int = 2) -> "Sink":
        """Create its topic."""
        self.kafka.create_topic(self.name, partitions)
        return self

    def begin(self) -> WriteAttempt:
        """What the driver does first."""
        return attempts.begin(self.plan.output)

    def write(
        self,
        attempt: WriteAttempt,
        batch: int | None,
        partition: int,
        rows: Rows,
        *,
        stream: str | None = None,
        whole: bool = False,
    ) -> PartOutcome:
        """What a task does."""
        part = WritePart(self.name, attempt.name, batch, partition, stream)
        chunks = self.encoded(rows, partition)
        return attempts.write(attempt, part, chunks, hand_over=whole)

    def encoded(self, rows: Rows, partition: int = 0) -> Iterator[EncodedChunk]:
        """The rows as the writer of an outbox takes them."""
        return Encoder(self.plan, partition).chunks(batches_of(rows))

    def finish(self, outcomes: Sequence[PartOutcome], *, whole: bool = False) -> None:
        """What the driver does last."""
        attempts.finish(self.plan.output, outcomes, whole=whole)

    def save(self, batch: int | None, division: Division, *, whole: bool = False) -> None:
        """A whole attempt, in which nothing goes wrong."""
        begun = self.begin()
        outcomes = [
            self.write(begun, batch, place, rows, whole=whole) for place, rows in division.items()
        ]
        self.finish(outcomes, whole=whole)

    def read(self) -> "Counter[str]":
        """How often each value is in the topic."""
        return values_of(committed(self.kafka.bootstrap_servers, self.name))

"""The Python Data Source `transactional_kafka`: rows of DataFrames into Kafka, exactly once.

    spark.dataSource.register(TransactionalKafka)
    df.write.format("transactional_kafka").mode("append")
        .option("kafka.bootstrap.servers", …).option("topic", …).option("query", …).save()
    df.writeStream.format("transactional_kafka").option(…).start()

Columns and options are those of Spark's own sink for Kafka, and ours: query, atomic, batchId,
firstBatch, markerTopic; and keySerde, valueSerde, keySchema, valueSchema, schema_registry for what
columns become (docs/guides/spark-sink.md). Spark's workers run it.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from statestore.errors import Misuse
from statestore.faults import arm_from_environment
from statestore.spark.writing.attempts import (
    PartOutcome,
    WriteAttempt,
    begin,
    finish,
    one_batch,
    write,
)
from statestore.spark.writing.checkpoints import NO_BATCHES
from statestore.spark.writing.encoding import Encoder, check_columns, settle_schemas
from statestore.spark.writing.markers import WritePart
from statestore.spark.writing.write_options import NAME, Atomic, WritePlan, plan_of

# Local properties of Spark's, which its tasks see.
_BATCH: Final = "streaming.sql.batchId"
_STREAM: Final = "sql.streaming.queryId"


class TransactionalKafka(DataSource):
    """The Data Source of this module; Misuse names an option or a column that is wrong."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """A writer of one batch."""
        if overwrite:
            raise Misuse(f'{NAME}: a topic cannot be overwritten: use mode("append")')
        return BatchWriter(_checked(self.options, schema, streaming=False), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> DataSourceStreamWriter:
        """A writer of the batches of a stream."""
        if overwrite:
            raise Misuse(f'{NAME}: a topic has no older results: use outputMode("append")')
        return StreamWriter(_checked(self.options, schema, streaming=True), schema)


class Written(WriterCommitMessage):
    """What a task did, told to the driver."""

    def __init__(self, outcome: PartOutcome) -> None:
        self.outcome = outcome


class _Writing:
    """What the writers of batches and of streams share.

    Spark makes a writer on the driver for each batch, and pickles it for the tasks. The attempt
    begins then, and not when the writer is made: of a stream Spark makes a second one, to commit.
    """

    def __init__(self, plan: WritePlan, schema: StructType) -> None:
        self.plan = plan
        self._schema = schema
        self._attempt: WriteAttempt | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._attempt is None:
            arm_from_environment()
            if self.plan.checkpoint is not None:
                output = self.plan.output
                self.plan.checkpoint.require_batch()
                self.plan.checkpoint.require_output(
                    output.query, output.marker_topic, self.plan.first_batch
                )
            attempt = begin(self.plan.output)
            settle_schemas(self.plan, self._schema)
            # Whoever asks again after a refusal is refused again.
            self._attempt = attempt
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write, compare or hand over the rows of one Spark partition."""
        arm_from_environment()
        assert self._attempt is not None, "Spark unpickles writers"
        context = TaskContext.get()
        assert context is not None, "a writer writes in a Spark task"
        partition = context.partitionId()
        batch = self._batch(context.getLocalProperty(_BATCH))
        stream = context.getLocalProperty(_STREAM)
        part = WritePart(self.plan.output.query, self._attempt.name, batch, partition, stream)
        chunks = Encoder(self.plan, partition).chunks(iterator)
        whole = self.plan.atomic is Atomic.BATCH
        return Written(write(self._attempt, part, chunks, hand_over=whole))

    def _batch(self, _of_stream: str | None) -> int | None:
        return self.plan.batch

    def _finish(self, messages: list[WriterCommitMessage | None], batch: int | None) -> None:
        arm_from_environment()
        outcomes = [one.outcome for one in messages if isinstance(one, Written)]
        assert len(outcomes) == len(messages), "Spark commits only if all tasks have ended"
        if outcomes:
            one_batch(outcomes, batch)
            finish(self.plan.output, outcomes, whole=self.plan.atomic is Atomic.BATCH)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Finish the batch."""
        self._finish(messages, self.plan.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: what is written stays, and the next attempt at the batch finds it."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes the batches of a stream, one after the other."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Finish the batch."""
        if None in messages:
            # Spark only logs what is raised here, and lets the tasks wait for ever.
            raise Misuse(NO_BATCHES)
        self._finish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: what is written stays, and the next attempt at the batch finds it."""

    def _batch(self, of_stream: str | None) -> int | None:
        if of_stream is None:
            raise Misuse(
                f"{NAME}: Spark does not tell its tasks the number of the batch "
                f"({_BATCH}): use foreachBatch with statestore.spark.kafka_batches"
            )
        assert self._attempt is not None, "a batch has begun"
        batch = int(of_stream)
        self._attempt.require_begun(batch, self.plan.first_batch)
        return batch


def kafka_batches(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that writes each batch to Kafka exactly once.

    `options` are those of the format `transactional_kafka` without batchId. With atomic = batch one
    Spark task writes all rows of a batch in one transaction, so nothing goes through the driver.
    """
    given = {name: str(value) for name, value in options.items()}
    whole = plan_of(given, streaming=False).atomic is Atomic.BATCH
    others = {name: text for name, text in given.items() if name.lower() != "atomic"}

    def write_batch(rows: DataFrame, batch: int) -> None:
        rows.sparkSession.dataSource.register(TransactionalKafka)
        rows = rows.coalesce(1) if whole else rows
        writing = rows.write.format(NAME).mode("append").options(**others)
        writing.option("batchId", str(batch)).save()

    return write_batch


def _checked(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> WritePlan:
    plan = plan_of(options, streaming=streaming)
    check_columns(plan, schema)
    return plan

"""The Python Data Source `transactional_store`: rows of stores as DataFrames, in Arrow batches.

    spark.dataSource.register(TransactionalStore)
    spark.read.format("transactional_store").option("state_dir", D).option("application_id", A)
        .option("store", S).load()

Options are the flags of the command line in snake case (INTERFACE rule 13): state_dir,
application_id, config, bootstrap_servers, target; store, partition, export, as_of, from_time,
to_time, raw, typed, columns, pipeline, schema_registry, splits, rows_per_split; from_time and
to_time, inclusive, give the versions valid in between; `changelog` = true reads the store's log,
folded, instead of the store. Columns:

    stream_task, partition, key, value                         of every store
    valid_from, valid_to                                       with history; valid_to null: latest
    window_start, window_end                                   of windows; of sessions the times
                                                               of the first and the last record

A query sees each store as of its last commit, whether or not a run is on: each Spark partition
takes a snapshot of its stream task. Big partitions are split by their rows, and all splits of one
are of one snapshot: splits = how many, or rows_per_split = of about how many rows.

The serdes that the deployed topology describes decode keys and values, or with pipeline =
module:function those of the pipeline, which the workers import, too. schema_registry = the URL of a
registry decodes what its serdes of Avro and JSON Schema wrote. Values with fields become
structs, as the serde's type or its recorded schema says. What has no type (JSON, MSGPACK, serdes of
your own) becomes JSON text, and with typed = false so does all that has fields. raw = true gives
bytes. columns = key,value leaves out the others: what is left out is not decoded. Times are of the
type TIMESTAMP.

`read_store` reads with a format whose name says what is read, because `explain()` shows of the
options of a Data Source in Python nothing, and its name is all that it may say.
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statestore.errors import Misuse
from statestore.spark.audit_source import AuditReader, audit_schema
from statestore.spark.reading.change_reader import ChangeReader
from statestore.spark.reading.read_options import NAME, plan_of, stream_plan_of
from statestore.spark.reading.store_reader import reader_of

# What `explain()` is to show, in this order: it tells which rows are read, and nothing secret.
_SHOWN: Final = (
    *("application_id", "partition", "as_of", "from_time", "to_time", "export", "changelog"),
    *("columns", "raw", "typed", "splits", "rows_per_split"),
)


class TransactionalStore(DataSource):
    """The Data Source of this module; Misuse names an option that is wrong."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return NAME

    def schema(self) -> StructType:
        """The columns that the store's kind and serdes give."""
        if "audit" in self.options:
            return from_arrow_schema(audit_schema(self.options["audit"]))
        options = dict(self.options)
        # Spark does not tell whether it reads a stream.
        plan = stream_plan_of(options) if "changes" in self.options else plan_of(options)
        return from_arrow_schema(plan.schema())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """A reader of the store's changes."""
        return ChangeReader(stream_plan_of(dict(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  # ours comes back
        """A reader with a Spark partition for each split of each partition of the store."""
        if "audit" in self.options:
            return AuditReader(dict(self.options))
        if "changes" in self.options:
            raise Misuse(
                f"{NAME}: changes are a stream: use spark.readStream, or leave changes out"
            )
        return reader_of(plan_of(dict(self.options)))


def read_store(spark: SparkSession, **options: object) -> DataFrame:
    """Return the rows of a store, with the options of the format `transactional_store`.

    `explain()` shows those that say what is read, as of which time, in the name of the scan.
    """
    given = {
        name.lower(): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
    shown = "".join(f" {name}={given[name]}" for name in _SHOWN if name in given)
    title = f"{NAME} {given.get('store', '')}{shown}"

    class Titled(TransactionalStore):
        @classmethod
        def name(cls) -> str:
            return title

    spark.dataSource.register(Titled)
    return spark.read.format(title).options(**given).load()

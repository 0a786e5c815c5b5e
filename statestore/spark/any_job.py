"""What every run on Spark does, once and without an application: for `statestore spark-classes`."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from statestore.spark.session import spark_session


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter(batches)


def main() -> None:
    """Start a session and pass rows through Python's workers, as the waves of a run do."""
    spark = spark_session("statestore spark-classes")
    for _ in range(2):
        spark.createDataFrame([(1, "a"), (2, "b")], "n long, text string").mapInArrow(
            _same, "n long, text string"
        ).collect()
    spark.stop()


if __name__ == "__main__":
    main()

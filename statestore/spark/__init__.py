"""statestore on Spark, of the extra `spark`; an audit needs the extra `gx`, too.

    from statestore.spark import process, export, audit, drill, session
    from statestore.spark import TransactionalKafka, TransactionalStore, kafka_batches, read_store

`process`, `export`, `audit` and `drill` are the jobs: each has a `main()`, and spark-submit takes
the path of its file. `session.spark_session()` makes a SparkSession as these jobs need it.
`TransactionalStore` and `TransactionalKafka` are Data Sources, which read stores and write to
topics: pass them to `spark.dataSource.register`. `read_store` reads a store such that `explain()`
shows what is read. `kafka_batches` is for `foreachBatch`.

Each Spark worker imports this package, so the package imports neither PySpark nor any of these
modules: what is no module is loaded when it is first used (PEP 562).
"""

from typing import Any

__all__ = [
    "TransactionalKafka",
    "TransactionalStore",
    "audit",
    "drill",
    "export",
    "kafka_batches",
    "process",
    "read_store",
    "session",
]


def __getattr__(name: str) -> Any:
    if name in {"TransactionalStore", "read_store"}:
        from statestore.spark import datasource

        return getattr(datasource, name)
    if name in {"TransactionalKafka", "kafka_batches"}:
        from statestore.spark.writing import kafka_sink

        return getattr(kafka_sink, name)
    raise AttributeError(f"module 'statestore.spark' has no attribute {name!r}")

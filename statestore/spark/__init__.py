"""statestore on Spark, of the extra `spark`; an audit needs the extra `gx`, too.

    from statestore.spark import process, export, audit, drill, session, TransactionalStore

`process`, `export`, `audit` and `drill` are the jobs: each has a `main()`, and spark-submit takes
the path of its file. `session.spark_session()` makes a SparkSession as these jobs need it.
`TransactionalStore` is the Data Source: pass it to `spark.dataSource.register`.

Each Spark worker imports this package, so the package imports neither PySpark nor any of these
modules: `TransactionalStore` is loaded when it is first used (PEP 562).
"""

from typing import Any

__all__ = ["TransactionalStore", "audit", "drill", "export", "process", "session"]


def __getattr__(name: str) -> Any:
    if name == "TransactionalStore":
        from statestore.spark.datasource import TransactionalStore

        return TransactionalStore
    raise AttributeError(f"module 'statestore.spark' has no attribute {name!r}")

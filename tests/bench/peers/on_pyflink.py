"""The three jobs in PyFlink, exactly once: functions in Python for each record, on Flink's state.

Flink's SQL reads and writes the topics, and parses JSON.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Row, Types
from pyflink.datastream import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from pyflink.table import StreamTableEnvironment

from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Job
from tests.bench.peers.told import Told, told

_RESULT = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.STRING()])
_SETTINGS = {
    "parallelism.default": "2",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
}
_READ = """CREATE TABLE {name} (k STRING, {columns}) WITH ('connector' = 'kafka',
  'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'properties.group.id' = '{group}', 'properties.isolation.level' = 'read_committed',
  'scan.startup.mode' = 'earliest-offset', 'key.format' = 'raw', 'key.fields' = 'k',
  'value.format' = '{form}', 'value.fields-include' = 'EXCEPT_KEY')"""
_WRITE = """CREATE TABLE results (k STRING, n STRING) WITH ('connector' = 'kafka',
  'topic' = '{topic}', 'properties.bootstrap.servers' = '{servers}',
  'properties.transaction.timeout.ms' = '600000',
  'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{group}',
  'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw',
  'value.fields-include' = 'EXCEPT_KEY')"""


class Step(KeyedProcessFunction):  # type: ignore[misc]  # its package is not here, but where it runs
    """One get, one put, one row out for each record."""

    def __init__(self, job: Job) -> None:
        self._counts = job is Job.COUNT

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the state."""
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> Iterator[Row]:
        """The next result of a key."""
        total = (self._total.value() or 0) + (1 if self._counts else len(value[1]))
        self._total.update(total)
        yield Row(ctx.get_current_key(), str(total))


class Sum(KeyedCoProcessFunction):  # type: ignore[misc]
    """Orders with the row of their key, summed by minute."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the state."""
        self._row = runtime_context.get_state(ValueStateDescriptor("row", Types.STRING()))
        self._early = runtime_context.get_list_state(
            ListStateDescriptor("early", Types.TUPLE([Types.INT(), Types.LONG()]))
        )
        self._sums = runtime_context.get_map_state(
            MapStateDescriptor("sums", Types.LONG(), Types.LONG())
        )

    def process_element1(self, value: Row, ctx: Any) -> Iterator[Row]:
        """An order."""
        if self._row.value() is None:
            self._early.add((value[1], value[2]))
        else:
            yield self._added(ctx.get_current_key(), value[1], value[2])

    def process_element2(self, value: Row, ctx: Any) -> Iterator[Row]:
        """A row of the table."""
        self._row.update(value[1])
        for amount, at in self._early.get():
            yield self._added(ctx.get_current_key(), amount, at)
        self._early.clear()

    def _added(self, key: str, amount: int, at: int) -> Row:
        minute = at - at % MINUTE_MS
        total = (self._sums.get(minute) or 0) + amount
        self._sums.put(minute, total)
        return Row(f"{key}@{minute}", str(total))


def main() -> None:
    """Run until it is killed."""
    order = told()
    settings = Configuration()
    for key, value in _SETTINGS.items():
        settings.set_string(key, value)
    checkpoints = Path(order.folder).as_uri() + "/checkpoints"
    settings.set_string("execution.checkpointing.dir", checkpoints)
    settings.set_string("pipeline.jars", ";".join(Path(jar).as_uri() for jar in order.jars))
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    tables = StreamTableEnvironment.create(environment)
    results = results_of(tables, order)
    tables.execute_sql(_WRITE.format(topic=order.output, servers=order.servers, group=order.name))
    tables.from_data_stream(results).execute_insert("results").wait()


def results_of(tables: StreamTableEnvironment, order: Told) -> Any:
    """A stream of key and result."""

    def stream(name: str, topic: str, columns: str, form: str) -> Any:
        told_of = {"name": name, "topic": topic, "columns": columns, "form": form}
        tables.execute_sql(_READ.format(**told_of, servers=order.servers, group=order.name))
        return tables.to_data_stream(tables.from_path(name))

    def key(row: Row) -> Any:
        return row[0]

    if order.job is Job.JSON:
        orders = stream("orders", order.input, "amount INT, `at` BIGINT", "json")
        rows = stream("customers", order.table, "country STRING", "json")
        large = orders.filter(lambda it: it[1] >= AMOUNT_LEAST)
        keyed = large.key_by(key, Types.STRING()).connect(rows.key_by(key, Types.STRING()))
        return keyed.process(Sum(), _RESULT)
    records = stream("records", order.input, "v BYTES", "raw")
    return records.key_by(key, Types.STRING()).process(Step(order.job), _RESULT)


if __name__ == "__main__":
    main()

"""The three jobs in Bytewax: state in snapshots, results at least once."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.connectors.kafka import KafkaSinkMessage, KafkaSource, KafkaSourceMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow, Stream
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main

from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Job
from tests.bench.peers.told import Told, told

_WORKERS = 2
_SNAPSHOT = timedelta(seconds=1)


def count(number: int | None, _value: bytes) -> tuple[int, int]:
    found = (number or 0) + 1
    return found, found


def total(sum_of: int | None, value: bytes) -> tuple[int, int]:
    found = (sum_of or 0) + len(value)
    return found, found


class Joined:
    """The row of a key, and what came before it."""

    def __init__(self) -> None:
        self.row: dict[str, Any] | None = None
        self.early: list[dict[str, Any]] = []


def join(
    state: Joined | None, one: tuple[bool, dict[str, Any]]
) -> tuple[Joined, list[dict[str, Any]]]:
    """Orders with the row of their key."""
    state = state or Joined()
    is_row, value = one
    if not is_row and state.row is None:
        state.early.append(value)
        return state, []
    if not is_row and state.row is not None:
        return state, [{**value, "country": state.row["country"]}]
    state.row = value
    found = [{**order, "country": value["country"]} for order in state.early]
    state.early.clear()
    return state, found


def add(sum_of: int | None, order: dict[str, Any]) -> tuple[int, int]:
    found = (sum_of or 0) + order["amount"]
    return found, found


def summed(orders: Stream[Any], rows: Stream[Any]) -> Stream[Any]:
    """Sums of large orders by key and minute."""

    def as_large_order(message: KafkaSourceMessage) -> Any:
        order = orjson.loads(message.value)
        return (message.key.decode(), (False, order)) if order["amount"] >= AMOUNT_LEAST else None

    def as_row(message: KafkaSourceMessage) -> Any:
        return message.key.decode(), (True, orjson.loads(message.value))

    def by_minute(keyed: Any) -> Any:
        key, order = keyed
        return f"{key}@{order['at'] - order['at'] % MINUTE_MS}", order

    large = op.filter_map("large", orders, as_large_order)
    both = op.merge("both", large, op.map("rows", rows, as_row))
    joined = op.stateful_flat_map("join", both, join)
    return op.stateful_map("sum", op.map("by-minute", joined, by_minute), add)


def flow_of(order: Told) -> Dataflow:
    """The job as a dataflow."""
    flow = Dataflow(order.job)
    servers = [order.servers]

    def read(step: str, topic: str) -> Stream[Any]:
        settings = {"isolation.level": "read_committed"}
        return op.input(step, flow, KafkaSource(servers, [topic], add_config=settings))

    records = read("records", order.input)
    if order.job is Job.JSON:
        found = summed(records, read("table", order.table))
    else:
        step: Callable[..., Any] = count if order.job is Job.COUNT else total
        keyed = op.map("keyed", records, lambda message: (message.key.decode(), message.value))
        found = op.stateful_map("step", keyed, step)
    results = op.map("result", found, lambda it: KafkaSinkMessage(it[0].encode(), b"%d" % it[1]))
    kop.output("out", results, brokers=servers, topic=order.output)
    return flow


def main() -> None:
    """Run until it is killed."""
    order = told()
    folder = Path(order.folder) / "snapshots"
    folder.mkdir()
    init_db_dir(folder, _WORKERS)
    cli_main(
        flow_of(order),
        workers_per_process=_WORKERS,
        epoch_interval=_SNAPSHOT,
        recovery_config=RecoveryConfig(str(folder)),
    )


if __name__ == "__main__":
    main()

"""The three jobs in Pathway, with persistence in files."""

from typing import Any

import pathway as pw

from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Job
from tests.bench.peers.told import Told, told

_COMMIT_MS = 100
_PERSIST_MS = 1000


class OrderSchema(pw.Schema):  # type: ignore[misc]  # its package is not here, but where it runs
    """What the JSON job reads of an order."""

    customer: str
    amount: int
    at: int


class RowSchema(pw.Schema):  # type: ignore[misc]
    """A row of the table."""

    customer: str = pw.column_definition(primary_key=True)
    country: str


@pw.reducers.stateful_many  # type: ignore[untyped-decorator]
def total(state: int | None, batch: list[tuple[list[Any], int]]) -> int:
    """Called for the records of a key that came together: a get and a put."""
    return (state or 0) + sum(len(row[0]) for row, _ in batch)


def results(order: Told) -> Any:
    """A table of key and result, both bytes."""
    settings = {
        "bootstrap.servers": order.servers,
        "group.id": order.name,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }

    def read(topic: str, **more: Any) -> Any:
        return pw.io.kafka.read(settings, topic, autocommit_duration_ms=_COMMIT_MS, **more)

    if order.job is Job.JSON:
        orders = read(order.input, format="json", schema=OrderSchema, name="orders")
        rows = read(order.table, format="json", schema=RowSchema, name="rows")
        large = orders.filter(orders.amount >= AMOUNT_LEAST)
        joined = large.join(rows, large.customer == rows.customer).select(
            large.customer,
            large.amount,
            rows.country,
            minute=large.at - large.at % MINUTE_MS,
        )
        summed = joined.groupby(joined.customer, joined.minute).reduce(
            joined.customer, joined.minute, result=pw.reducers.sum(joined.amount)
        )
        return summed.select(
            key=summed.customer + "@" + summed.minute.to_string(),
            result=summed.result.to_string(),
        )
    records = read(order.input, format="raw", autogenerate_key=True)
    reducer = pw.reducers.count() if order.job is Job.COUNT else total(records.data)
    found = records.groupby(records.key).reduce(records.key, result=reducer)
    return found.select(
        key=pw.apply_with_type(bytes.decode, str, found.key), result=found.result.to_string()
    )


def main() -> None:
    """Run until it is killed."""
    order = told()
    found = results(order)
    pw.io.kafka.write(
        found,
        {"bootstrap.servers": order.servers},
        order.output,
        format="plaintext",
        key=found.key,
        value=found.result,
    )
    backend = pw.persistence.Backend.filesystem(f"{order.folder}/persisted")
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(backend, snapshot_interval_ms=_PERSIST_MS),
    )


if __name__ == "__main__":
    main()

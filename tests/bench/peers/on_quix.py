"""The three jobs in Quix Streams, exactly once."""

from typing import Any

from quixstreams import Application, State
from quixstreams.dataframe.windows import Sum
from quixstreams.models.serializers import Serializer

from tests.bench.peers.jobs import AMOUNT_LEAST, MINUTE_MS, Job
from tests.bench.peers.told import told

_HOUR_MS = 3_600_000


class SecondAsText(Serializer):  # type: ignore[misc]  # its package is not here, but where it runs
    """Of a pair of key and result, the result."""

    def __call__(self, value: Any, ctx: Any) -> bytes:  # its name there
        """The bytes of the result."""
        return b"%d" % value[1]


def count(_value: bytes, state: State) -> int:
    number: int = state.get("count", 0) + 1
    state.set("count", number)
    return number


def total(value: bytes, state: State) -> int:
    found: int = state.get("total", 0) + len(value)
    state.set("total", found)
    return found


def by_minute(result: dict[str, int], key: bytes, _time: int, _headers: Any) -> tuple[bytes, int]:
    """A result of a window, under the name of key and minute."""
    return b"%b@%d" % (key, result["start"]), result["value"]


def main() -> None:
    """Run until it is killed."""
    order = told()
    app = Application(
        order.servers,
        consumer_group=order.name,
        auto_offset_reset="earliest",
        state_dir=order.folder,
        processing_guarantee="exactly-once",
        commit_interval=1.0,
        producer_extra_config={"transactional.id": order.name},
        loglevel="WARNING",
    )
    if order.job is Job.JSON:
        output = app.topic(order.output, value_serializer=SecondAsText())
        orders = app.dataframe(app.topic(order.input, value_deserializer="json"))
        rows = app.dataframe(app.topic(order.table, value_deserializer="json"))
        large = orders[orders["amount"] >= AMOUNT_LEAST]
        joined = large.join_asof(rows, how="inner", on_merge="keep-left")
        summed = joined.tumbling_window(MINUTE_MS, grace_ms=_HOUR_MS).agg(value=Sum("amount"))
        pairs = summed.current().apply(by_minute, metadata=True)
        pairs.to_topic(output, key=lambda pair: pair[0])
    else:
        output = app.topic(order.output, value_serializer="str")
        records = app.dataframe(app.topic(order.input, value_deserializer="bytes"))
        step = count if order.job is Job.COUNT else total
        records.apply(step, stateful=True).apply(str).to_topic(output)
    app.run()


if __name__ == "__main__":
    main()

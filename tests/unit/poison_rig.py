"""Topologies that meet poison records in TopologyTestDriver, and what is left of those."""

from collections.abc import Callable, Iterable
from typing import Any

from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.stores.specs import persistent_key_value_store
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.dsl.streams import KStream
from statestore.topology.graph import Topology
from statestore.topology.processors.user_processors import ProcessorContext
from statestore.topology.windows.hopping import TumblingWindows

POISON = "poison"
STAGES = ("deserialization", "processing", "production")
SEEN = persistent_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.STRING)
BAD_TEXT = b"\xff\xfe"


def settings(handler: str, guarantee: str = "exactly_once") -> dict[str, object]:
    return {
        "processing.guarantee": guarantee,
        "errors.dead.letter.queue.topic.name": "dead",
        **{f"{stage}.exception.handler": handler for stage in STAGES},
    }


def texts() -> StreamsBuilder:
    return StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def refuse(*row: Any) -> None:
    if row[-1] == POISON:
        raise ValueError(f"no {POISON} here")


def value_of(*row: Any) -> Any:
    refuse(*row)
    return row[-1]


def column_of(values: Any) -> Any:
    """A column, unless it has a poison value."""
    for value in values.to_pylist():
        refuse(value)
    return values


def pair_of(key: Any, value: Any) -> tuple[Any, Any]:
    refuse(value)
    return key, value


class Picky:
    """Writes to its store before it looks, and forwards as many records."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context
        self.store = context.store(SEEN)
        self.held: list[Any] = []

    def process(self, record: Record[Any, Any]) -> None:
        self.store.put(record.key or "?", str(record.value))
        self.held.append(record.value)
        self.context.forward(record.replace(value=f"{len(self.held)} {record.value}"))
        refuse(record.value)

    def process_batch(self, records: Iterable[Record[Any, Any]]) -> None:
        for record in records:
            self.process(record)


def sunk(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    stream.to("out")
    return stream


def counted_too(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    """A count, whose store and output must know nothing of what a later branch cannot take."""
    stream.group_by_key().count("counts").to_stream().to("counted")
    return stream


OPERATORS: dict[str, Callable[[KStream[Any, Any], StreamsBuilder], KStream[Any, Any]]] = {
    "filter": lambda s, _b: s.filter(lambda k, v: bool(pair_of(k, v))),
    "map": lambda s, _b: s.map(pair_of),
    "map_values": lambda s, _b: s.map_values(value_of),
    "map_values_arrow": lambda s, _b: s.map_values_arrow(column_of),
    "filter_arrow": lambda s, _b: s.filter_arrow(lambda v: column_of(v).is_valid()),
    "flat_map": lambda s, _b: s.flat_map(lambda k, v: [pair_of(k, v)]),
    "flat_map_values": lambda s, _b: s.flat_map_values(lambda v: [value_of(v)]),
    "select_key": lambda s, _b: s.select_key(lambda k, v: pair_of(k, v)[0]),
    "filter_not": lambda s, _b: s.filter_not(lambda k, v: not pair_of(k, v)),
    "filter_records": lambda s, _b: s.filter_records(lambda r: bool(pair_of(r.key, r.value))),
    "set_timestamp": lambda s, _b: s.set_timestamp(
        lambda r: r.timestamp_ms + 0 * len(pair_of(r.key, r.value))
    ),
    "set_headers": lambda s, _b: s.set_headers(
        lambda r: [("n", pair_of(r.key, r.value)[1] and None)]
    ),
    "peek": lambda s, _b: s.peek(pair_of),
    "branch": lambda s, _b: s.branch(lambda k, v: bool(pair_of(k, v)))[0],
    "split": lambda s, _b: s.split({"a": lambda k, v: bool(pair_of(k, v))})["a"],
    "group_by": lambda s, _b: (
        s.group_by(lambda k, v: pair_of(k, v)[0])
        .reduce(lambda _old, new: new, "latest")
        .to_stream()
    ),
    "reduce": lambda s, _b: (
        s.group_by_key().reduce(lambda _old, v: value_of(v), "latest").to_stream()
    ),
    "aggregate": lambda s, _b: (
        s.group_by_key()
        .aggregate(lambda: "", lambda _k, v, _old: value_of(v), "latest")
        .to_stream()
    ),
    "cogroup": lambda s, b: (
        s.group_by_key()
        .cogroup(lambda _k, v, _old: value_of(v))
        .cogroup(b.stream("more").group_by_key(), lambda _k, v, _old: v)
        .aggregate(lambda: "", "latest")
        .to_stream()
    ),
    "left_join": lambda s, b: s.left_join(
        b.table("prices", materialized="prices"), lambda left, _right: value_of(left)
    ),
    "table filter": lambda s, _b: (
        s.to_table("latest").filter(lambda k, v: bool(pair_of(k, v))).to_stream()
    ),
    "table map_values": lambda s, _b: s.to_table("latest").map_values(value_of).to_stream(),
    "table left_join": lambda s, b: (
        s.to_table("latest")
        .left_join(b.table("prices", materialized="prices"), lambda left, _right: value_of(left))
        .to_stream()
    ),
    "table group_by": lambda s, _b: (
        s.to_table("rows")
        .group_by(pair_of)
        .reduce(lambda _old, new: new, lambda total, _old: total, "latest")
        .to_stream()
    ),
    "table left_join by a foreign key": lambda s, b: (
        s.to_table("rows")
        .left_join(
            b.table("prices", materialized="prices"),
            lambda left, _right: left,
            "latest",
            foreign_key=value_of,
        )
        .to_stream()
    ),
    "windowed aggregate": lambda s, _b: (
        s.group_by_key()
        .windowed_by(TumblingWindows(10))
        .aggregate(lambda: "", lambda _k, v, _old: value_of(v), "latest")
        .to_stream()
    ),
    "after windowed reduce": lambda s, _b: (
        s.group_by_key()
        .windowed_by(TumblingWindows(10))
        .reduce(lambda _old, new: new, "latest")
        .to_stream()
        .map_values(value_of)
    ),
    "process": lambda s, _b: s.process(Picky, SEEN),
    "process_batch": lambda s, _b: s.process_batch(Picky, SEEN),
    "after process": lambda s, _b: s.process(Picky, SEEN).map_values(value_of),
    "after aggregate": lambda s, _b: (
        s.group_by_key()
        .aggregate(lambda: "", lambda _k, v, _old: v, "latest")
        .to_stream()
        .map_values(value_of)
    ),
}


def topology(operator: str) -> Topology:
    b = texts()
    sunk(OPERATORS[operator](counted_too(b.stream("in")), b))
    return b.build()


def good_and_bad(poison: Iterable[int], count: int = 40) -> list[Record[Any, Any]]:
    """Records with keys of their own; the reduce needs a first value for each."""
    bad = set(poison)
    return [
        Record(f"k{i % 20}", POISON if i in bad else f"v{i}", i, (("trace", b"%d" % i),))
        for i in range(count)
    ]


def letters(driver: TopologyTestDriver) -> dict[int, tuple[bytes, bytes, dict[str, bytes]]]:
    """Input offset to key, value and headers of each dead letter."""
    found = {}
    for record in driver.read("dead"):
        headers = {name: value or b"" for name, value in record.headers}
        offset = int(headers["__streams.errors.offset"])
        assert offset not in found, "one dead letter each"
        found[offset] = (record.key, record.value, headers)
    return found


def last_of(records: Iterable[Record[Any, Any]]) -> dict[Any, Any]:
    """The last value per key, without what Picky puts before it."""
    return {r.key: r.value.split()[-1] if isinstance(r.value, str) else r.value for r in records}


def stored(driver: TopologyTestDriver) -> list[Any]:
    """The values of every store."""
    return [value for name in driver._topology.stores for _, value in driver.store(name).all()]


def dropped(driver: TopologyTestDriver) -> int:
    return sum(task.report.dropped_records for task in driver._tasks.values())


GUARANTEES = ["exactly_once", "at_least_once"]


def plain(stream: KStream[Any, Any]) -> None:
    """Reads and writes texts, and decodes both sides on the way."""
    stream.filter(lambda _k, _v: True).to("out")


def poisonous(driver: TopologyTestDriver) -> None:
    piped(driver, b"k", POISON.encode())


def piped(driver: TopologyTestDriver, key: bytes | None, value: bytes | None) -> None:
    """A record as somebody else's producer writes it, between two good ones."""
    b_tp = TopicPartition("in", 0)
    for k, v in ((b"a", b"1"), (key, value), (b"z", b"2")):
        driver._broker.produce(b_tp, Record(k, v, 7, (("trace", b"here"),)))
    driver._drain()

"""The headers of what comes out (SEMANTICS T6); random programs check it for all operators."""

from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.testing.driver import TopologyTestDriver

Stream = ss.KStream[Any, Any]
Records = list[tuple[str, str, int, str]]


class Forwarding:
    """Forwards each record, and one with headers of its own."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context

    def process(self, record: ss.Record[str, str]) -> None:
        self._context.forward(record)
        self._context.forward(record.replace(headers=(("n", b"own"),)))


def grouped(stream: Stream) -> ss.KGroupedStream[Any, Any]:
    return stream.group_by_key(name="by")


def kept(store: str) -> ss.Materialized[Any, Any]:
    return ss.Materialized(store)


WINDOWS = ss.TumblingWindows(10)
MEET = ss.JoinWindows(5, 5)
THREE: Records = [("a", "1", 0, "x"), ("b", "2", 1, "y"), ("a", "3", 50, "z")]
CASES: dict[str, tuple[Callable[[Stream, Stream], Stream], str]] = {
    "map": (lambda s, _: s.map(lambda k, v: (k, v)), "x y z"),
    "flat_map": (lambda s, _: s.flat_map(lambda k, v: [(k, v), (v, k)]), "x x y y z z"),
    "filter": (lambda s, _: s.filter(lambda k, _v: k == "a"), "x z"),
    "repartition": (lambda s, _: s.select_key(lambda _k, v: v).repartition("r"), "x y z"),
    "merge": (lambda s, o: s.merge(o), "x y z"),
    "process": (lambda s, _: s.process(Forwarding, name="p"), "x own y own z own"),
    "table": (lambda s, _: s.to_table("t").map_values(str).to_stream(), "x y z"),
    "last of a key": (lambda s, _: grouped(s).count("n").to_stream(), "y z"),
    "reduce": (
        lambda s, _: grouped(s).reduce(lambda a, b: a + b, kept("n")).to_stream(),
        "y z",
    ),
    "closed window": (
        lambda s, _: (
            grouped(s)
            .windowed_by(WINDOWS, emit="on_window_close")
            .count("n")
            .to_stream()
            .map(lambda k, v: (k.key, v))
        ),
        "z z",
    ),
    "session": (
        lambda s, _: (
            grouped(s)
            .windowed_by(ss.SessionWindows(5))
            .count("n")
            .to_stream()
            .map(lambda k, v: (k.key, v))
        ),
        "x y z",
    ),
    "regrouped": (
        lambda s, _: (
            s.to_table("t")
            .group_by(lambda _k, _v: ("all", "1"), name="g")
            .count(ss.Materialized("n", caching=False))
            .to_stream()
        ),
        "x y z",
    ),
    "unmatched": (
        lambda s, o: s.left_join(o, lambda a, b: f"{a}{b}", MEET, name="j"),
        "z z",
    ),
    "matched": (
        lambda s, _: s.join(s, lambda a, b: f"{a}{b}", MEET, name="j"),
        "x y z",
    ),
    "waiting for a table": (
        lambda s, o: s.left_join(
            o.to_table(ss.Materialized("t", history_retention=100)),
            lambda a, b: f"{a}{b}",
            grace=5,
            name="j",
        ),
        "x y",
    ),
    "suppressed": (
        lambda s, _: (
            grouped(s)
            .count(ss.Materialized("n", caching=False))
            .suppress(ss.Suppressed.until_time_limit(5), name="later")
            .to_stream()
        ),
        "z y",
    ),
    "foreign key": (
        lambda s, o: (
            s.to_table("l")
            .left_join(
                o.to_table("r"),
                lambda a, b: f"{a}{b}",
                foreign_key=lambda value: value,
                name="j",
            )
            .to_stream()
        ),
        "z y",
    ),
    "table join": (
        lambda s, _: s.left_join(s.to_table("t"), lambda a, b: f"{a}{b}", name="j"),
        "x y z",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_record_has_the_headers_of_what_brought_it_out(name: str) -> None:
    write, expected = CASES[name]
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    write(builder.stream("in"), builder.stream("other")).to("out", value_serde=serdes.JSON)
    with TopologyTestDriver(builder.build()) as driver:
        records = [ss.Record(k, v, time, (("n", n.encode()),)) for k, v, time, n in THREE]
        driver.pipe_all("in", records)
        found = [dict(record.headers)["n"] or b"" for record in driver.read("out")]
    assert b" ".join(found).decode() == expected


def test_a_record_without_headers_gets_none_from_others_of_its_batch() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    builder.stream("in").group_by_key().count("n").to_stream().to("out", value_serde=serdes.INT64)
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_all("in", [ss.Record("a", "", 0, (("n", b"x"),)), ss.Record("b", "", 0)])
        assert [(r.key, r.headers) for r in driver.read("out")] == [
            ("a", (("n", b"x"),)),
            ("b", ()),
        ]

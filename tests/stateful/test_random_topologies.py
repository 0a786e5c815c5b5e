"""Random small pipelines, in random batches and with crashes, against a naive interpreter."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.model import Record
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.builder import StreamsBuilder
from statestore.topology.graph import Topology
from statestore.topology.streams import KStream, KTable
from tests.stateful.naive_streams import GRACE, Fact, Naive, Step

Built = Callable[[KStream, KTable, str, int], KStream]


def every(store: str) -> ss.Materialized:
    return ss.Materialized(store, caching=False)


def plus(value: Any, number: int) -> Any:
    return None if value is None else value + number


def branched(stream: KStream, _right: KTable, _name: str, number: int) -> KStream:
    some, rest = stream.branch(lambda _key, value: value is not None and value % number == 0)
    return some.map_values(lambda value: value + 100).merge(rest)


def own_count(stream: KStream, _right: KTable, name: str, _number: int) -> KStream:
    alone = stream.repartition(f"{name}-again")
    counts = alone.group_by_key().count(every(name))
    return alone.join(counts, lambda value, count: value + count)


def table_joined(stream: KStream, right: KTable, name: str, _number: int) -> KStream:
    table = stream.to_table(every(name), name=f"{name}-by")
    return table.join(right, lambda a, b: a + b, name=f"{name}-join").to_stream()


def table_left_joined(stream: KStream, right: KTable, name: str, _number: int) -> KStream:
    table = stream.to_table(every(name), name=f"{name}-by")
    kept = every(f"{name}-kept")
    return table.left_join(right, lambda a, b: a + (b or 0), kept, name=f"{name}-join").to_stream()


def views(stream: KStream, _right: KTable, name: str, number: int) -> KStream:
    table = stream.to_table(every(name), name=f"{name}-by")
    return table.filter(lambda _k, v: v % number != 0).map_values(lambda v: v + 1).to_stream()


def windowed(emit: str) -> Built:
    def build(stream: KStream, _right: KTable, name: str, number: int) -> KStream:
        windows = ss.TumblingWindows(number, grace_ms=GRACE)
        counts = stream.group_by_key().windowed_by(windows, emit=emit).count(every(name))
        return counts.to_stream().select_key(lambda window, _n: f"{window.key}@{window.start_ms}")

    return build


STEPS: dict[str, Built] = {
    "filter": lambda s, _r, _n, m: s.filter(lambda _k, v: v is not None and v % m != 0),
    "map_values": lambda s, _r, _n, m: s.map_values(lambda v: plus(v, m)),
    "select_key": lambda s, _r, _n, m: s.select_key(
        lambda _k, v: None if v is None else f"k{v % m}"
    ),
    "flat_map_values": lambda s, _r, _n, m: s.flat_map_values(
        lambda v: [plus(v, n) for n in range(m)]
    ),
    "branch_and_merge": branched,
    "merge_with_itself": lambda s, _r, _n, m: s.merge(s.map_values(lambda v: plus(v, m))),
    "count": lambda s, _r, n, _m: s.group_by_key().count(every(n)).to_stream(),
    "reduce": lambda s, _r, n, _m: s.group_by_key().reduce(max, every(n)).to_stream(),
    "aggregate": lambda s, _r, n, m: (
        s.group_by_key()
        .aggregate(int, lambda _k, v, a: a + v if (a + v) % m else None, every(n))
        .to_stream()
    ),
    "table_views": views,
    "join": lambda s, r, n, _m: s.join(r, lambda a, b: a + b, name=n),
    "left_join": lambda s, r, n, _m: s.left_join(r, lambda a, b: a + (b or 0), name=n),
    "join_own_count": own_count,
    "table_join": table_joined,
    "table_left_join": table_left_joined,
    "windows": windowed("on_update"),
    "closed_windows": windowed("on_window_close"),
}


def topology(program: list[Step]) -> Topology:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    right = b.table("right", materialized=every("right"))
    stream = b.stream("in")
    for place, (name, number) in enumerate(program):
        stream = STEPS[name](stream, right, f"s{place}", number)
    stream.to("out", value_serde=serdes.JSON)
    return b.build()


PROGRAMS = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(2, 4)), max_size=4)
FACTS = st.builds(
    Fact,
    st.none() | st.sampled_from(["k0", "k1", "k2"]),
    st.none() | st.integers(0, 9),
    st.integers(0, 40),
    st.none(),
)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["in", "in", "right"]),
        st.lists(FACTS, min_size=1, max_size=8),
        st.booleans(),
    ),
    max_size=5,
)


@given(PROGRAMS, BATCHES)
def test_a_pipeline_does_what_its_naive_interpreter_does(
    program: list[Step], batches: list[tuple[str, list[Fact], bool]]
) -> None:
    naive = Naive(program)
    with TopologyTestDriver(topology(program)) as driver:
        for topic, facts, crash in batches:
            if crash:
                driver.crash()
            driver.pipe_all(topic, [Record(f.key, f.value, f.time) for f in facts])
            expected = [made[:3] for fact in facts for made in naive.run(topic, fact)]
            found = [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")]
            note(f"{topic}: {facts}")
            assert found == expected

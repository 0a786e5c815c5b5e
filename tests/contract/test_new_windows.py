"""A kind of windows is a rule: one that the library does not know, written here, does all of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import statestore as ss
from statestore import serdes
from statestore.model.batch import Batch
from statestore.model.records import WINDOW_BYTES
from statestore.stores.in_windows import START
from statestore.stores.specs import KeyValueSpec, WindowSpec
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.aggregates.folds import Aggregation, Tell
from statestore.topology.aggregates.stream_aggregates import Keying, Placed, by_rows
from statestore.topology.failures import encoded
from statestore.topology.graph import Topology
from statestore.topology.nodes import NodeContext, Push
from statestore.topology.windows.closing import Closing
from statestore.topology.windows.fold import InTime, Timing


@dataclass(frozen=True)
class WithPauses:
    """Windows of `size_ms`, each followed by a pause as long, whose records count in none."""

    size_ms: int

    @property
    def rule(self) -> InTime:
        timing = Timing(self.size_ms, 2 * self.size_ms, delay_ms=0, retention_ms=self.size_ms)
        return InTime(timing, WINDOW_BYTES, self.spec, self.folding)

    def spec(self, plain: KeyValueSpec[Any, Any], terms: tuple[str, ...]) -> WindowSpec[Any, Any]:
        keys, values = plain.key_serde, plain.value_serde
        size = self.size_ms
        return WindowSpec(plain.name, keys, values, size, size, terms=("pauses", *terms))

    def folding(
        self, how: Aggregation[Any], context: NodeContext, clock: Closing, tell: Tell
    ) -> Push:
        place = partial(self.place, how, clock)
        keying = Keying(place, how.spec.inner, prefix=START.size, drops_nulls=False)
        return by_rows(how, keying, context, tell)

    def place(self, how: Aggregation[Any], clock: Closing, batch: Batch) -> Placed:
        keys, times = encoded(how.node, batch, "key", how.spec.inner), np.array(batch.timestamps)
        starts = times - times % (2 * self.size_ms)
        within = times < starts + self.size_ms
        late = within & (starts + self.size_ms <= clock.observe(batch, times, None))
        clock.drop_late(batch, np.flatnonzero(late).tolist(), int(late.sum()))
        return Placed(
            [
                START.pack(start) + key if counts and key is not None else None
                for key, start, counts in zip(
                    keys, starts.tolist(), (within & ~late).tolist(), strict=True
                )
            ]
        )


def pipeline(aggregate: str, **how: Any) -> Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    windows: Any = WithPauses(10)
    grouped = builder.stream("in").group_by_key().windowed_by(windows, **how)
    if aggregate == "count":
        table = grouped.count("found")
    elif aggregate == "reduce":
        table = grouped.reduce(lambda old, new: old + new, "found")
    else:
        table = grouped.aggregate(int, lambda _key, value, total: total + value, "found")
    table.to_stream().to("out")
    return builder.build()


def read(driver: TopologyTestDriver) -> list[tuple[str, int, int, int]]:
    return [(r.key.key, r.key.start_ms, r.value, r.timestamp_ms) for r in driver.read("out")]


@pytest.mark.parametrize("aggregate", ["count", "reduce", "aggregate"])
def test_records_count_by_the_rule_and_windows_expire_by_its_timing(aggregate: str) -> None:
    with TopologyTestDriver(pipeline(aggregate)) as driver:
        driver.pipe_all("in", [("a", 1, 3), ("a", 1, 7), ("a", 1, 12), ("b", 1, 21), ("a", 1, 8)])
        driver.pipe_all("in", [("b", 1, 25)])
        assert read(driver) == [("a", 0, 2, 7), ("b", 20, 1, 21), ("b", 20, 2, 25)]
        found: Any = driver.store("found")
        with found.all() as rows:
            assert [(of.key, of.start_ms, value) for of, value in rows] == [("b", 20, 2)]


@pytest.mark.parametrize("aggregate", ["count", "reduce", "aggregate"])
def test_each_window_has_one_result_at_its_close_or_when_no_input_comes(aggregate: str) -> None:
    topology = pipeline(aggregate, emit="on_window_close", close_idle=100)
    with TopologyTestDriver(topology) as driver:
        driver.pipe_all("in", [("a", 1, 3), ("b", 1, 7), ("a", 1, 9)])
        assert read(driver) == []
        driver.pipe_all("in", [("a", 1, 10), ("a", 1, 21)])
        assert read(driver) == [("a", 0, 2, 9), ("b", 0, 1, 7)]
        for _ in range(20):
            driver.advance_wall_clock(10)
        assert read(driver) == [("a", 20, 1, 21)]

"""Splits of stores that stream tasks keep: of rows that expire, and of tasks that have none.

The rows of all splits together are those that one reader of the same commit is shown.
"""

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.ids import TopicPartition
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.spark.reading.read_options import plan_of
from statestore.spark.reading.store_reader import FilteringReader
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import ManualClock
from tests.contract.test_all_stores_beside import BRIEF, OWN, Keep
from tests.relocation_rig import in_memory_folder

PARTITIONS = 3
EMPTY = 2
"""A partition that nobody writes to."""
BIG = 2600
"""More rows than a commit deletes once they have expired."""
SOON = ss.in_memory_key_value_store(
    "soon", ttl=60, key_serde=serdes.STRING, value_serde=serdes.JSON
)
STORES = [spec.name for spec in OWN]


class KeepAlso(Keep):
    """Puts into a store in memory, too."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        super().__init__(context)
        self._soon = context.store(SOON)

    def process(self, record: ss.Record[str, Any]) -> None:
        super().process(record)
        self._soon.put(record.key, record.value)


class Application:
    """Its records go to two of three partitions, most of them to the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = MemoryBroker()
        self.broker.cluster("app").create([TopicSpec("in", PARTITIONS, {})])

    def send(self, partition: int, keys: Iterator[str] | list[str], time_ms: int) -> None:
        for n, key in enumerate(keys):
            record = ss.Record(key.encode(), json.dumps(n).encode(), time_ms)
            self.broker.produce(TopicPartition("in", partition), record)

    def run(self) -> None:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
        b.stream("in").process(KeepAlso, *OWN, SOON, name="keep")
        settings = {
            "application.id": "app",
            "state.dir": str(self.folder),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
        }
        with (
            Runtime(settings, clock=ManualClock(), brokers=self.broker.clients) as runtime,
            start_run(runtime, b.build(), RunRequest()) as started,
        ):
            serve_here(started, Event())

    def read(self, store: str, *filters: Filter, **options: str) -> list[Counter[tuple[Any, ...]]]:
        """The rows of each Spark task."""
        named = {"state_dir": str(self.folder), "application_id": "app", "store": store}
        source = FilteringReader(plan_of({**named, **options}))
        assert list(source.pushFilters(list(filters))) == []

        def rows(part: Any) -> Iterator[tuple[Any, ...]]:
            for batch in pickle.loads(pickle.dumps(source)).read(pickle.loads(pickle.dumps(part))):
                yield from (tuple(row.values()) for row in batch.to_pylist())

        return [Counter(rows(part)) for part in source.partitions()]


@pytest.fixture(scope="module")
def application() -> Iterator[Application]:
    """One of whose rows most have expired, and not all of these are deleted."""
    with in_memory_folder() as folder:
        one = Application(folder)
        one.send(0, [f"k{n:05}" for n in range(BIG)], 1000)
        for partition in range(PARTITIONS):
            if partition != EMPTY:
                one.send(partition, [f"p{partition}-{n}" for n in range(40)], 1100)
        one.run()
        one.send(0, [f"k{n:05}" for n in range(0, BIG, 10)], 1150)
        one.run()
        # Stream time is past the time of many rows now, and this commit deletes a part of them.
        one.send(0, ["last"], 1195)
        one.send(1, ["last"], 1500)
        one.run()
        yield one


def asked(store: str) -> list[dict[str, str]]:
    if store != "times":
        return [{}]
    return [{}, {"as_of": "1120"}, {"from_time": "1001", "to_time": "1160"}]


@pytest.mark.parametrize("store", STORES)
def test_splits_show_what_one_reader_is_shown(application: Application, store: str) -> None:
    for options in asked(store):
        whole = application.read(store, splits="1", **options)
        assert len(whole) == PARTITIONS
        parts = application.read(store, splits="5", **options)
        assert len(parts) > PARTITIONS
        assert sum(parts, Counter()) == sum(whole, Counter())
        assert sum(whole, Counter()).most_common(1)[0][1] == 1


def test_what_has_expired_is_in_no_split(application: Application) -> None:
    path = application.folder / "app" / "0_0" / "rocksdb" / BRIEF.name
    with (
        Runtime({}) as runtime,
        closing(runtime.databases.read(path)) as engine,
        closing(engine.table("data").scan()) as rows,
    ):
        assert sum(1 for _ in rows) > BIG // 10 + 41, "nothing is left to be deleted"
    parts = application.read(BRIEF.name, splits="6")
    keys = {row[2] for part in parts for row in part if row[1] == 0}
    assert keys == {f"k{n:05}" for n in range(0, BIG, 10)} | {"last"}
    assert {row[2] for part in parts for row in part if row[1] == 1} == {"last"}
    assert not [row for part in parts for row in part if row[1] == EMPTY]


@pytest.mark.parametrize("store", [BRIEF.name, "panes", "times"])
def test_filters_and_splits_go_together(application: Application, store: str) -> None:
    everything = sum(application.read(store, splits="1"), Counter())
    low, high = "k00500", "p3"
    pushed: list[list[Filter]] = [
        [GreaterThanOrEqual(("key",), low), LessThan(("key",), high)],
        [GreaterThanOrEqual(("key",), low), EqualTo(("partition",), 0)],
        [In(("key",), ("k00010", "k00020", "last", "nobody"))],
        [In(("partition",), (EMPTY,))],
    ]
    wanted: list[Callable[[tuple[Any, ...]], bool]] = [
        lambda row: low <= row[2] < high,
        lambda row: row[2] >= low and row[1] == 0,
        lambda row: row[2] in {"k00010", "k00020", "last"},
        lambda row: row[1] == EMPTY,
    ]
    for filters, is_wanted in zip(pushed, wanted, strict=True):
        found = sum(application.read(store, *filters, splits="3"), Counter())
        assert found == Counter({row: n for row, n in everything.items() if is_wanted(row)})


def test_splits_that_wait_are_of_the_commit_at_which_they_were_planned() -> None:
    """The owner goes on meanwhile, and deletes what has expired since."""
    with in_memory_folder() as folder:
        one = Application(folder)
        one.send(0, [f"k{n:05}" for n in range(BIG)], 1000)
        one.run()
        named = {"state_dir": str(folder), "application_id": "app", "splits": "6"}
        stores = [BRIEF.name, "panes"]
        readers = {store: FilteringReader(plan_of({**named, "store": store})) for store in stores}
        before = {store: sum(one.read(store, splits="1"), Counter()) for store in stores}
        parts = {store: source.partitions() for store, source in readers.items()}
        chance = random.Random(3)
        for time_ms in (1030, 1700):
            one.send(0, [f"k{chance.randrange(BIG):05}" for _ in range(500)], time_ms)
            one.run()
        for store, source in readers.items():
            found = Counter(
                tuple(row.values())
                for part in parts[store]
                for batch in source.read(part)
                for row in batch.to_pylist()
            )
            assert found == before[store], store


def test_a_store_in_memory_has_no_files_to_split(application: Application) -> None:
    with pytest.raises(Misuse, match="is in memory: it has no files"):
        application.read(SOON.name, splits="3")

"""Processors with stores of each kind beside a count by key: processor time of one stream task.

    python -m tests.bench.bench_processors [--records 100000] [--repeats 3] [--only NAME]

The broker is in memory and RocksDB on disk, so the figures are those of our own code. The variants
are measured in turn, each on a folder of its own.
"""

import random
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import click

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from tests.bench.harness import Bench, scratch
from tests.contract.task_rig import TaskRig

KEYS = 10_000
COUNT = "count by key"
TWO_HEADERS = (("trace", b"0123456789abcdef"), ("source", b"shop"))
_VALUES: dict[str, Any] = {"value_serde": serdes.INT64}
Work = Callable[[Any, "ss.Record[bytes, bytes]"], object]


def counting() -> ss.Topology:
    """A count by key, without output."""
    b = ss.StreamsBuilder()
    b.stream("in").group_by_key(name="by-key").count("counts", name="count")
    return b.build()


def processing(spec: Any, work: Work) -> ss.Topology:
    """A processor called record by record."""

    class Works:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store(spec)

        def process(self, record: "ss.Record[bytes, bytes]") -> None:
            work(self._store, record)

    b = ss.StreamsBuilder()
    b.stream("in").process(Works, spec, name="works")
    return b.build()


def totals(store: Any, record: "ss.Record[bytes, bytes]") -> None:
    store.put(record.key, store.get(record.key, 0) + 1)


def in_windows(store: Any, record: "ss.Record[bytes, bytes]") -> None:
    store.put(record.key, 1, record.timestamp_ms)


def unless_seen(store: Any, record: "ss.Record[bytes, bytes]") -> None:
    at = record.timestamp_ms
    with store.fetch(record.key, from_time=at - 1000, to_time=at) as found:
        seen = any(True for _ in found)
    if not seen:
        store.put(record.key, 1, at)


def in_sessions(store: Any, record: "ss.Record[bytes, bytes]") -> None:
    at, made, count = record.timestamp_ms, None, 1
    with store.fetch(record.key, from_time=at - 1000, to_time=at) as near:
        found = list(near)
    for session, value in found:
        store.remove(session)
        made, count = session, count + value
    store.put(ss.Windowed(record.key, made.start_ms if made else at, at), count)


def reminding() -> ss.Topology:
    """A processor that sets a timer of the key with each record, a second ahead."""
    ends = ss.timer_store("ends")

    class Reminds:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._ends = context.timers(ends)

        def process(self, record: "ss.Record[bytes, bytes]") -> None:
            self._ends.schedule(record.key, record.timestamp_ms + 1000)

        def on_timer(self, timer: "ss.Timer[bytes]") -> None: ...

    b = ss.StreamsBuilder()
    b.stream("in").process(Reminds, ends, name="reminds")
    return b.build()


def in_tens(advance: int) -> ss.Topology:
    """A count by key in windows of ten records, without output."""
    b = ss.StreamsBuilder()
    tens = (
        b.stream("in")
        .group_by_key(name="by-key")
        .windowed_by(ss.CountWindows.of(10).advance_by(advance))
    )
    tens.count("tens")
    return b.build()


def variants() -> dict[str, Callable[[], ss.Topology]]:
    """What is measured, by name."""
    plain = ss.persistent_key_value_store("kept", **_VALUES)
    made = {COUNT: counting, "get and put": lambda: processing(plain, totals)}
    if not hasattr(ss, "persistent_window_store"):
        return made  # A version without the other stores, to compare with.
    long = ss.persistent_key_value_store("kept", ttl=10**9, **_VALUES)
    short = ss.persistent_key_value_store("kept", ttl=2000, **_VALUES)
    windows = ss.persistent_window_store("kept", 1000, 20_000, **_VALUES)
    sessions = ss.persistent_session_store("kept", 20_000, **_VALUES)
    return {
        **made,
        "the same with a TTL, nothing expires": lambda: processing(long, totals),
        "the same with a TTL, a fifth expires": lambda: processing(short, totals),
        "a window put": lambda: processing(windows, in_windows),
        "a window put unless one was lately": lambda: processing(windows, unless_seen),
        "a session extended": lambda: processing(sessions, in_sessions),
        "a timer set": reminding,
        "windows of ten records side by side": lambda: in_tens(10),
        "windows of ten records, with every record": lambda: in_tens(1),
        "get and put, records with two headers": lambda: processing(plain, totals),
    }


def seconds(
    topology: ss.Topology, folder: Path, records: int, headers: tuple[Any, ...] = ()
) -> float:
    """The processor time of a task from its first record to its last commit."""
    rig = TaskRig(topology, folder)
    chance = random.Random(1)
    source = TopicPartition("in", 0)
    for number in range(records):
        key = chance.randrange(KEYS).to_bytes(16, "big")
        record = ss.Record(key, b"v" * 50, 1_000_000 + number, headers)
        rig.broker.produce(source, record)
    task = rig.start()
    began = process_time()
    while task.report.records_in < records:
        task.step(0)
        task.step_commit()
    took = process_time() - began
    rig.end()
    return took


@click.command()
@click.option("--records", default=100_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", multiple=True, help="Variants by name; the count is always measured.")
def main(records: int, repeats: int, only: tuple[str, ...]) -> None:
    """Measure processors with stores of each kind beside a count by key."""
    bench = Bench("bench_processors")
    chosen = {n: make for n, make in variants().items() if not only or n in (*only, COUNT)}
    took: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(repeats):
        for name, make in chosen.items():
            with scratch() as folder:
                headers = TWO_HEADERS if "headers" in name else ()
                took[name].append(seconds(make(), folder, records, headers))
    for name, found in took.items():
        bench.add(name, "records/s", [records / one for one in found])
        if name != COUNT:
            bench.ratios(f"{name} / {COUNT}", took[COUNT], found)
    bench.finish()


if __name__ == "__main__":
    main()

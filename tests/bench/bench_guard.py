"""What a record costs, counted and not timed, against the table `guard.json`: any machine will do.

    make bench-guard                                   fails if a figure is 5 % worse than the table
    make bench-guard ACCEPT="why it has to cost that"  writes the table anew, with the reason

One stream task processes records whose keys, values and times are always the same, over RocksDB and
a broker in memory. What the broker does is not counted. Per 1 000 records:

    calls         Python and C functions called, by cProfile
    held          blocks of memory held more than before the batch, the most at any send
    engine_calls  calls of RocksDB: gets of one key or of a list, writes, steps of cursors
    produced      records to outputs and changelogs
    bytes         theirs
"""

import cProfile
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import click

import statestore as ss
from statestore import serdes
from statestore.kafka.wire import codec
from statestore.kafka.wire.fetched import Fetched, extent
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.testing.memory_broker import MemoryBroker, MemorySource
from statestore.testing.memory_log import BrokerState
from statestore.testing.memory_outbox import MemoryOutbox
from tests.bench import pipelines, pipelines_in_columns
from tests.bench.harness import scratch
from tests.contract.task_rig import TaskRig

TABLE: Final = Path(__file__).with_name("guard.json")
WORSE: Final = 0.05
SLACK: Final = {"calls": 20.0, "held": 20.0, "engine_calls": 0.2}
"""What a figure may rise by in any case: a batch and a commit cost something, too."""
JOBS: Final[dict[str, Callable[[], ss.Topology]]] = {
    "count": pipelines.counting,
    "json": pipelines.enriching,
    "types": pipelines.enriching_typed,
    "columns": pipelines_in_columns.expressing,
    "columns-join": pipelines_in_columns.enriching,
    "processor": pipelines.per_record,
    "sessions": pipelines.sessions,
    "sliding": pipelines.slides,
    "windows": pipelines.windows,
    "join": pipelines.joining,
    "versions": pipelines.versions,
}
_RECORDS, _WARM, _KEYS = 20_000, 2_000, 2_000
_FIRST_MS = 1_700_000_000_000
_ORDER = b'{"amount":%d,"order":%d,"currency":"EUR","customer":"someone","note":"as agreed, soon"}'
_ROW = b'{"customer":"%s","country":"DE","level":%d}'
_ENGINE = "builtins.Rdict"  # Also the prefix of what its cursors are called.
Figures = dict[str, float]


class Job(NamedTuple):
    """A job's figures in the table, and why they last became worse."""

    figures: Figures
    reason: str


@dataclass
class Counter:
    """What is counted while a stream task runs; `paused` while it is in the broker."""

    profile: cProfile.Profile = field(default_factory=cProfile.Profile)
    is_on: bool = False
    produced: int = 0
    size_bytes: int = 0
    before: int = 0
    held: int = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count."""
        gc.collect()
        gc.disable()
        self.before, self.is_on = sys.getallocatedblocks(), True
        self.profile.enable()
        try:
            yield
        finally:
            self.profile.disable()
            self.is_on = False
            gc.enable()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count calls."""
        self.profile.disable()
        before = sys.getallocatedblocks()
        self.held = max(self.held, before - self.before) if self.is_on else 0
        try:
            yield
        finally:
            # What the broker keeps is not the task's.
            self.before += sys.getallocatedblocks() - before
            if self.is_on:
                self.profile.enable()

    def sent(self, records: Records) -> None:
        """Count records that go out."""
        if self.is_on:
            self.produced += len(records.keys)
            self.size_bytes += sum(map(len, filter(None, (*records.keys, *records.values))))

    def figures(self, records: int) -> Figures:
        """All figures, per 1 000 of so many records."""
        found = [(str(one.code), one.callcount) for one in self.profile.getstats()]
        counts = {
            "calls": sum(count for _, count in found),
            "held": self.held,
            "engine_calls": sum(count for code, count in found if _ENGINE in code),
            "produced": self.produced,
            "bytes": self.size_bytes,
        }
        return {name: round(1000 * count / records, 1) for name, count in counts.items()}


class UncountedSource(MemorySource):
    """The broker's source, whose work is not counted."""

    def __init__(self, state: BrokerState, counter: Counter) -> None:
        super().__init__(state)
        self._counter = counter
        self._logs: dict[TopicPartition, Fetched] = {}

    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        with self._counter.paused():
            return list(map(self._as_fetched, super().poll(max_records, timeout_ms, soon=soon)))

    def _as_fetched(self, batch: Batch) -> Batch:
        """The batch with the columns that the client of our own makes."""
        assert batch.topic is not None
        assert batch.partition is not None
        tp = TopicPartition(batch.topic, batch.partition)
        log = self._logs.setdefault(tp, Fetched(check_crc=True))
        keys, values = batch.keys.encoded(serdes.BYTES), batch.values.encoded(serdes.BYTES)
        data = codec.encode(keys, values, batch.timestamps, None)
        if (found := extent(data)) is not None:
            log.add(data, found, ())
        rows = log.rows()
        rows.add(log.take(0, len(batch), len(data)))
        made = rows.batch(tp)
        return batch.with_columns(keys=made.keys, values=made.values)


class UncountedOutbox(MemoryOutbox):
    """The broker's outbox, whose work is not counted, but what is sent."""

    def __init__(
        self, state: BrokerState, transactional_id: str, group_id: str, counter: Counter
    ) -> None:
        super().__init__(state, {}, transactional_id, group_id)
        self._counter = counter

    def send(self, records: Records, *, tracked: bool = False) -> None:
        with self._counter.paused():
            self._counter.sent(records)
            super().send(records, tracked=tracked)


class UncountedBroker(MemoryBroker):
    """A broker in memory with such a source and such an outbox."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def source(self) -> MemorySource:
        return UncountedSource(self.state, self._counter)

    def outbox(self, transactional_id: str, group_id: str) -> MemoryOutbox:
        return UncountedOutbox(self.state, transactional_id, group_id, self._counter)


def counted(job: str, folder: Path) -> Figures:
    """Run a job and count; the first records of all are not counted, which fill the caches."""
    topics = {
        pipelines.INPUT_VARIABLE: "in",
        pipelines.TABLE_VARIABLE: "table",
        pipelines.JSON_VARIABLE: "in",
        pipelines.JSON_TABLE_VARIABLE: "table",
        pipelines.OUTPUT_VARIABLE: "out",
    }
    os.environ.update(topics)
    counter = Counter()
    rig = TaskRig(JOBS[job](), folder, broker=UncountedBroker(counter))
    keys = [b"key-%08d" % number for number in range(_KEYS)]
    chance, is_json = random.Random(1), job in ("json", "types", "columns", "columns-join")
    read, _ = rig.topology.topics()
    if "table" in read:
        rows = [_ROW % (key, number % 5) if is_json else key for number, key in enumerate(keys)]
        _produce(rig, "table", zip(keys, rows, [_FIRST_MS] * _KEYS, strict=True))
    task = rig.start()
    for count in (_WARM, _RECORDS):
        chosen = chance.choices(keys, k=count)
        values = [
            _ORDER % (chance.randrange(1000), chance.randrange(10**6))
            if is_json
            else chance.randbytes(86)
            for _ in chosen
        ]
        at = _FIRST_MS + rig.clock.now_ms() % 1000
        times = [at + number // 5 for number in range(count)]
        _produce(rig, "in", zip(chosen, values, times, strict=True))
        if count == _WARM:
            while task.step(0):
                task.step_commit()
            rig.clock.advance(_WARM)
    with counter.running():
        while task.step(0):
            task.step_commit()
    rig.end()
    return counter.figures(_RECORDS)


def table() -> dict[str, Job]:
    """The table as it is kept."""
    found = json.loads(TABLE.read_text(encoding="utf-8"))
    return {job: Job(one["figures"], one["reason"]) for job, one in found.items()}


def worse(job: str, found: Figures, wanted: Figures) -> list[str]:
    """What is worse than the table by more than a twentieth and the slack, in words."""
    return [
        f"{job}: {name} {wanted[name]:g} -> {found[name]:g} per 1 000 records "
        f"({_change(found[name], wanted[name]):+.0%})"
        for name in found
        if _change(found[name], wanted[name]) > WORSE
        and found[name] - wanted[name] > SLACK.get(name, 0.0)
    ]


def written(found: Mapping[str, Figures], kept: Mapping[str, Job], reason: str) -> str:
    """The table with new figures; the reason stands at the jobs that become worse or are new."""
    made = {}
    for job, figures in found.items():
        before = kept.get(job)
        why = before.reason if before and not worse(job, figures, before.figures) else reason
        made[job] = {"reason": why, "figures": figures}
    return json.dumps(made, indent=2) + "\n"


def _change(found: float, wanted: float) -> float:
    return found / wanted - 1 if wanted else float(found > 0)


def _produce(rig: TaskRig, topic: str, rows: Iterable[tuple[bytes, bytes, int]]) -> None:
    for key, value, time_ms in rows:
        rig.broker.produce(TopicPartition(topic, 0), ss.Record(key, value, time_ms))


@click.command()
@click.option("--accept", metavar="REASON", default="", help="Write the table anew, and why.")
@click.option("--only", multiple=True, type=click.Choice(sorted(JOBS)))
def main(accept: str, only: Sequence[str]) -> None:
    """Compare what records cost with the table."""
    if not codec.available():
        raise click.ClickException(f"the extension is not built: {codec.unavailable_reason()}")
    kept = table() if TABLE.exists() else {}
    found: dict[str, Figures] = {}
    for job in only or JOBS:
        with scratch() as folder:
            found[job] = counted(job, folder)
        click.echo(f"{job:13}" + "".join(f"{n} {v:>10g}  " for n, v in found[job].items()))
    if accept:
        everything = {job: one.figures for job, one in kept.items()} | found
        TABLE.write_text(written(everything, kept, accept), encoding="utf-8")
        return
    lost = [line for job in found for line in worse(job, found[job], kept[job].figures)]
    for job, figures in found.items():
        for line in worse(job, kept[job].figures, figures):
            click.echo(f"better than the table (new -> old): {line}")
    if lost:
        raise click.ClickException(
            "records cost more than tests/bench/guard.json says:\n  "
            + "\n  ".join(lost)
            + '\nWin it back, or say why it has to be: make bench-guard ACCEPT="the reason"'
        )


if __name__ == "__main__":
    main()

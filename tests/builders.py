"""Values and small worlds for tests, with defaults that do not matter: say only what does."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from statestore import serdes
from statestore.engines.memory import MemoryEngine
from statestore.errors import UnknownStore
from statestore.model.batch import Batch, Column
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import IsolationLevel, PunctuationType, Span
from statestore.model.records import Header, Record, Serde
from statestore.ports import Clock, Engine
from statestore.stores import keyvalue, offsets
from statestore.stores.durability import LagLimits
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.row_times import WriteTime
from statestore.stores.specs import KeyValueSpec, in_memory_key_value_store
from statestore.stores.staged_table import Changes, StagedTable
from statestore.stores.transaction import StagedEngine
from statestore.stores.versioned.table import VersionedTable
from statestore.topology.nodes import Advance, Build, Earliest, Held, HeldBack, Push
from statestore.topology.punctuation import Alarm, Fire, Punctuation, Punctuations

ROOT = Path(__file__).resolve().parents[1]
# How long a test waits for a condition. One that soon holds costs nothing; a busy machine is slow.
DEADLINE_S = 60.0
NO_FLUSHES = LagLimits(max_bytes=1 << 40, max_records=1 << 40, max_ms=1 << 40)


class ManualClock:
    """A Clock that moves when told."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        self._now_ms += ms


def eventually(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait until it holds; an AssertionError says what did not come about."""
    deadline = time.monotonic() + deadline_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        pause.wait(0.002)


def files_with(secret: str, *folders: Path) -> list[Path]:
    """The files of these folders in which a text stands."""
    every = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in every if secret.encode() in path.read_bytes()]


def child(
    code: str, *arguments: object, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A Python process that runs `code`, the repository on its path; talk to it over its pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def staged_engine(
    engine: Engine | None = None,
    *,
    clock: Clock | None = None,
    limits: LagLimits = NO_FLUSHES,
    name: str = "prices",
    flush_soon: Callable[[StagedEngine], None] | None = None,
) -> StagedEngine:
    """The transactional core over `engine`, by default one in memory."""
    return StagedEngine(
        engine or MemoryEngine((keyvalue.TABLE, offsets.TABLE)),
        kind=keyvalue.KIND,
        name=name,
        where=f"store {name!r} of a test",
        tables=(keyvalue.TABLE,),
        limits=limits,
        clock=clock or ManualClock(),
        flush_soon=flush_soon,
    )


def memory_store(
    spec: KeyValueSpec[Any, Any] | None = None,
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    owned_by_task: bool = False,
) -> TransactionalKeyValueStore[Any, Any]:
    """A store in memory; bytes unless its spec says otherwise."""
    spec = spec or in_memory_key_value_store("prices")
    return TransactionalKeyValueStore(
        staged_engine(name=spec.name),
        spec,
        isolation_level=isolation_level,
        owned_by_task=owned_by_task,
    )


LogRow = tuple[bytes, bytes | None, int, tuple[Header, ...]]


def log_rows(changes: Changes) -> list[LogRow]:
    """The records of a commit as they lie in a changelog."""
    keys, values, times, headers = changes
    return list(zip(keys, values, times, headers or [()] * len(keys), strict=True))


def log_batch(rows: Sequence[LogRow]) -> Batch:
    """Records of a changelog as a restore reads them."""
    return Batch(
        keys=Column(raw=[row[0] for row in rows]),
        values=Column(raw=[row[1] for row in rows]),
        timestamps=[row[2] for row in rows],
        headers=[row[3] for row in rows] if any(row[3] for row in rows) else None,
        offsets=list(range(len(rows))),
    )


def batch(
    rows: Iterable[tuple[Any, Any] | tuple[Any, Any, int]],
    *,
    key_serde: Serde[Any] = serdes.STRING,
    value_serde: Serde[Any] = serdes.STRING,
    topic: str = "in",
    partition: int = 0,
    first_offset: int = 0,
    offsets: list[int] | None = None,
) -> Batch:
    """Records (key, value[, timestamp]) as a source hands them on: encoded, with offsets."""
    listed = list(rows)

    def encoded(items: list[Any], serde: Serde[Any]) -> Column:
        return Column(raw=[None if i is None else serde.serialize(i) for i in items], serde=serde)

    return Batch(
        keys=encoded([row[0] for row in listed], key_serde),
        values=encoded([row[1] for row in listed], value_serde),
        timestamps=[row[2] if len(row) == 3 else i for i, row in enumerate(listed)],
        topic=topic,
        partition=partition,
        offsets=offsets or list(range(first_offset, first_offset + len(listed))),
    )


class NodeBench:
    """One operator of one stream task, wired to nothing: push batches, look at what it forwards."""

    def __init__(self, build: Build, *specs: KeyValueSpec[Any, Any]) -> None:
        self.stores = {spec.name: memory_store(spec, owned_by_task=True) for spec in specs}
        self.commits_requested = 0
        self.dropped: list[tuple[str, int]] = []
        self.unmatched = 0
        self.stream_time_ms: int | None = None
        self.forwarded: list[tuple[Batch, str | None]] = []
        self._closers: list[Callable[[], None]] = []
        self.punctuations = Punctuations()
        self._held_back = HeldBack()
        self._push: Push = build(self, self._forward)

    @property
    def task_id(self) -> TaskId:
        return TaskId(0, 0)

    def stream_time(self) -> int | None:
        return self.stream_time_ms

    def keep_stream_times(self) -> None:
        """Its batches are made by tests."""

    def time_bound(self) -> int | None:
        return None

    def when_time_passes(self, node: str, advance: Advance) -> None:
        """Time passes with records alone."""

    def keeps_back(self, node: str, earliest: Earliest) -> None:
        """Nobody is told of time."""

    def sets_times(self, node: str) -> None:
        """Nobody is told of time."""

    def table(self, store: str) -> StagedTable:
        return self.stores[store].table

    def versions(self, store: str) -> VersionedTable:
        found: object = self.stores[store].table
        assert isinstance(found, VersionedTable)
        return found

    def store(self, name: str) -> Any:
        return self.stores[name]

    def global_store(self, name: str) -> GlobalKeyValueStore[Any, Any]:
        raise UnknownStore(f"this bench has no global table {name}")

    def clocks(self, _stores: Sequence[str]) -> list[WriteTime]:
        return []

    def request_commit(self) -> None:
        self.commits_requested += 1

    def schedule(
        self,
        node: str,
        every: Span,
        by: PunctuationType,
        fire: Fire,
        start_ms: int | None = None,
    ) -> Punctuation:
        return self.punctuations.add(node, every, by, fire, 0, start_ms)

    def keep_alarm(self, alarm: Alarm) -> None:
        self.punctuations.keep_alarm(alarm)

    def wall_clock_ms(self) -> int:
        return 0

    @property
    def judges_singly(self) -> bool:
        return False

    @property
    def held_back(self) -> HeldBack:
        return self._held_back

    def release(self, node: str, held: Held, hand_on: Push) -> None:
        assert node
        hand_on(held.batch)

    def drop(self, node: str, batch: Batch, indices: Sequence[int], reason: str) -> None:
        assert node
        assert max(indices) < len(batch)
        self.dropped.append((reason, len(indices)))

    def count_unmatched(self, node: str, records: int) -> None:
        assert node
        self.unmatched += records

    def on_close(self, action: Callable[[], None]) -> None:
        self._closers.append(action)

    def close(self) -> None:
        for action in self._closers:
            action()

    def push(self, records: Batch) -> list[tuple[Any, Any, int]]:
        """Process one batch; (key, value, timestamp) of what came out."""
        before = len(self.forwarded)
        self._push(records)
        return [row for made, _ in self.forwarded[before:] for row in triples(made)]

    def rows(self, store: str) -> list[tuple[Any, Any]]:
        """What a store holds, pending writes included, in its spec's types."""
        return list(self.stores[store].all())

    def _forward(self, made: Batch, to: str | None) -> None:
        self.forwarded.append((made, to))


def triples(made: Batch) -> list[tuple[Any, Any, int]]:
    """(key, value, timestamp) of each record."""
    return [(record.key, record.value, record.timestamp_ms) for record in made.records()]


def record(
    key: Any = "k", value: Any = "v", timestamp_ms: int = 0, **fields: Any
) -> Record[Any, Any]:
    """A record."""
    return Record(key, value, timestamp_ms, **fields)


def partition_of(text: str) -> TopicPartition:
    """`in-0` as a TopicPartition."""
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def table_rows(text: str) -> list[list[str]]:
    """The rows of a text table, cells between bars, without the heading."""
    lines = [line.strip().strip("|") for line in text.splitlines() if "|" in line]
    return [[cell.strip() for cell in line.split("|")] for line in lines[1:]]

"""Versions of stores with history that older serdes wrote: written anew at rest, at their times.

Random versions, late ones and deletes among them, are written by three pipelines. Whatever a reader
can ask is answered alike before and after, also where commits fail in the middle, by the store and
by what its changelog restores.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import faults, serdes
from statestore.errors import HostFailure, RecordFailed
from statestore.faults import CrashPoint
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.audits.audit import require_pass
from statestore.operations.audits.perform import audit
from statestore.operations.deployed import read_deployed
from statestore.operations.rewriting.migrate import migrate
from statestore.reading.rows import committed_rows, parts_of
from statestore.stores.migration import MARK
from statestore.tasks import rewriting
from tests.contract.migrated_worlds import SERDES, SHAPES, STEPS, Adding, World

RETENTION_MS = 60
KEYS = ["", "a", "aa", "b", "k" * 40]
Answers = list[Any]


class Keeping:
    """Puts each record as a version; 0 deletes."""

    def __init__(self, version: int, context: "ss.ProcessorContext[Any, Any]") -> None:
        self._shaped = SHAPES[version]
        self._store: ss.VersionedKeyValueStore[str, Any] = context.store("kept")

    def process(self, record: ss.Record[str, int]) -> None:
        value = self._shaped(record.value) if record.value else None
        self._store.put(record.key, value, record.timestamp_ms)


def with_history(version: int, retention_ms: int = RETENTION_MS, steps: Any = None) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=SERDES[version])
    spec = ss.persistent_versioned_key_value_store(
        "kept",
        retention_ms,
        segment_interval=7,
        key_serde=serdes.STRING,
        value_serde=SERDES[version],
        migrate=steps or STEPS[:version] or None,
    )
    numbers = builder.stream("in", value_serde=serdes.INT64)
    numbers.process(lambda context: Keeping(version, context), spec, name="keeping")
    return builder.build()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, with_history)
    yield made
    made.rig.end()
    faults.on_reach(None)


def put(world: World, key: str, number: int, time_ms: int) -> None:
    record: Record[bytes | None, bytes | None] = Record(
        key.encode(), serdes.INT64.serialize(number), time_ms
    )
    world.rig.broker.produce(TopicPartition("in", 0), record)


def answers(world: World, upto_ms: int) -> Answers:
    """Whatever the store of the running task can be asked."""
    (task,) = world.rig.running
    store: Any = task.store("kept")
    found: Answers = [store.observed_stream_time()]
    with store.range_as_of(None, None, upto_ms) as all_:
        found += all_
    for key in KEYS:
        with store.history(key) as versions:
            found += [key, *versions, store.get(key)]
        found += [store.get(key, as_of=time_ms) for time_ms in range(upto_ms + 2)]
    return found


def generations(world: World) -> set[int]:
    """Of all versions that are there."""
    parts = parts_of(world.rig.runtime, "kept")
    return {
        row[len(MARK)] if row.startswith(MARK) else 0
        for rows in committed_rows(world.rig.runtime, parts, "0_0")
        for row in rows.values
    }


@pytest.mark.parametrize("seed", range(5))
def test_versions_written_anew_answer_as_before_and_so_does_what_their_log_restores(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", chance.choice([1, 3, 10_000]))
    time_ms = latest_ms = 0
    for version in (0, 1, 2):
        world.deploy(version)
        for _ in range(chance.randrange(1, 4)):
            for _ in range(chance.randrange(30)):
                time_ms = max(0, time_ms + chance.randrange(-20, 25))
                latest_ms = max(latest_ms, time_ms)
                put(world, chance.choice(KEYS), chance.randrange(5), time_ms)
            world.process()
    before = answers(world, latest_ms)
    world.rig.end()
    expected = sum(
        not row.startswith(MARK + bytes([2]))
        for rows in committed_rows(world.rig.runtime, parts_of(world.rig.runtime, "kept"), "0_0")
        for row in rows.values
    )
    (told,) = migrate(world.rig.runtime, world.make(2), dry_run=True).migrated
    assert told.rows == expected
    failures = chance.randrange(3)
    for _ in range(failures):
        fail_at_some_commit(world, chance)
    (rest,) = migrate(world.rig.runtime, world.make(2), dry_run=False).migrated
    assert rest.rows <= expected
    assert failures or rest.rows == expected
    assert generations(world) <= {2}
    assert require_pass(audit(world.rig.runtime)).failures == []
    writers = read_deployed(world.rig.layout).stores["kept"].value_writers
    assert [one.generation for one in writers] == [2]
    world.make = lambda _version: with_history(2, steps=[ss.Migration.gone(), ss.Migration.gone()])
    world.deploy(2)
    assert answers(world, latest_ms) == before
    world.rig.end()
    shutil.rmtree(world.rig.folder)
    world.deploy(2)
    assert answers(world, latest_ms) == before
    (task,) = world.rig.running
    kept: Any = task.store("kept")
    latest = {key: kept.get(key) for key in KEYS}
    world.rig.end()
    shutil.rmtree(world.rig.folder)
    world.rig.broker.compact("shop-kept-changelog")
    world.deploy(2)
    (task,) = world.rig.running
    kept = task.store("kept")
    assert {key: kept.get(key) for key in KEYS} == latest


def fail_at_some_commit(world: World, chance: random.Random) -> None:
    """Migrate, and let a commit fail, unless there are fewer of them."""
    left = chance.randrange(1, 6)
    point = chance.choice([CrashPoint.COMMIT_RECORDS_SENT, CrashPoint.COMMIT_LOG_DONE])

    def fail(at: CrashPoint) -> None:
        nonlocal left
        left -= at is point
        if at is point and left == 0:
            raise HostFailure("the disk is full")

    faults.on_reach(fail)
    try:
        migrate(world.rig.runtime, world.make(2), dry_run=False)
    except HostFailure:
        assert left <= 0
    finally:
        faults.on_reach(None)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda number: {"n": number * (number - 3) // (number - 3)}, "ZeroDivisionError"),
        (lambda number: None if number == 3 else {"n": number}, "a migration returned None"),
        (lambda number: {"n": number} if number != 3 else {number}, "TypeError"),
    ],
)
def test_a_version_that_cannot_be_migrated_is_named_and_the_rest_goes_on_later(
    world: World, broken: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", 1)
    world.deploy(0)
    for number in (1, 2, 3, 4):
        put(world, "a", number, number)
        put(world, "b", 9, number)
    world.process()
    world.deploy(1)
    before = answers(world, 4)
    world.rig.end()
    steps = [ss.Migration(SERDES[0], broken)]
    with pytest.raises(RecordFailed, match=f"store kept, row a: its value .*{message}"):
        migrate(world.rig.runtime, with_history(1, steps=steps), dry_run=False)
    assert generations(world) == {0, 1}
    assert require_pass(audit(world.rig.runtime)).failures == []
    (rest,) = migrate(world.rig.runtime, with_history(1), dry_run=False).migrated
    assert 0 < rest.rows < 8
    assert generations(world) == {1}
    world.deploy(1)
    assert answers(world, 4) == before


def test_stores_in_memory_are_written_anew_and_not_counted_before(tmp_path: Path) -> None:
    def in_memory(version: int) -> ss.Topology:
        spec = ss.in_memory_key_value_store(
            "kept",
            key_serde=serdes.STRING,
            value_serde=SERDES[version],
            migrate=STEPS[:version] or None,
        )
        builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=SERDES[version])
        numbers = builder.stream("in", value_serde=serdes.INT64)
        numbers.process(lambda context: Adding(version, context), spec, name="adding").to("out")
        return builder.build()

    world = World(tmp_path, in_memory)
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.rig.end()
    told = migrate(world.rig.runtime, in_memory(1), dry_run=True)
    assert (told.migrated, told.not_counted) == (
        [],
        {"kept": "it is in memory and has no files to read"},
    )
    (done,) = migrate(world.rig.runtime, in_memory(1), dry_run=False).migrated
    assert (done.rows, world.generations()) == (2, [1, 1])

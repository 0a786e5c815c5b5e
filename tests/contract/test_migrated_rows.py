"""Stores whose rows were written with other serdes: read as new values, written as new rows.

Every kind of store is looked into the same way: a first pipeline writes, a second one with a
migration reads and writes, and a third one does so with two. Sinks never see a mark.
"""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.commands.audit import record_lines
from statestore.errors import AuditFailed, Misuse, RecordFailed, TopologyMismatch, UnknownStore
from statestore.model.ids import TaskId
from statestore.operations.audits.audit import require_pass
from statestore.operations.audits.perform import audit
from statestore.operations.deployed import publish_deployed, read_deployed
from statestore.operations.rewriting.migrate import migrate
from statestore.operations.running.run import Run, RunRequest
from statestore.stores import expiry
from statestore.stores.migration import MARK
from statestore.tasks import rewriting
from statestore.topology.aggregates.tables import changes
from tests.contract.migrated_worlds import (
    MAKES,
    SERDES,
    SHAPES,
    V1,
    V2,
    World,
    as_aggregate,
    as_count_window,
    as_group,
    as_history,
    as_processor,
    as_table,
    as_view,
    begun,
    kept,
    plain,
    summed,
)
from tests.contract.task_rig import APPLICATION
from tests.tiers import first_of


@pytest.fixture(params=MAKES, ids=lambda make: make.__name__)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, request.param)
    yield made
    made.rig.end()


def replaces(world: World) -> bool:
    return world.make in (as_table, as_history, as_view)


def numbers(world: World, version: int) -> dict[str, int]:
    """What goes out of the pipeline's present state, by key."""
    before = len(world.rig.broker.records("out"))
    world.send(a=100, b=200, c=300)
    world.process()
    found: dict[str, int] = {}
    for record in world.rig.broker.records("out")[before:]:
        assert record.key is not None
        if record.value is None:
            continue  # This session was merged with another one.
        value = SERDES[version].deserialize(record.value)
        assert type(value) is type(SHAPES[version](0))
        found[record.key[:1].decode()] = plain(value)
    return found


def expected(world: World, **added: int) -> dict[str, int]:
    return {
        key: number + (0 if replaces(world) else added[key])
        for key, number in {"a": 100, "b": 200, "c": 300}.items()
    }


def test_rows_of_older_serdes_are_read_as_new_values_and_written_anew_when_they_change(
    world: World,
) -> None:
    world.deploy(0)
    world.send(a=1, b=2, c=3)
    world.process()
    assert world.generations() == [0, 0, 0]
    world.deploy(1)
    world.send(a=10)
    world.process()
    assert world.generations() == [0, 0, 1]
    world.deploy(2)
    world.send(b=20)
    world.process()
    assert world.generations() == [0, 1, 2]
    assert numbers(world, 2) == expected(world, a=11, b=22, c=3)
    assert world.generations() == [2, 2, 2]


def test_after_a_crash_and_after_the_loss_of_the_disk_rows_are_of_the_same_generations(
    world: World,
) -> None:
    world.deploy(0)
    world.send(a=1, b=2, c=3)
    world.process()
    world.deploy(2)
    world.send(a=10)
    world.process()
    world.send(b=20)
    (task,) = world.rig.running
    task.step(0)  # This is not committed.
    world.rig.crash()
    assert world.generations() == [0, 0, 2]
    shutil.rmtree(world.rig.folder)
    world.deploy(2)
    world.process()
    assert world.generations() == [0, 2, 2]
    assert numbers(world, 2) == expected(world, a=11, b=22, c=3)


def test_an_audit_of_mixed_rows_passes(world: World) -> None:
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.deploy(1)
    world.send(a=10)
    world.process()
    world.rig.end()
    assert world.generations() == [0, 1]
    record = audit(world.rig.runtime)
    assert record.failures == []
    assert require_pass(record) is record
    (kept,) = [one for one in record.stores if one.store == "kept"]
    told = [(one.generation, one.serde, one.rows) for one in kept.writers]
    # A store with history also has the version that was superseded.
    older = 2 if world.make is as_history else 1
    assert told == [(1, "V2", 1), (0, "INT64", older)]
    lines = record_lines(record)
    assert f"rows of kept: 1 by V2, generation 1; {older} by INT64, generation 0" in lines
    (counted, *_) = migrate(world.rig.runtime, world.make(1), ["kept"], dry_run=True).migrated
    assert counted.rows == older
    migrate(world.rig.runtime, world.make(1), ["kept"], dry_run=False)
    (kept,) = [one for one in audit(world.rig.runtime).stores if one.store == "kept"]
    assert [(one.generation, one.rows) for one in kept.writers] == [(1, 1 + older)]


def test_an_audit_finds_rows_of_a_serde_that_is_not_recorded(world: World) -> None:
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.deploy(1)
    world.send(a=10)
    world.process()
    world.rig.end()
    said = read_deployed(world.rig.layout)
    kept = said.stores["kept"]
    newest = [one for one in kept.value_writers if one.generation == 1]
    forgetful = msgspec.structs.replace(kept, value_writers=newest)
    publish_deployed(
        world.rig.layout, msgspec.structs.replace(said, stores={**said.stores, "kept": forgetful})
    )
    record = audit(world.rig.runtime, ["kept"])
    (failure,) = record.failures
    assert failure.check == "every row of a known serde"
    with pytest.raises(AuditFailed, match=r"no serde that topology.json names wrote them"):
        require_pass(record)


def test_groups_of_a_table_are_told_old_values_as_new_ones_without_marks(tmp_path: Path) -> None:
    world = World(tmp_path, as_group)
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.deploy(1)
    topic = f"{APPLICATION}-totals-repartition"
    before = len(world.rig.broker.records(topic))
    world.send(a=10)
    world.process()
    told = [record.value for record in world.rig.broker.records(topic)[before:]]
    world.rig.end()
    found = [changes(V2).deserialize(data) for data in told if data is not None]
    assert [(one.old, one.new) for one in found] == [({"n": 1}, {"n": 10})]


@pytest.mark.parametrize("rows_at_once", first_of([1, 10_000]))
def test_rows_are_written_anew_at_rest_and_keep_their_times(
    world: World, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", rows_at_once)
    world.deploy(0)
    world.send(a=1, b=2, c=3)
    world.process()
    world.deploy(2)
    world.send(a=10)
    world.process()
    times = {r.key: r.timestamp_ms for r in world.rig.broker.records("shop-kept-changelog")}
    world.rig.end()
    before = (tuple(world.rows()), len(world.rig.broker.records("out")))
    told = migrate(world.rig.runtime, world.make(2), dry_run=True).migrated
    others = {"kept-windows": 2} if world.make is as_count_window else {}
    older = 3 if world.make is as_history else 2  # It also has what was superseded.
    assert {one.store: one.rows for one in told} == {"kept": older, **others}
    assert (tuple(world.rows()), len(world.rig.broker.records("out"))) == before
    (done,) = migrate(world.rig.runtime, world.make(2), ["kept"], dry_run=False).migrated
    assert done.rows == older
    assert world.generations() == [2, 2, 2]
    assert len(world.rig.broker.records("out")) == before[1]
    if world.make is not as_processor:  # Its rows have no times of their own.
        now = {r.key: r.timestamp_ms for r in world.rig.broker.records("shop-kept-changelog")}
        assert now == times
    again = migrate(world.rig.runtime, world.make(2), dry_run=False).migrated
    assert {one.store: one.rows for one in again} == {"kept": 0, **others}
    assert require_pass(audit(world.rig.runtime)).failures == []
    writers = read_deployed(world.rig.layout).stores["kept"].value_writers
    assert [one.generation for one in writers] == [2]
    world.deploy(2)
    assert numbers(world, 2) == expected(world, a=11, b=2, c=3)


def test_rows_are_written_anew_at_least_once(tmp_path: Path) -> None:
    world = World(tmp_path, as_aggregate, guarantee="at_least_once")
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.deploy(1)
    world.rig.end()
    (done,) = migrate(world.rig.runtime, world.make(1), dry_run=False).migrated
    assert (done.rows, world.generations()) == (2, [1, 1])


def test_stores_that_the_pipeline_does_not_have_are_not_migrated(tmp_path: Path) -> None:
    world = World(tmp_path, as_history)
    world.deploy(0)
    world.rig.end()
    with pytest.raises(UnknownStore, match="no store 'other'; it has: kept"):
        migrate(world.rig.runtime, world.make(1), ["other"], dry_run=True)
    with pytest.raises(Misuse, match=r"'kept' has no migration in the pipeline; .*: none"):
        migrate(world.rig.runtime, world.make(0), ["kept"], dry_run=False)


def gone(value: ss.Serde[Any], *steps: ss.Migration[Any]) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=value)
    kept_so = ss.Materialized("kept", value_serde=value, migrate=steps)
    builder.stream("in", value_serde=serdes.INT64).group_by_key().aggregate(
        lambda: SHAPES[1](0), summed(1), kept_so
    )
    return builder.build()


def test_a_migration_is_gone_when_no_row_needs_it_any_more(tmp_path: Path) -> None:
    world = World(tmp_path, as_aggregate)
    world.deploy(0)
    world.send(a=1)
    world.process()
    world.deploy(1)
    world.rig.end()
    without = gone(V2, ss.Migration.gone())
    message = "rows that INT64 wrote, which its migrations say are gone: .*`statestore migrate`"
    request = RunRequest(accept_new_serdes=True)
    with pytest.raises(TopologyMismatch, match=message):
        Run(world.rig.runtime, without, request).check()
    migrate(world.rig.runtime, world.make(1), dry_run=False)
    world.make = lambda _version: without
    world.deploy(1)
    world.send(a=10)
    world.process()
    assert world.generations() == [1]
    assert [V2.deserialize(row[len(MARK) + 1 :]) for row in world.rows()] == [{"n": 11}]
    world.rig.end()


def test_a_row_that_cannot_be_migrated_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path, as_aggregate)
    world.deploy(0)
    world.send(a=1, b=-1)
    world.process()
    world.rig.end()

    def refuse(number: int) -> dict[str, int]:
        if number < 0:
            raise ValueError("below zero")
        return {"n": number}

    with pytest.raises(RecordFailed, match=r"store kept, row b: .*ValueError: below zero"):
        migrate(world.rig.runtime, gone(V2, ss.Migration(V1, refuse)), dry_run=False)
    assert world.generations() == [0, 0]
    assert len(read_deployed(world.rig.layout).stores["kept"].value_writers) == 2


def test_rows_that_were_written_anew_expire_when_they_would_have(tmp_path: Path) -> None:
    world = World(tmp_path, lambda version: as_processor(version, ttl_ms=10))
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.sent = 7
    world.send(c=3)
    world.process()
    world.rig.end()
    (done,) = migrate(world.rig.runtime, world.make(1), dry_run=False).migrated
    assert (done.rows, world.generations()) == (3, [1, 1, 1])
    shutil.rmtree(world.rig.layout.task_dir(TaskId(0, 0)))
    world.deploy(1)
    world.sent = 11  # The next record has the time 12, at which b has just expired.
    world.send(d=4)
    world.process()
    assert sorted(world.rig.changelog("kept")) == [b"c", b"d"]
    world.sent = 17
    world.send(d=5)
    world.process()
    assert sorted(world.rig.changelog("kept")) == [b"d"]
    world.rig.end()
    assert require_pass(audit(world.rig.runtime)).failures == []


@pytest.mark.parametrize("seed", first_of(range(4), 2))
def test_whenever_rows_are_written_anew_they_expire_as_they_would_have(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(rewriting, "_ROWS_AT_ONCE", chance.choice([1, 3, 10_000]))
    monkeypatch.setattr(expiry, "_SWEPT_AT_ONCE", chance.choice([1, 1000]))
    world = World(tmp_path, lambda version: as_processor(version, ttl_ms=30))
    known: dict[str, tuple[int, int]] = {}
    for version in range(3):
        world.deploy(version)
        for _ in range(chance.randint(1, 12)):
            key = chance.choice("abcdefgh")
            world.sent += chance.choice([0, 0, 1, 5])
            now_ms = world.sent + 1
            old, since_ms = known.get(key, (0, now_ms))
            total = 1 + (old if since_ms > now_ms - 30 else 0)
            known[key] = (total, now_ms)
            world.send(**{key: 1})
            world.process()
            assert plain(world.out(version)[-1]) == total, f"seed {seed}"
        if version and chance.random() < 0.7:
            world.rig.end()
            migrate(world.rig.runtime, world.make(version), dry_run=False)
            assert set(world.generations()) <= {version}, f"seed {seed}"
            logged = world.rig.broker.records("shop-kept-changelog")
            times = {r.key: r.timestamp_ms for r in logged if r.value is not None}
            for key, (_, since_ms) in known.items():
                assert times[key.encode()] == since_ms, f"seed {seed}"
            assert require_pass(audit(world.rig.runtime)).failures == []
            if chance.random() < 0.5:
                shutil.rmtree(world.rig.layout.task_dir(TaskId(0, 0)))
    world.rig.end()


def test_no_old_row_is_left_that_has_expired_and_is_not_deleted_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "_SWEPT_AT_ONCE", 1)
    world = World(tmp_path, lambda version: as_processor(version, ttl_ms=10))
    world.deploy(0)
    world.send(**{f"k{number}": number for number in range(20)})
    world.process()
    world.sent = 1000
    world.send(z=7)
    world.process()
    assert len(world.generations()) > 10
    world.rig.end()
    migrate(world.rig.runtime, world.make(1), dry_run=False)
    assert set(world.generations()) == {1}
    assert require_pass(audit(world.rig.runtime)).failures == []


def test_rows_of_a_store_that_is_given_a_time_to_live_are_written_anew(tmp_path: Path) -> None:
    world = World(tmp_path, as_processor)
    world.deploy(0)
    world.send(a=1, b=2)
    world.process()
    world.rig.end()
    world.make = lambda version: as_processor(version, ttl_ms=10)
    (done,) = migrate(world.rig.runtime, world.make(1), dry_run=False).migrated
    assert (done.rows, world.generations()) == (2, [1, 1])
    world.deploy(1)
    world.sent = 11
    world.send(c=3)
    world.process()
    assert sorted(world.rig.changelog("kept")) == [b"c"]
    world.rig.end()


def as_tree(version: int) -> ss.Topology:
    """Each row is joined with the row of a, by a foreign key."""
    builder, numbers = begun(version)
    rows = numbers.map_values(SHAPES[version]).to_table(kept(version))
    rows.join(
        rows,
        lambda row, root: plain(row) * 1000 + plain(root),
        ss.Materialized("sums", value_serde=serdes.INT64),
        foreign_key=lambda _row: "a",
        name="tree",
    ).to_stream().to("out")
    return builder.build()


def sums(world: World) -> dict[bytes, int]:
    """What the join has once its messages have gone through both of their topics."""
    for _ in range(3):
        world.process()
    found = world.rig.changelog("sums")
    return {key: serdes.INT64.deserialize(value) for key, value in found.items()}


def test_rows_of_older_serdes_go_on_following_the_row_whose_key_they_hold(tmp_path: Path) -> None:
    world = World(tmp_path, as_tree)
    world.deploy(0)
    world.send(a=1, b=2, c=3)
    assert sums(world) == {b"a": 1001, b"b": 2001, b"c": 3001}
    for version, root in ((1, 5), (2, 6)):
        world.deploy(version)
        world.send(a=root)
        assert sums(world) == {b"a": 1001 * root, b"b": 2000 + root, b"c": 3000 + root}
    world.rig.end()
    migrate(world.rig.runtime, as_tree(2), dry_run=False)
    world.deploy(2)
    world.send(a=7)
    assert sums(world) == {b"a": 7007, b"b": 2007, b"c": 3007}
    world.rig.end()

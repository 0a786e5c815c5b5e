"""Copies that follow their owners: commit by commit, through ends, deaths and repairs.

Shows I39.
"""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import UnknownStore
from statestore.layout import commit_feeds
from statestore.layout.commit_feeds import FeedEnd, FeedReader, FeedWriter, StoreWrites
from statestore.layout.commit_feeds import encoded_commit as encoded
from statestore.layout.snapshots import TaskSnapshots
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.serving import followers
from statestore.serving.followers import OwnerState
from statestore.serving.service import StateService
from statestore.stores.kinds.registry import kind_of
from statestore.tasks.task import StreamTask
from tests.builders import eventually
from tests.contract.task_rig import TASK, TaskRig
from tests.serving_rig import LONG_LEASE, caught_up, copied, service_of, stepping

LEFT = ss.persistent_key_value_store("left")
RIGHT = ss.persistent_key_value_store("right")
HISTORY = ss.persistent_versioned_key_value_store("history", history_retention=400)
RECENT = ss.in_memory_key_value_store("recent")


class Both:
    """Puts each record into two stores, its last byte into the one and the rest into the other."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._left, self._right = context.store("left"), context.store("right")
        self._history, self._recent = context.store("history"), context.store("recent")

    def process(self, record: "ss.Record[bytes, bytes]") -> None:
        self._left.put(record.key, record.value)
        self._right.put(record.key, record.value)
        self._recent.put(record.key, record.value)
        self._history.put(record.key, record.value, timestamp=record.timestamp_ms)


def both() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").process(Both, LEFT, RIGHT, HISTORY, RECENT, name="both")
    return builder.build()


def windowed(windows: Any) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    builder.stream("in").group_by_key().windowed_by(windows).count("counts")
    return builder.build()


def rig_of(topology: ss.Topology, folder: Path, **settings: object) -> TaskRig:
    return TaskRig(topology, folder, settings={**LONG_LEASE, **settings})


def send(rig: TaskRig, key: str, value: str | None, time_ms: int) -> None:
    data = None if value is None else value.encode()
    record: Record[bytes | None, bytes | None] = Record(key.encode(), data, time_ms)
    rig.broker.produce(TopicPartition("in", 0), record)


def commit(task: StreamTask, rig: TaskRig) -> None:
    """Process what waits, and commit it."""
    before = task._committer.stamp.number
    stepping(task, rig, lambda: task._committer.stamp.number > before, "a commit")


def dump(engine: Any, tables: tuple[str, ...]) -> dict[str, dict[bytes, bytes]]:
    return {table: dict(engine.table(table).scan()) for table in tables}


def copies_are_equal(service: StateService, task: StreamTask, which: str) -> None:
    """Compare every row of every table, offsets and times of rows included."""
    state = service._followers.state(TASK)
    assert state is not None
    assert state.replica is not None
    for name, opened in task._stores.opened.items():
        if opened.persistent():
            tables = kind_of(opened.spec).tables
            ours = dump(opened._staged._engine, tables)  # type: ignore[attr-defined]  # an OpenStore
            assert dump(state.replica._engines[name], tables) == ours, (name, which)


@pytest.mark.parametrize(
    "topology",
    [
        pytest.param(both(), id="processor"),
        pytest.param(windowed(ss.TumblingWindows(10, grace=5, retention=30)), id="windows"),
        pytest.param(windowed(ss.SessionWindows(7, grace=9, retention=60)), id="sessions"),
    ],
)
def test_a_copy_has_every_table_of_every_kind_of_store_row_by_row_after_each_commit(
    topology: ss.Topology, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    dice, rig, now = random.Random(seed), rig_of(topology, tmp_path), 0
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        for _ in range(25):
            for _ in range(dice.randrange(1, 40)):
                now += dice.choice((0, 0, 1, 3, 50))
                value = None if dice.random() < 0.2 else str(dice.random())
                send(rig, f"k{dice.randrange(12)}", value, max(0, now - dice.randrange(20)))
            commit(task, rig)
            caught_up(service, task)
            copies_are_equal(service, task, f"seed {seed}")
        rig.end()


def test_whatever_moment_a_reader_meets_both_stores_are_of_one_commit(tmp_path: Path) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    wrong: list[object] = []
    seen: set[int | None] = set()
    ending = threading.Event()
    with service_of(rig) as service:
        copied(service, task, rig)

        def read() -> None:
            state = service._followers.state(TASK)
            assert state is not None
            assert state.replica is not None
            replica, keys = state.replica, [f"k{n}".encode() for n in range(50)]
            while not ending.is_set():
                with replica.turn:
                    found = [
                        replica.source(store).table("data").get_many_at_once(keys)
                        for store in ("left", "right")
                    ]
                    reached = replica.store_position("left")
                seen.add(reached.commit_number)
                if found[0] != found[1] or len(set(found[0])) > 1:
                    wrong.append((reached, found))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for number in range(30):
            for key in range(50):
                send(rig, f"k{key}", f"v{number}", number)
            commit(task, rig)
            if number == 0:
                caught_up(service, task)
                for reader in readers:
                    reader.start()
                eventually(lambda: bool(seen), "a reader has looked")
        caught_up(service, task)
        last = task._committer.stamp.number
        eventually(lambda: last in seen, "a reader has seen the last commit")
        ending.set()
        for reader in readers:
            reader.join()
        rig.end()
    assert wrong == []
    assert len(seen) > 1


def test_after_a_clean_end_the_copy_is_complete_and_the_next_owner_is_followed(
    tmp_path: Path,
) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        send(rig, "a", "1", 1)
        task.step(0)
        rig.end()
        # What the end committed is there, and no new copy was made for it.
        eventually(
            lambda: service.tasks()[0].owner == OwnerState.STOPPED and not service.tasks()[0].stale,
            "the end is seen",
        )
        assert service.get("left", [b"a"]).rows == [(b"a", b"1", None, None)]
        task = rig.start()
        copied(service, task, rig)
        send(rig, "a", "2", 2)
        commit(task, rig)
        caught_up(service, task)
        assert service.get("left", [b"a"]).rows == [(b"a", b"2", None, None)]
        rig.end()
    assert list((rig.folder / "snapshots").iterdir()) == []


def test_a_close_leaves_no_snapshot_and_asks_no_owner_any_more(tmp_path: Path) -> None:
    rig = rig_of(both(), tmp_path, **{"statestore.snapshot.wait.ms": 600_000})
    task = rig.start()

    def asked() -> list[str]:
        return TaskSnapshots(rig.folder).requests()

    with service_of(rig):
        # The owner does not answer now, so the copy is still being made at the close.
        eventually(lambda: bool(asked()), "a request for a snapshot")
    assert asked() == []
    task.step(0)
    assert list((rig.folder / "snapshots").glob("*")) == []
    rig.end()


@pytest.mark.parametrize("ended", [False, True], ids=["died", "died while it ended"])
def test_the_copy_of_a_dead_owner_is_read_as_stale_and_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        send(rig, "a", "1", 1)
        commit(task, rig)
        caught_up(service, task)
        if ended:
            # The copy asks for another one before it is time to look whether the owner lives.
            monkeypatch.setattr(followers, "_LOOK_AT_OWNERS_S", float("inf"))
            task._responder.end()
        task.abandon()  # Nothing was flushed: what lies on disk is older than the copy.
        eventually(lambda: service.tasks()[0].owner == OwnerState.DEAD, "the death is seen")
        follower = service._followers._followers[TASK]
        eventually(lambda: follower._opening is None, "what lies on disk was looked at")
        assert service.tasks()[0].stale
        answer = service.get("left", [b"a"])
        assert answer.rows == [(b"a", b"1", None, None)]
        assert answer.freshness[0].stale
        rig.crash()


def test_a_reader_that_is_far_behind_loses_its_feed_and_takes_another_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        first = service._followers.state(TASK)
        assert first is not None
        monkeypatch.setattr(commit_feeds, "WAITING_MAX_BYTES", 10)
        send(rig, "a", "1", 1)
        commit(task, rig)
        monkeypatch.undo()

        def is_another() -> bool:
            state = service._followers.state(TASK)
            return state is not None and state.replica is not first.replica and not state.stale

        stepping(task, rig, is_another, "another copy")
        assert service.get("left", [b"a"]).rows == [(b"a", b"1", None, None)]
        rig.end()


def test_a_store_that_was_opened_anew_ends_the_feed(tmp_path: Path) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        feed = task._responder._feed
        assert feed._writers
        stores = dict(task._stores.opened)
        task._stores.opened["left"] = task._stores.opened["right"]
        task._responder.publish(task._stores.opened, 1)
        assert feed._writers == []
        task._stores.opened.update(stores)
        copied(service, task, rig)
        rig.end()


def test_a_copy_whose_lease_was_lost_is_replaced(tmp_path: Path) -> None:
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    with service_of(rig) as service:
        copied(service, task, rig)
        state = service._followers.state(TASK)
        assert state is not None
        assert state.replica is not None
        state.replica._snapshot._renew_s = float("-inf")
        state.replica._snapshot.release()

        def is_another() -> bool:
            found = service._followers.state(TASK)
            return found is not None and found.replica is not state.replica and not found.stale

        stepping(task, rig, is_another, "another copy")
        rig.end()


# The files between them.


def test_a_feed_brings_commits_in_order_and_says_how_it_ended(tmp_path: Path) -> None:
    for complete in (True, False):
        folder = tmp_path / str(complete)
        folder.mkdir()
        writer, reader = FeedWriter(folder), FeedReader(folder)
        writer.begin()
        assert reader.next() is None
        for number in (1, 2):
            batch = StoreWrites.encoded(
                "left", {"data": {b"k": b"%d" % number, b"gone": None}}, {"data": [(b"a", b"b")]}
            )
            assert writer.append(encoded(number, 7, [batch]))
        writer.end(complete=complete)
        assert reader.end() is None
        for number in (1, 2):
            found = reader.next()
            assert found is not None
            assert (found.number, found.committed_ms) == (number, 7)
            (one,) = found.batches
            assert one.writes == {"data": {b"k": b"%d" % number, b"gone": None}}
            assert one.ranges == {"data": [(b"a", b"b")]}
        assert reader.next() is None
        assert reader.end() is (FeedEnd.COMPLETE if complete else FeedEnd.BROKEN)


def test_a_feed_whose_reader_has_gone_ends_without_an_error(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path / "gone")
    assert not writer.append(b"x")


def test_names_that_no_store_has_are_not_kept(tmp_path: Path) -> None:
    """Or a client could fill the server's memory with them."""
    rig = rig_of(both(), tmp_path)
    task = rig.start()
    send(rig, "k", "v", 1)
    commit(task, rig)
    with service_of(rig) as service:
        copied(service, task, rig)
        service.get("left", [b"k"])
        for number in range(100):
            with pytest.raises(UnknownStore):
                service.get(f"nowhere-{number}", [b"k"])
            with pytest.raises(UnknownStore):
                service.encoding(f"nowhere-{number}", raw=True)
        assert "nowhere" not in repr((service._views, service._encodings))
    rig.end()

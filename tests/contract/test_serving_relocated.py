"""State is served while its stores are moved to other stream tasks: right, or not at all."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

import statestore as ss
from statestore import faults
from statestore.errors import Unavailable
from statestore.faults import CrashPoint
from statestore.layout import owners
from statestore.layout.folders import StateLayout
from statestore.layout.owners import Owner
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import (
    deployed_identity,
    describe_deployment,
    publish_deployed,
)
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.reading.questions import Range
from statestore.runtime import Runtime
from statestore.serving.followers import Follower, _Openers
from statestore.serving.service import StateService
from tests.builders import ManualClock, eventually
from tests.contract.task_rig import TaskRig
from tests.contract.test_relocated_tasks import commit_two, deployed_behind, latest
from tests.relocation_rig import Died, dying_at, places_of, topology_of
from tests.serving_rig import LONG_LEASE, service_of
from tests.tiers import first_of

PARTITIONS = 2
PLACES = ("A C|B", "B C|A")


class Shop:
    """Three stores in two partitions, closed cleanly; they are where PLACES[0] has them."""

    def __init__(self, state_dir: Path) -> None:
        self.known = {"application.id": "shop", "state.dir": str(state_dir)}
        self.runtime = Runtime({**self.known, **LONG_LEASE, "statestore.lock.wait.ms": 60_000})
        self.layout: StateLayout = self.runtime.layout
        self.layout.create(self.layout.application_dir)
        for store, ordinal in places_of(PLACES[0]).items():
            for partition in range(PARTITIONS):
                self.write(TaskId(ordinal, partition), store, "old")
        self.publish(PLACES[0])

    def publish(self, places: str) -> None:
        """Say what is deployed, without counts of partitions, as after a move without brokers."""
        said = describe_deployment(topology_of(places), ProcessingGuarantee.EXACTLY_ONCE)
        publish_deployed(self.layout, said)

    def write(self, task: TaskId, store: str, value: str) -> None:
        """Put one row, as an owner that comes and ends cleanly."""
        folder = self.layout.task_dir(task)
        spec = ss.persistent_key_value_store(store)
        with ss.open_store(spec, folder / "rocksdb") as opened:
            opened.put(f"{store}{task.partition}".encode(), value.encode())
            log = TopicPartition(f"shop-{store}-changelog", task.partition)
            opened.commit({log: 1}, position=Position.of({"in": {task.partition: 0}}))
        last = owners.read_owner(folder)
        owner = Owner(
            epoch=1 if last is None else last.epoch + 1,
            host="here",
            boot_id="this",
            pid=1,
            since_ms=0,
            started_ticks=0,
            released=True,
        )
        (folder / "owner.json").write_bytes(msgspec.json.encode(owner))

    def move(self, places: str) -> None:
        relocate(self.runtime, topology_of(places), Choices(), dry_run=False, offline=True)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def service(shop: Shop) -> Iterator[StateService]:
    with StateService(shop.runtime) as made:
        eventually(lambda: not made.unready(), "copies")
        yield made


def value(service: StateService, store: str, partition: int) -> bytes | None:
    (row,) = service.get(store, [f"{store}{partition}".encode()]).rows
    return None if row is None else row.value


def is_served_from(service: StateService, places: str) -> bool:
    """Whether every store is read where the topology has it, from a copy of now."""
    try:
        for store, ordinal in places_of(places).items():
            for partition in range(PARTITIONS):
                found = service.get(store, [f"{store}{partition}".encode()], partition=partition)
                (fresh,) = found.freshness
                if fresh.stream_task != str(TaskId(ordinal, partition)) or fresh.stale:
                    return False
    except Unavailable:
        return False
    return True


def test_answers_are_right_or_unavailable_while_stores_move_to_and_fro(
    shop: Shop, service: StateService
) -> None:
    ending, wrong, asked = threading.Event(), list[str](), 0

    def ask() -> None:
        nonlocal asked
        while not ending.is_set():
            for store in "AB":
                try:
                    stream = service.scan(store, Range())
                    try:
                        rows = {row.key: row.value for row in stream.rows}
                    finally:
                        stream.close()
                    values = [value(service, store, each) for each in range(PARTITIONS)]
                except Unavailable:
                    continue
                wanted = {f"{store}{each}".encode(): b"old" for each in range(PARTITIONS)}
                if rows != wanted or values != [b"old"] * PARTITIONS:
                    wrong.append(f"{store}: {rows} {values}")
                asked += 1

    reader = threading.Thread(target=ask)
    reader.start()
    try:
        for number in range(1, 4):
            places = PLACES[number % 2]
            shop.move(places)
            eventually(partial(is_served_from, service, places), f"moved {number}")
            before = asked
            eventually(lambda before=before: asked > before, "answers")  # type: ignore[misc]
    finally:
        ending.set()
        reader.join()
    assert wrong == []


@pytest.mark.parametrize("visit", first_of([5, 7, 4, 6, 9], 2))
def test_a_relocation_that_died_is_served_as_far_as_it_came_and_then_as_finished(
    shop: Shop, service: StateService, visit: int
) -> None:
    die = dying_at(visit)

    def reached(point: CrashPoint) -> None:
        if point.startswith("relocate."):  # and not where the server's threads come by
            die(point)

    faults.on_reach(reached)
    try:
        with pytest.raises(Died):
            shop.move(PLACES[1])
    finally:
        faults.on_reach(None)
    for store in "AB":
        for partition in range(PARTITIONS):
            try:
                found = value(service, store, partition)
            except Unavailable:
                continue
            assert found == b"old"
    shop.move(PLACES[1])
    eventually(lambda: is_served_from(service, PLACES[1]), "moved")


def test_a_copy_that_was_made_before_another_topology_was_deployed_is_made_again(
    shop: Shop,
) -> None:
    openers = _Openers()
    follower = Follower(
        TaskId(0, 0), shop.runtime, openers, lambda seen: seen == deployed_identity(shop.layout)
    )
    follower.step(0.0)
    opening = follower._opening
    assert opening is not None
    eventually(opening.done, "a copy by the topology of before")
    shop.publish(PLACES[0])

    def has_copy() -> bool:
        follower.step(time.monotonic())
        return follower.state().replica is not None

    try:
        eventually(has_copy, "a copy by the topology of now")
        assert opening.result().replica is not follower.state().replica
        assert not opening.result().replica.borrow(), "the one of before was let go"
    finally:
        follower.close()
        openers.close()


def test_a_copy_of_the_place_before_gives_way_to_the_one_of_the_new_place(
    shop: Shop, service: StateService
) -> None:
    store, old, new = "A", TaskId(0, 0), TaskId(1, 0)
    # An owner holds the folder that the store leaves, as while it restores for long, so the copy of
    # that folder stays what it was.
    with owners.at_rest(shop.layout.task_dir(old), what="it", wait_ms=60_000):
        shop.layout.store_dir(old, store).rename(shop.layout.store_dir(new, store))
        shop.publish(PLACES[1])

        def is_told_stale() -> bool:
            (fresh,) = service.get(store, [f"{store}0".encode()], partition=0).freshness
            return fresh.stale and fresh.stream_task == str(old)

        eventually(is_told_stale, "the copy of the old place is told to be old")
        shop.write(new, store, "new")

        def is_new() -> bool:
            try:
                return value(service, store, 0) == b"new"
            except Unavailable:
                return False

        eventually(is_new, "the copy of the new place")
        assert all(is_new() for _ in range(20))


def test_the_task_of_the_new_place_is_followed(tmp_path: Path) -> None:
    before = TaskRig(latest(behind_another=False), tmp_path, settings=LONG_LEASE)
    commit_two(before)
    service = service_of(before)

    def row() -> tuple[bytes | None, str, bool]:
        try:
            found = service.get("latest", [b"a"])
        except Unavailable:
            return None, "", True
        (one,), (fresh,) = found.rows, found.freshness
        return None if one is None else one.value, fresh.stream_task, fresh.stale

    with service:
        before.end()
        eventually(lambda: row() == (b"2", "0_0", False), "the copy of the first task")
        after = deployed_behind(before, latest(behind_another=True))
        eventually(lambda: row() == (b"2", "1_0", False), "the copy of the moved store")
        task = after.start()
        after.send("in", [("a", "3")])

        def follows() -> bool:
            task.step(0)
            after.clock.advance(100)
            return row() == (b"3", "1_0", False)

        eventually(follows, "its commits")
        after.end()


class Crawling(ManualClock):
    """The clock of a machine on which every step takes half a minute."""

    def monotonic(self) -> float:
        self.advance(30_000)
        return super().monotonic()


def test_a_look_that_took_long_does_not_put_off_the_next_ones(shop: Shop) -> None:
    with (
        Runtime({**shop.known, **LONG_LEASE}, clock=Crawling()) as runtime,
        StateService(runtime) as service,
    ):
        eventually(lambda: not service.unready(), "copies")
        shop.move(PLACES[1])
        eventually(lambda: is_served_from(service, PLACES[1]), "moved")


def test_what_goes_wrong_again_and_again_is_logged_once(
    shop: Shop, service: StateService, caplog: pytest.LogCaptureFixture
) -> None:
    followers = service._followers
    shop.layout.topology_file.write_text("{")
    looked: set[float] = set()

    def looks_again_and_again() -> bool:
        looked.add(followers._looked_s)
        return len(looked) > 4

    eventually(looks_again_and_again, "it goes on looking")
    told = [one for one in caplog.messages if "cannot look at" in one]
    assert len(told) == 1
    assert value(service, "A", 0) == b"old"

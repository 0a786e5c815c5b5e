"""What readers, exports and lost volumes meet after a change of the partition count."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from threading import Event, Thread

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import StateStoreError, Unavailable
from statestore.layout.audits import AuditVerdict
from statestore.operations.audits.perform import audit
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.create import create_export
from statestore.operations.exports.restore_export import Choice, restore_export
from statestore.operations.looking.at_rest import StoresAtRest
from statestore.operations.repartition.partition_plan import Inputs
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import serve_here, start_run
from statestore.runtime import Runtime
from statestore.serving.service import StateService
from statestore.spark.datasource import TransactionalStore
from tests.builders import DEADLINE_S, eventually
from tests.contract.test_repartition_steps import World, counting
from tests.relocation_rig import in_memory_folder
from tests.serving_rig import LONG_LEASE


class Exporting(World):
    """The same with a target for exports."""

    def runtime(self, **more: object) -> Runtime:
        return super().runtime(**{"statestore.export.target": str(self.root / "exports"), **more})

    def lose_volume(self) -> None:
        rmtree(self.root / "state")

    def export(self) -> None:
        with self.runtime() as runtime:
            create_export(runtime)

    def restored(self, how: str) -> RunSummary:
        with (
            self.runtime(**{"statestore.export.restore": how}) as runtime,
            start_run(runtime, self.pipeline, RunRequest()) as started,
        ):
            return serve_here(started, Event())


class Served(World):
    """The same beside a server, which locks a task's folder for a moment as it copies."""

    def runtime(self, **more: object) -> Runtime:
        return super().runtime(**{"statestore.lock.wait.ms": round(DEADLINE_S * 1000), **more})


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory_folder() as found:
        yield found


@pytest.fixture
def world() -> Iterator[Exporting]:
    """Changed from two partitions to five after an export."""
    with in_memory_folder() as folder:
        made = Exporting(folder, counting())
        made.send(100).run()
        made.export()
        made.change(5)
        yield made


@pytest.mark.parametrize("how", ["mounted", "copied"])
@pytest.mark.parametrize("ran", [True, False])
def test_a_lost_volume_is_never_restored_from_an_export_of_before_and_then_from_one_of_after(
    world: Exporting, caplog: pytest.LogCaptureFixture, how: str, *, ran: bool
) -> None:
    caplog.set_level(logging.INFO, "statestore")
    if ran:
        world.send(50).run()
    world.lose_volume()
    caplog.clear()
    world.send(50)
    summary = world.restored(how)
    assert summary.restored_records > 0, "by the changelogs"
    assert "lost stores are restored from their changelogs" in caplog.text
    assert world.rows() == world.sent
    world.export()
    world.send(50).run()
    world.lose_volume()
    caplog.clear()
    world.restored(how)
    assert "from export" in caplog.text
    assert world.rows() == world.sent
    with world.runtime() as runtime:
        assert audit(runtime, export="latest").verdict is AuditVerdict.RIGHT


@pytest.mark.parametrize("choice", [Choice(), Choice(replace=True)])
def test_restoring_an_export_of_before_by_hand_is_refused_and_says_the_way_out(
    world: Exporting, choice: Choice
) -> None:
    world.lose_volume()
    with world.runtime() as runtime, pytest.raises(StateStoreError) as refused:
        restore_export(runtime, choice=choice)
    assert "--full" in str(refused.value)
    assert world.run().restored_records > 0
    world.send(50).run()
    assert world.rows() == world.sent


def test_what_was_begun_again_is_never_replaced_by_an_export_of_before(world: Exporting) -> None:
    world.send(50).run()
    with world.runtime() as runtime, pytest.raises(StateStoreError, match="--full"):
        restore_export(runtime, choice=Choice(replace=True))
    world.send(50).run()
    assert world.rows() == world.sent


def test_a_server_that_runs_during_changes_answers_rightly_or_not_at_all(folder: Path) -> None:
    world = Served(folder, counting()).send(100)
    world.run()
    known = {"application.id": "app", "state.dir": str(folder / "state"), **LONG_LEASE}
    wrong: list[str] = []
    ending = Event()

    def ask(service: StateService) -> None:
        keys = [key.encode() for key in world.sent]
        while not ending.is_set():
            try:
                for key, row in zip(keys, service.get("counts", keys).rows, strict=True):
                    count = None if row is None else serdes.INT64.deserialize(row.value)
                    if count not in {1, 2, 3}:
                        wrong.append(f"{key!r}: {count}")
            except StateStoreError:
                ending.wait(0.01)

    with StateService(Runtime(known, brokers=world.broker.clients)) as service:
        asking = Thread(target=ask, args=(service,))
        eventually(lambda: not service.unready(), "copies")
        asking.start()
        try:
            for partitions, inputs in ((5, Inputs.GROW), (3, Inputs.RECREATE)):
                world.change(partitions, inputs)
                world.send(100).run()
                eventually(lambda: is_served(service, world.sent), "copies of now")
        finally:
            ending.set()
            asking.join()
    assert wrong == []


def is_served(service: StateService, sent: dict[str, int]) -> bool:
    try:
        rows = service.get("counts", [key.encode() for key in sent]).rows
    except StateStoreError:
        return False
    return [row and serdes.INT64.deserialize(row.value) for row in rows] == [*sent.values()]


def test_readers_find_each_key_where_it_lies_before_and_after_the_next_start(
    world: Exporting,
) -> None:
    def read() -> dict[str, int]:
        with ss.open_snapshot(world.root / "state", "app", "counts") as store:
            return {key: store.get(key) for key in world.sent}

    world.run()
    assert read() == world.sent
    world.send(50).run()
    assert read() == world.sent
    export = {"statestore.export.target": str(world.root / "exports")}
    with world.runtime() as runtime:
        (old,) = Exports.of(runtime).ids()
    spec = ss.persistent_key_value_store(
        "counts", key_serde=serdes.STRING, value_serde=serdes.INT64
    )
    with ss.open_snapshot(world.root / "state", "app", spec, export=old, settings=export) as store:
        assert sum(store.get(key) or 0 for key in world.sent) == 100, "as it was exported"


def test_a_snapshot_that_is_open_over_a_change_shows_what_was_there(folder: Path) -> None:
    world = Served(folder, counting()).send(100)
    world.run()
    before = dict(world.sent)
    with ss.open_snapshot(folder / "state", "app", "counts") as store:
        world.change(5)
        world.send(100).run()
        assert {key: store.get(key) for key in world.sent} == before


def test_a_look_that_goes_on_after_a_change_is_told_to_begin_again(folder: Path) -> None:
    world = Served(folder, counting()).send(100)
    world.run()
    with world.runtime() as runtime, closing(StoresAtRest(runtime)) as looked:
        (first, second) = looked.find("counts")
        looked.snapshot(first)
        world.change(5)
        world.send(100).run()
        looked.snapshot(first)
        with pytest.raises(Unavailable, match=r"0_1: .* counts was made anew .*: begin again"):
            looked.snapshot(second)


def test_a_read_that_was_planned_before_a_change_leaves_no_row_out(folder: Path) -> None:
    world = Served(folder, counting()).send(100)
    world.run()
    named = {"state_dir": str(folder / "state"), "application_id": "app", "store": "counts"}
    source = TransactionalStore(named)
    reader = source.reader(source.schema())
    planned = reader.partitions()
    world.change(5)
    world.send(100).run()
    for part in planned:
        with pytest.raises(Unavailable, match=r"store counts was made anew .*: begin again"):
            list(reader.read(part))

"""What is done to an application as a whole, where it has a global table beside its stores."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.layout.audits import AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.operations.audits.perform import audit
from statestore.operations.clones.clone import clone_export, drop_clone
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here, start_run
from statestore.spark.datasource import TransactionalStore
from tests.contract.test_global_tables import INPUT, OUT, RATES, World


def counted(*, after: str | None = None) -> ss.Topology:
    """Counts the keys of a stream, and joins it with a global table.

    `after`: a topic that another sub-topology reads, which comes first.
    """
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    if after is not None:
        b.stream(after).to(OUT)
    rates = b.global_table(RATES, materialized=RATES)
    records = b.stream(INPUT)
    records.group_by_key().count(materialized="counts")
    records.left_join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    return b.build()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An application that has read three records, and both rates."""
    world = World(tmp_path, topology=counted())
    world.rate("a", 1)
    world.rate("b", 2)
    world.send("a", "b", "a")
    world.run()
    assert world.out() == [["a", 1], ["a", 1], ["b", 2]]
    return world


def test_a_clone_has_a_version_of_its_own_from_the_same_topic(world: World, tmp_path: Path) -> None:
    with world.runtime() as runtime:
        settings = replace(runtime.settings, export_target=str(tmp_path / "exports"))
        exporting = runtime.with_settings(settings)
        create_export_for_clones(exporting, world.topology)
        clone_export(exporting, world.topology, "trial")
        own = exporting.with_settings(replace(settings, application_id="trial"))
        world.rate("a", 7)
        world.send("a")
        with start_run(own, world.topology, RunRequest()) as started:
            serve_here(started, Event())
        layout = StateLayout(tmp_path, "trial")
        assert GlobalVersions(layout).numbers() == [1]
        assert [record.value for record in world.broker.records("trial-out")] == [b'["a",7]']
        drop_clone(own)
        assert not layout.application_dir.exists()
    assert world.versions.numbers() == [1]
    world.run()
    assert world.out() == [["a", 7]]


def test_it_stays_where_it_is_when_stores_move(world: World) -> None:
    world.create("other", 2, {})
    world.send("a")
    world.run(counted(after="other"))
    assert world.out() == [["a", 1]]
    assert world.versions.numbers() == [1]
    with world.runtime() as runtime:
        record = audit(runtime)
    assert record.verdict is AuditVerdict.RIGHT
    assert Counter(place.stream_task for place in record.places) == {"1_0": 1, "1_1": 1}


def test_an_audit_is_of_the_other_stores(world: World) -> None:
    with world.runtime() as runtime:
        assert [store.store for store in audit(runtime).stores] == ["counts"]
        with pytest.raises(Misuse, match="global table, which has no changelog"):
            audit(runtime, stores=[RATES])


def test_after_a_reset_all_records_meet_the_rows_of_now(world: World) -> None:
    world.rate("b", 5)
    with world.runtime() as runtime:
        reset(runtime, ResetTo(earliest=True))
    world.run()
    assert world.out() == [["a", 1], ["a", 1], ["b", 5]]


def test_the_data_source_names_the_topic_that_has_the_rows(world: World, tmp_path: Path) -> None:
    options = {"state_dir": str(tmp_path), "application_id": "app", "store": RATES}
    with pytest.raises(Misuse, match="its topic rates has the same rows"):
        TransactionalStore(options).schema()

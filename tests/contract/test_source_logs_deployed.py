"""Tables whose log is their source topic: what a run checks of them, what it remembers."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidSetting, TopologyMismatch
from statestore.layout.files import read_checkpoint
from statestore.model.ids import TaskId
from statestore.operations.deployed import read_deployed
from statestore.operations.looking.at_rest import StoresAtRest
from statestore.operations.relocation.apply import relocate
from statestore.operations.relocation.relocation_plan import Choices
from statestore.operations.running.run import Run, RunRequest
from tests.contract.source_logs import IN, REUSE, commit, entered, topology
from tests.contract.task_rig import APPLICATION, TaskRig, rows_of


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(topology(), tmp_path, settings=REUSE)
    yield made
    made.end()


@pytest.fixture
def kept(rig: TaskRig) -> TaskRig:
    """Over a topic that keeps every key."""
    rig.broker.state.configs["in"] = {"cleanup.policy": "compact"}
    return rig


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"cleanup.policy=delete with retention.ms=604800000, so it forgets keys"),
        ({"cleanup.policy": "compact,delete"}, r"compact,delete with retention.ms=604800000"),
        ({"retention.ms": "-1", "retention.bytes": "9"}, r"with retention.bytes=9"),
        ({"retention.ms": "-1"}, None),
        ({"cleanup.policy": "compact"}, None),
    ],
)
def test_a_topic_that_forgets_keys_is_refused_before_anything_is_written(
    rig: TaskRig, config: dict[str, str], message: str | None
) -> None:
    rig.broker.state.configs["in"] = config
    if message is None:
        entered(rig)
        return
    with pytest.raises(InvalidSetting, match=message + ".*set cleanup.policy=compact"):
        entered(rig)
    assert not rig.layout.application_dir.exists()


@pytest.mark.parametrize("stage", ["processing", "production"])
def test_a_handler_that_takes_records_from_tables_is_refused(kept: TaskRig, stage: str) -> None:
    handler = f"{stage}.exception.handler"
    with pytest.raises(InvalidSetting, match=f"{handler} = continue passes over records whole"):
        entered(kept, **{handler: "continue"})


def test_the_log_of_a_store_cannot_be_changed_under_it(kept: TaskRig) -> None:
    entered(kept)
    assert read_deployed(kept.layout).log_of(APPLICATION, "table") == "in"
    with pytest.raises(TopologyMismatch, match=r"was in and would be shop-table-changelog.*keep"):
        entered(kept, **{"topology.optimization": "none"})


def test_reuse_switched_on_is_refused_naming_a_way_out_that_works(
    tmp_path: Path, kept: TaskRig
) -> None:
    plain = TaskRig(topology(), tmp_path / "other", broker=kept.broker)
    entered(plain)
    assert read_deployed(plain.layout).log_of(APPLICATION, "table") == "shop-table-changelog"
    plain.start()
    commit(plain, ("a", "1"), ("b", "2"))
    plain.end()
    with pytest.raises(TopologyMismatch, match="give the table's store a new name: it is filled"):
        entered(plain, **REUSE)
    renamed = TaskRig(
        topology(store="anew"), plain.root, settings=REUSE, broker=kept.broker, lives=plain.lives
    )
    entered_anyway(renamed)
    task = renamed.start()
    assert rows_of(task, "anew") == {b"a": b"1", b"b": b"2"}
    renamed.end()


def entered_anyway(rig: TaskRig) -> None:
    """As `entered`, though the state dir shares no store with the topology."""
    request = RunRequest(accept_new_topology=True)
    with Run(rig.runtime, rig.topology, request):
        pass


def test_no_changelog_is_created_or_missed(kept: TaskRig) -> None:
    entered(kept)
    assert f"{APPLICATION}-table-changelog" not in kept.broker.state.topics


# Relocation and looks from outside.


def behind_another() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream("new").group_by_key().count("news").to_stream().to("new-out")
    spec = ss.persistent_key_value_store("table", key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.table("in", materialized=ss.Materialized(spec)).to_stream(name="s").to("out")
    return builder.build()


def test_it_is_relocated_with_its_entry_and_seen_in_snapshots(kept: TaskRig) -> None:
    entered(kept)
    kept.start()
    commit(kept, ("a", "1"))
    kept.end()
    after = TaskRig(
        behind_another(),
        kept.root,
        settings=REUSE,
        clock=kept.clock,
        broker=kept.broker,
        task_id=TaskId(1, 0),
    )
    entered(after, **{"ensure.explicit.internal.resource.naming": "false"})
    assert read_checkpoint(kept.folder) == {}
    assert read_checkpoint(after.folder) == {IN: 1}
    task = after.start()
    assert task.report.restored_records == 0
    commit(after, ("b", "2"))
    after.end()
    with closing(StoresAtRest(after.runtime)) as looked:
        (offsets,) = looked.offsets("table")
        assert (offsets.changelog, offsets.position) == ({IN: 2}, {IN: 1})
    state_dir = after.layout.state_dir
    with ss.open_snapshot(state_dir, APPLICATION, "table") as snapshot:
        assert dict(snapshot.all()) == {"a": 1, "b": 2}


def test_it_may_be_renamed_as_its_log_does_not_bear_its_name(kept: TaskRig) -> None:
    entered(kept)
    kept.start()
    commit(kept, ("a", "1"))
    kept.end()
    after = TaskRig(
        topology(store="anew"), kept.root, settings=REUSE, clock=kept.clock, broker=kept.broker
    )
    choices = Choices(renames={"table": "anew"})
    relocate(after.runtime, after.topology, choices, dry_run=False, offline=False)
    task = after.start()
    assert (task.report.restored_records, rows_of(task, "anew")) == (0, {b"a": b"1"})
    after.end()

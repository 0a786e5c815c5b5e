"""Stores a run refuses to take over: of another kind, with other serdes, with something in the way.

`topology check` refuses the same with the same words, and nothing has moved or been written.

Shows I28.
"""

from pathlib import Path

import pytest

from tests.kafka.run_rig import App, assert_refused, counted, updates_in_order

pytestmark = pytest.mark.kafka


def refused(app: App, error: str, *says: str, code: int, pipeline: str) -> None:
    """A start and `topology check` say no, in the same words, and nothing has changed."""
    with app.unchanged():
        ended = app.run(pipeline=pipeline)
        assert_refused(ended, code, error, *says)
        checked = app.checked(pipeline=pipeline)
    assert (checked.code, checked.message) == (ended.code, ended.message)


@pytest.fixture
def two(app: App) -> App:
    for name in ("other", "other-out"):
        app.kafka.create_topic(f"{app.name}-{name}", 2, {"retention.ms": -1})
    return app


def test_a_store_of_another_kind_is_refused_before_any_store_has_moved(two: App) -> None:
    two.drained()
    says = ("keyvalue store, not a versioned one", "upgrade-to-versioned")
    refused(two, "Misuse", *says, code=2, pipeline="history_reordered")
    with two.unchanged():
        relocated = two.run(command="relocate", pipeline="history_reordered")
        assert relocated.code == 2
    two.produce(range(20, 40))
    assert two.drained()["restored_records"] == 0
    assert updates_in_order(two.read()) == counted(range(40)) == two.stored()


def test_a_store_in_memory_does_not_become_one_of_windows_over_its_changelog(app: App) -> None:
    app.drained(pipeline="counts_in_memory")
    says = ("store counts", "keyvalue", "window", "another name")
    refused(app, "TopologyMismatch", *says, code=3, pipeline="windows_in_memory")


def test_a_store_whose_serde_changed_is_refused_until_that_is_said_to_be_right(app: App) -> None:
    app.drained(pipeline="latest")
    says = ("store rows", "values were written as JSON", "read as STRING", "--accept-new-serdes")
    refused(app, "TopologyMismatch", *says, code=3, pipeline="latest_as_text")
    with app.unchanged():
        assert app.checked("--accept-new-serdes", pipeline="latest_as_text").code == 0
    app.drained("--accept-new-serdes", pipeline="latest_as_text")
    app.drained(pipeline="latest_as_text")


def test_a_serde_that_never_wrote_anything_may_be_corrected(app: App) -> None:
    died = app.run(pipeline="latest", crash_at="start.producer-ready")
    assert died.code == -9
    assert app.drained(pipeline="latest_as_text")["caught_up"]


def test_the_relocate_command_takes_over_no_other_serde(app: App) -> None:
    app.drained(pipeline="latest")
    for more in ((), ("--offline",), ("--dry-run",)):
        with app.unchanged():
            ended = app.run(*more, command="relocate", pipeline="latest_as_text")
            assert (ended.code, "--accept-new-serdes" in ended.message) == (3, True), ended.err
    ended = app.run("--accept-new-serdes", command="relocate", pipeline="latest_as_text")
    assert ended.code == 0, ended.err
    app.drained(pipeline="latest_as_text")


def test_a_store_left_behind_by_a_rename_is_told_of_by_a_start_and_by_topology_check(
    app: App,
) -> None:
    app.drained(pipeline="latest_and_counts")
    checked = app.checked(pipeline="latest_renamed")
    stays = checked.summary["relocation"]["plan"]["stays"]
    assert [(stay["store"], stay["task"]) for stay in stays] == [("rows", "0_0"), ("rows", "0_1")]
    for _ in range(2):
        ended = app.run(pipeline="latest_renamed")
        assert ended.code == 0
        told = [line for line in ended.err.splitlines() if "WARNING" in line and "rows" in line]
        assert len(told) == 1, ended.err
        assert "store rows of stream tasks 0_0, 0_1 stays where it is" in told[0]


@pytest.mark.parametrize(
    "where",
    [
        "2_1/rocksdb/counts",
        *(pytest.param(it, marks=pytest.mark.thorough) for it in ("2_1", "2_1/rocksdb")),
    ],
)
def test_a_file_where_a_store_is_to_go_is_met_before_any_store_has_moved(
    two: App, where: str
) -> None:
    two.drained()
    in_the_way = two.state_dir / two.name / where
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("in the way")
    says = (str(in_the_way), "is not a folder", "move it away")
    refused(two, "TopologyMismatch", *says, code=3, pipeline="counts_reordered")
    in_the_way.unlink()
    assert two.drained(pipeline="counts_reordered")["restored_records"] == 0


def test_a_link_to_nowhere_where_a_store_is_to_go_is_met_before_any_store_has_moved(
    two: App,
) -> None:
    two.drained()
    link = two.state_dir / two.name / "2_1" / "rocksdb" / "counts"
    link.parent.mkdir(parents=True)
    link.symlink_to(Path("nowhere"))
    refused(two, "TopologyMismatch", str(link), code=3, pipeline="counts_reordered")


@pytest.mark.parametrize(
    "stray",
    [
        "00_0",
        *(pytest.param(it, marks=pytest.mark.thorough) for it in ("0_00", "\u0660_0", "0_1_1")),
    ],
)
def test_a_folder_that_is_named_nearly_as_a_task_stops_nobody(app: App, stray: str) -> None:
    app.drained(pipeline="counts_by_key")
    folder = app.state_dir / app.name
    copy = folder / stray / "rocksdb" / "counts"
    copy.mkdir(parents=True)
    for path in (folder / "0_0" / "rocksdb" / "counts").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    app.produce(range(20, 40))
    assert app.drained(pipeline="counts_by_key")["restored_records"] == 0
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(40)}
    assert copy.is_dir()

"""`statestore relocate` on real stores: what it shows, does and refuses, as a person calls it."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore.cli import cli
from statestore.errors import StateStoreError
from statestore.layout.folders import StateLayout
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import describe_deployment, publish_deployed
from tests.relocation_rig import topology_of

PIPELINE = "tests.contract.test_relocate_command"


def before() -> ss.Topology:
    return topology_of("A|B")


def after() -> ss.Topology:
    return topology_of("B|A")


def renamed() -> ss.Topology:
    return topology_of("Z|B")


class Called(NamedTuple):
    code: int
    out: str
    err: str


class Shop(NamedTuple):
    """An application at rest: stores A and B in two partitions."""

    layout: StateLayout

    def call(self, *arguments: str, pipeline: str = "after") -> Called:
        flags = [
            f"--pipeline={PIPELINE}:{pipeline}",
            "--application-id=shop",
            f"--state-dir={self.layout.state_dir}",
            "--set=statestore.lock.wait.ms=0",
        ]
        done = CliRunner().invoke(cli, ["relocate", *flags, *arguments])
        match done.exception:
            case StateStoreError() as error:
                return Called(error.exit_code, done.stdout, str(error))
            case None | SystemExit():
                return Called(done.exit_code, done.stdout, done.stderr)
        raise done.exception

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self.call(*arguments, "--json")
        assert done.code == 0, done.err
        said: dict[str, Any] = json.loads(done.out)
        return said

    def rows(self, store: str, ordinal: int) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for partition in range(2):
            folder = self.layout.task_dir(TaskId(ordinal, partition)) / "rocksdb"
            with ss.open_store(spec(store), folder) as opened, opened.all() as pairs:
                found |= dict(pairs)
                log = TopicPartition(f"shop-{store}-changelog", partition)
                assert opened.committed_offset(log) == 40 + partition
                assert opened.position().as_dict() == {TopicPartition("in", partition): 9}
        return found


def spec(store: str) -> ss.KeyValueSpec[bytes, bytes]:
    return ss.persistent_key_value_store(store)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    state_dir = tmp_path_factory.mktemp("template")
    layout = StateLayout(state_dir, "shop")
    for ordinal, store in enumerate("AB"):
        for partition in range(2):
            folder = layout.task_dir(TaskId(ordinal, partition)) / "rocksdb"
            with ss.open_store(spec(store), folder) as opened:
                opened.put(b"%s%d" % (store.encode(), partition), b"row")
                log = TopicPartition(f"shop-{store}-changelog", partition)
                opened.commit({log: 40 + partition}, position=Position.of({"in": {partition: 9}}))
    publish_deployed(layout, describe_deployment(before(), ProcessingGuarantee.EXACTLY_ONCE))
    return state_dir


@pytest.fixture
def shop(template: Path, tmp_path: Path) -> Shop:
    shutil.copytree(template, tmp_path / "state")
    return Shop(StateLayout(tmp_path / "state", "shop"))


def test_a_dry_run_shows_every_move_with_its_size_and_reason_and_asks_no_broker(
    shop: Shop,
) -> None:
    done = shop.call("--dry-run")
    *lines, last = done.out.splitlines()
    rows = [line.split("\t") for line in lines]
    assert [row[:4] for row in rows] == [
        ["A", "0", "0_0", "1_0"],
        ["A", "1", "0_1", "1_1"],
        ["B", "0", "1_0", "0_0"],
        ["B", "1", "1_1", "0_1"],
    ]
    assert all(int(row[4]) > 1000 for row in rows)
    assert rows[0][5] == "sub-topology 1 has it now"
    assert last == "4 stores to move, 0 stay"
    assert shop.rows("A", 0) == {b"A0": b"row", b"A1": b"row"}


def test_offline_stores_are_moved_with_rows_offsets_and_positions(shop: Shop) -> None:
    assert shop.call("--offline").out.endswith("4 stores moved, 0 stay\n")
    assert shop.rows("A", 1) == {b"A0": b"row", b"A1": b"row"}
    assert shop.rows("B", 0) == {b"B0": b"row", b"B1": b"row"}
    again = shop.call("--offline")
    assert again.out == "every store is where the topology looks for it\n"
    assert shop.call("--offline", pipeline="before").out.endswith("4 stores moved, 0 stay\n")
    assert shop.rows("A", 0) == {b"A0": b"row", b"A1": b"row"}


def test_json_says_the_same_in_one_line(shop: Shop) -> None:
    said = shop.json("--dry-run")
    size = said["moves"][0].pop("size_bytes")
    assert size > 1000
    assert said["moves"][0] == {
        "store": "A",
        "source": "0_0",
        "target": "1_0",
        "why": "sub-topology 1 has it now",
        "was": None,
    }
    assert (said["application_id"], said["applied"], said["anything"]) == ("shop", False, True)
    assert said["settle"] == ["0_0", "0_1", "1_0", "1_1"]
    done = shop.json("--offline")
    assert (done["applied"], done["anything"], len(done["moves"])) == (True, True, 4)
    later = shop.json("--dry-run")
    assert (later["applied"], later["anything"], later["moves"]) == (False, False, [])


def test_an_empty_database_in_the_target_is_no_copy(shop: Shop) -> None:
    ss.open_store(spec("A"), shop.layout.task_dir(TaskId(1, 0)) / "rocksdb").close()
    said = shop.json("--offline")
    assert [(gone["store"], gone["task"], gone["reason"]) for gone in said["set_aside"]] == [
        ("A", "1_0", "empty")
    ]
    assert shop.rows("A", 1) == {b"A0": b"row", b"A1": b"row"}
    assert len(list((shop.layout.application_dir / "quarantine").iterdir())) == 1


@pytest.mark.parametrize("content", ["rows", "an offset"])
def test_a_database_with_rows_or_an_offset_in_the_target_is_a_copy(
    shop: Shop, content: str
) -> None:
    with ss.open_store(spec("A"), shop.layout.task_dir(TaskId(1, 0)) / "rocksdb") as store:
        if content == "rows":
            store.put(b"k", b"v")
            store.commit()
        else:
            store.commit({TopicPartition("shop-A-changelog", 0): 3})
    done = shop.call("--offline")
    assert done.code == 3
    assert "--keep 0_0 or --keep 1_0" in done.err
    said = shop.json("--offline", "--keep=0_0")
    assert [gone["reason"] for gone in said["set_aside"]] == ["other-copy"]
    assert shop.rows("A", 1) == {b"A0": b"row", b"A1": b"row"}


def test_a_store_renamed_in_the_pipeline_is_refused_as_its_changelog_changes(shop: Shop) -> None:
    done = shop.call("--offline", "--rename=A=Z", pipeline="renamed")
    assert done.code == 3
    assert "from shop-A-changelog to shop-Z-changelog" in done.err
    assert shop.rows("A", 0) == {b"A0": b"row", b"A1": b"row"}


def test_what_stays_behind_is_shown(shop: Shop) -> None:
    done = shop.call("--dry-run", pipeline="renamed")
    assert done.out.splitlines()[0].split("\t")[5] == "stays: not in the topology"
    assert done.out.splitlines()[-1] == "every store is where the topology looks for it"


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--rename=A"], 2, "--rename 'A': pass old=new"),
        (["--keep=first"], 2, "task id 'first'"),
        (["--application-id=bar"], 2, "no application 'bar' in"),
        ([], 2, "bootstrap.servers is not set"),
    ],
)
def test_what_cannot_be_done_is_refused_and_told_in_json_too(
    shop: Shop, flags: list[str], code: int, says: str
) -> None:
    done = shop.call("--json", *flags)
    error = json.loads(done.out)["error"]
    assert (done.code, error["exit_code"], error["action"]) == (code, code, "fail")
    assert says in done.err
    assert says in error["message"]

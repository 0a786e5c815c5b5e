"""`statestore stores …` and `statestore offsets` on folders at rest, as a user calls them.

Shows I33.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore import serdes
from statestore.cli import cli
from statestore.errors import Misuse, StateStoreError, TaskCorrupted, Unavailable
from statestore.layout.folders import StateLayout
from statestore.layout.owners import claim, read_owner
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.reading.rows import committed_rows, parts_of
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.topology.nodes import TopicName
from tests.builders import DEADLINE_S, ManualClock
from tests.contract.test_store_damage import drop

STATESTORE = Path(sys.executable).with_name("statestore")
COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)
BLOBS = ss.persistent_key_value_store("blobs")
NOTES = ss.persistent_key_value_store("notes", key_serde=serdes.INT64, value_serde=serdes.JSON)
OWN = ss.Serde("OWN", str.encode, bytes.decode)
ODD = ss.persistent_key_value_store("odd", key_serde=OWN, value_serde=OWN)
RECENT = ss.in_memory_key_value_store("recent")


class Passing:
    """Has stores, does nothing."""

    def process(self, record: "ss.Record[bytes, bytes]") -> None: ...


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder()
    stores = (COUNTS, BLOBS, NOTES, ODD, RECENT)
    builder.stream("in").process(lambda _: Passing(), *stores, name="all")
    return builder.build()


class Called(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Shop:
    """An application's folder with two partitions."""

    layout: StateLayout

    def call(self, *arguments: str, **variables: str) -> Called:
        """In this process, as `main` does it."""
        given = {
            "STATESTORE_APPLICATION_ID": "shop",
            "STATESTORE_STATE_DIR": str(self.layout.state_dir),
            **variables,
        }
        done = CliRunner().invoke(cli, arguments, env=given)
        match done.exception:
            case StateStoreError() as error:
                return Called(error.exit_code, done.stdout, f"{done.stderr}{error}")
            case None | SystemExit():
                return Called(done.exit_code, done.stdout, done.stderr)
        raise done.exception

    def settings(self) -> Settings:
        named = {"application.id": "shop", "state.dir": str(self.layout.state_dir)}
        return Settings.of(named)

    def said(self, *arguments: str) -> list[list[str]]:
        """The lines of a call that succeeds, by column."""
        done = self.call(*arguments)
        assert done.code == 0, done.err
        return [line.split("\t") for line in done.out.splitlines()]

    def json(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line[0]) for line in self.said(*arguments, "--json")]

    def refused(self, *arguments: str, code: int = 2) -> str:
        done = self.call(*arguments)
        assert (done.code, done.out) == (code, ""), done.err
        return done.err.strip()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state dir to copy: eight databases take a while to make."""
    state_dir = tmp_path_factory.mktemp("template")
    layout = StateLayout(state_dir, "shop")
    for partition in range(2):
        folder = layout.task_dir(TaskId(0, partition)) / "rocksdb"
        rows: dict[ss.KeyValueSpec[Any, Any], list[tuple[Any, Any]]] = {
            COUNTS: [(f"k{partition}{i}", i) for i in range(3)] + [("key", 9), ("key2", 8)],
            BLOBS: [(b"\x00\\%d" % partition, b"\xff tail"), (b"plain", b"")],
            NOTES: [(7 + partition, {"n": [partition, None]})],
            ODD: [("o", "v")],
        }
        for spec, pairs in rows.items():
            with ss.open_store(spec, folder) as store:
                store.put_all(pairs)
                log = TopicPartition(f"shop-{spec.name}-changelog", partition)
                store.commit({log: 40 + partition}, position=Position.of({"in": {partition: 9}}))
    counts = {TopicName("in"): 2}
    publish_deployed(
        layout, describe_deployment(topology(), ProcessingGuarantee.EXACTLY_ONCE, counts)
    )
    return state_dir


@pytest.fixture
def shop(template: Path, tmp_path: Path) -> Shop:
    shutil.copytree(template, tmp_path / "state")
    return Shop(StateLayout(tmp_path / "state", "shop"))


def test_ls_lists_every_store_of_every_task_with_size_and_serdes(shop: Shop) -> None:
    listed = shop.json("stores", "ls")
    assert [(row["store"], row["stream_task"]) for row in listed] == [
        (name, f"0_{partition}")
        for partition in range(2)
        for name in ("blobs", "counts", "notes", "odd")
    ]
    counts = listed[1]
    assert int(str(counts.pop("bytes"))) > 1000
    assert counts == {
        "store": "counts",
        "stream_task": "0_0",
        "kind": "keyvalue",
        "key_serde": "STRING",
        "value_serde": "INT64",
    }


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("counts", "k11"), "1"),
        (("counts", "key", "--partition", "1"), "9"),
        (("notes", "8"), '{"n":[1,null]}'),
        (("blobs", r"\x00\x5c1"), r"\xff tail"),
        (("blobs", "plain"), ""),
        (("counts", "k02", "--raw"), r"\x00\x00\x00\x00\x00\x00\x00\x02"),
        (("odd", "o", "--raw"), "v"),
    ],
)
def test_get_finds_a_key_in_whichever_partition_and_decodes_it(
    shop: Shop, arguments: tuple[str, ...], value: str
) -> None:
    assert shop.call("stores", "get", *arguments).out == value + "\n"


def test_get_says_by_its_exit_code_that_there_is_no_such_key(shop: Shop) -> None:
    assert "no key nothing" in shop.refused("stores", "get", "counts", "nothing", code=1)
    assert "no key k11" in shop.refused(
        "stores", "get", "counts", "k11", "--partition", "0", code=1
    )


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ((), "k00 k01 k02 key key2 k10 k11 k12 key key2"),
        (("k01", "k11"), "k01 k02 k10 k11"),
        (("k12",), "key key2 k12 key key2"),
        (("--prefix", "key"), "key key2 key key2"),
        (("--reverse", "--partition", "0"), "key2 key k02 k01 k00"),
        (("--limit", "3"), "k00 k01 k02"),
        (("--limit", "0", "--partition", "1"), "k10 k11 k12 key key2"),
        (("x", "a"), ""),
    ],
)
def test_range_gives_both_ends_and_what_lies_between(
    shop: Shop, arguments: tuple[str, ...], keys: str
) -> None:
    rows = shop.said("stores", "range", "counts", *arguments)
    assert " ".join(row[1] for row in rows) == keys


def test_range_gives_json_lines_and_says_that_there_is_more(shop: Shop) -> None:
    done = shop.call("stores", "range", "notes", "--limit", "1", "--json")
    assert json.loads(done.out) == {
        "stream_task": "0_0",
        "key": 7,
        "value": {"n": [0, None]},
    }
    assert "more than 1 rows: pass --limit" in done.err


def test_count_counts_every_row_and_no_offset(shop: Shop) -> None:
    assert shop.said("stores", "count", "counts") == [["10"]]
    assert shop.json("stores", "count", "counts", "--partition", "1") == [
        {"store": "counts", "count": 5, "stream_tasks": {"0_1": 5}}
    ]


def test_offsets_are_next_for_changelogs_and_last_for_inputs(shop: Shop) -> None:
    assert shop.json("offsets", "notes")[:2] == [
        {
            "store": "notes",
            "stream_task": "0_0",
            "topic": "shop-notes-changelog",
            "partition": 0,
            "offset_next": 40,
            "offset_last": None,
        },
        {
            "store": "notes",
            "stream_task": "0_0",
            "topic": "in",
            "partition": 0,
            "offset_next": None,
            "offset_last": 9,
        },
    ]
    assert len(shop.said("offsets")) == 4 * 2 * 2


REFUSALS = [
    (("stores", "count", "count"), "no store 'count' in .*; it has: blobs, counts, notes, odd"),
    (("offsets", "count"), "no store 'count'"),
    (("stores", "get", "counts", "k", "--partition", "7"), "no partition 7; .* tasks 0_0, 0_1"),
    (("stores", "range", "recent"), "'recent' is in memory"),
    (("stores", "get", "odd", "o"), "no serde named 'OWN'.*or pass --raw"),
    (("stores", "get", "notes", "seven"), "key 'seven' of store 'notes' is not a valid INT64"),
    (("stores", "range", "counts", "a", "--prefix", "b"), "not both"),
    (("stores", "ls", "--application-id", "nope"), "no application 'nope' in .*; it has: shop"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_what_cannot_be_is_refused_naming_what_there_is(
    shop: Shop, arguments: tuple[str, ...], message: str
) -> None:
    said = shop.refused(*arguments)
    assert len(said.splitlines()) == 1
    assert re.search(message, said), said


def test_an_owner_that_takes_no_snapshot_in_time_is_named(shop: Shop) -> None:
    folder = shop.layout.task_dir(TaskId(0, 1))
    held = claim(folder, what="t", wait_ms=0, clock=ManualClock())
    wait = ("--set", "statestore.snapshot.wait.ms=50")
    said = shop.refused("stores", "count", "counts", *wait, code=Unavailable.exit_code)
    assert re.search(f"task 0_1: process {os.getpid()} on .* within 50 ms", said), said
    assert list(folder.glob("snapshot-request-*")) == []
    assert shop.said("stores", "count", "counts", "--partition", "0") == [["5"]]
    assert len(shop.said("stores", "ls")) == 8
    held.release()
    assert shop.said("stores", "count", "counts") == [["10"]]


def test_a_key_is_looked_for_first_where_its_hash_puts_it(shop: Shop) -> None:
    with Runtime(shop.settings()) as runtime:
        (home,) = runtime.partitioners["murmur2"]([b"key"], 2)
    held = claim(
        shop.layout.task_dir(TaskId(0, 1 - home)), what="t", wait_ms=0, clock=ManualClock()
    )
    wait = ("--set", "statestore.snapshot.wait.ms=50")
    assert shop.said("stores", "get", "counts", "key", *wait) == [["9"]]
    said = shop.refused("stores", "get", "counts", "none", *wait, code=Unavailable.exit_code)
    assert f"task 0_{1 - home}: process {os.getpid()} on" in said
    held.release()
    assert shop.said("stores", "get", "counts", f"k{1 - home}2") == [["2"]]


def test_looking_leaves_no_snapshot_behind(shop: Shop) -> None:
    shop.said("stores", "range", "counts")
    shop.refused("stores", "get", "counts", "nothing", code=1)
    assert list(shop.layout.state_dir.rglob("snapshots/*")) == []


def test_looking_leaves_owners_rows_and_offsets_as_they_were(shop: Shop) -> None:
    folder = shop.layout.task_dir(TaskId(0, 0))
    claim(folder, what="t", wait_ms=0, clock=ManualClock()).abandon()
    before = read_owner(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*.sst")}
    for arguments in (("stores", "range", "counts"), ("offsets",), ("stores", "count", "blobs")):
        shop.said(*arguments)
    assert read_owner(folder) == before
    assert {path: path.read_bytes() for path in folder.rglob("*.sst")} == files


def test_damaged_files_are_an_error_with_the_path(shop: Shop) -> None:
    path = shop.layout.store_dir(TaskId(0, 0), "counts")
    (path / "CURRENT").unlink()
    assert str(path) in shop.refused("stores", "count", "counts", code=10)
    drop(shop.layout.store_dir(TaskId(0, 1), "counts"), "data")
    said = shop.refused("stores", "count", "counts", "--partition", "1", code=10)
    assert "no table data" in said


def one_store(layout: StateLayout) -> Path:
    return layout.store_dir(TaskId(0, 1), "counts")


def whole_task(layout: StateLayout) -> Path:
    return layout.task_dir(TaskId(0, 1))


@pytest.mark.parametrize("lost", [one_store, whole_task])
def test_a_partition_that_is_gone_is_named_by_whoever_would_read_it(
    shop: Shop, lost: Callable[[StateLayout], Path]
) -> None:
    shutil.rmtree(lost(shop.layout))
    whole = (
        ("stores", "count", "counts"),
        ("stores", "range", "counts"),
        ("stores", "range", "counts", "--raw"),
        ("stores", "get", "counts", "k11"),
        ("offsets", "counts"),
        ("stores", "count", "counts", "--partition", "1"),
    )
    for arguments in whole:
        said = shop.refused(*arguments, code=10)
        assert re.search("'counts' has no files in stream task 0_1", said), said
        assert "start a run" in said
    with pytest.raises(TaskCorrupted, match="stream task 0_1"):
        ss.open_snapshot(shop.layout.state_dir, "shop", "counts")
    with pytest.raises(TaskCorrupted, match="stream task 0_1"):
        parts_of(Runtime(shop.settings()), "counts")
    assert list(shop.layout.state_dir.rglob("snapshots/*")) == []


def test_beside_a_partition_that_is_gone_the_others_can_be_read_alone(shop: Shop) -> None:
    shutil.rmtree(whole_task(shop.layout))
    only = ("counts", "--partition", "0")
    assert shop.said("stores", "count", *only) == [["5"]]
    assert len(shop.said("stores", "range", *only)) == 5
    assert shop.call("stores", "get", "counts", "key", "--partition", "0").out == "9\n"
    assert len(shop.said("stores", "ls")) == 4
    with ss.open_snapshot(shop.layout.state_dir, "shop", "counts", partition=0) as store:
        assert store.get("k01") == 1
    parts = parts_of(Runtime(shop.settings()), "counts", 0)
    read = committed_rows(Runtime(shop.settings()), parts, "0_0")
    assert sum(len(rows.keys) for rows in read) == 5
    assert "no partition 7" in shop.refused("stores", "count", "counts", "--partition", "7")


def test_a_store_of_which_every_partition_is_gone_is_known_by_name(shop: Shop) -> None:
    for partition in range(2):
        shutil.rmtree(shop.layout.store_dir(TaskId(0, partition), "counts"))
    said = shop.refused("stores", "count", "counts", code=10)
    assert "no files in stream tasks 0_0, 0_1" in said


def test_without_a_deployed_topology_only_raw_bytes_are_shown(shop: Shop) -> None:
    shop.layout.topology_file.unlink()
    assert "pass --raw" in shop.refused("stores", "get", "counts", "k00")
    assert shop.said("stores", "get", "counts", "k01", "--raw") == [
        [r"\x00\x00\x00\x00\x00\x00\x00\x01"]
    ]


def test_the_command_itself_prints_one_line_and_ends_with_the_errors_code(shop: Shop) -> None:
    done = subprocess.run(
        [STATESTORE, "stores", "count", "nope", "--application-id=shop", "--state-dir=."],
        cwd=shop.layout.state_dir,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("statestore: UnknownStore: no store 'nope' in shop")


def test_the_application_may_come_from_the_applications_file(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shop.layout.state_dir / "statestore.toml"
    config.write_text(f'[applications.shop]\nstate_dir = "{shop.layout.state_dir}"\n')
    monkeypatch.chdir(shop.layout.state_dir)
    done = shop.call("stores", "count", "counts", STATESTORE_STATE_DIR="")
    assert done.out == "10\n"
    flag = shop.call("stores", "count", "counts", "--state-dir", "elsewhere")
    assert "no application 'shop' in elsewhere" in flag.err


def test_a_snapshot_by_a_spec_has_its_serdes_which_no_tool_need_know(shop: Shop) -> None:
    with ss.open_snapshot(shop.layout.state_dir, "shop", ODD) as odd:
        assert odd.name == "odd"
        assert odd.get("o") == "v"
    with ss.open_snapshot(shop.layout.state_dir, "shop", COUNTS, partition=1) as counts:
        assert counts.get_many(["k00", "k10"]) == [None, 0]


def test_a_spec_of_another_kind_than_the_store_is_refused(shop: Shop) -> None:
    spec = ss.versioned_key_value_store("counts", 9, key_serde=serdes.STRING)
    with pytest.raises(
        Misuse, match=r"'counts' is a keyvalue store, .* of a versioned store: pass"
    ):
        ss.open_snapshot(shop.layout.state_dir, "shop", spec)

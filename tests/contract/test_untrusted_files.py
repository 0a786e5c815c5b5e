"""What lies at a target or in a state dir may be anybody's: no name in it becomes a place outside.

Every text of every file is made a way out, one after another, and whoever reads the file is asked.

Shows I32.
"""

import ast
import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from statestore import faults
from statestore.cli import cli
from statestore.errors import ExportDamaged, HostFailure, Misuse, StateStoreError
from statestore.layout import documents
from statestore.layout.folders import StateLayout
from statestore.layout.owners import read_owner
from statestore.layout.snapshots import Request, TaskSnapshots
from statestore.operations.clone_record import CloneRecord, own_topics, publish_record, read_record
from statestore.operations.relocation.disk import journal_file
from statestore.ports import Bounds
from tests.builders import ROOT
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import Died, Rig, dying_at, in_memory_folder

OUT = "../" * 6 + "pwned"
MALFORMED = ("/etc/pwned", "..", ".", "", "a/b", "a\x00b", "x" * 999)


def ways_out(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with one text in it, a value or a key, made a way out; and where that was."""

    def places(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], bool]]:
        match node:
            case dict():
                for key, value in node.items():
                    yield (*path, key), True
                    yield from places(value, (*path, key))
            case list():
                for number, value in enumerate(node):
                    yield from places(value, (*path, number))
            case str():
                yield path, False

    others = cycle(MALFORMED)
    for (*above, last), is_key in places(document, ()):
        for text in (OUT, next(others)):
            changed = deepcopy(document)
            node = changed
            for step in above:
                node = node[step]
            if is_key:
                node[text] = node.pop(last)
            else:
                node[last] = text
            yield f"{[*above, last]} = {text!r}", changed


def tree(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder / "inside" / "rig")
        rig.send(("a", "1"), ("b", "2"))
        rig.drain()
        yield rig


def outside(rig: ExportRig) -> Path:
    return rig.root.parent.parent


def manifest_file(rig: ExportRig, export_id: str) -> Path:
    return rig.target / APPLICATION / "exports" / f"{export_id}.json"


def test_no_text_of_a_manifest_leads_a_restore_out_of_the_state_dir(rig: ExportRig) -> None:
    path = manifest_file(rig, rig.export().export_id)
    document = json.loads(path.read_bytes())
    rig.bounds = Bounds(0, 100)  # brokers that would have the log of a store of any name
    before = {name for name in tree(outside(rig)) if not name.startswith(str(rig.root))}
    refused = 0
    for where, changed in ways_out(document):
        path.write_bytes(json.dumps(changed).encode())
        rig.lose_volume()
        try:
            rig.restore()
        except StateStoreError:
            refused += 1
        after = {name for name in tree(outside(rig)) if not name.startswith(str(rig.root))}
        assert after == before, where
        state_dir = rig.tasks.layout.state_dir
        names = {one.name for one in state_dir.iterdir()} if state_dir.exists() else set()
        assert names <= {APPLICATION}, where
        placed = {name for name in tree(rig.root) if "pwned" in name}
        assert placed == set(), where
        shutil.rmtree(state_dir, ignore_errors=True)
    assert refused > 50


def test_the_command_refuses_a_store_that_is_named_as_a_path(rig: ExportRig) -> None:
    path = manifest_file(rig, rig.export().export_id)
    text = path.read_text().replace('"latest":{', '"../../../../pwned_dags/evil_dag.py":{')
    path.write_text(text)
    for command in (["exports", "verify"], ["exports", "verify", "--open"], ["restore"]):
        where = [f"--application-id={APPLICATION}", f"--target={rig.target}"]
        state_dir = f"--state-dir={rig.tasks.layout.state_dir}"
        done = CliRunner().invoke(cli, [*command, *where, state_dir])
        assert isinstance(done.exception, ExportDamaged), command
        assert "use another export" in str(done.exception)


def test_no_text_of_a_journal_leads_a_relocation_out_of_the_state_dir() -> None:
    with in_memory_folder() as folder:
        first = Rig(folder / "inside" / "first")
        first.deploy("A|B", partitions=1)
        faults.on_reach(dying_at(3))
        with pytest.raises(Died):
            first.relocation("B|A").apply()
        faults.on_reach(None)
        document = json.loads(journal_file(first.layout).read_bytes())
        move, *rest = document["moves"]
        # What is set aside or renamed in a relocation is named in its journal alone.
        aside = {"store": move["store"], "task": move["source"], "reason": "empty"}
        document["asides"] = [{"what": aside, "folder": "A-1-empty", "since_ms": 1}]
        document["moves"] = rest
        renaming = {**document, "asides": [], "moves": [{**move, "was": move["store"]}]}
        refused = 0
        planted = chain(ways_out(document), ways_out(renaming))
        for number, (where, changed) in enumerate(planted):
            rig = Rig(folder / "inside" / str(number))
            shutil.copytree(first.folder, rig.folder)
            journal_file(rig.layout).write_bytes(json.dumps(changed).encode())
            before = {name for name in tree(folder) if not name.startswith(str(rig.folder))}
            try:
                rig.relocation("B|A").apply()
            except StateStoreError:
                refused += 1
            after = {name for name in tree(folder) if not name.startswith(str(rig.folder))}
            assert after == before, where
            assert {path.name for path in rig.layout.state_dir.iterdir()} == {APPLICATION}, where
            assert not any("pwned" in name for name in tree(rig.folder)), where
            shutil.rmtree(rig.folder)
        assert refused > 50


def test_a_snapshot_request_that_names_a_place_is_no_request(tmp_path: Path) -> None:
    snapshots = TaskSnapshots(tmp_path)
    for name in ("..", ".", "", "1", "1-2-xyz", "1-2-00000000x", ".1-2-00000000"):
        (tmp_path / f"snapshot-request-{name}").write_bytes(msgspec.json.encode(Request(0, 0)))
    good = "1-2-0123abcd"
    snapshots.ask(good, Request(10, 10))
    assert snapshots.requests() == [good]


@pytest.mark.parametrize(
    "topics",
    [
        {"out": "somebody-elses"},
        {"out": "clone-other"},
        {"out": "clone"},
        {"out": "shop-orders"},
        {"out": "../clone-out"},
        {"shop-counts-changelog": "shop-counts-changelog"},
    ],
)
def test_a_clone_names_topics_of_its_own_alone(tmp_path: Path, topics: dict[str, str]) -> None:
    layout = StateLayout(tmp_path, "clone")
    layout.create(layout.application_dir)
    id_of_export = "20261122T020000000Z-0123abcd"
    publish_record(layout, CloneRecord("shop", id_of_export, topics, finished=True))
    with pytest.raises(HostFailure, match=r"clone\.json"):
        read_record(layout)
    own = {"out": "clone-out", "shop-counts-changelog": "clone-counts-changelog"}
    publish_record(layout, CloneRecord("shop", id_of_export, own, finished=True))
    record = read_record(layout)
    assert record is not None
    assert own_topics(layout, record) == ["clone-counts-changelog", "clone-out"]


def test_a_clone_removes_no_topic_that_may_be_of_an_application_with_a_longer_id(
    tmp_path: Path,
) -> None:
    layout = StateLayout(tmp_path, "clone")
    StateLayout(tmp_path, "clone-two").application_dir.mkdir()
    StateLayout(tmp_path, "clo").application_dir.mkdir()
    record = CloneRecord("shop", "", {"two-out": "clone-two-out"}, finished=True)
    with pytest.raises(Misuse, match="may be application clone-two's"):
        own_topics(layout, record)
    assert own_topics(layout, CloneRecord("shop", "", {"o": "clone-o"}, finished=True))


def test_json_of_a_state_dir_or_a_target_is_read_in_one_place() -> None:
    found = []
    for folder in ("layout", "operations", "tasks"):
        for path in (ROOT / "statestore" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                reads = {"msgspec.json.decode", "json.loads", "json.load"}
                if isinstance(node, ast.Call) and ast.unparse(node.func) in reads:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    # The metadata of a committed offset comes from Kafka.
    assert [place for place in found if "tasks/commit.py" not in place] == []


class Bare(msgspec.Struct):
    """A kind that somebody forgot to check."""

    name: str


class Unbound(msgspec.Struct):
    """Another one."""

    count: int


@pytest.mark.parametrize("kind", [Bare, Unbound, list[Bare], dict[str, int], Any])
def test_a_kind_with_a_text_that_may_be_anything_cannot_be_read(kind: Any) -> None:
    with pytest.raises(AssertionError):
        documents.decode(b"{}", kind, "somewhere", way_out="none")


def test_a_document_nested_without_end_is_not_readable() -> None:
    with pytest.raises(HostFailure, match="not readable"):
        documents.decode(b"[" * 100_000, list[documents.Text], "somewhere", way_out="none")


def test_a_text_that_is_no_utf8_is_no_traceback(tmp_path: Path) -> None:
    """msgspec raises something else for it than for any other mistake."""
    layout = StateLayout(tmp_path, "shop")
    layout.application_dir.mkdir()
    (layout.application_dir / "owner.json").write_bytes(b'{"host": "\xff"}')
    told = CliRunner().invoke(
        cli, ["status", "--application-id=shop", f"--state-dir={tmp_path}"], standalone_mode=False
    )
    assert told.exception is None or isinstance(told.exception, StateStoreError)
    with pytest.raises(HostFailure, match=r"owner\.json is not readable"):
        read_owner(layout.application_dir)

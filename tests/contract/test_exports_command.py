"""`statestore exports …` as a user calls it, on stores at rest."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import StateStoreError
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Retention
from statestore.targets import FsspecTarget
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import in_memory_folder


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(("a", "1"), ("b", "2"))
        rig.drain()
        yield rig


def call(rig: ExportRig, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a call in this process, as `main` does it."""
    given = {
        "STATESTORE_APPLICATION_ID": APPLICATION,
        "STATESTORE_STATE_DIR": str(rig.tasks.layout.state_dir),
        "STATESTORE_EXPORT_TARGET": str(rig.target),
    }
    done = CliRunner().invoke(cli, arguments, env=given)
    match done.exception:
        case StateStoreError() as error:
            return error.exit_code, done.stdout
        case None | SystemExit():
            return done.exit_code, done.stdout
    raise done.exception


def said(rig: ExportRig, *arguments: str) -> dict[str, Any]:
    code, out = call(rig, *arguments, "--json")
    assert code == 0, out
    line: dict[str, Any] = json.loads(out)
    return line


def test_export_and_exports_create_are_one_and_ls_shows_both(rig: ExportRig) -> None:
    first = said(rig, "export")
    again = said(rig, "exports", "create")
    assert (first["stores"], first["error"], again["files_uploaded"]) == (2, None, 0)
    code, out = call(rig, "exports", "ls", "--json")
    assert code == 0
    listed = [json.loads(line) for line in out.splitlines()]
    assert [line["export"] for line in listed] == [first["export_id"], again["export_id"]]
    assert all(line["bytes"] == first["bytes"] for line in listed)
    assert call(rig, "exports", "ls")[1].startswith(first["export_id"] + "\t")


def test_verify_and_prune_say_what_they_did(rig: ExportRig) -> None:
    ids = [said(rig, "export")["export_id"] for _ in range(3)]
    assert said(rig, "exports", "verify")["export_id"] == ids[2]
    assert said(rig, "exports", "verify", ids[0])["export_id"] == ids[0]
    assert said(rig, "exports", "verify", "--open")["stores"] == 2
    assert said(rig, "exports", "prune", "--keep", "1")["removed"] == ids[:2]
    assert call(rig, "exports", "prune")[1].startswith("0 exports and 0 files")


def test_an_error_is_told_in_json_too_with_its_exit_code(rig: ExportRig) -> None:
    code, out = call(rig, "exports", "verify", "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert (error["class"], error["action"]) == ("Misuse", "fail")
    assert "run `statestore export` first" in error["message"]
    code, out = call(rig, "export", "--target", "nowhere://x", "--json")
    assert (code, json.loads(out)["application_id"]) == (2, APPLICATION)


def test_a_target_in_the_memory_of_another_file_system_works_alike(rig: ExportRig) -> None:
    rig.elsewhere = FsspecTarget("memory://exports")
    ids = [rig.export().export_id for _ in range(2)]
    assert rig.exports.verify(rig.exports.read(), NoProgress()).export_id == ids[1]
    assert rig.exports.prune(Retention(1)).kept == ids[1:]
    assert FsspecTarget("memory://exports").names(f"{APPLICATION}/uploads") == {}


def test_a_torn_manifest_is_shown_and_pruned_and_the_others_are_shown_beside_it(
    rig: ExportRig,
) -> None:
    ids = [said(rig, "export")["export_id"] for _ in range(3)]
    torn = rig.target / APPLICATION / "exports" / f"{ids[2]}.json"
    torn.write_bytes(torn.read_bytes()[:50])
    code, out = call(rig, "exports", "ls", "--json")
    listed = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["export"] for line in listed]) == (0, ids)
    assert [bool(line["problem"]) for line in listed] == [False, False, True]
    _, out = call(rig, "exports", "ls")
    assert "not readable" in out.splitlines()[2]
    _, out = call(rig, "status", "--json", f"--set=statestore.export.target={rig.target}")
    export = json.loads(out)["export"]
    assert export["export_id"] == ids[2]
    assert "not readable" in export["problem"]
    code, out = call(rig, "exports", "prune", "--keep=1")
    assert code == 0
    assert f"damaged: {ids[2]}" in out
    done = said(rig, "exports", "prune", "--keep=1")
    assert (done["kept"], done["removed"], done["damaged"]) == ([ids[1]], [], [ids[2]])


def test_people_see_when_an_export_was_made_as_a_time(rig: ExportRig) -> None:
    said(rig, "export")
    _, out = call(rig, "exports", "ls")
    assert re.search(r"\t20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ\t", out)


def test_the_help_of_the_short_restore_is_wrapped_like_any_other(rig: ExportRig) -> None:
    code, out = call(rig, "restore", "--help")
    assert code == 0
    text = out.partition("Options:")[0].splitlines()[2:]
    assert all(line.startswith("  ") and "  " not in line.strip() for line in text if line)

"""Logs as JSON: each line an object, also that of an error, and with nothing between them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

ASKED = {"flag": ["--log-format", "json"], "variable": []}


def called(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "statestore", *arguments],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("asked", ASKED)
def test_every_line_on_stderr_is_an_object(tmp_path: Path, asked: str) -> None:
    variables = {"STATESTORE_LOG_FORMAT": "json"} if asked == "variable" else {}
    flags = ("-v", *ASKED[asked])
    done = called(tmp_path, *flags, "stores", "ls", "--application-id", "a\nb", **variables)
    assert done.returncode == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    first = lines[0]
    assert first["level"] == "ERROR"
    assert first["message"].startswith("InvalidSetting: ")
    assert first["logger"] == "statestore"
    assert first["pid"] > 0
    assert first["time"].endswith("Z")
    assert "Traceback" in lines[-1]["exc_info"], "as -v asks"


def test_a_message_of_several_lines_and_odd_characters_is_one_object(tmp_path: Path) -> None:
    program = """\
import logging, statestore.cli as cli
cli.set_up_logging(log_format="json")
logging.getLogger("mine").warning('a "%s"\\nb \\u2028', {"x": 1}, extra={"task": "0_1"})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    (line,) = done.stderr.strip().split("\n")
    found = json.loads(line)
    assert (found["message"], found["task"]) == ("a \"{'x': 1}\"\nb \u2028", "0_1")


def test_without_it_an_error_is_one_plain_line(tmp_path: Path) -> None:
    done = called(tmp_path, "stores", "ls")
    assert done.stderr.startswith("statestore: Misuse: which application?")
    assert done.stderr.count("\n") == 1


def test_a_format_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = called(tmp_path, "stores", "ls", STATESTORE_LOG_FORMAT="xml")
    assert done.returncode == 2
    assert "'xml' is not one of 'text', 'json'" in done.stderr


@pytest.mark.parametrize("job", ["process", pytest.param("audit", marks=pytest.mark.thorough)])
def test_the_summary_of_a_job_tells_of_a_format_that_does_not_exist(
    tmp_path: Path, job: str
) -> None:
    path = tmp_path / "summary.json"
    done = subprocess.run(
        [sys.executable, ROOT / "jobs" / f"{job}.py", "--summary-file", path],
        cwd=tmp_path,
        env=os.environ | {"STATESTORE_LOG_FORMAT": "xml"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stdout) == json.loads(path.read_text())
    error = json.loads(path.read_text())["error"]
    assert "'xml': set it to text or json" in str(error)

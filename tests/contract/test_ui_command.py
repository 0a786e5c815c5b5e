"""`statestore ui` as a process: where it listens, whom it refuses, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from tests.builders import DEADLINE_S


@contextmanager
def ui(folder: Path, *flags: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The command and its address, once it listens."""
    command = [sys.executable, "-m", "statestore", "ui", "--port", "0", *flags]
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as child:
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            found = re.match(r"(http://\S+/)", line)
            assert found is not None, line + child.stderr.read()
            yield found[1], child
        finally:
            child.kill()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_and_ends_when_told(
    tmp_path: Path, ending: signal.Signals
) -> None:
    (tmp_path / "statestore.toml").write_text('[applications.orders]\nstate_dir = "state"\n')
    with (
        ui(tmp_path) as (address, child),
        httpx.Client(trust_env=False, timeout=DEADLINE_S) as client,
    ):
        assert address.startswith("http://127.0.0.1:")
        answer = client.get(address)
        assert (answer.status_code, ">orders</a>" in answer.text) == (200, True)
        assert client.get(f"{address}static/htmx.min.js").text.startswith("var htmx")
        elsewhere = client.get(address, headers={"Host": "rebound.example"})
        assert elsewhere.status_code == 421
        child.send_signal(ending)
        assert child.wait(DEADLINE_S) in {0, 128 + ending, -ending}


def test_one_application_needs_no_file(tmp_path: Path) -> None:
    flags = ("--application-id", "alone", "--state-dir", str(tmp_path / "state"))
    with (
        ui(tmp_path, *flags) as (address, _),
        httpx.Client(trust_env=False, timeout=DEADLINE_S) as client,
    ):
        assert ">alone</a>" in client.get(address).text


def refused(*flags: str) -> tuple[int, str]:
    """The exit code and what it says."""
    result = CliRunner().invoke(cli, ["ui", *flags])
    return result.exit_code, f"{result.exception or result.output}"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--host", "0.0.0.0"), "everybody who reaches it could read all state"),
        (("--host", "example.com"), "everybody who reaches it could read all state"),
        (("--config", "nowhere.toml"), "there is no nowhere.toml"),
        (("--config", "broken.toml"), "cannot read applications file"),
        (("--config", "a.toml", "--state-dir", "x"), "pass --application-id as well"),
        (("--set", "a=b"), "there is no statestore.toml"),
        (("--config", "a.toml", "--pipeline", "x:y"), "import_pipelines = true"),
        (("--application-id", "a", "--state-dir", "x", "--pipeline", "x_y:z"), "cannot import"),
    ],
)
def test_a_call_that_cannot_be_served_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("[")
    (tmp_path / "a.toml").write_text("[applications.a]\n")
    code, said = refused(*flags)
    assert code != 0
    assert told in said


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ["--application-id", "a", "--state-dir", str(tmp_path), "--port", port]
        code, said = refused(*flags)
    assert (code, "free the port, or pass another" in said) == (1, True)

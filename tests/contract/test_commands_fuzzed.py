"""Every command with every flag set to what nobody means: an exit code and a line, no traceback.

In this process, through `main`'s own guard, on an application with stores and exports, and on
brokers that do not answer. What starts brokers or Spark, or goes on until it is interrupted, is
left out.
"""

import io
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from statestore.cli import cli, exit_code_of
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import in_memory_folder

PIPELINE = "tests.contract.export_rig:keeping"
STARTERS = {("kafka", "start"), ("drill",), ("serve",), ("spark-classes",), ("ui",)}
HUGE = "9" * 40
NASTY = (
    "",
    " ",
    "-1",
    "-5",
    "0",
    HUGE,
    "9" * 5000,
    "-" + HUGE,
    "1e9",
    "nan",
    "inf",
    "x" * 5000,
    "\udcff",
    "ключ",
    "٣",
    "a\nb",
    "\t",
    "..",
    "../../x",
    "/",
    "/proc/version",
    "/proc/version/x",
    "/nonexistent/x",
    ".x:y",
    "x:",
    ":y",
    "sys:exit",
    "sys:maxsize",
    "os:abort.x",
    "json:loads",
    "=",
    "=x",
    "a=",
    "x=y",
    "application.id=",
    "state.dir=/proc/version",
    "statestore.memory.bytes=" + HUGE,
    "statestore.memory.bytes=9223372036854775807",
    "statestore.memory.bytes=0",
    "commit.interval.ms=" + HUGE,
    "rocksdb.config.setter=.x:y",
    "rocksdb.config.setter=sys:exit",
    "statestore.export.target=zip://x",
    "statestore.snapshot.wait.ms=-1",
    "bootstrap.servers=${NOT_SET}",
    "consumer.nonsense=1",
    "${NOT_SET}",
    "${",
    "2013-07-01",
    "2013-07-01T00:00Z",
    "0001-01-01T00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2013-13-45T99:99Z",
    "5m",
    HUGE + "d",
    "99999999999d",
    "latest",
    "99999999T999999999Z-0123abcd",
    "20260101T000000000Z-0123abcd",
    "zip://x",
    "hdfs://x",
    "memory://x",
    "nowhere://u:p@x",
    "::",
)


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif (*path, name) not in STARTERS:
            yield (*path, name), command


@pytest.fixture(scope="module")
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        yield lived_in(folder)


def usual(rig: ExportRig, command: click.Command) -> dict[str, list[str]]:
    """Flags and arguments that make sense, by name of the parameter."""
    values = {
        "application_id": [APPLICATION],
        "state_dir": [str(rig.tasks.layout.state_dir)],
        "bootstrap_servers": ["127.0.0.1:1"],
        "pipeline": [PIPELINE],
        "target": [str(rig.target)],
        "store": ["latest"],
        "key": ["a"],
        "clone_id": ["clone"],
        "history_retention": ["1d"],
        "pairs": ["default.api.timeout.ms=1"],
    }
    return {p.name: values[p.name] for p in command.params if p.name in values}


def words(path: tuple[str, ...], command: click.Command, given: dict[str, list[str]]) -> list[str]:
    flags, places = [], []
    for parameter in command.params:
        for value in given.get(parameter.name or "", []):
            if isinstance(parameter, click.Option):
                flags.append(f"{parameter.opts[-1]}={value}")
            else:
                places.append(value)
    return [*path, *flags, "--", *places]


def call(arguments: list[str], patch: pytest.MonkeyPatch) -> tuple[int, str]:
    """As `main` does it: the exit code, and what was printed."""
    patch.setattr(sys, "argv", ["statestore", *arguments])
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    code: object
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = exit_code_of(lambda: cli(arguments))
        except SystemExit as end:
            code = end.code
    out.flush()
    text = out.buffer.getvalue().decode()
    assert isinstance(code, int | None), code
    return code or 0, text


def plans(
    command: click.Command, given: dict[str, list[str]], chance: random.Random, per_flag: int
) -> Iterator[dict[str, list[str]]]:
    """Each parameter with nasty values, one at a time, then several at once."""
    names = [
        p.name or ""
        for p in command.params
        if not (isinstance(p, click.Option) and p.is_flag) and p.name
    ]
    for name in names:
        for value in chance.sample(NASTY, per_flag):
            usual_values = given.get(name, []) if name == "pairs" else []
            yield {**given, name: [*usual_values, value]}
    for _ in range(per_flag):
        several = chance.sample(names, min(3, len(names)))
        chosen = {name: [chance.choice(NASTY)] for name in several}
        if "pairs" in chosen:
            chosen["pairs"] += given["pairs"]  # nobody waits for brokers here
        yield given | chosen


def fault_of(arguments: list[str], patch: pytest.MonkeyPatch) -> str | None:
    """What no user may see of a call: an exception, a traceback, or a failure without a word."""
    told = " ".join(word if len(word) < 60 else f"{word[:50]}…" for word in arguments)
    try:
        code, text = call(arguments, patch)
    except Exception as error:  # noqa: BLE001  # any at all is a traceback for the user
        *_, last = traceback.extract_tb(error.__traceback__)
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"{told}: {type(error).__name__} at {where}: {str(error)[:99]}"
    if code and not text.strip():
        return f"{told}: {code} in silence"
    return f"{told}: {code}: {text[-300:]}" if "Traceback" in text else None


def lived_in(folder: Path) -> ExportRig:
    """An application that has an export."""
    rig = ExportRig(folder)
    rig.send(("a", "1"), ("b", "2"))
    rig.drain()
    rig.export()
    return rig


@pytest.mark.parametrize("per_flag", [6, pytest.param(len(NASTY), marks=pytest.mark.slow)])
def test_no_command_ends_in_a_traceback(
    rig: ExportRig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    per_flag: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    calls, tracebacks = 0, []
    for path, command in commands(cli):
        given = usual(rig, command)
        for plan in plans(command, given, chance, per_flag):
            calls += 1
            if (wrong := fault_of(words(path, command, plan), monkeypatch)) is not None:
                tracebacks.append(wrong)
    bad = "\n".join(tracebacks)
    assert not tracebacks, f"seed {seed}, {calls} invocations, {len(tracebacks)} bad:\n{bad}"
    assert calls > 500

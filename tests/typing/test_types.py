"""What type checkers and editors see of the public names, and of a user's pipeline."""

import ast
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jedi
import pytest

import statestore as ss
from tests.wheel_rig import built_wheel, installed

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "typing" / "samples"
PIPELINE, MISTAKES = SAMPLES / "pipeline.py", SAMPLES / "mistakes.py"
MISTAKES_LEAST = 30
CHECKERS = ["mypy", pytest.param("pyright", marks=pytest.mark.thorough)]


class Found(NamedTuple):
    """The line of an error, and what the checker says."""

    line: int
    message: str


Reports = dict[str, list[Found]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reports]:
    """By file, what one run of a checker says about all samples.

    They are a user's: the samples lie in a folder of their own, beside an environment that has the
    wheel and what it requires.
    """
    home = tmp_path_factory.mktemp("environment")
    wheel = built_wheel(tmp_path_factory.mktemp("wheel"))
    python = installed(wheel, home, extras=["testing", "columns"]) / "python"
    folder = tmp_path_factory.mktemp("project")
    for sample in (PIPELINE, MISTAKES):
        shutil.copy(sample, folder)

    @cache
    def by(checker: str) -> Reports:
        return (by_mypy if checker == "mypy" else by_pyright)(folder, python)

    return by


def by_mypy(folder: Path, python: Path) -> Reports:
    """In strict mode."""
    asked = ["--strict", "--config-file=", "--output=json", f"--python-executable={python}"]
    output = run(folder, sys.executable, "-m", "mypy", *asked, PIPELINE.name, MISTAKES.name)
    told = [json.loads(line) for line in output.splitlines()]
    return by_file([(t["file"], t["line"], t["message"]) for t in told if t["severity"] == "error"])


def by_pyright(folder: Path, python: Path) -> Reports:
    """Basedpyright, which is pyright as a wheel with its Node.js, in pyright's own strict mode."""
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson"]
    output = run(folder, *command, "--pythonpath", str(python), "--project", str(folder))
    told = json.loads(output)["generalDiagnostics"]
    return by_file([(t["file"], t["range"]["start"]["line"] + 1, t["message"]) for t in told])


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    # 1: it found something, as it must.
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def by_file(told: list[tuple[str, int, str]]) -> Reports:
    found: Reports = {PIPELINE.name: [], MISTAKES.name: []}
    for file, line, message in told:
        found[Path(file).name].append(Found(line, message))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_pipeline_has_the_types_it_asserts(
    checker: str, reports: Callable[[str], Reports]
) -> None:
    assert reports(checker)[PIPELINE.name] == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("checker", CHECKERS)
def test_each_planted_mistake_is_reported_and_nothing_else(
    checker: str, reports: Callable[[str], Reports]
) -> None:
    lines = MISTAKES.read_text("utf-8").splitlines()
    planted = {i for i, line in enumerate(lines, start=1) if "# mistake:" in line}
    found = {found.line for found in reports(checker)[MISTAKES.name]}
    assert {i: lines[i - 1] for i in planted - found} == {}
    assert {i: lines[i - 1] for i in found - planted} == {}
    assert len(planted) >= MISTAKES_LEAST


def test_names_are_loaded_as_checkers_read_them() -> None:
    stub = ast.parse((ROOT / "statestore" / "__init__.pyi").read_text("utf-8"))
    *imports, version = stub.body
    assert ast.unparse(version) == "__version__: str"
    shown = []
    for node in imports:
        assert isinstance(node, ast.ImportFrom)
        (name,) = node.names
        # Only a name that is given itself as a name is public to a checker.
        assert name.name == name.asname
        loaded = getattr(ss, name.name)
        assert loaded is getattr(importlib.import_module(str(node.module)), name.name)
        shown.append(name.name)
    assert sorted(shown) == dir(ss)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "statestore" / "py.typed").is_file()


@pytest.mark.parametrize(
    ("code", "completed"),
    [
        ("ss.Str", "StreamsBuilder"),
        ("ss.StreamsBuilder().str", "stream"),
        ("ss.StreamsBuilder().stream('a').flat_map_v", "flat_map_values"),
        ("ss.StreamsBuilder().stream('a').group_by_key().count().to_s", "to_stream"),
        ("ss.serdes.INT6", "INT64"),
    ],
)
def test_editors_complete_public_names(code: str, completed: str) -> None:
    lines = f"import statestore as ss\n{code}"
    found = jedi.Script(lines, project=jedi.Project(ROOT)).complete()
    assert [name.name for name in found] == [completed]

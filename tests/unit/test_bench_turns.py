"""`make bench-turns` measures the library of another commit by the jobs of this tree."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench import bench_turns, measured
from tests.bench.bench_cpu import in_child
from tests.builders import ROOT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base", "HEAD", "--jobs", "counting,sums"], "no such jobs: sums; known: counting"),
        (["--base", "HEAD", "--turns", "none"], "'none' is not a valid integer"),
        ([], "Missing option '--base'"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], message: str) -> None:
    found = CliRunner().invoke(bench_turns.main, arguments)
    assert found.exit_code == 2
    assert message in found.output


def test_a_base_that_is_no_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="'no-such-commit' is no commit of this repository"):
        bench_turns.unpacked("no-such-commit", tmp_path)


def test_a_child_does_not_measure_the_installed_library_for_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A tree without a library of its own would silently be compared with itself."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    with pytest.raises(subprocess.CalledProcessError):
        in_child({}, tmp_path, job="counting", settings={}, broker=os.getpid())
    assert "AssertionError" in capfd.readouterr().err


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for package in measured.PASSED:
        (tmp_path / package).mkdir()
    (tmp_path / "tasks" / "one.py").write_text("def one(): return 1\n")
    (tmp_path / "kafka" / "two.c").write_text("int two;\n")
    return tmp_path


def test_what_is_said_of_code_is_not_measured_again_but_code_is(library: Path) -> None:
    first = measured.digest(library)
    one = library / "tasks" / "one.py"
    one.write_text('"""Module."""\n# Why.\ndef one():\n    """What."""\n    return 1\n')
    (library / "ui").mkdir()
    (library / "ui" / "page.py").write_text("pass")
    assert measured.digest(library) == first
    found = {first}
    for name, text in (
        ("tasks/one.py", "def one(): return 2\n"),
        ("kafka/two.c", "long two;\n"),
        ("stores/three.py", ""),
    ):
        (library / name).write_text(text)
        found.add(measured.digest(library))
    assert len(found) == 4


def test_code_that_was_not_measured_and_jobs_that_take_more_are_told(
    library: Path, tmp_path: Path
) -> None:
    path = tmp_path / "turns.json"
    jobs = {"counting": (1.0, 1.05), "sessions": (6.0, 5.0)}
    last = measured.Turns(measured.digest(library), measured.python(), "a1b2", 1000, 3, jobs)
    measured.keep(last, path)
    assert measured.kept(path) == last
    assert not measured.unmeasured(library, path)
    jobs["counting"] = (1.0, 1.2)
    measured.keep(last, path)
    wanted = "these jobs take more of a processor than at a1b2: counting 1.20: win it back, or say"
    assert wanted in measured.unmeasured(library, path)
    last.reason = "counts are checked now"
    measured.keep(last, path)
    assert not measured.unmeasured(library, path)
    (library / "model" / "four.py").write_text("four = 4\n")
    assert "is not the one that was measured last: run make" in measured.unmeasured(library, path)
    last.python = "3.9"  # On which a digest is another one.
    measured.keep(last, path)
    assert not measured.unmeasured(library, path)

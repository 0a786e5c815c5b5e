"""`make bench-turns` measures the library of another commit by the jobs of this tree."""

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.bench import bench_turns
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

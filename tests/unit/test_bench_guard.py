"""`make bench-guard` fails where a record costs more than the table says, and only there."""

import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.bench import bench_guard
from tests.bench.bench_guard import Job, worse, written
from tests.builders import ROOT

FIGURES = {"calls": 1000.0, "engine_calls": 0.0}


def guard(*arguments: str) -> Result:
    return CliRunner().invoke(bench_guard.main, arguments)


def test_records_cost_what_the_table_says() -> None:
    """In a process of its own, as `make bench-guard` does: other tests leave threads and caches."""
    command = [sys.executable, "-m", "tests.bench.bench_guard", "--only", "count", "--only", "join"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_slower_path_fails_and_names_job_figure_and_way_out(monkeypatch: Any) -> None:
    """The path is that of a row that is looked up again for each further record that meets it."""
    monkeypatch.setattr("statestore.topology.joins.own_rows._copy_of", lambda _row: None)
    found = guard("--only", "json")
    assert found.exit_code == 1
    assert "json: engine_calls" in found.output
    assert 'make bench-guard ACCEPT="the reason"' in found.output


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ({"calls": 1049.0, "engine_calls": 0.0}, []),
        ({"calls": 900.0, "engine_calls": 0.2}, []),
        (
            {"calls": 1060.0, "engine_calls": 0.3},
            [
                "a: calls 1000 -> 1060 per 1 000 records (+6%)",
                "a: engine_calls 0 -> 0.3 per 1 000 records (+100%)",
            ],
        ),
    ],
    ids=["less than a twentieth", "better", "worse"],
)
def test_more_than_a_twentieth_is_worse(found: dict[str, float], lines: list[str]) -> None:
    assert worse("a", found, FIGURES) == lines


def test_what_a_commit_costs_is_no_cost_of_its_records() -> None:
    assert worse("a", {"calls": 99.0}, {"calls": 80.0}) == []
    assert worse("a", {"calls": 101.0}, {"calls": 80.0}) != []


def test_the_reason_stands_at_the_jobs_that_became_worse(tmp_path: Any, monkeypatch: Any) -> None:
    kept = {"a": Job(FIGURES, "because"), "b": Job(FIGURES, "because")}
    slower = {"calls": 1200.0, "engine_calls": 0.0}
    (tmp_path / "guard.json").write_text(written({"a": slower, "b": FIGURES}, kept, "so"))
    monkeypatch.setattr(bench_guard, "TABLE", tmp_path / "guard.json")
    assert bench_guard.table() == {"a": Job(slower, "so"), "b": Job(FIGURES, "because")}

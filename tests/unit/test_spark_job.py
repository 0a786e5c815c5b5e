"""`statestore spark-job` and `statestore settings`: what a checkout has, found in the package."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import Misuse
from statestore.settings import describe_settings
from tests.builders import ROOT


@pytest.mark.parametrize("job", ["process", "export", "audit", "drill"])
def test_the_path_of_a_job_is_that_of_the_installed_package(job: str) -> None:
    done = CliRunner().invoke(cli, ["spark-job", job])
    path = Path(done.output.removesuffix("\n"))
    assert path == ROOT / "statestore" / "spark" / f"{job}.py"
    assert 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def test_a_job_that_is_not_there_is_answered_with_those_that_are() -> None:
    refused = CliRunner().invoke(cli, ["spark-job", "stream"])
    assert refused.exit_code == 2
    assert "'process', 'export', 'audit', 'drill'" in refused.output


def test_all_settings_are_listed_and_found_by_what_they_mean() -> None:
    done = CliRunner().invoke(cli, ["settings", "--json"])
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert [(row["key"], row["default"], row["unit"], row["about"]) for row in rows] == list(
        describe_settings()
    )
    found = CliRunner().invoke(cli, ["settings", "DEAD_LETTER"]).output
    assert "errors.dead.letter.queue.topic.name" in found
    assert "commit.interval.ms" not in found


def test_a_word_that_no_setting_has_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["settings", "nonsense"])
    assert isinstance(refused.exception, Misuse)
    assert "leave it out to list all" in str(refused.exception)

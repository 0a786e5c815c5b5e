"""`statestore spark-classes`: a Spark with an archive of its classes takes them from there."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import HostFailure
from statestore.extras import spark_java_options
from tests.builders import ROOT

PACKAGE = Path(pyspark.__file__).parent


def spark_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark of its own, which has the files of the one installed."""
    folder.mkdir()
    for one in PACKAGE.iterdir():
        if one.suffix != ".jsa":
            (folder / one.name).symlink_to(one)
    monkeypatch.setenv("SPARK_HOME", str(folder))
    return folder


def test_a_path_with_a_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = spark_in(tmp_path / "a spark", monkeypatch)
    (home / "statestore-classes.jsa").touch()
    assert spark_java_options() == []
    refused = CliRunner().invoke(cli, ["spark-classes"])
    assert isinstance(refused.exception, HostFailure)
    assert "move Spark away from" in str(refused.exception)


def test_a_spark_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/not/there")
    assert spark_java_options() == []
    refused = CliRunner().invoke(cli, ["spark-classes"])
    assert isinstance(refused.exception, HostFailure)
    assert "/not/there/statestore-classes.jsa" in str(refused.exception)


@pytest.mark.spark
@pytest.mark.thorough
def test_classes_come_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = spark_in(tmp_path / "spark", monkeypatch)
    assert spark_java_options() == []
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = CliRunner().invoke(cli, ["spark-classes"], catch_exceptions=False)
    assert made.output.startswith(f"{folder}/statestore-classes.jsa: ")
    assert [one.name for one in folder.glob(".statestore*")] == []
    told = tmp_path / "classes"
    options = " ".join([*spark_java_options(), f"-Xlog:class+load:file={told}"])
    assert made.output.splitlines()[1] == f'export SPARK_SUBMIT_OPTS="{spark_java_options()[0]}"'
    program = ROOT / "statestore" / "spark" / "any_job.py"
    subprocess.run(
        [Path(sys.executable).with_name("spark-submit"), "--master", "local[1]", program],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable},
        check=True,
        timeout=300,
    )
    lines = told.read_text(encoding="utf-8").splitlines()
    of_spark = [line for line in lines if " org.apache.spark." in line]
    shared = [line for line in of_spark if line.endswith("shared objects file (top)")]
    assert len(shared) > 0.5 * len(of_spark)  # Classes of lambdas are made anew.

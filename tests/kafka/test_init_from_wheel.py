"""A project made by `statestore init` of the installed wheel works at once, in a foreign folder.

The package is read-only meanwhile, as it is in many images.
"""

import os
import subprocess
from pathlib import Path

import pytest

from statestore.testing.kafka_jars import kafka_libs
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_rig import NO_PRIVILEGE
from tests.wheel_rig import built_wheel, installed

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

COUNTS = {"ann": 3, "bob": 1, "eve": 1}


class Project:
    """A folder with a project, and an environment whose site-packages cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.programs = installed(built_wheel(folder), folder / "environment", extras=None)
        self.folder = folder / "my pipelines" / "web-shop"
        self.folder.parent.mkdir()
        (self.packages,) = (folder / "environment").glob("lib/python3.*/site-packages")
        for path in [*self.packages.rglob("*"), self.packages]:
            path.chmod(0o555 if path.is_dir() else 0o444)

    def call(self, *words: str | Path, **environment: str) -> str:
        """Call a program as a user would who may not write into the environment."""
        # A make that these tests run under is not the user's: theirs does not name its folders.
        others = ("STATESTORE", "PYTHON", "MAKE", "MFLAGS")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        home = str(self.folder.parent)
        done = subprocess.run(
            [*(NO_PRIVILEGE if os.geteuid() == 0 else ()), *words],
            cwd=self.folder if self.folder.exists() else home,
            env={
                **kept,
                "HOME": home,
                "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                "STATESTORE_KAFKA_LIBS": str(kafka_libs()),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def make(self, target: str, **environment: str) -> str:
        return self.call("make", target, f"PYTHON={self.programs / 'python'}", **environment)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("foreign"))
    made.call(made.programs / "statestore", "init", "web-shop")
    return made


def shown(output: str) -> dict[str, int]:
    """The rows of the store, which `make run` shows last."""
    _, _, rows = output.partition("$ statestore stores range")
    return {line.split("\t")[1]: int(line.split("\t")[2]) for line in rows.splitlines()[1:]}


def test_the_site_packages_are_read_only(project: Project) -> None:
    with pytest.raises(AssertionError, match="Permission denied"):
        project.call("touch", project.packages / "statestore" / "written")


@pytest.mark.thorough
def test_its_tests_pass_and_its_types_are_right(project: Project) -> None:
    assert "3 passed" in project.make("test")
    assert "Success: no issues found in 3 source files" in project.make("check")


def test_it_runs_on_a_broker_of_its_own(project: Project) -> None:
    assert shown(project.make("run")) == COUNTS
    assert (project.folder / ".local" / "state").is_dir()


@pytest.mark.slow
def test_the_broker_of_its_own_goes_on_where_it_was(project: Project) -> None:
    project.make("clean")
    assert not (project.folder / ".local").exists()
    assert shown(project.make("run")) == COUNTS
    assert shown(project.make("run")) == {user: 2 * count for user, count in COUNTS.items()}


@pytest.mark.slow
def test_it_runs_on_given_brokers(project: Project, kafka: LocalKafka) -> None:
    servers = {"STATESTORE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    assert shown(project.make("run", **servers)) == COUNTS
    found = project.call(
        *(project.programs / "statestore", "stores", "get", "visits-by-user", "ann"),
        *("--application-id", "web-shop"),
        **servers,
    )
    assert found == "3\n"

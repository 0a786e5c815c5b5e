"""The package as a wheel outside any checkout, as images and clusters have it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from statestore.testing.kafka_jars import kafka_libs
from tests.wheel_rig import built_wheel
from tests.wheel_rig import installed as installed_wheel

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DRILL_S = 240

# In place of Maven: makes of the list of jars one that is none.
MAVEN = """\
#!/bin/sh
for given; do
    case $given in
        -DoutputDirectory=*) folder=${given#*=} ;;
        *.xml) list=$given ;;
    esac
done
mkdir -p "$folder" && cp "$list" "$folder/kafka_x.jar"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `statestore` command of an environment with the wheel and its extra `testing`."""
    folder = tmp_path_factory.mktemp("installed")
    programs = installed_wheel(built_wheel(folder), folder / "environment", extras=["testing"])
    return programs / "statestore"


def drill(installed: Path, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PYTHON"))}
    asked = ["--points", "commit.log-done", "--random", "0", "--special", "none", "--seed", "3"]
    return subprocess.run(
        [installed, "drill", *asked, "--report", folder / "report", "--json"],
        cwd=folder,
        env={**kept, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        timeout=DRILL_S,
        check=False,
    )


def without_maven(folder: Path) -> str:
    """A PATH that has Java and the tools of the system, but no Maven."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("java", "setpriv"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    return str(tools)


@pytest.mark.timeout(900)
def test_a_drill_on_a_broker_of_its_own_needs_no_checkout_and_with_its_jars_no_maven(
    installed: Path, tmp_path: Path
) -> None:
    given = {"STATESTORE_KAFKA_LIBS": str(kafka_libs()), "PATH": without_maven(tmp_path)}
    done = drill(installed, tmp_path, **given)
    assert done.returncode == 0, done.stdout + done.stderr
    (drilled,) = json.loads(done.stdout.splitlines()[-1])["drills"]
    assert (drilled["name"], drilled["outcome"]) == ("commit.log-done", "green")


def test_jars_are_fetched_into_the_users_cache_by_the_list_in_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    maven = tmp_path / "mvn"
    maven.write_text(MAVEN, encoding="utf-8")
    maven.chmod(0o755)
    done = drill(installed, tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode != 0
    (jar,) = (tmp_path / "cache" / "statestore").glob("kafka-*/libs/kafka_x.jar")
    assert "<kafka.version>" in jar.read_text(encoding="utf-8")
    assert list(installed.parents[1].rglob(".scratch")) == []


def test_a_folder_without_jars_is_named_with_the_way_out(installed: Path, tmp_path: Path) -> None:
    done = drill(installed, tmp_path, STATESTORE_KAFKA_LIBS=str(tmp_path))
    assert done.returncode == 8
    assert f"STATESTORE_KAFKA_LIBS={tmp_path} has no kafka_*.jar" in done.stderr

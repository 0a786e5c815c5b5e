"""What users install: the wheel in an environment that has what it requires and nothing else."""

import os
import re
import subprocess
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import statestore as ss
from tests.wheel_rig import built_wheel, installed

RUN_S = 60
# What belongs to an extra, and so is imported by nothing else.
OF_EXTRAS = tuple(
    f"statestore.{name}."
    for name in (
        *("airflow", "client", "commands.serve", "serving", "spark", "testing", "ui"),
        *("serdes.avro_in_arrow", "serdes.avro_serdes", "serdes.json_schema_serdes"),
        "serdes.protobuf_serdes",
        "kafka.schema_registry",
        *("topology.column_joins", "topology.column_operators", "topology.expressions"),
    )
)

IMPORT_ALL = """
import importlib, pkgutil, statestore
for found in pkgutil.walk_packages(statestore.__path__, "statestore.", onerror=print):
    if not (found.name + ".").startswith({extras!r}) and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
        print(found.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a program of an environment without any extra; gives what it prints."""
    home = tmp_path_factory.mktemp("environment")
    programs = installed(wheel, home)
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    def run(program: str, *arguments: str) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PYTHON"))}
        before = files(home)
        done = subprocess.run(
            [programs / program, *arguments],
            cwd=elsewhere,
            env={**kept, "HOME": str(elsewhere)},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert files(home) == before, "nothing is written beside the package"
        assert list(elsewhere.iterdir()) == []
        return done.stdout

    return run


def files(home: Path) -> set[Path]:
    """All files of statestore in an environment but compiled ones."""
    found = home.glob("lib/python3.*/site-packages/statestore*/**/*")
    return {path for path in found if "__pycache__" not in path.parts}


def test_it_has_one_top_level_package(names: list[str]) -> None:
    version = ss.__version__
    assert {name.partition("/")[0] for name in names} == {
        "statestore",
        f"statestore-{version}.dist-info",
    }


def test_it_has_types_a_licence_the_brokers_list_and_the_jobs(names: list[str]) -> None:
    wanted = {
        "statestore/py.typed",
        f"statestore-{ss.__version__}.dist-info/licenses/LICENSE",
        "statestore/testing/kafka.pom.xml",
        *(f"statestore/spark/{job}.py" for job in ("process", "export", "audit", "drill")),
    }
    assert wanted - set(names) == set()


def test_its_metadata_name_the_extras_and_pin_only_what_shares_a_folder(metadata: Message) -> None:
    assert metadata["Version"] == ss.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        *("airflow", "avro", "columns", "gx", "json-schema", "openlineage", "protobuf", "s3"),
        *("schema-registry", "serve", "spark", "testing", "ui"),
    }
    required = metadata.get_all("Requires-Dist", [])
    pinned = [one.split(";")[0] for one in required if re.search(r"[=]=\s*\d", one)]
    (pyspark,) = (one for one in pinned if one.startswith("pyspark=="))
    assert set(pinned) == {pyspark, pyspark.replace("pyspark", "pyspark-client")}
    core = {re.split(r"[^\w-]", one)[0] for one in required if "extra ==" not in one}
    assert not core & {"pyspark", "apache-airflow", "great-expectations", "s3fs", "psutil"}


def test_the_library_and_its_commands_need_no_extra(run: Callable[..., str]) -> None:
    imported = run("python", "-c", IMPORT_ALL.format(extras=OF_EXTRAS)).split()
    assert len(imported) > 100
    assert "statestore.cli" in imported
    helped = run("statestore", "--help").partition("\n")[2]
    assert run("python", "-m", "statestore", "--help").partition("\n")[2] == helped
    assert "Not available: install the extra `testing`." in helped


def test_it_says_its_version(run: Callable[..., str]) -> None:
    said = f"statestore, version {ss.__version__}\n"
    assert run("statestore", "--version") == run("python", "-m", "statestore", "--version") == said
    shown = run("python", "-c", "import statestore as ss; print(ss.__version__)")
    assert shown.strip() == ss.__version__

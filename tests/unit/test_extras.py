"""What needs an extra says how to install it, by the way this package was installed here."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.errors import Misuse
from statestore.extras import install_command, require_one_pyspark
from statestore.spark.session import spark_session
from tests.builders import DEADLINE_S
from tests.wheel_rig import built_wheel, installed

TELL = ("-c", "from statestore.extras import install_command as it; print(it('serve', 'ui'))")
SS = "import statestore as ss; "
RUN = "b = ss.StreamsBuilder(); b.stream('in').to('out'); ss.run(b.build(), {}, spark=1)"
REGISTRY = "ss.serdes.avro('long', registry=ss.SchemaRegistry('http://x'))"
S3 = "from statestore.targets import FsspecTarget; FsspecTarget('s3://bucket/exports')"
POLARS = "from statestore.topology.dsl.given import by_columns; by_columns('filter')"
# What Python is given, in an environment without any extra, and the extra that it needs.
DOORS = [
    (("-m", "statestore", "kafka", "start"), "testing"),
    (("-m", "statestore", "ui"), "ui"),
    (("-m", "statestore", "serve"), "serve"),
    (("-c", "from statestore.client import StateClient"), "serve"),
    (("-c", "from statestore.testing import TopologyTestDriver"), "testing"),
    (("-c", SS + "ss.serdes.avro('long')"), "avro"),
    (("-c", SS + "ss.serdes.json_schema({})"), "json-schema"),
    (("-c", SS + "ss.serdes.protobuf(object)"), "protobuf"),
    (("-c", SS + REGISTRY), "schema-registry"),
    (("-c", SS + RUN), "spark"),
    (("-c", S3), "s3"),
    (("-c", POLARS), "columns"),
]


class Environment:
    """One with the wheel and what it requires without any extra."""

    def __init__(self, folder: Path) -> None:
        self.wheel = built_wheel(folder)
        self.programs = installed(self.wheel, folder / "environment")
        (self.record,) = folder.glob("environment/lib/*/site-packages/*.dist-info/direct_url.json")

    def says(self, *arguments: str) -> str:
        """What Python prints, on both streams."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PYTHON"))}
        return subprocess.run(
            [self.programs / "python", *arguments],
            cwd=self.programs,
            env=kept,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_S,
            check=False,
        ).stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(made: Environment) -> Iterator[Environment]:
    """The environment, whose record of its origin a test may change."""
    recorded = made.record.read_bytes()
    yield made
    made.record.write_bytes(recorded)


@pytest.mark.parametrize(("arguments", "extra"), DOORS, ids=range(len(DOORS)))
def test_every_door_to_an_extra_gives_a_command_that_installs_it(
    arguments: tuple[str, ...], extra: str, made: Environment
) -> None:
    said = made.says(*arguments)
    assert f" needs the extra `{extra}` " in said or extra == "s3", said
    assert said.rstrip().endswith(f": pip install '{made.wheel}[{extra}]'"), said


def test_pip_takes_the_command(made: Environment) -> None:
    _, *arguments = shlex.split(made.says(*TELL))
    pip = [sys.executable, "-m", "pip", "--python", str(made.programs / "python")]
    done = subprocess.run(
        [*pip, *arguments, "--no-deps", "--no-index", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


ORIGINS = [
    ({"url": "file:///", "dir_info": {}}, "'/[serve,ui]'"),
    ({"url": "file:///usr%2Fbin", "dir_info": {"editable": True}}, "-e '/usr/bin[serve,ui]'"),
    ({"url": "file:///gone.whl", "archive_info": {}}, "'.[serve,ui]' in a checkout of statestore"),
    (
        {"url": "https://host/it", "vcs_info": {"vcs": "git", "commit_id": "7a"}},
        "'statestore[serve,ui] @ git+https://host/it@7a'",
    ),
    (
        {"url": "https://host/it.whl", "archive_info": {}},
        "'statestore[serve,ui] @ https://host/it.whl'",
    ),
]


@pytest.mark.parametrize(("origin", "command"), ORIGINS, ids=range(len(ORIGINS)))
def test_the_command_goes_by_where_the_package_came_from(
    origin: dict[str, object], command: str, environment: Environment
) -> None:
    environment.record.write_text(json.dumps(origin), encoding="utf-8")
    assert environment.says(*TELL) == f"pip install {command}\n"


def test_a_package_from_an_index_is_installed_from_there(environment: Environment) -> None:
    environment.record.unlink()
    assert environment.says(*TELL) == "pip install 'statestore[serve,ui]'\n"


def test_two_versions_of_pyspark_in_one_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_one_pyspark()
    other = tmp_path / "pyspark_client-4.2.99.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.2.99")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Misuse, match=r"pyspark 4\.2\.0 and pyspark-client 4\.2\.99") as refused:
        spark_session("mixed")
    way_out = (
        f"pip uninstall --yes pyspark pyspark-client, then {install_command('airflow', 'spark')}"
    )
    assert way_out in str(refused.value)

"""An Airflow of somebody else: the wheel, and nothing of this repository beside it."""

import json
import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.builders import DEADLINE_S
from tests.wheel_rig import built_wheel, installed

CALL_S = 300
# Of an environment with another version of Airflow, all its extras and no statestore.
OTHER_PYTHON = os.environ.get("STATESTORE_TEST_PYTHON", sys.executable)
_OURS = ("AIRFLOW", "STATESTORE", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")

# As an installation of Airflow makes it.
_AIRFLOW = """\
#!{python}
from airflow.__main__ import main

main()
"""

PIPELINE = '''
"""A pipeline of theirs."""

import statestore as ss
from statestore import serdes


def counted(name: str) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream(name).group_by_key().count(f"{name}-counts").to_stream().to(f"{name}-counted")
    return b.build()


def orders() -> ss.Topology:
    return counted("orders")


def payments() -> ss.Topology:
    return counted("payments")
'''


ORDERS = """
[applications.orders]
pipeline = "shop:orders"
bootstrap_servers = "{servers}"
state_dir = "state"
processing_guarantee = "exactly_once"
"""


@dataclass
class ForeignAirflow:
    """A home of Airflow, and the programs of an environment with the wheel."""

    home: Path
    programs: Path
    variables: dict[str, str] = field(default_factory=dict)

    @classmethod
    def made(cls, folder: Path, dags: Mapping[str, str]) -> "ForeignAirflow":
        """Install the wheel, and write these files into the folder of DAGs."""
        packages = purelib(OTHER_PYTHON)
        programs = installed(
            built_wheel(folder), folder / "environment", extras=None, packages_of=packages
        )
        _link_spark(packages, programs)
        shim = programs / "airflow"
        shim.write_text(_AIRFLOW.format(python=programs / "python"), encoding="utf-8")
        shim.chmod(0o755)
        home = folder / "airflow"
        home.mkdir()
        for name, text in dags.items():
            path = home / "dags" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return cls(home, programs)

    def environment(self) -> dict[str, str]:
        """The variables of its processes: none of ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.programs), kept.get("PATH", "")]),
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "NO_PROXY": "localhost,127.0.0.1",
            **self.variables,
        }

    def call(self, *arguments: str, code: int = 0) -> str:
        """Run one of its commands, which must end with that code; return all that it printed."""
        done = subprocess.run(
            [str(self.programs / "python"), *arguments],
            cwd=self.home,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CALL_S,
            check=False,
        )
        assert done.returncode == code, done.stdout[-8000:]
        return done.stdout

    def airflow(self, *arguments: str, code: int = 0) -> str:
        """Run the command `airflow` of that environment."""
        return self.call("-m", "airflow", *arguments, code=code)

    def files_with(self, text: str) -> Iterator[Path]:
        """Yield every file in its home that contains a text: logs, database and all."""
        for path in self.home.rglob("*"):
            if path.is_file() and text.encode() in path.read_bytes():
                yield path

    def json(self, *arguments: str) -> Any:
        """Return what a command prints as JSON at its end."""
        printed = self.airflow(*arguments, "--output", "json")
        return json.loads(printed[printed.index("[") :]) if "[" in printed else []


def produce(servers: str, topic: str, keys: str) -> None:
    """Write one record for each of these keys."""
    producer = Producer({"bootstrap.servers": servers})
    for key in keys:
        producer.produce(topic, key=key, value="v")
    assert producer.flush(DEADLINE_S) == 0


def counted(servers: str, topic: str) -> dict[str, int]:
    """The newest count of each key, of committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"read-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: dict[str, int] = {}
    consumer.subscribe([topic])
    ended = 0
    while ended < 1:  # one partition
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended += 1
        else:
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            found[key.decode()] = int.from_bytes(value, "big")
    consumer.close()
    return found


def purelib(python: str) -> Path:
    """The folder of packages of an interpreter."""
    if python == sys.executable:
        return Path(sysconfig.get_path("purelib"))
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def _link_spark(packages: Path, programs: Path) -> None:
    """Put Spark's programs where an installation of pyspark puts them."""
    for path in (packages / "pyspark" / "bin").iterdir():
        (programs / path.name).symlink_to(path)
    (programs / "find_spark_home.py").symlink_to(packages / "pyspark" / "find_spark_home.py")

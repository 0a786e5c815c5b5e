"""The wheel on the other Pythons that it supports, where this machine has them.

`pytest tests/kafka/test_other_pythons.py -m slow` tries them on Spark too. Packages come from the
index that pip knows.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT
from tests.wheel_rig import built_wheel

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

VERSIONS = ("3.12", "3.13")
INSTALL_S = 400
RUN_S = 150


class Shop(NamedTuple):
    """The README's example, saved by a user of another Python."""

    programs: Path
    folder: Path

    def run(self, program: str, *words: object) -> str:
        """Run a program of the environment in the user's folder; return what it prints."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PYTHON"))}
        python = str(self.programs / "python")
        done = subprocess.run(
            [str(self.programs / program), *map(str, words)],
            cwd=self.folder,
            env={**kept, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout


def interpreter(version: str) -> str:
    """The path of a Python of this version that can make environments; skips if there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python{version}")
    found = [*([named] if named else []), *map(str, home.glob(f"versions/{version}.*/bin/python"))]
    for path in found:
        asked = [path, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(
            asked, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        if said.stdout.strip() == version:
            return path
    pytest.skip(f"this machine has no Python {version}")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def shop(version: str, wheel: Path, folder: Path, *, extras: str) -> Shop:
    """Install the wheel on that Python, and save the example."""
    home = folder / "environment"
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[{extras}]"]
    subprocess.run([interpreter(version), "-m", "venv", str(home)], check=True, timeout=INSTALL_S)
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=INSTALL_S)
    if "connection broken" in done.stderr:
        pytest.skip("pip cannot reach its index")
    assert done.returncode == 0, done.stderr[-4000:]
    example = re.findall(
        r"^```python[^\n]*\n(.*?)^```$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )[0]
    (folder / "shop.py").write_text(example, encoding="utf-8")
    return Shop(home / "bin", folder)


def processed(shop: Shop, kafka: LocalKafka, version: str, command: Sequence[object]) -> None:
    """Run the example on a broker; its store has what it should."""
    suffix = version.replace(".", "-")
    renamed = (shop.folder / "shop.py").read_text(encoding="utf-8")
    for topic in ("orders", "spent-by-customer"):
        kafka.create_topic(f"{topic}-{suffix}-{command[0]}", partitions=2)
        renamed = renamed.replace(f'"{topic}"', f'"{topic}-{suffix}-{command[0]}"')
    (shop.folder / "shop.py").write_text(renamed, encoding="utf-8")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(300):
        order = json.dumps({"customer": f"c{number % 3}", "cents": number})
        producer.produce(f"orders-{suffix}-{command[0]}", order, f"order-{number}")
    assert producer.flush(DEADLINE_S) == 0
    application = f"shop-{suffix}-{command[0]}"
    flags = {
        "pipeline": "shop:topology",
        "application-id": application,
        "bootstrap-servers": kafka.bootstrap_servers,
        "state-dir": "state",
        "processing-guarantee": "exactly_once",
    }
    shop.run(*map(str, command), *(f"--{name}={value}" for name, value in flags.items()))
    where = ["--application-id", application, "--state-dir", "state"]
    for customer in range(3):
        value = shop.run("statestore", "stores", "get", "spent", f"c{customer}", *where)
        assert int(value) == sum(range(customer, 300, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("version", VERSIONS)
def test_the_library_and_its_commands_run_on(
    version: str, wheel: Path, kafka: LocalKafka, tmp_path: Path
) -> None:
    made = shop(version, wheel, tmp_path, extras="testing")
    said = made.run("statestore", "--version")
    assert said == f"statestore, version {ss.__version__}\n"
    assert made.run("python", "shop.py").splitlines() == ["Ada 250", "Ada 350"]
    processed(made, kafka, version, ["statestore", "run"])


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_spark_runs_it_on(version: str, wheel: Path, kafka: LocalKafka, tmp_path: Path) -> None:
    made = shop(version, wheel, tmp_path, extras="testing,spark")
    (script,) = made.programs.parent.glob("lib/python3.*/site-packages/statestore/spark/process.py")
    processed(made, kafka, version, ["spark-submit", "--master=local[2]", script])

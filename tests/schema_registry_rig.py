"""A real schema registry for tests: Apicurio, in memory, with Confluent's API.

Maven fetches its distribution once, as it fetches Kafka's jars; `make setup` has it done.
"""

import os
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import filelock
import msgspec
import psutil
import pytest

from statestore.testing.kafka_jars import scratch_dir
from statestore.testing.kafka_node import HOST, end, reserved_ports
from tests.builders import DEADLINE_S, eventually

# The last version for Java 17. Its parent is in no public repository, so only `get` of this version
# of the plugin fetches it: it reads no description of what it fetches.
_ARTIFACT: Final = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
_GET: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:get"
_FETCH_S: Final = 900
_READY_S: Final = 120.0
_API: Final = "/apis/ccompat/v7"


def registry_home() -> Path:
    """The folder of the registry, which is fetched first if it is missing."""
    home = scratch_dir() / f"apicurio-{_ARTIFACT.split(':')[2]}"
    with filelock.FileLock(home.with_name("apicurio.lock"), timeout=_FETCH_S):
        if not home.is_dir():
            fresh = home.with_name("apicurio.new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            packed = fresh / "all.tar.gz"
            subprocess.run(
                [
                    *("mvn", "--quiet", "--batch-mode", _GET, f"-Dartifact={_ARTIFACT}"),
                    *("-Dtransitive=false", f"-Ddest={packed}"),
                ],
                stdin=subprocess.DEVNULL,
                timeout=_FETCH_S,
                check=True,
            )
            with tarfile.open(packed) as archive:
                archive.extractall(fresh, filter="data")
            packed.unlink()
            fresh.rename(home)
    return home


class Registry:
    """A running registry; `url` is that of Confluent's API."""

    def __init__(self, port: int, process: "subprocess.Popen[bytes]") -> None:
        self.url = f"http://{HOST}:{port}{_API}"
        self._process = process

    def ask(
        self, path: str, body: Mapping[str, Any] | None = None, method: str | None = None
    ) -> Any:
        """The answer to a request."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return msgspec.json.decode(answer.read())

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Register a schema; its id."""
        body = {"schema": schema, "schemaType": kind}
        found: int = self.ask(f"/subjects/{subject}/versions", body)["id"]
        return found

    def subjects(self) -> list[str]:
        """All subjects."""
        found: list[str] = self.ask("/subjects")
        return sorted(found)

    def answers(self) -> bool:
        """Whether it answers."""
        assert self._process.poll() is None, "the registry has ended"
        try:
            return isinstance(self.subjects(), list)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            end([psutil.Process(self._process.pid)], grace_s=10)
        self._process.wait()


def started_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Yield a registry: a module's fixture is `running = pytest.fixture(scope="module")(…)`."""
    if os.environ.get("REQUIRE_KAFKA") != "1":
        pytest.skip("set REQUIRE_KAFKA=1: the registry is fetched and started")
    with local_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@contextmanager
def local_registry(folder: Path) -> Iterator[Registry]:
    """A registry of its own, which has no schemas yet; `folder` gets its log."""
    (runner,) = registry_home().glob("*-runner.jar")
    setpriv = shutil.which("setpriv")
    killed_with_us = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    java = str(Path(os.environ["JAVA_HOME"]) / "bin/java") if "JAVA_HOME" in os.environ else "java"
    with reserved_ports(1, scratch_dir() / "ports") as (port,), (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*killed_with_us, java, "-XX:TieredStopAtLevel=1", "-Xmx256m", "-jar", str(runner)],
            cwd=folder,
            env={**os.environ, "QUARKUS_HTTP_PORT": str(port), "QUARKUS_HTTP_HOST": HOST},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        made = Registry(port, process)
        try:
            eventually(made.answers, f"the registry answers, see {log.name}", _READY_S)
            yield made
        finally:
            made.stop()

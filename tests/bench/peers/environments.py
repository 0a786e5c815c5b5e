"""The environment of each peer, under `.scratch/peers`: made when it is first used, then kept.

Python's packages go into a virtual environment by uv, jars into a folder by Maven, both by the
clients' own settings. A folder is named by what the table pins, so another version is another one.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from statestore.testing.kafka_jars import java, scratch_dir
from tests.bench.peers.table import Peer

_FOLDER = Path(__file__).parent
_FETCH_S = 900
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>statestore</groupId><artifactId>peer</artifactId><version>1</version>
  <packaging>pom</packaging>
  <build><plugins><plugin>
    <artifactId>maven-dependency-plugin</artifactId><version>3.8.1</version>
  </plugin></plugins></build>
  <dependencies>
{}
  </dependencies>
</project>
"""
_DEPENDENCY = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "</dependency>"
)


@dataclass(frozen=True)
class Environment:
    """Where a peer's Python, jars and classes are; those that it has."""

    python: Path
    jars: Path
    classes: Path

    def class_path(self) -> str:
        return f"{self.classes}:{self.jars}/*"


def environment_of(name: str, peer: Peer) -> Environment:
    """The environment of a peer, whose packages are fetched if nobody has yet.

    CalledProcessError, with what the client said, if they cannot be had.
    """
    if not (peer.packages or peer.jars):
        return Environment(Path(sys.executable), Path(), Path())
    pins = "\n".join((*peer.packages, *peer.jars))
    home = scratch_dir() / "peers" / f"{name}-{hashlib.sha256(pins.encode()).hexdigest()[:8]}"
    home.mkdir(parents=True, exist_ok=True)
    made = Environment(home / "venv" / "bin" / "python", home / "jars", home / "classes")
    with filelock.FileLock(home / "lock", timeout=_FETCH_S):
        if not (home / "complete").exists():
            if peer.packages:
                _install(home / "venv", peer.packages)
            if peer.jars:
                _copy_jars(home, peer.jars)
            (home / "complete").write_text(pins)
        if peer.sources:
            _compile(made, peer.sources)
    return made


def jars_of(name: str, jars: Sequence[str]) -> Path:
    """A folder that has these jars and what they need, fetched if nobody has yet."""
    home = scratch_dir() / "peers" / f"{name}-{hashlib.sha256(repr(jars).encode()).hexdigest()[:8]}"
    home.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(home / "lock", timeout=_FETCH_S):
        if not (home / "complete").exists():
            _copy_jars(home, jars)
            (home / "complete").touch()
    return home / "jars"


def why(error: OSError | subprocess.SubprocessError) -> str:
    """The line of a client's output that says what failed: its first error, else its last line."""
    output = getattr(error, "output", None) or str(error)
    lines = [_COLOURS.sub("", line).strip() for line in output.splitlines()]
    told = [line for line in lines if line] or [type(error).__name__]
    return next((line for line in told if "[ERROR]" in line or " error: " in line), told[-1])


def _install(venv: Path, packages: Sequence[str]) -> None:
    uv = str(Path(sys.executable).with_name("uv"))
    options = ("--python", str(venv / "bin" / "python"), "--compile-bytecode")
    _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(venv)])
    _run([uv, "pip", "install", "--quiet", *options, *packages], _as_pip_is_set())


def _as_pip_is_set() -> Mapping[str, str]:
    """What pip is told of index and certificates, for uv, which does not read that."""
    told = _run([sys.executable, "-m", "pip", "config", "list"])
    found = {"UV_HTTP_TIMEOUT": "180", **os.environ}
    for line in told.splitlines():
        key, _, value = line.partition("=")
        name = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}.get(key.split(".")[-1])
        if name is not None:
            found.setdefault(name, value.strip("'"))
    return found


def _copy_jars(home: Path, jars: Sequence[str]) -> None:
    pom = home / "pom.xml"
    pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(*jar.split(":")) for jar in jars)))
    shutil.rmtree(home / "jars", ignore_errors=True)
    _run(
        [
            *("mvn", "--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(pom)),
            *("dependency:copy-dependencies", f"-DoutputDirectory={home / 'jars'}"),
            "-DincludeScope=runtime",
        ]
    )


def _compile(made: Environment, sources: Sequence[str]) -> None:
    compiler = Path(java()).with_name("javac") if "/" in java() else Path("javac")
    paths = [str(_FOLDER / "java" / source) for source in sources]
    made.classes.mkdir(exist_ok=True)
    _run([str(compiler), "-nowarn", "-d", str(made.classes), "-cp", f"{made.jars}/*", *paths])


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_FETCH_S,
        check=True,
    )
    return done.stdout

"""The programs a local broker needs: Java, and Kafka's jars.

`$STATESTORE_KAFKA_LIBS` names a folder that has the jars, such as `libs` of an installed Kafka.
Without it Maven fetches the jars of kafka.pom.xml into `<scratch>/kafka-<version>/libs`, all or
none of them, once for all processes. The scratch folder is `$STATESTORE_SCRATCH`, else `.scratch`
in a checkout of the repository, else `statestore` in the user's cache folder.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock

from statestore.errors import HostFailure, Locked, Unavailable

SCRATCH_VARIABLE = "STATESTORE_SCRATCH"
LIBS_VARIABLE = "STATESTORE_KAFKA_LIBS"
INSTALL = "apt-get install openjdk-17-jre-headless maven"

_PROJECT = Path(__file__).resolve().parents[2]
_POM = Path(__file__).with_name("kafka.pom.xml")
_MARKER = "pom.sha256"
_TEMPORARY = "kafka-jars-"
_FETCH_S = 900

_log = logging.getLogger(__name__)


def scratch_dir() -> Path:
    """The folder for everything that may be deleted; it is made if it is missing."""
    named = os.environ.get(SCRATCH_VARIABLE)
    scratch = Path(named).resolve() if named else _default_scratch()
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise HostFailure(
            f"cannot make the scratch folder {scratch} ({failure.strerror}): "
            f"set {SCRATCH_VARIABLE} to a folder that can be written"
        ) from failure
    return scratch


def _default_scratch() -> Path:
    """The scratch folder by default, which is never where packages are installed."""
    if (_PROJECT / "pyproject.toml").is_file():
        return _PROJECT / ".scratch"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "statestore"


def java() -> str:
    """The Java to run: that of JAVA_HOME if it is set, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return _program(str(Path(home) / "bin" / "java") if home else "java", "run a local broker")


def kafka_libs() -> Path:
    """The folder of the broker's jars, which are fetched first if the folder has other ones."""
    named = os.environ.get(LIBS_VARIABLE)
    if named:
        return _given_libs(Path(named))
    pom = _POM.read_bytes()
    found = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", pom.decode())
    assert found, f"{_POM} has no kafka.version"
    home = scratch_dir() / f"kafka-{found[1]}"
    checksum = hashlib.sha256(pom).hexdigest()
    if not _is_complete(home, checksum):
        lock = filelock.FileLock(home.with_name("kafka-jars.lock"), timeout=_FETCH_S)
        try:
            with lock:
                if not _is_complete(home, checksum):
                    _fetch(home, checksum)
        except filelock.Timeout as failure:
            raise Locked(
                f"another process has been fetching Kafka's jars for {_FETCH_S} s: end it, "
                f"the lock is {lock.lock_file}"
            ) from failure
    return home / "libs"


def _given_libs(folder: Path) -> Path:
    if not any(folder.glob("kafka_*.jar")):
        raise HostFailure(
            f"{LIBS_VARIABLE}={folder} has no kafka_*.jar: name the `libs` folder of a Kafka, or "
            "unset it to have the jars fetched by Maven"
        )
    return folder.resolve()


def _is_complete(home: Path, checksum: str) -> bool:
    marker = home / "libs" / _MARKER
    return marker.is_file() and marker.read_text() == checksum


def _fetch(home: Path, checksum: str) -> None:
    """Fetch into a temporary sibling, then rename: a reader sees all jars or none."""
    for left_over in home.parent.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    _log.info("fetching the jars of %s with Maven, once", home.name)
    with tempfile.TemporaryDirectory(
        prefix=_TEMPORARY, dir=home.parent, ignore_cleanup_errors=True
    ) as temporary:
        fresh = Path(temporary) / "new"
        _run_maven(fresh / "libs")
        (fresh / "libs" / _MARKER).write_text(checksum)
        if home.exists():
            home.rename(Path(temporary) / "old")
        fresh.rename(home)


def _run_maven(libs: Path) -> None:
    command = [_program("mvn", "fetch Kafka's jars"), "--quiet", "--batch-mode"]
    command += ["-Dstyle.color=never", "--file", str(_POM), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={libs}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as failure:
        raise Unavailable(f"Maven did not fetch Kafka's jars within {_FETCH_S} s") from failure
    if done.returncode != 0 or not any(libs.glob("kafka_*.jar")):
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise Unavailable(
            f"Maven could not fetch the jars of {_POM} (exit code {done.returncode}); look at the "
            f"network and at Maven's settings, then try again:\n{tail}"
        )


def _program(name: str, purpose: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise HostFailure(f"'{name}' was not found, which is needed to {purpose}: {INSTALL}")
    return path

"""The programs that operators start: Spark jobs, and the `statestore` command.

Nothing here imports what it starts. A job is submitted by the path of its file.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.common.compat.sdk import AirflowFailException

from statestore.errors import Misuse
from statestore.extras import require_one_pyspark

STATESTORE = (sys.executable, "-m", "statestore")
KILL_GRACE_S = 3.0
"""Airflow kills a task 5 s after it has asked it to stop: its programs must be gone before."""
MARK = "STATESTORE_SUBMISSION"
"""The environment variable that tells which processes belong to a submission."""

_NAME = re.compile(r"[a-z]+")
_LOCAL = re.compile(r"local(\[(?P<cores>\*|\d+)(?P<failures>,\d+)?\])?")


def job_path(job: str, folder: Path) -> Path:
    """The file of a job: one of statestore.spark by its name, such as "process", or a script.

    A script is named by its path, which starts at `folder` if it is relative.
    """
    if _NAME.fullmatch(job):
        return Path(str(files("statestore"))) / "spark" / f"{job}.py"
    return folder / job


def require_job(path: Path) -> None:
    """Fail for good if a job cannot run here: its file is missing, or PySpark's are mixed up."""
    try:
        require_one_pyspark()
    except Misuse as error:
        raise AirflowFailException(str(error)) from error
    if not path.is_file():
        raise AirflowFailException(
            f"there is no job {path}: name process, export, audit or drill, or a script by its "
            "path, which starts at the folder of the applications file or of the DAG file"
        )


def job_environment(folder: Path) -> dict[str, Any]:
    """Variables of a job: all its parts run this interpreter, and find the pipeline in `folder`."""
    beside = str(folder)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in inherited if entry and entry != beside]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([beside, *rest]),
    }


def logged(log: Any, process: subprocess.Popen[str]) -> int:
    """Log what a program says, line by line, until it ends; return its exit code."""
    with process:
        for line in process.stderr or process.stdout or ():
            log.info("%s", line.rstrip())
    return process.returncode


def bounded_master(master: str, cores: int) -> str:
    """A local master with at most `cores` cores; `spark.cores.max` bounds any other master."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return master
    asked = match["cores"] or "1"
    used = cores if asked == "*" else min(int(asked), cores)
    return f"local[{used}{match['failures'] or ''}]"


def end_marked_processes(mark: str, *, grace_s: float) -> None:
    """Terminate every process of a submission, and kill what is left of them after `grace_s`.

    An environment variable tells which they are, as pyspark's daemon leaves the process group and
    orphans leave the process tree.
    """
    for finish in (psutil.Process.terminate, psutil.Process.kill):
        alive = list(_marked(mark))
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                finish(process)
        psutil.wait_procs(alive, timeout=grace_s)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                yield process

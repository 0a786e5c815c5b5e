"""`statestore spark-classes`: Java's archive of the classes that Spark loads, beside Spark's jars.

With it a run on Spark takes about a third less time to its first task, and less of the processor.
Java does not use an archive of other jars or of another Java, and goes on without one, so a stale
one does no harm.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import click

from statestore.errors import HostFailure
from statestore.extras import SPARK_CLASSES, missing, spark_home, spark_java_options

_PROGRAM = "statestore.spark.any_job"
_MAKING_S = 600.0


@click.command("spark-classes")
def spark_classes_command() -> None:
    """Make an archive of Spark's classes, with which runs on Spark start a third sooner.

    It takes about half a minute and 150 MB beside Spark's jars, and is made once for each Spark:
    when an image is built, for example. The runs of Airflow's operators use it by themselves.
    Others do with SPARK_SUBMIT_OPTS, which is printed. Make it again after an update of Spark or
    Java; one that does not fit is not used.
    """
    home = spark_home()
    if home is None:
        raise missing("spark", "spark-classes", ModuleNotFoundError("No module named 'pyspark'"))
    archive = home / SPARK_CLASSES
    if len(str(archive).split()) > 1:
        raise HostFailure(f"no option of Java has a space: move Spark away from {str(home)!r}")
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=".statestore-classes-") as folder:
            made = Path(folder) / SPARK_CLASSES
            _make(made)
            made.replace(archive)
    except subprocess.TimeoutExpired as error:
        raise HostFailure(
            f"spark-submit did not end within {_MAKING_S:.0f} s: call this while less else runs"
        ) from error
    except OSError as error:
        raise HostFailure(
            f"cannot write {archive} ({error.strerror}): call this as the user who installed Spark"
        ) from error
    click.echo(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")
    click.echo(f'export SPARK_SUBMIT_OPTS="{" ".join(spark_java_options())}"')


def _make(archive: Path) -> None:
    beside = Path(sys.executable).with_name("spark-submit")
    submit = str(beside) if beside.is_file() else shutil.which("spark-submit")
    if submit is None:
        raise HostFailure("there is no spark-submit beside this Python or on the PATH: install it")
    program = Path(str(files("statestore")), *_PROGRAM.split(".")[1:]).with_suffix(".py")
    options = f"-XX:ArchiveClassesAtExit={archive}"
    done = subprocess.run(
        [submit, "--master", "local[1]", "--driver-java-options", options, str(program)],
        env={key: value for key, value in os.environ.items() if key != "SPARK_SUBMIT_OPTS"}
        | {"PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_MAKING_S,
    )
    if done.returncode or not archive.is_file():
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise HostFailure(
            f"Java made no archive of Spark's classes (exit code {done.returncode}); it needs Java "
            f"13 or later; the last lines of spark-submit: {' | '.join(lines[-3:]) or 'none'}"
        )

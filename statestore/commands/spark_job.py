"""`statestore spark-job`: where the programs lie that spark-submit takes."""

from importlib.resources import files
from pathlib import Path

import click

from statestore.errors import HostFailure

_JOBS = ("process", "export", "audit", "drill")


@click.command("spark-job")
@click.argument("job", type=click.Choice(_JOBS))
def spark_job_command(job: str) -> None:
    """Print the path of a Spark JOB in the installed package, for spark-submit.

    For example: spark-submit "$(statestore spark-job process)" --application-id shop

    The Python of the driver and of the workers must have statestore installed; set PYSPARK_PYTHON
    if it is not the python3 of the PATH. Pass --help to a job to see its flags.
    """
    path = Path(str(files("statestore"))) / "spark" / f"{job}.py"
    if not path.is_file():
        raise HostFailure(
            f"there is no file {path}, which spark-submit needs: install statestore as files, with "
            "pip, and not as a zip archive"
        )
    click.echo(path)

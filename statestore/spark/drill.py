"""Drill the deaths of Spark's workers: runs of process.py meet crash points.

    python jobs/drill.py --points commit.log-done,commit.begin --special none --random 0 …

Drills, workload and report are those of `statestore drill`, but each run is a Spark application of
its own. Spark repeats the task of a worker that dies, so the run that meets the death also
finishes. This program starts no Spark session itself.
"""

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from statestore.cli import set_up_logging
from statestore.spark.program import run_program
from statestore.testing.drills.drill_command import drill_options, run_drill

_PROCESS = Path(__file__).resolve().with_name("process.py")
_SUBMIT = Path(sys.executable).with_name("spark-submit")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@drill_options
@click.option("--master", default="local[2,4]", show_default=True, help="Spark master of the runs.")
def command(*, master: str, **flags: Any) -> None:
    """Kill Spark workers at crash points; audit what is left."""
    set_up_logging()
    run_drill(flags, (str(_SUBMIT), "--master", master, str(_PROCESS)))


def main() -> NoReturn:
    """Run the job with the flags of this process."""
    run_program(command)


if __name__ == "__main__":
    main()

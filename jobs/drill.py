"""Drill the deaths of Spark's workers: crash points met by runs of jobs/process.py.

    python jobs/drill.py --points commit.log-done,commit.begin --special none --random 0 …

The same drills, workload and report as `statestore drill`; only what runs is a Spark application,
submitted anew for each run. A worker that dies is repeated by Spark, so one run meets the death and
finishes. Starts no session of its own: those of the runs come and go.
"""

import sys
from pathlib import Path
from typing import Any

import click

from statestore.cli import guarded, set_up_logging
from statestore.commands.drill import drill_options, run_drill

_PROCESS = Path(__file__).resolve().with_name("process.py")
_SUBMIT = Path(sys.executable).with_name("spark-submit")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@drill_options
@click.option("--master", default="local[2,4]", show_default=True, help="Spark master of the runs.")
def main(*, master: str, **flags: Any) -> None:
    """Kill Spark workers at crash points; audit what is left."""
    set_up_logging()
    run_drill(flags, (str(_SUBMIT), "--master", master, str(_PROCESS)))


if __name__ == "__main__":
    sys.exit(guarded(main))

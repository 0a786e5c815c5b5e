"""CPU of what a process imports before it does anything, beside another commit, in turns.

    python -m tests.bench.bench_imports --base 9c466245 [--turns 9]

What Python itself takes is taken off. A quotient below 1 is a gain over BASE.
"""

import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from tests.bench.bench_turns import add_turns, unpacked
from tests.bench.harness import ROOT, Bench, scratch

_NOTHING: Final = "pass"
_PROCESSES: Final[Mapping[str, str]] = {
    "statestore run": "import statestore.cli; statestore.cli.cli.get_command(None, 'run'); "
    "import statestore as ss; ss.StreamsBuilder; import statestore.kafka.wire.client",
    "statestore status": "import statestore.cli; statestore.cli.cli.get_command(None, 'status')",
    "statestore settings": "import statestore.cli; "
    "statestore.cli.cli.get_command(None, 'settings')",
    "a Spark job": "import statestore.spark.process",
}


def _cpu_s(tree: Path, code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # From within the tree, whose package is found before the one that is installed.
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@click.command()
@click.option("--base", required=True, metavar="COMMIT", help="What to compare this tree with.")
@click.option("--turns", default=9, show_default=True)
def main(base: str, turns: int) -> None:
    """Compare what imports take of a processor with what they took at another commit."""
    bench = Bench("bench_imports")
    bench.notes["base"] = base
    with scratch() as folder:
        trees = (unpacked(base, folder), ROOT)
        python_s = min(_cpu_s(ROOT, _NOTHING) for _ in range(turns))
        for name, code in _PROCESSES.items():

            def used(tree: Path, _turn: int, code: str = code) -> float:
                return 1e3 * (_cpu_s(tree, code) - python_s)

            for tree in trees:
                _cpu_s(tree, code)  # it compiles
            add_turns(bench, (name, "CPU", "ms"), trees, turns, used)
    bench.finish()


if __name__ == "__main__":
    main()

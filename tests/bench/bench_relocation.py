"""Relocating 64 stores: what it costs must not depend on how big they are (SEMANTICS R1).

16 stores in 4 partitions, 8 files each, moved back and forth. The big ones are sparse files: a
rename does not look into a file, so holes are as good as rows here. There is no broker: what it
takes to settle transactional ids is not in these figures.
"""

import os
from pathlib import Path
from time import perf_counter

import click

from statestore.model.ids import TaskId
from tests.bench.harness import Bench, scratch
from tests.relocation_rig import Rig

PARTITIONS = 4
FILES = 8
NAMES = [f"S{number:02}" for number in range(16)]
BEFORE = " ".join(NAMES)
AFTER = f"N | {BEFORE}"
MIB = 1 << 20


def filled(folder: Path, size_mib: int) -> Rig:
    """The stores, each of that size."""
    rig = Rig(folder).deploy(BEFORE, PARTITIONS)
    for name in NAMES:
        for partition in range(PARTITIONS):
            for number in range(FILES):
                path = rig.layout.store_dir(TaskId(0, partition), name) / f"{number:06}.sst"
                path.touch()
                os.truncate(path, size_mib * MIB // FILES)
    return rig


def relocated_ms(rig: Rig, text: str) -> float:
    began = perf_counter()
    made = rig.relocation(text).apply()
    took = (perf_counter() - began) * 1000
    assert len(made.moves) == len(NAMES) * PARTITIONS
    return took


@click.command()
@click.option("--repeats", default=9, show_default=True)
def main(repeats: int) -> None:
    """Measure relocations of small and of big stores right after each other."""
    bench = Bench("bench_relocation")
    with scratch() as folder:
        small, big = filled(folder / "small", 1), filled(folder / "big", 1024)
        took: dict[str, list[float]] = {"small": [], "big": []}
        for repeat in range(repeats):
            text = BEFORE if repeat % 2 else AFTER
            took["small"].append(relocated_ms(small, text))
            took["big"].append(relocated_ms(big, text))
    bench.add("64 stores of 1 MiB relocated", "ms", took["small"])
    bench.add("64 stores of 1 GiB (sparse) relocated", "ms", took["big"])
    bench.ratios("1 GiB over 1 MiB", took["big"], took["small"], goal="1")
    bench.finish()


if __name__ == "__main__":
    main()

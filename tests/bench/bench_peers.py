"""statestore and its peers do the same three jobs, in turns; ratios to statestore.

    python -m tests.bench.bench_peers [--peers quix,flink] [--jobs count] [--records 300000]

The jobs: `count` by key; `json`, which parses objects of about 100 bytes, filters, joins a table of
10 000 rows, and sums by key and minute; `processor`, which is called for each record and gets, puts
and forwards. One broker, topics of four partitions, records that become visible at one moment to a
peer that runs already (tests/bench/peers/running.py). CPU is that of all processes of a peer, the
broker's is not in it. What peers tell is compared with one model. statestore runs in each round, as
the others are compared with it. A peer that cannot be had or does not do its job is named, with the
last line of its error; the others go on, and the exit code is 1.

Needs Maven, a JDK and, when a peer is first used, the registries of Python and Java.
"""

import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import click

from statestore.testing.local_kafka import LocalKafka
from tests.bench.harness import Bench, scratch
from tests.bench.peers.environments import Environment, environment_of, why
from tests.bench.peers.jobs import MINUTE_MS, Given, Job, records
from tests.bench.peers.running import Failed, Run, Used
from tests.bench.peers.table import PEERS

US = "statestore"
_HOUR_MS = 3_600_000
_SEED = 20_261_124


class Names(click.ParamType[tuple[str, ...]]):
    """Names separated by commas, each one of some."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names, in their own order, each once."""
        if isinstance(value, tuple):
            return value
        given = [name.strip() for name in str(value).split(",") if name.strip()]
        if wrong := [name for name in given if name not in self._known]:
            known = ", ".join(self._known)
            self.fail(f"{wrong[0]!r} is not one of {known}", param, ctx)
        return tuple(name for name in self._known if not given or name in given)


@dataclass
class Rounds:
    """What each peer took in each job, round by round, and whom something kept from it."""

    bench: Bench
    kafka: LocalKafka
    folder: Path
    given: dict[Job, list[Given]]
    warm: int
    used: dict[tuple[Job, str], list[Used]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, str] = field(default_factory=dict)

    def environments(self, peers: tuple[str, ...]) -> dict[str, Environment]:
        """Those that could be made."""
        found = {}
        for name in peers:
            try:
                found[name] = environment_of(name, PEERS[name])
            except (OSError, subprocess.SubprocessError) as error:
                self._fail(name, f"cannot be installed: {why(error)}")
        return found

    def measure(self, name: str, environment: Environment, job: Job, number: int) -> None:
        """One run; none of a peer that failed in this job before, or does not do it."""
        if f"{name}, {job}" in self.failed or job not in PEERS[name].telling:
            return
        run = f"{name}-{job}-{number}"
        one = Run(self.kafka, PEERS[name], environment, job, run, self.folder / run)
        given = self.given[job]
        try:
            used = one.measure(given, self.warm)
        except Failed as error:
            self._fail(f"{name}, {job}", str(error))
            return
        self.used[job, name].append(used)
        count = len(given) - self.warm
        self.bench.console.print(
            f"{run}: {count / used.clock_s:,.0f} records/s, "
            f"{1e6 * used.cpu_s / count:.2f} us, {used.rss_bytes / 2**20:,.0f} MiB",
            highlight=False,
        )

    def report(self) -> None:
        """Figures, and quotients of rounds in which both ran."""
        for (job, name), found in self.used.items():
            count = len(self.given[job]) - self.warm
            ours = self.used[job, US][: len(found)]
            units = {
                "rec/s": [count / each.clock_s for each in found],
                "us CPU a record": [1e6 * each.cpu_s / count for each in found],
                "MiB RSS": [each.rss_bytes / 2**20 for each in found],
            }
            for unit, figures in units.items():
                self.bench.add(f"{job}, {name}", unit, figures)
            if name == US or len(ours) < len(found):
                continue
            pairs = list(zip(found, ours, strict=True))
            quotients = {
                "records a second": [us.clock_s / it.clock_s for it, us in pairs],
                "CPU a record": [it.cpu_s / us.cpu_s for it, us in pairs],
                "RSS": [it.rss_bytes / us.rss_bytes for it, us in pairs],
            }
            for of, figures in quotients.items():
                self.bench.add(f"{job}, {name} / {US}: {of}", "x", figures)

    def _fail(self, what: str, why: str) -> None:
        self.failed[what] = why
        self.bench.console.print(f"{what}: {why}", highlight=False, style="red")


@click.command()
@click.option("--peers", type=Names(tuple(PEERS)), default="", help="Separated by commas; or all.")
@click.option("--jobs", type=Names(tuple(Job)), default="", help="Separated by commas; or all.")
@click.option("--records", "count", type=click.IntRange(min=1000), default=300_000)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
def main(peers: tuple[str, ...], jobs: tuple[str, ...], count: int, rounds: int) -> None:
    """Measure statestore beside its peers."""
    bench = Bench("bench_peers")
    names = (US, *(name for name in peers if name != US))
    for name in names:
        peer = PEERS[name]
        line = f"{name} {peer.version}, {peer.guarantee}: {peer.how}"
        bench.console.print(line, highlight=False, soft_wrap=True)
        bench.notes.setdefault("peers", {})[name] = line
    warm = count // 10
    now_ms = int(time.time() * 1000)
    begin_ms = now_ms - now_ms % MINUTE_MS - _HOUR_MS
    given = {
        job: records(job, count + warm, seed=_SEED, begin_ms=begin_ms) for job in map(Job, jobs)
    }
    with LocalKafka() as kafka, scratch() as folder:
        all_rounds = Rounds(bench, kafka, folder, given, warm)
        environments = all_rounds.environments(names)
        for number in range(rounds):
            for job in given:
                for name, environment in environments.items():
                    all_rounds.measure(name, environment, job, number)
        all_rounds.report()
    bench.notes["failed"] = all_rounds.failed
    bench.notes["rounds"] = {"rounds": rounds, "records": count, "records to warm up": warm}
    load = os.getloadavg()
    bench.console.print(f"load average now {load[0]:.1f}, {load[1]:.1f}, {load[2]:.1f}")
    bench.finish()
    for what, error in all_rounds.failed.items():
        bench.console.print(f"{what}: {error}", highlight=False, style="red", soft_wrap=True)
    sys.exit(1 if all_rounds.failed else 0)


if __name__ == "__main__":
    main()

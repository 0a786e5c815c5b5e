"""The section `cluster`: brokers and runs are taken away from applications on three brokers.

In each round a run, of two workers or on a standalone Spark, consumes new records, and at a drawn
moment one thing happens: to the run, to a worker, or to a broker that was chosen for what it leads.
Then a run to the end, and an audit: all output, the group's offsets and the rows of stores are what
plain code says.
"""

import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from statestore.errors import CommitUnknown, Unavailable
from statestore.model.ids import TaskId
from statestore.model.modes import KafkaClient
from statestore.tasks.plan import transactional_ids
from tests.builders import eventually
from tests.kafka.fault_proxy import Of
from tests.prove.cluster_runs import PATIENT_S, Job, Run, Spark, kill_one, spark
from tests.prove.kills import DEFECTS, Defect, planted_in
from tests.prove.kind_rig import Found, KindRig, Refused, rig_on
from tests.prove.kinds import KINDS, PARTITIONS
from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Harm,
    Planted,
    Section,
    SectionResult,
    planted_while,
    repeating,
)
from tests.prove.three_brokers import BROKERS, ThreeBrokers, three_brokers

_RECORDS, _NIGHT_RECORDS = 20_000, 100_000
_ROUNDS_PER_MINUTE = 0.4
_NIGHT_ROUNDS = 50
# An audit reads all that an application ever had.
_ROUNDS_OF_ONE = 3
_PLANTED = ("dirty_reader", "offsets_outside_the_transaction")
_PLANTED_SHARE = 0.3
_TRIES = 5
_PLANTED_RECORDS = 4000
# Which part of its records a run has committed when something happens.
_WHEN = (0.02, 0.5)
# How often a run is one of Spark's if anything may run it.
_SPARK_SHARE = 0.25
# Brokers are missed after 3 s.
_AWAY_S = (0.5, 8.0)
_SETTINGS = {"statestore.batch.max.records": 100, "commit.interval.ms": 5}
# With these a run says that a broker was away for too long: the next one goes on.
_GIVES_UP = {Unavailable.exit_code, CommitUnknown.exit_code}

_NOTE = (
    "The brokers are three processes of one machine, with one disk: what a broker had written when "
    "it was killed is still in the page cache, so losing power is no part of it."
)


_T = TypeVar("_T")


class Event(StrEnum):
    """What happens while a run works."""

    RUN_KILLED = "run killed"
    WORKER_KILLED = "worker killed"
    LEADER_KILLED = "leader of an input killed"
    COORDINATOR_KILLED = "transaction coordinator killed"
    CONTROLLER_KILLED = "active controller killed"
    BROKER_PAUSED = "broker paused"
    CUT_ONE_WAY = "one way to or from a broker cut"
    ROLLING_RESTART = "rolling restart"
    DRIVER_KILLED = "driver of Spark killed"
    EXECUTOR_KILLED = "executor of Spark killed"
    SPARK_WORKER_KILLED = "worker of Spark killed"
    MASTER_KILLED = "master of Spark killed"


_OF_THE_COMMAND = {Event.RUN_KILLED, Event.WORKER_KILLED}
_OF_SPARK = {
    Event.DRIVER_KILLED,
    Event.EXECUTOR_KILLED,
    Event.SPARK_WORKER_KILLED,
    Event.MASTER_KILLED,
}


class Where(NamedTuple):
    """The brokers, a standalone Spark, and a folder for state."""

    brokers: ThreeBrokers
    spark: Spark
    folder: Path


@dataclass
class Tally:
    """What the rounds have met so far."""

    met: Counter[tuple[Event, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    rounds: int = 0
    records: int = 0
    missed: int = 0
    gave_up: int = 0
    on_spark: int = 0


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then one round after another until the time is over."""
    tally = Tally()
    with _brokers() as where:
        kafka, folder = where.brokers.kafka, where.folder
        others = (partial(planted_in, kafka, folder, seed, defect) for defect in _defects())
        planted = planted_while(
            deadline.part(_PLANTED_SHARE), (partial(_without_transactions, where, seed), *others)
        )
        rounds = _Rounds(where, seed, _NIGHT_RECORDS if deadline.is_night else _RECORDS, tally)
        for _ in deadline.rounds():
            rounds.next()
    return SectionResult(
        tried={
            "rounds": tally.rounds,
            "events in time": tally.met.total(),
            "records": tally.records,
            "planted defects": len(planted),
        },
        least=_promised(deadline),
        findings=tuple(tally.findings),
        planted=tuple(planted),
        coverage=(_coverage(tally),),
        figures={
            "rounds on Spark": str(tally.on_spark),
            "runs that ended before their event": str(tally.missed),
            "runs that gave up on a broker, and were repeated": str(tally.gave_up),
        },
        notes=(_NOTE,),
    )


@contextmanager
def _brokers() -> Iterator[Where]:
    with (
        three_brokers() as brokers,
        spark() as standalone,
        tempfile.TemporaryDirectory(prefix="prove-cluster-") as scratch,
    ):
        yield Where(brokers, standalone, Path(scratch))


def _defects() -> list[Defect]:
    return [it for it in DEFECTS if it.name in _PLANTED]


class _Rounds:
    """One round after another; every event and every kind of operator has its turn."""

    def __init__(self, where: Where, seed: int, records: int, tally: Tally) -> None:
        self._where = where
        self._seed = seed
        self._records = records
        self._tally = tally
        self._rng = Random(f"{seed} cluster")
        self._events: list[Event] = []
        self._kinds: list[str] = []
        self._rigs: dict[str, KindRig] = {}
        self._made = 0

    def next(self) -> None:
        """An application's next round; one that broke, or has had its rounds, is left behind."""
        event = self._turn(self._events, list(Event))
        kind = self._turn(self._kinds, list(KINDS))
        count = self._rng.randint(self._records // 2, self._records * 3 // 2)
        if kind not in self._rigs:
            self._rigs[kind] = self._rig(kind)
        rig = self._rigs[kind]
        met, found = a_round(self._where, rig, event, self._rng, count)
        tally = self._tally
        tally.rounds += 1
        tally.records += count
        tally.met[event, kind] += met.in_time
        tally.missed += not met.in_time
        tally.gave_up += met.gave_up
        tally.on_spark += met.on_spark
        repeat = repeating("cluster", self._seed)
        by = f"{rig.settings['kafka.client']}{' on Spark' if met.on_spark else ''}"
        of = f"round {tally.rounds}, {kind} by {by}, {event}"
        tally.findings += [Finding(rule, f"{of}: {it}", repeat, harm) for rule, it, harm in found]
        if found:
            # Its topics and its state stay: they are the evidence, as long as the brokers live.
            del self._rigs[kind]
        elif rig.produced >= _ROUNDS_OF_ONE * self._records:
            self._forget(self._rigs.pop(kind))

    def _turn(self, left: list[_T], every: Sequence[_T]) -> _T:
        if not left:
            left += self._rng.sample(every, len(every))
        return left.pop()

    def _rig(self, kind: str) -> KindRig:
        self._made += 1
        client = self._rng.choice(list(KafkaClient))
        name = f"cluster-{self._seed}-{self._made}"
        kafka, settings = self._where.brokers.kafka, {**_SETTINGS, "kafka.client": str(client)}
        return rig_on(
            kafka, self._where.folder, kind, name, settings=settings, options=["--workers=2"]
        )

    def _forget(self, rig: KindRig) -> None:
        self._where.brokers.delete_of(rig.topic_prefix)
        shutil.rmtree(rig.state_dir)


class Met(NamedTuple):
    """Whether a run still worked when something happened to it, and whether it gave up then."""

    in_time: bool
    gave_up: bool
    on_spark: bool


def a_round(
    where: Where, rig: KindRig, event: Event, rng: Random, count: int
) -> tuple[Met, list[Found]]:
    """New records, a run to which something happens, a run to the end, and what an audit finds."""
    brokers = where.brokers
    brokers.await_in_sync()
    rig.produce(count)
    may_be_spark = event not in _OF_THE_COMMAND
    drawn = may_be_spark and rng.random() < _SPARK_SHARE
    on_spark = event in _OF_SPARK or drawn
    ends_on_spark = may_be_spark and rng.random() < _SPARK_SHARE
    rig.servers = brokers.proxied_servers if event is Event.CUT_ONE_WAY else ""
    try:
        met = _disturbed(where, rig, event, rng, count, on_spark=on_spark)
        rig.servers = ""
        brokers.await_in_sync()
        _refuse(*_start(where, rig, on_spark=ends_on_spark).end(), allowed={0})
        return met, rig.anomalies()
    except Refused as error:
        met = Met(in_time=True, gave_up=False, on_spark=on_spark)
        return met, [("run failed", str(error), Harm.ANOMALY)]


def _start(where: Where, rig: KindRig, *, on_spark: bool) -> Run | Job:
    return where.spark.submit(rig) if on_spark else Run(rig.start())


def _disturbed(
    where: Where, rig: KindRig, event: Event, rng: Random, count: int, *, on_spark: bool
) -> Met:
    """A run to which something happens once it has committed a drawn part of the new records."""
    aim = rig.produced - count + int(count * rng.uniform(*_WHEN))
    run = _start(where, rig, on_spark=on_spark)
    try:
        eventually(
            lambda: run.is_over or sum(rig.committed().values()) >= aim,
            f"{aim} records are committed",
            PATIENT_S,
        )
    except AssertionError as error:
        _, said = run.end()
        raise Refused(f"{error}, and then it said: {said[-2000:]}") from error
    in_time = not run.is_over and _happens(where, rig, event, rng, run)
    code, said = run.end()
    killed = {-signal.SIGKILL} if event in {Event.RUN_KILLED, Event.DRIVER_KILLED} else set()
    _refuse(code, said, allowed={0} | killed | _GIVES_UP)
    return Met(in_time, code in _GIVES_UP, on_spark)


def _happens(where: Where, rig: KindRig, event: Event, rng: Random, run: Run | Job) -> bool:
    """Let it happen; whether it did before the run was over."""
    brokers = where.brokers
    match event:
        case Event.RUN_KILLED | Event.DRIVER_KILLED:
            run.kill()
            return run.process.wait() == -signal.SIGKILL
        case Event.WORKER_KILLED:
            assert isinstance(run, Run)
            return kill_one(rng, run.workers())
        case Event.EXECUTOR_KILLED:
            return kill_one(rng, where.spark.executors())
        case Event.SPARK_WORKER_KILLED:
            with where.spark.worker_killed(rng):
                return not run.is_over
        case Event.BROKER_PAUSED:
            with brokers.paused(rng.randrange(BROKERS)):
                return _goes_on(run, rng.uniform(*_AWAY_S))
        case Event.CUT_ONE_WAY:
            # Of those that hold transactions each commit asks one.
            broker = _leading(brokers, rig, Event.COORDINATOR_KILLED, rng)
            away_s = rng.uniform(*_AWAY_S)
            trace = partial(brokers.proxies[broker].trace, rig.application_id)
            before = len(trace())
            with brokers.cut_one_way(broker, rig.application_id, rng.choice(list(Of)), away_s):
                in_time = _goes_on(run, away_s)
            return in_time and len(trace()) > before
        case Event.MASTER_KILLED:
            with where.spark.without_master():
                return _goes_on(run, rng.uniform(*_AWAY_S))
        case Event.ROLLING_RESTART:
            in_time = False
            for broker in range(BROKERS):
                with brokers.stopped(broker):
                    in_time |= not run.is_over
                brokers.await_in_sync()
            return in_time
        case Event.LEADER_KILLED | Event.COORDINATOR_KILLED | Event.CONTROLLER_KILLED:
            with brokers.killed(_leading(brokers, rig, event, rng)):
                return not run.is_over


def _goes_on(run: Run | Job, away_s: float) -> bool:
    """Leave the run alone with what has happened for so long; whether it was still at work."""
    in_time = not run.is_over
    with suppress(subprocess.TimeoutExpired):
        run.process.wait(away_s)
    return in_time


def _leading(brokers: ThreeBrokers, rig: KindRig, event: Event, rng: Random) -> int:
    """The broker that leads what an event is about."""
    partition = rng.randrange(PARTITIONS)
    if event is Event.LEADER_KILLED:
        return brokers.leader(f"{rig.topic_prefix}-in", partition)
    if event is Event.CONTROLLER_KILLED:
        return brokers.controller()
    ids = transactional_ids(rig.application_id, TaskId(0, partition))
    return brokers.coordinator(rng.choice(ids))


def _refuse(code: int, said: str, *, allowed: Container[int]) -> None:
    if code not in allowed:
        raise Refused(said[-2000:] or f"code {code}")


def _without_transactions(where: Where, seed: int) -> Planted:
    """Runs without exactly-once that are killed as the others are, until records are doubled."""
    rig = rig_on(
        where.brokers.kafka,
        where.folder,
        "stateless",
        f"planted-{seed}-at-least-once",
        settings={**_SETTINGS, "kafka.client": str(KafkaClient.WIRE)},
        options=["--workers=2"],
        guarantee="at_least_once",
    )
    rng, rules, tries = Random(f"{seed} planted"), dict[str, None](), 0
    while not rules and tries < _TRIES:
        tries += 1
        _, found = a_round(where, rig, Event.RUN_KILLED, rng, _PLANTED_RECORDS)
        rules = dict.fromkeys(rule for rule, _, harm in found if harm is Harm.DOUBLED)
    return Planted("no transactions", tuple(rules), tries)


def _promised(deadline: Deadline) -> Mapping[str, int]:
    return {
        "events in time": int(_ROUNDS_PER_MINUTE * deadline.seconds / 60),
        "planted defects": 1 + len(_defects()),
        **({"rounds": _NIGHT_ROUNDS} if deadline.is_night else {}),
    }


def _coverage(tally: Tally) -> Coverage:
    kinds = tuple(KINDS)
    rows = {str(event): tuple(tally.met[event, kind] for kind in kinds) for event in Event}
    return Coverage("What happened within rounds, by kind of operator", kinds, rows)


SECTION = Section(
    "cluster",
    "On three brokers with three replicas of everything, runs of two workers or one of the workers "
    "are killed, and drivers, executors, workers and the master of a standalone Spark; brokers "
    "that lead an input, transactions or the cluster are killed, brokers are paused and restarted "
    "in turn, and the way to a broker is cut, or the way back. After a run to the end, all output, "
    "offsets and rows of stores are compared with what plain code says.",
    share=4,
    run=run,
)

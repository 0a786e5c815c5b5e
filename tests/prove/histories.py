"""The section `histories`: what applications leave behind that live through faults of all kinds.

Each application is of one kind of operator. Its runs are killed, its messages are lost, late and
doubled, its broker is restarted; then the log checker judges all that readers saw, with the rules
of Jepsen's workload for Kafka and ours (tests/kafka/log_checker.py).
"""

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, NamedTuple

from statestore.faults import CrashPoint
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Moment, Plan
from tests.kafka.fault_schedules import FaultPlan, drawn_plan
from tests.kafka.log_checker import RULES
from tests.kafka.log_evidence import make_group_log
from tests.kafka.wire import Api, Request
from tests.prove.history_rig import HistoryRig, Life, Lived
from tests.prove.kills import POINTS, is_visited
from tests.prove.kinds import KINDS
from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Planted,
    Section,
    SectionResult,
    harm_of,
    planted_while,
    repeating,
)
from tests.shared_kafka import CONFIG

_AT_ONCE = 2
# A changelog is judged version by version; kills and the simulation have compaction.
_CONFIG = {**CONFIG, "log.cleaner.enable": False}
_LIVES = 3
_VISITS = 6
_RESTARTS = 1 / 3
_RESTART_AFTER_S = (0.5, 4.0)
_PER_MINUTE = 2
_EACH = 4
_PLANTED_SHARE = 0.4
_TOLD = 12
_RECORDS, _ANSWERS = "records", "answers of running stores"
_SPOILT = "histories not judged, as the broker skipped markers"
_KILLED, _MESSAGES, _RESTARTED = "runs killed", "messages late, lost or doubled", "broker restarts"

_NOTE = (
    "Runs keep what they have processed of repartition topics, which they delete otherwise, and "
    "brokers do not compact, so that all of it can be judged. Running stores are read by the "
    "bank's own processes. A broker that is alone and stops may skip markers of transactions that "
    "it has ended (docs/upstream/kafka-skips-markers.md): a history in which something is found "
    "after that, by its own logs, is not judged, and another broker takes over."
)


class Defect(NamedTuple):
    """A planted defect, where it shows, and the faults that bring it out."""

    name: str
    kind: str
    client: KafkaClient
    lives: Callable[[], Sequence[Life]]


def _killed(point: CrashPoint) -> Callable[[], Sequence[Life]]:
    return lambda: (Life(), Life(f"{point}:3"))


class _Unanswered:
    """The network swallows each request to end the nth transaction, until the log is asked of it.

    Before its owner asks, it opens its id again.
    """

    def __init__(self, nth: int) -> None:
        self._nth = nth
        self._seen = 0
        self._is_over = False

    def __call__(self, request: Request) -> Fault | None:
        if request.api == Api.INIT_PRODUCER_ID:
            self._is_over = self._seen >= self._nth
        if request.api != Api.END_TXN or self._is_over:
            return None
        self._seen += 1
        return Fault(Action.SWALLOW) if self._seen >= self._nth else None


def _late_end() -> FaultPlan:
    """The end of a transaction arrives once more, within the next one."""
    late = Fault(Action.REPEAT, until=Moment(Api.TXN_OFFSET_COMMIT))
    return FaultPlan({(Api.END_TXN, nth): late for nth in (1, 3)})


_WIRE, _LIBRDKAFKA = KafkaClient.WIRE, KafkaClient.LIBRDKAFKA
DEFECTS = (
    Defect("store_before_the_log", "aggregate", _WIRE, _killed(CrashPoint.COMMIT_OFFSETS_SENT)),
    Defect(
        "offsets_outside_the_transaction", "processor", _WIRE, _killed(CrashPoint.COMMIT_LOG_DONE)
    ),
    Defect("dirty_reader", "repartition", _WIRE, _killed(CrashPoint.COMMIT_OFFSETS_SENT)),
    Defect("one_epoch", "aggregate", _LIBRDKAFKA, lambda: (Life(plan=_late_end()),)),
    Defect(
        "settled_is_always_yes",
        "aggregate",
        _WIRE,
        lambda: (Life(plan=_Unanswered(3)), Life()),
    ),
    Defect("torn_get_many", "bank", _WIRE, lambda: (Life(), Life())),
    Defect("timer_fired_twice", "timers", _WIRE, lambda: (Life(),)),
    Defect("window_emitted_twice", "windows", _WIRE, _killed(CrashPoint.COMMIT_DONE)),
)


@dataclass
class Tally:
    """What histories have met so far; several threads add to it."""

    histories: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    is_spoilt: bool = False
    """Whether the broker skipped markers, so that it takes another one to go on."""
    lock: Lock = field(default_factory=Lock)


class Where(NamedTuple):
    """A broker, the proxy before it, and a folder for files."""

    kafka: LocalKafka
    proxy: FaultProxy
    folder: Path


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then live through histories until the time is over."""
    tally = Tally()
    with _broker() as where:
        planted = planted_while(
            deadline.part(_PLANTED_SHARE),
            (partial(_planted, where, seed, defect) for defect in DEFECTS),
        )
    numbers, is_over = deadline.rounds(), False
    while not is_over:
        with _broker() as where:
            is_over = _live_on(where, seed, numbers, tally)
    return SectionResult(
        tried={
            "histories": tally.histories.total(),
            "transactions": tally.counts["transactions"],
            "planted defects": len(planted),
        },
        least={
            "histories": int(_PER_MINUTE * deadline.seconds / 60),
            "planted defects": len(DEFECTS),
        },
        findings=tuple(tally.findings),
        planted=tuple(planted),
        coverage=(_coverage(tally, _EACH if deadline.is_night else 0),),
        figures={
            "rules": ", ".join(RULES),
            **{name: f"{tally.counts[name]:,}" for name in (_RECORDS, _ANSWERS, _SPOILT)},
            **{f"histories with {name}": str(count) for name, count in tally.clients.items()},
        },
        notes=(_NOTE,),
    )


@contextmanager
def _broker() -> Iterator[Where]:
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy())
        kafka = stack.enter_context(LocalKafka(proxy_port=proxy.port, config=_CONFIG))
        proxy.lead_to(kafka.behind_proxy)
        make_group_log(kafka.bootstrap_servers)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-histories-"))
        yield Where(kafka, proxy, Path(folder))


def _live_on(where: Where, seed: int, numbers: Iterator[int], tally: Tally) -> bool:
    """Have rounds; whether there are no more, or the broker skipped markers and can be no judge."""
    for number in numbers:
        first = seed + number * _AT_ONCE
        _round(where, range(first, first + _AT_ONCE), tally)
        if tally.is_spoilt:
            tally.is_spoilt = False
            return False
    return True


def _round(where: Where, seeds: Sequence[int], tally: Tally) -> None:
    """Some histories at a time; in some rounds the broker is stopped under them and started."""
    rng = Random(f"restart {seeds[0] // _AT_ONCE}")
    is_restarted = rng.random() < _RESTARTS
    with ExitStack() as stack:
        made = [(seed, stack.enter_context(closing(_made(where, seed)))) for seed in seeds]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            lives = [pool.submit(_live, rig, seed) for seed, rig in made]
            if is_restarted:
                # By this thread: a broker ends with the thread that started it.
                threading.Event().wait(rng.uniform(*_RESTART_AFTER_S))
                where.kafka.stop_broker(0)
                where.kafka.start_broker(0)
            for one in lives:
                one.result()
            judged = pool.map(HistoryRig.judged, (rig for _, rig in made))
            for (seed, _), lived in zip(made, judged, strict=True):
                _add(tally, seed, lived, restarts=int(is_restarted))


def _kind(seed: int) -> str:
    return list(KINDS)[seed % len(KINDS)]


def _client(seed: int) -> KafkaClient:
    """The wire client and librdkafka in turns."""
    return (_WIRE, _LIBRDKAFKA)[seed // len(KINDS) % 2]


def _made(where: Where, seed: int) -> HistoryRig:
    name = f"history-{seed}-{_kind(seed)}"
    return HistoryRig(*where, _kind(seed), name, client=_client(seed))


def _live(rig: HistoryRig, seed: int) -> None:
    rng = Random(f"history {seed}")
    for _ in range(_LIVES):
        if not rig.live(_drawn_life(rng, _kind(seed))):
            return


def _drawn_life(rng: Random, kind: str) -> Life:
    """A kill, faults of the network, or both."""
    points = [point for point in POINTS if is_visited(point, kind)]
    point = rng.choice(points)
    visit = rng.randint(1, _VISITS) if point.startswith("commit.") else 1
    plan: Plan = drawn_plan(rng)
    what = rng.choice(("kill", "kill", "network", "network", "both"))
    return Life(None if what == "network" else f"{point}:{visit}", None if what == "kill" else plan)


def _add(tally: Tally, seed: int, lived: Lived, *, restarts: int) -> None:
    kind = _kind(seed)
    with tally.lock:
        if lived.skipped:
            tally.is_spoilt = True
            tally.counts[_SPOILT] += 1
            return
        tally.histories[kind] += 1
        tally.clients[_client(seed)] += 1
        for what, count in (
            (_KILLED, lived.kills),
            (_MESSAGES, lived.faults),
            (_RESTARTED, restarts),
        ):
            tally.met[kind, what] += count
        tally.counts["transactions"] += lived.transactions
        tally.counts[_ANSWERS] += lived.answers
        tally.counts[_RECORDS] += lived.records
        for rule, some in _by_rule(lived):
            told = f"{kind} with {_client(seed)}: {some}\n" + "\n".join(lived.trace[-_TOLD:])
            harm = harm_of(rule)
            tally.findings.append(Finding(rule, told, repeating("histories", seed, 0), harm))


def _by_rule(lived: Lived) -> Iterator[tuple[str, str]]:
    """Each rule that was broken, how often, and the first case."""
    times = Counter(finding.rule for finding in lived.findings)
    for rule, count in times.items():
        first = next(finding.text for finding in lived.findings if finding.rule == rule)
        yield rule, f"{first} ({count} of its kind)"


def _planted(where: Where, seed: int, defect: Defect) -> Planted:
    """The rules that find something in the history of an application with the defect."""
    name = defect.name.replace("_", "-")
    settings: Mapping[str, Any] = {"default.api.timeout.ms": 4_000}
    made = HistoryRig(
        *where,
        defect.kind,
        f"planted-{seed}-{name}",
        client=defect.client,
        defect=defect.name,
        settings=settings,
    )
    lives = defect.lives()
    with closing(made) as rig:
        for life in lives:
            if not rig.live(life):
                break
        lived = rig.judged()
    rules = list(dict.fromkeys(finding.rule for finding in lived.findings))
    if any("Traceback" in finding.text for finding in lived.findings):
        # An error of Python is no rule: then the defect does not fit the code any more.
        rules = []
    said = ["refused by the product" if rule == "run failed" else rule for rule in rules]
    return Planted(defect.name.replace("_", " "), tuple(said), len(lives))


def _coverage(tally: Tally, least: int) -> Coverage:
    columns = (_KILLED, _MESSAGES, _RESTARTED)
    rows = {kind: tuple(tally.met[kind, column] for column in columns) for kind in KINDS}
    return Coverage("What befell each kind of operator", columns, rows, least)


SECTION = Section(
    "histories",
    "Applications of every kind of operator live through kills, messages that are late, lost or "
    "doubled, and restarts of the broker; all that readers saw of topics and stores is judged by "
    "the rules of Jepsen's workload for Kafka, and by ours.",
    share=6,
    run=run,
)

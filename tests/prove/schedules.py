"""The section `schedules`: late, lost and doubled messages, by the thousand, over whole runs.

One schedule is one application of two stream tasks behind a proxy that follows a drawn plan
(tests/kafka/fault_schedules.py). A process lives through some of them at a time, on a broker of its
own, and must not die of it: the clients' C code runs in it.
"""

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec

from statestore.model.modes import KafkaClient
from tests.kafka.fault_schedules import Order, Story, tried
from tests.prove.section import (
    Coverage,
    Deadline,
    Finding,
    Planted,
    Section,
    SectionResult,
    harm_of,
    planted_while,
)

_AT_A_TIME = 40
_TURNS: Sequence[tuple[str, ...]] = (
    (KafkaClient.WIRE,),
    (KafkaClient.LIBRDKAFKA,),
    tuple(KafkaClient),
)
_PLANTED: Sequence[tuple[str, Order]] = (
    ("no transactions", Order([], guarantee="at_least_once", to_the_first_finding=True)),
    ("one epoch", Order([], one_epoch=True, to_the_first_finding=True)),
)
_TRIALS = 200
_PLANTED_SHARE = 0.4
_PER_MINUTE = 15  # on a machine that does other work too


def run(seed: int, deadline: Deadline) -> SectionResult:
    """Plant each defect, then schedules from this seed on until the time is over."""
    planted = planted_while(
        deadline.part(_PLANTED_SHARE),
        (partial(_planted, defect, order, seed) for defect, order in _PLANTED),
    )
    lived, findings = Counter[tuple[str, ...]](), list[Finding]()
    for number in deadline.rounds():
        first = seed + number * _AT_A_TIME
        order = Order(list(range(first, first + _AT_A_TIME)), _TURNS[number % len(_TURNS)])
        stories, death = tried(order)
        lived[order.clients] += len(stories)
        findings += found_in(order, stories, death)
    return SectionResult(
        tried={"schedules": lived.total(), "planted defects": len(planted)},
        least={
            "schedules": int(_PER_MINUTE * deadline.seconds / 60),
            "planted defects": len(_PLANTED),
        },
        findings=tuple(findings),
        planted=tuple(planted),
        coverage=(_coverage(lived),),
    )


def found_in(order: Order, stories: Sequence[Story], death: str) -> list[Finding]:
    """What the judge found, and the death of the process that lived through the schedules."""
    found = [
        Finding(rule, f"seed {story.seed}: {text}", _command(order, [story.seed]), harm_of(rule))
        for story in stories
        for rule, text in story.findings
    ]
    if death:
        told = {story.seed for story in stories}
        left = [seed for seed in order.seeds if seed not in told]
        found.append(Finding("process died", death, _command(order, left)))
    return found


def _planted(defect: str, order: Order, seed: int) -> Planted:
    stories, _ = tried(msgspec.structs.replace(order, seeds=list(range(seed, seed + _TRIALS))))
    rules = {rule: None for story in stories for rule, _ in story.findings}
    return Planted(defect, tuple(rules), len(stories))


def _command(order: Order, seeds: list[int]) -> str:
    """The command that lives through these again, and tells each as a line of JSON."""
    text = msgspec.json.encode(msgspec.structs.replace(order, seeds=seeds)).decode()
    return shlex.join([".venv/bin/python", "-m", "tests.kafka.fault_schedules", text])


def _coverage(lived: Counter[tuple[str, ...]]) -> Coverage:
    rows = {" and ".join(clients): (lived[clients],) for clients in _TURNS}
    return Coverage("Schedules by the clients of an application's lives", ("schedules",), rows)


SECTION = Section(
    "schedules",
    "Applications on a real broker, behind a proxy by which requests and answers come late, twice, "
    "or never, and connections are cut within a message; each kind of request of a commit is met. "
    "What readers saw of the outputs, the group's offsets and the stores are judged by the rules "
    "of histories, and no client may end its process.",
    share=4,
    run=run,
)

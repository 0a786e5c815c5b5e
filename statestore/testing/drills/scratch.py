"""A scratch application for drills: its folder, its topics, and its runs in child processes.

Everything that belongs to it has an id that begins with `drill-` and lies in a folder of its own.
So no drill touches the topics, groups or state of a real application.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import psutil
import tenacity

from statestore.errors import Misuse, Unavailable
from statestore.faults import VARIABLE
from statestore.layout import owners
from statestore.layout.folders import StateLayout
from statestore.operations.deployed import read_deployed
from statestore.testing.drills.drill_plan import PREFIX
from statestore.testing.drills.workload import (
    PARTITIONS,
    PREFIX_VARIABLE,
    STORE,
    TOPICS,
    Ledger,
    Row,
    Seen,
)

T = TypeVar("T")
MODULE = "statestore.testing.drills.workload"
DEADLINE_S = 180.0
LOT = 4000


class Tools(Protocol):
    """What a drill does to a cluster and to stores at rest, for one scratch application."""

    def create(self, topics: Mapping[str, int]) -> None:
        """Create topics in which no record is ever too old."""

    def delete(self, prefix: str) -> None:
        """Delete every topic whose name begins with `prefix`, and the group."""

    def produce(self, topic: str, records: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Produce records of key, value and time, and wait until they are acknowledged."""

    def ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition; {} if there is no such topic."""

    def read(self, topic: str) -> Iterable[Row]:
        """Every committed record, in order per partition."""

    def truncate(self, topic: str, share: float) -> None:
        """Purge that share of the records of every partition, oldest first."""

    def rows(self, store: str) -> dict[bytes, bytes]:
        """The rows of a store in all partitions, as of a snapshot."""

    def snapshot_findings(self, store: str) -> list[str]:
        """Take a snapshot of each task and compare it with its log up to the same offset."""

    def audit(self) -> list[str]:
        """What an audit finds wrong, or why the audit proves nothing."""


class ChildEnd(NamedTuple):
    """A child that has ended. `summary` is None if it printed none, `code` if it was killed."""

    code: int | None
    seconds: float
    summary: dict[str, Any] | None
    log: Path

    def tail(self) -> str:
        """The last line it logged."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "nothing"


@dataclass
class Child:
    """A run in a process of its own, whose output lies in files."""

    process: "subprocess.Popen[bytes]"
    out: Path
    log: Path
    began_s: float = field(default_factory=time.monotonic)

    def ended(self, within_s: float = DEADLINE_S) -> ChildEnd:
        """Wait for its end, then force it."""
        try:
            code: int | None = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.end()
            code = None
        return ChildEnd(code, time.monotonic() - self.began_s, _last_line(self.out), self.log)

    def alive(self) -> bool:
        return self.process.poll() is None

    def pids(self) -> set[int]:
        """The ids of the child and of all it started: on Spark, workers own the stream tasks."""
        try:
            running = psutil.Process(self.process.pid)
            return {running.pid, *(each.pid for each in running.children(recursive=True))}
        except psutil.NoSuchProcess:
            return set()

    def outlives(self, seconds: float) -> bool:
        """Whether it still lives after that time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def send(self, order: signal.Signals) -> None:
        self.process.send_signal(order)

    def end(self) -> None:
        """Kill it and all it started, even if it is stopped."""
        if not self.alive():
            return
        running = psutil.Process(self.process.pid)
        for process in [*running.children(recursive=True), running]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()


class CloneOf(Protocol):
    """A clone of a real application under a scratch id, which is read and never written."""

    def make(self) -> None:
        """Open the export under the scratch id."""

    def drop(self) -> None:
        """Remove the clone's topics, group and folder."""


@dataclass
class Scratch:
    """One scratch application. `launch` is the command of a run, such as `statestore run --json`.

    `folder` has logs and evidence. A `clone` has the backlog of one run to process, so it is
    drilled once. Without one, the workload is generated.
    """

    application_id: str
    folder: Path
    launch: Sequence[str]
    statestore: Sequence[str]
    flags: Sequence[str]
    variables: Mapping[str, str]
    tools: Tools
    state_dir: Path
    pipeline: str = f"{MODULE}:topology"
    clone: CloneOf | None = None
    ledger: Ledger = field(init=False)
    spoilt: str | None = None
    _children: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.application_id.startswith(PREFIX):
            raise Misuse(
                f"{self.application_id!r} is not a scratch application: drills touch no other"
            )
        self.ledger = Ledger(self.application_id)

    @property
    def layout(self) -> StateLayout:
        return StateLayout(self.state_dir, self.application_id)

    def begin(self) -> None:
        """Make topics and records and run once, or make the clone: now there is state to lose."""
        self.folder.mkdir(parents=True)
        if self.clone is not None:
            self.clone.make()
            self.spoilt = "a clone has the backlog of one run"
            return
        self.tools.create({f"{self.application_id}-{name}": PARTITIONS for name in TOPICS})
        self.produce()
        done = self.run()
        if done.code != 0:
            raise Unavailable(f"the workload does not even run: {done.tail()}; log: {done.log}")

    def produce(self, count: int = LOT, *, poisonous: bool = False) -> None:
        """Append records to the input; a clone reads what the original has not processed."""
        if self.clone is not None:
            return
        records = self.ledger.lot(count, poisonous=poisonous)
        self.tools.produce(f"{self.application_id}-in", records)

    def start(self, *more: str, crash_at: str = "", command: Sequence[str] = ()) -> Child:
        """Start a run, or another command of `statestore`, in a child process."""
        number = len(self._children) + 1
        out, log = self.folder / f"{number:03}.out", self.folder / f"{number:03}.log"
        environment = {
            **os.environ,
            **self.variables,
            PREFIX_VARIABLE: self.application_id,
            VARIABLE: crash_at,
        }
        line = [*self.statestore, *command] if command else [*self.launch, *self.deployment()]
        with out.open("wb") as told, log.open("wb") as logged:
            process = subprocess.Popen([*line, *more], env=environment, stdout=told, stderr=logged)
        self._children.append(Child(process, out, log))
        return self._children[-1]

    def run(self, *more: str, crash_at: str = "", command: Sequence[str] = ()) -> ChildEnd:
        """Start a child and wait for its end."""
        return self.start(*more, crash_at=crash_at, command=command).ended()

    def deployment(self) -> list[str]:
        """The flags of a command that needs pipeline, state and brokers."""
        return [f"--pipeline={self.pipeline}", *self.where(), *self.flags]

    def where(self) -> list[str]:
        """The flags of a command that looks at state."""
        return [f"--application-id={self.application_id}", f"--state-dir={self.state_dir}"]

    @contextmanager
    def running(self, *more: str) -> Iterator[Child]:
        """A continuous run that has claimed its stream tasks; it is killed at the end."""
        child = self.start("--run-for=600s", *more)
        try:
            self.await_claim(child, of_all=True)
            yield child
        finally:
            child.end()

    def await_claim(self, child: Child, *, of_all: bool = False) -> None:
        """Wait until it has claimed a stream task, or all there are, or until it ends."""

        def claims() -> bool:
            # A topology change leaves folders behind that no run claims any more.
            tasks = read_deployed(self.layout).tasks() or set(self.layout.tasks())
            found = [owners.read_owner(self.layout.task_dir(task)) for task in tasks]
            ours = child.pids()
            owned = [owner is not None and owner.pid in ours for owner in found]
            return not child.alive() or (all(owned) if of_all else any(owned))

        eventually(claims, "the run claims its stream tasks")

    def findings(self) -> list[str]:
        """What is wrong with topics and stores; nothing may run meanwhile."""
        tools, name = self.tools, self.application_id
        if self.clone is not None:
            return tools.audit()
        seen = Seen(
            tools.ends(f"{name}-in"),
            list(tools.read(f"{name}-passed")),
            list(tools.read(f"{name}-counts")),
            tools.read(f"{name}-{STORE}-changelog"),
            tools.rows(STORE),
        )
        return [*self.ledger.findings(seen), *tools.audit()]

    def evidence(self) -> str:
        """The folders with everything that belongs to it."""
        state = f" and {self.layout.application_dir}" if self.clone is not None else ""
        return f"{self.folder}{state}"

    def remove(self) -> None:
        """Remove its topics, its group and its folders."""
        self.end_children()
        if self.clone is not None:
            self.clone.drop()
        else:
            self.tools.delete(self.application_id)
        shutil.rmtree(self.folder, ignore_errors=True)

    def quarantined(self) -> int:
        """How many stores were put into quarantine so far."""
        return sum(1 for _ in self.layout.quarantined())

    def end_children(self) -> None:
        """Kill all children that still live."""
        for child in self._children:
            child.end()


def eventually(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Wait until a condition holds; Unavailable says which one did not come about."""
    try:
        tenacity.Retrying(
            stop=tenacity.stop_after_delay(within_s),
            wait=tenacity.wait_fixed(0.02),
            retry=tenacity.retry_if_not_result(bool),
        )(holds)
    except tenacity.RetryError as late:
        raise Unavailable(f"within {within_s:g} s it did not come about that {what}") from late


def _last_line(path: Path) -> dict[str, Any] | None:
    """The JSON line; other programs may print before and after it."""
    for line in reversed(path.read_text(encoding="utf-8", errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return None

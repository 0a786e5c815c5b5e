"""Status whatever is missing: an answer of a broker, a file, a pipeline, a place for exports.

Shows I21.
"""

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from statestore import errors
from statestore.cli import cli
from statestore.commands.status import check_limits, rendered
from statestore.errors import StateStoreError
from statestore.layout import owners
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import (
    Deployed,
    DeployedPart,
    DeployedStore,
    publish_deployed,
)
from statestore.operations.status.status import Status
from statestore.ports import Bounds, FoundRecords, GroupOffset, InputFacts
from statestore.tasks.commit import CommitStamp
from tests.builders import ManualClock
from tests.status_rig import reader_of

TASKS = (TaskId(0, 0), TaskId(0, 1))
LOG = "app-counts-changelog"
NEVER = "never asked"


class Said:
    """A MonitoringClient that says what it is told; `fails`: the method that raises the error."""

    def __init__(
        self,
        inputs: Mapping[TopicPartition, InputFacts],
        *,
        topics: Mapping[str, int] | None = None,
        fails: str = NEVER,
        error: Exception | None = None,
    ) -> None:
        self._inputs = inputs
        self._topics = {"in": 2, LOG: 2} if topics is None else topics
        self._fails, self._error = fails, error

    def topics(self) -> list[str]:
        return sorted(self._topics)

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        self._answer("partitions")
        return {topic: self._topics[topic] for topic in topics if topic in self._topics}

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        self._answer("bounds")
        return dict.fromkeys(tps, Bounds(0, 40))

    def inputs(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, InputFacts]:
        self._answer("inputs")
        return {tp: self._inputs[tp] for tp in tps if tp in self._inputs}

    def records(
        self, spans: Mapping[TopicPartition, Bounds], *, each_max: int, bytes_max: int
    ) -> FoundRecords:
        return FoundRecords([], [])

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, method: str) -> None:
        if method == self._fails:
            assert self._error is not None
            raise self._error


def deploy(state_dir: Path) -> StateLayout:
    """An application of two stream tasks and a store, one of them claimed."""
    layout = StateLayout(state_dir, "app")
    for task in TASKS:
        layout.create(layout.task_dir(task) / "rocksdb" / "counts")
    store = DeployedStore(0, "STRING", "INT64", persistent=True)
    part = DeployedPart(0, ["in"], tasks=2)
    publish_deployed(
        layout, Deployed(fingerprint="f", sub_topologies=[part], stores={"counts": store})
    )
    owners.claim(layout.task_dir(TASKS[0]), what="", wait_ms=0, clock=ManualClock()).release()
    return layout


def tell(found: Status) -> str:
    """Everything a caller does with a status; what a terminal shows."""
    msgspec.json.encode(found)
    for limits in ((None, None), (5.0, None), (None, 1000), (5.0, 1000)):
        assert isinstance(check_limits(found, *limits), StateStoreError | None)
    screen = StringIO()
    Console(width=80, file=screen).print(rendered(found))
    return screen.getvalue()


COMMITTED = (
    None,
    GroupOffset(0, ""),
    GroupOffset(4, "no stamp of ours"),
    GroupOffset(4, CommitStamp(3, None).text()),
    GroupOffset(4, CommitStamp(3, 1500).text()),
    GroupOffset(99, CommitStamp(3, 1500).text()),
)
BOUNDS = (Bounds(0, 0), Bounds(0, 10), Bounds(7, 10))
ANSWERS: list[InputFacts | None] = [None]
ANSWERS += [
    InputFacts(*one) for one in itertools.product(BOUNDS, COMMITTED, (None, 1600), (None, 1700))
]


def test_whatever_the_brokers_leave_out_there_is_a_status(tmp_path: Path) -> None:
    layout = deploy(tmp_path)
    seed = random.randrange(1 << 32)
    others = random.Random(seed).sample(ANSWERS, 3)
    for first, second in itertools.product(ANSWERS, [None, *others]):
        answers = zip((TopicPartition("in", p) for p in (0, 1)), (first, second), strict=True)
        said = Said({tp: answer for tp, answer in answers if answer is not None})
        found = reader_of(layout, said).now()
        assert tell(found), (seed, first, second)
        known = {task.lag_records for task in found.stream_tasks}
        assert (found.lag_records is None) == (None in known), (
            f"a part must not pass for all: seed {seed}, {first}, {second}"
        )


def test_a_newest_record_of_an_open_transaction_leaves_the_seconds_unknown(tmp_path: Path) -> None:
    behind = InputFacts(Bounds(0, 10), GroupOffset(4, CommitStamp(3, 1500).text()), 1600, None)
    said = Said({TopicPartition("in", p): behind for p in (0, 1)})
    found = reader_of(deploy(tmp_path), said).now()
    assert (found.lag_records, found.lag_seconds) == (12, None)
    wrong = check_limits(found, 5.0, None)
    assert isinstance(wrong, errors.Unavailable)


@pytest.mark.parametrize("topics", [{}, {"in": 2}, {LOG: 2}, {"in": 1, LOG: 1}])
def test_topics_that_are_not_there_leave_unknown_what_they_would_tell(
    tmp_path: Path, topics: dict[str, int]
) -> None:
    read = InputFacts(Bounds(0, 10), GroupOffset(10, ""), None, 1700)
    said = Said({TopicPartition("in", p): read for p in (0, 1)}, topics=topics)
    found = reader_of(deploy(tmp_path), said).now()
    assert tell(found)
    if topics.get("in") != 2:
        assert found.lag_records is None, (
            "an input nobody could look at is not an input without lag"
        )
    if topics.get(LOG) != 2:
        assert found.restore_seconds is None, "what a lost changelog restores is not known"


EVERY_ERROR = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, StateStoreError)
]


@pytest.mark.parametrize("method", ["partitions", "bounds", "inputs"])
def test_whatever_a_broker_refuses_there_is_a_status_that_says_so(
    tmp_path: Path, method: str
) -> None:
    layout = deploy(tmp_path)
    for kind in EVERY_ERROR:
        said = Said({}, fails=method, error=kind("refused: why"))
        found = reader_of(layout, said).now()
        assert found.broker == "refused: why"
        assert "refused: why" in tell(found)


FILES = (
    "topology.json",
    "owner.json",
    "relocation.json",
    "clone.json",
    "audits/1700000000000.json",
    "0_0/owner.json",
    "0_0/progress.json",
    "0_0/inputs.json",
    "0_0/.checkpoint",
)
TORN: dict[str, bytes] = {
    "empty": b"",
    "half": b'{"epoch": 1, "ho',
    "not JSON": b"\xff\xfe\x00",
    "another shape": b"[1, 2]",
    "nothing in it": b"{}",
    "text for a number": b'{"version": "one", "epoch": "one", "pid": "x", "slots": "y"}',
    "numbers nobody means": b'{"version": -1, "slots": 0, "process_rate": -1e308, "pid": 1}',
    "newer": b'{"version": 99}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", FILES)
def test_whatever_a_file_of_the_state_dir_holds_there_is_a_status(
    tmp_path: Path, name: str
) -> None:
    layout = deploy(tmp_path)
    read = InputFacts(Bounds(0, 10), GroupOffset(4, ""), 1600, 1700)
    said = Said({TopicPartition("in", p): read for p in (0, 1)})
    path = layout.application_dir / name
    path.parent.mkdir(exist_ok=True)
    for what, data in TORN.items():
        path.write_bytes(data)
        assert tell(reader_of(layout, said).now()), what
    path.unlink()
    path.mkdir()
    assert tell(reader_of(layout, said).now()), "a folder in its place"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    layout = deploy(tmp_path)
    layout.topology_file.write_bytes(b"{")
    found = reader_of(layout).now()
    assert any("topology.json" in problem for problem in found.problems)
    assert "topology.json" in "".join(tell(found).split())


@pytest.mark.parametrize(
    "more",
    [
        ("--pipeline=sys:nothing",),
        ("--pipeline=no.such.module:here",),
        ("--pipeline=sys:exit",),
        ("--bootstrap-servers=127.0.0.1:1", "--set=default.api.timeout.ms=1000"),
        ("--set=statestore.export.target=nowhere://x",),
        ("--set=statestore.export.target=/proc/version/x",),
        ("--set=state.dir=/proc/version",),
    ],
)
def test_the_command_answers_whatever_it_was_told_that_is_not_there(
    tmp_path: Path, more: Sequence[str]
) -> None:
    deploy(tmp_path)
    done = CliRunner().invoke(
        cli, ["status", "--application-id=app", f"--state-dir={tmp_path}", "--json", *more]
    )
    assert done.exception is None, done.exception
    said: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert said["application_id"] == "app"


class Row(NamedTuple):
    """How old the last commits of two tasks are, and what is said; None: not known."""

    first_ms: int | None
    second_ms: int | None
    told: float | None


@pytest.mark.parametrize(
    "row", [Row(5000, 90_000, 90), Row(90_000, 5000, 90), Row(None, 5000, 5), Row(None, None, None)]
)
def test_the_last_commit_told_is_that_of_the_task_that_waits_longest(
    tmp_path: Path, row: Row
) -> None:
    layout, clock = deploy(tmp_path), ManualClock()
    for task, age_ms in zip(TASKS, row[:2], strict=True):
        if age_ms is not None:
            note = {"last_commit_ms": clock.now_ms() - age_ms}
            (layout.task_dir(task) / "progress.json").write_bytes(msgspec.json.encode(note))
    assert reader_of(layout, clock=clock).now().last_commit_age_seconds == row.told


def test_every_stream_task_is_one_line_of_80_columns_and_its_owner_is_told_once(
    tmp_path: Path,
) -> None:
    layout, clock = StateLayout(tmp_path, "app"), ManualClock()
    for partition in range(40):
        folder = layout.task_dir(TaskId(12, partition))
        layout.create(folder)
        owner = owners.claim(folder, what="", wait_ms=0, clock=clock).owner
        note = {
            "pid": owner.pid,
            "written_ms": owner.since_ms,
            "last_commit_ms": clock.now_ms() - 7_260_000,
            "process_rate": 1000.0,
        }
        (folder / "progress.json").write_bytes(msgspec.json.encode(note))
    publish_deployed(
        layout, Deployed(fingerprint="f", sub_topologies=[DeployedPart(12, ["in"], tasks=40)])
    )
    behind = InputFacts(Bounds(0, 1_234_567_890), GroupOffset(0, ""), 1600, 90_061_600)
    inputs = {TopicPartition("in", p): behind for p in range(40)}
    lines = tell(reader_of(layout, Said(inputs, topics={"in": 40}), clock=clock).now()).splitlines()
    rows = [line for line in lines if line.strip().startswith("12_")]
    assert len(rows) == 40
    for row in rows:
        assert row.split()[1:] == ["running", "1,234,567,890", "1d1h", "2h1min", "14d6h", "0s"]
    told = " ".join(" ".join(lines).split())
    assert told.count(f"process {os.getpid()} on") == 1
    assert "has all that are owned" in told


def test_what_is_held_back_is_told_per_task_and_in_all_where_there_is_any(tmp_path: Path) -> None:
    layout, clock = deploy(tmp_path), ManualClock()
    reader = reader_of(layout, clock=clock)
    held = (1_234_567, 5)
    for task, records in zip(TASKS, held, strict=True):
        note = {"held_records": records, "last_commit_ms": clock.now_ms() - 90_061_000}
        (layout.task_dir(task) / "progress.json").write_bytes(msgspec.json.encode(note))
    found = reader.now()
    assert [task.held_records for task in found.stream_tasks] == list(held)
    assert found.held_records == sum(held)
    lines = tell(found).splitlines()
    assert any("1,234,572 records held back until later input" in line for line in lines)
    assert "held back: 1,234,567 in 0_0, 5 in 0_1" in [line.strip() for line in lines]
    assert found.held is None, "an older version does not say where they wait"
    (layout.task_dir(TASKS[0]) / "progress.json").unlink()
    found = reader.now()
    assert found.held_records is None, "a sum of which a part is not known is not known"
    assert "at least 5 records held back" in tell(found)
    waits: dict[str, object] = {"held_records": 5, "held": {"near-buffer": 2, "fewer-buffer": 3}}
    (layout.task_dir(TASKS[1]) / "progress.json").write_bytes(msgspec.json.encode(waits))
    assert "at least 5 records held back until later input (fewer-buffer 3, near-buffer 2)" in (
        " ".join(tell(reader.now()).split())
    )
    (layout.task_dir(TASKS[1]) / "progress.json").write_bytes(b'{"held_records": 0}')
    assert "held" not in tell(reader.now())

"""Records that are in no result are counted by node and reason, exactly, and seen after the run.

Shows I34.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from threading import Event
from typing import cast

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

import statestore as ss
from statestore import faults, serdes
from statestore.commands.running import summary_line
from statestore.commands.status import rendered
from statestore.metrics import GatheredFigures, StoreFigures, figures, left_out_totals
from statestore.model.ids import TopicPartition
from statestore.model.left_out import Fate, LeftOut, total
from statestore.model.records import Record
from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import Run, RunRequest, RunSummary
from statestore.operations.running.runner import serve_here, stream_tasks
from statestore.operations.status.status import Status, read_status
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.serving.prometheus import RunCollector, metrics_port
from statestore.tasks.commit import CommitStamp
from statestore.tasks.history import WorkHistory
from statestore.tasks.left_out_counts import STAMP_MAX_BYTES, stamped
from statestore.tasks.plan import Tally, TaskReport
from statestore.tasks.progress_file import KeptSums, ProgressFile, Sums
from statestore.tasks.slot import Ending, Served
from statestore.testing.memory_broker import MemoryBroker
from tests.builders import DEADLINE_S, ManualClock
from tests.contract.task_rig import TaskRig
from tests.serving_rig import serving

MINUTE_MS = 60_000
GUARANTEES = ["exactly_once", "at_least_once"]
DEAD = {
    "processing.exception.handler": "dead_letter",
    "errors.dead.letter.queue.topic.name": "dead",
}


def refuse(_key: str, value: str) -> str:
    if value == "poison":
        raise ValueError(value)
    return value


def everything() -> ss.Topology:
    """Poison, a join that finds nothing, and windows with late records and null keys."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    table = b.table("names", name="names-in", materialized=ss.Materialized("names"))
    clicks = b.stream("clicks", name="clicks").map_values(refuse, name="checked")
    clicks.join(table, lambda click, name: f"{click} {name}", name="named").to("out")
    windows = clicks.group_by_key().windowed_by(ss.TumblingWindows(MINUTE_MS))
    windows.count("counts", name="per-minute")
    return b.build()


@pytest.fixture(params=GUARANTEES)
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskRig]:
    made = TaskRig(everything(), tmp_path, guarantee=request.param, settings=DEAD, serving="run-1")
    made.broker.cluster("shop").create([TopicSpec("dead", 1, {})])
    yield made
    made.end()


def click(rig: TaskRig, *rows: tuple[str | None, str, int]) -> None:
    for key, value, time_ms in rows:
        data = None if key is None else key.encode()
        record: Record[bytes | None, bytes | None] = Record(data, value.encode(), time_ms)
        rig.broker.produce(TopicPartition("clicks", 0), record)


def report_after(rig: TaskRig, *, committed: bool = True) -> TaskReport:
    """The report of a task that has processed all there is."""
    task = rig.start()
    before = -1
    while task.step(0) or task.report.rewinds != before:
        before = task.report.rewinds
    if committed:
        task.step_commit()
    return task.report


def test_what_is_left_out_is_counted_by_node_and_reason_over_crashes(rig: TaskRig) -> None:
    click(rig, ("ann", "a", 10 * MINUTE_MS), ("bob", "poison", 10 * MINUTE_MS), ("ann", "b", 1))
    first = {
        "dropped/late/per-minute": 1,
        "dropped/processing/checked": 1,
        "dead_letter/processing/checked": 1,
        "unmatched/no_match/named": 2,
    }
    report = report_after(rig)
    assert report.left_out == first
    assert report.dropped_records == 2
    rig.crash()
    click(rig, ("ann", "c", 2), (None, "d", 10 * MINUTE_MS))
    report = report_after(rig)
    assert report.left_out == {
        **first,
        "dropped/late/per-minute": 2,
        "dropped/null_key/per-minute": 1,
        "dropped/null_key_or_value/named": 1,
        "unmatched/no_match/named": 3,
    }
    assert report.dropped_records == total(report.left_out, Fate.DROPPED) == 5
    rig.crash()
    rig.serving = "run-2"
    assert report_after(rig).left_out == {}, "that was another run"


def test_what_was_not_committed_is_not_counted_twice(rig: TaskRig) -> None:
    click(rig, ("ann", "a", 1))
    assert report_after(rig, committed=False).left_out == {}
    rig.crash()
    assert report_after(rig).left_out == {"unmatched/no_match/named": 1}


def test_a_stamp_has_room_for_some_causes_and_the_numbers_add_up_all_the_same() -> None:
    counts: dict[str, int] = {}
    for n in range(500):
        counts = stamped(counts, {f"dropped/late/a-node-with-a-name-{n}": 2})
        counts = stamped(counts, {"dropped/late/a-node-with-a-name-0": 1})
    assert total(counts, Fate.DROPPED) == 1500
    assert counts["dropped/late/a-node-with-a-name-0"] == 502
    assert counts["dropped/other/"] > 800
    assert len(CommitStamp(1, None).text()) + len(json.dumps(counts)) < STAMP_MAX_BYTES + 200


def minutes() -> ss.Topology:
    """Clicks by user and minute, below a repartition topic."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    users = b.stream("clicks", name="clicks").group_by(lambda _key, user: user, name="by-user")
    windows = users.windowed_by(ss.TumblingWindows(MINUTE_MS))
    windows.count("counts", name="per-minute").to_stream().to("out", value_serde=serdes.JSON)
    return b.build()


@dataclass
class World:
    """A broker in memory with the topics `clicks` and `out`, and a state dir."""

    state_dir: Path
    topology: ss.Topology = field(default_factory=minutes)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        specs = [TopicSpec(name, 1, {}) for name in ("clicks", "out")]
        self.broker.cluster("shop").create(specs)

    def click(self, user: str, *times_ms: int) -> None:
        for time_ms in times_ms:
            record: Record[bytes | None, bytes | None] = Record(b"key", user.encode(), time_ms)
            self.broker.produce(TopicPartition("clicks", 0), record)

    def runtime(self) -> Runtime:
        known: dict[str, object] = {
            "application.id": "shop",
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "memory:9092",
        }
        return Runtime(known, clock=self.clock, brokers=self.broker.clients)

    def run(self) -> RunSummary:
        with self.runtime() as runtime:
            return serve_run(runtime, self.topology, RunRequest(), Event(), serve_here)


def test_a_run_says_once_at_its_end_what_share_it_dropped_and_what_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path)
    world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
    with caplog.at_level(logging.WARNING):
        summary = world.run()
    late = {"node": "per-minute", "reason": "late", "records": 3, "records_in": 4}
    fields = json.loads(summary_line(summary))
    assert (fields["dropped_records"], fields["dropped"]) == (3, [late])
    assert (fields["dead_letter_records"], fields["dead_letters"]) == (0, [])
    assert (fields["unmatched_records"], fields["unmatched"]) == (0, [])
    (told,) = [line for line in caplog.messages if "%" in line]
    assert told == (
        "shop: 3 of 4 records, 75 %, were dropped as late by node per-minute: records that come "
        "out of order need a larger grace"
    )
    caplog.clear()
    world.click("ann", 10 * MINUTE_MS)
    with caplog.at_level(logging.WARNING):
        assert world.run().dropped == []
    assert not [line for line in caplog.messages if "%" in line]


def test_a_summary_adds_up_what_a_run_left_out_before_it_began_anew() -> None:
    first, second = RunSummary("shop"), RunSummary("shop")
    first.add([TaskReport("0_0", records_in=10, left_out={"dropped/late/a": 4})])
    first.add([TaskReport("1_0", records_in=7, left_out={"unmatched/no_match/j": 1})])
    second.add([TaskReport("0_0", records_in=20), TaskReport("0_1", records_in=30)])
    both = second.after(first)
    assert both.dropped == [LeftOut("a", "late", 4, 60)]
    assert both.unmatched == [LeftOut("j", "no_match", 1, 7)]
    assert (both.dropped_records, both.unmatched_records, both.records_in) == (4, 1, 67)


@pytest.mark.parametrize(
    ("records", "records_in", "text"),
    [
        (2700, 3600, "2,700 of 3,600 records, 75 %"),
        (1, 3, "1 of 3 records, 33 %"),
        (3, 1_000_000, "3 of 1,000,000 records, 0.0003 %"),
        (1, 1, "1 of 1 records, 100 %"),
        (9, 4, "9 records"),
        (1, 0, "1 record"),
    ],
)
def test_a_share_is_said_for_people(records: int, records_in: int, text: str) -> None:
    assert LeftOut("n", "late", records, records_in).share() == text


def crashed(world: World, *, after: int) -> None:
    """A run that ends after a commit, and writes nothing more into the file that people read."""

    def serve_one(started: Run, _stop: Ending) -> RunSummary:
        for wave in started.waves():
            for planned, task in stream_tasks(
                started.environment,
                started.topology,
                wave,
                started.request,
                slots=1,
                global_stores={},
            ):
                folder = started.environment.layout.task_dir(planned.task_id)
                progress = ProgressFile(folder, world.clock, slots=1, serving=planned.serving)
                served = Served(task, progress, WorkHistory(folder, world.clock))
                task.start()
                served.begin(lambda _standing: None)
                taken = 0
                while taken < after:
                    taken += task.step(0)
                task.step_commit()
                task.close()
            return RunSummary("shop")
        raise AssertionError("no wave")

    with world.runtime() as runtime:
        serve_run(runtime, world.topology, RunRequest(), Event(), serve_one)


def by_key(name: str = "per-minute") -> ss.Topology:
    """Clicks by key and minute, in one sub-topology."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    windows = ss.TumblingWindows(MINUTE_MS)
    counts = b.stream("clicks", name="clicks").group_by_key().windowed_by(windows)
    counts.count("counts", name=name).to_stream().to("out", value_serde=serdes.JSON)
    return b.build()


def status_of(world: World, *, asked: bool = True) -> Status:
    with world.runtime() as runtime:
        settings = runtime.settings
        if not asked:
            settings = replace(settings, bootstrap_servers="")
        with runtime.with_settings(settings) as known:
            return read_status(known)


def late(status: Status) -> tuple[int, int, int]:
    """What was dropped in the last run and in all runs, and what came in in all runs."""
    assert status.last_run is not None
    assert status.all_runs is not None
    last, every = status.last_run, status.all_runs
    return last.dropped_records, every.dropped_records, every.records_in


def test_what_runs_dropped_is_seen_after_them_and_after_restarts(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert status_of(world).last_run is None
    world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
    world.run()
    status = status_of(world)
    assert status.last_run is not None
    assert status.last_run.dropped == [LeftOut("per-minute", "late", 3, 4)]
    assert late(status) == (3, 3, 8), "a sub-topology above the repartition topic takes 4, too"
    below = status.stream_tasks[1]
    assert below.last_run is not None
    assert below.last_run.dropped == status.last_run.dropped
    assert "3 of 4 records, 75 %: late, node per-minute" in text_of(status)
    assert "all runs" not in text_of(status)
    world.click("ann", 10 * MINUTE_MS, 1)
    world.run()
    assert late(status_of(world)) == (1, 4, 12)
    assert "4 dropped of 12 records since" in text_of(status_of(world))
    world.run()
    assert late(status_of(world)) == (0, 4, 12), "there was nothing to do"
    assert late(status_of(world, asked=False)) == (0, 4, 12)


def test_what_a_killed_run_committed_is_seen_at_once_and_counts_once(tmp_path: Path) -> None:
    world = World(tmp_path, by_key())
    world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
    crashed(world, after=4)
    assert late(status_of(world)) == (3, 3, 4), "the last commit says so"
    assert late(status_of(world, asked=False)) == (0, 0, 0), "the file is older"
    world.run()
    for asked in (True, False):
        assert late(status_of(world, asked=asked)) == (0, 3, 4), "the next start took it in"


def samples(text: str, prefix: str) -> dict[tuple[str, ...], float]:
    """The counters whose names begin so, by the rest of the name, stream task, node and reason."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples if family.name.startswith(prefix) else ():
            assert family.type == "counter", family.name
            labels = (one.labels.get(name, "") for name in ("task", "node", "reason"))
            found[one.name.removeprefix(prefix), *labels] = one.value
    return found


def test_metrics_of_a_run_count_what_was_left_out_and_never_fall(tmp_path: Path) -> None:
    world = World(tmp_path, by_key("of-metrics"))
    world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
    gathered = GatheredFigures()
    with (
        metrics_port("shop", "127.0.0.1", 0) as port,
        metrics_port("shop", "127.0.0.1", 0, gathered) as of,
    ):

        def scraped(port: int = port) -> dict[tuple[str, ...], float]:
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text
            found = samples(text, "statestore_records_dropped")
            return {key: count for key, count in found.items() if key[2] == "of-metrics"}

        world.run()
        late = ("_total", "0_0", "of-metrics", "late")
        assert scraped() == {late: 3}
        world.click("ann", 4)
        world.run()
        assert scraped() == {late: 4}, "the stores are closed, and the counter is not gone"
        gathered.put(1, figures(), left_out_totals())
        gathered.put(2, (), {"0_0": {"dropped/late/of-metrics": 5}})
        gathered.put(1, ())
        assert scraped(of) == {late: 9}, "a worker that is gone has left out what it has"


def test_late_record_drop_total_is_a_counter() -> None:
    told = {"late-record-drop-total": 3.0, "put-rate": 1.0}
    gathered, registry = GatheredFigures(), CollectorRegistry()
    gathered.put(1, [StoreFigures("counts", "0_0", told, Counter())])
    registry.register(RunCollector("shop", gathered))
    text = generate_latest(registry).decode()
    assert samples(text, "statestore_late_record_drop") == {("_total", "0_0", "", ""): 3.0}


def test_a_server_counts_what_all_runs_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, by_key())
    for _ in range(2):
        world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
        world.run()
    with world.runtime() as runtime, serving(runtime) as server:
        found = samples(server.client.get("/metrics").text, "statestore_serve_records")
    assert found == {
        ("_in_total", "0_0", "", ""): 8,
        ("_dropped_total", "0_0", "per-minute", "late"): 6,
    }


def test_a_server_has_sum_and_count_of_the_whole_commits_of_all_runs(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = World(tmp_path, by_key())

    def slow_broker(point: faults.CrashPoint) -> None:
        if point is faults.CrashPoint.COMMIT_LOG_DONE:
            world.clock.advance(20_000)

    faults.on_reach(slow_broker)
    request.addfinalizer(lambda: faults.on_reach(None))
    commits = 0
    for _ in range(2):
        world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
        commits += world.run().commits
    assert commits >= 2
    with world.runtime() as runtime, serving(runtime) as server:
        text = server.client.get("/metrics").text
    found = {
        one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if family.name == "statestore_serve_commit_duration_seconds"
    }
    assert found == {
        "statestore_serve_commit_duration_seconds_count": commits,
        "statestore_serve_commit_duration_seconds_sum": 20.0 * commits,
    }


def test_times_of_commits_are_summed_over_workers_and_runs_and_a_kill_forgets_both() -> None:
    first = KeptSums().after("run1-0_0", Sums(10, {}, 2, 3.0))
    # The worker was killed after a third commit, of which the file does not tell.
    killed = first.settled(Tally(serving="run1-0_0", commits=3, records_in=15))
    assert (killed.in_all.records_in, killed.in_all.commits) == (15, 2)
    assert killed.in_all.commit_seconds == 3.0
    second = killed.after("run1-0_0", Sums(20, {}, 3, 7.0))
    again = second.after("run2-0_0", Sums(1, {}, 1, 0.5))
    assert (again.in_all.commits, again.in_all.commit_seconds) == (4, 7.5)
    assert (again.in_run.commits, again.in_run.commit_seconds) == (1, 0.5)


def text_of(status: Status) -> str:
    console = Console(width=200, file=StringIO())
    console.print(rendered(status))
    return cast("StringIO", console.file).getvalue()

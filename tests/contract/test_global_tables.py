"""Global tables over files and a broker in memory: refreshed per wave, shared, and never half.

Shows I38.
"""

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import statestore as ss
from statestore import faults, serdes
from statestore.cli import cli
from statestore.commands.status import rendered
from statestore.errors import (
    Misuse,
    SerdeMismatch,
    StateStoreError,
    TaskCorrupted,
    TopicMissing,
)
from statestore.faults import CrashPoint
from statestore.layout.folders import StateLayout
from statestore.layout.global_versions import GlobalVersions
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record
from statestore.operations.deployed import describe_deployment
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest, RunSummary
from statestore.operations.running.runner import (
    FOREVER,
    check_run,
    run_request,
    serve_here,
    serve_planned,
    start_run,
)
from statestore.operations.start.topics import table_topics
from statestore.operations.status.status import Status, StatusReader, read_status
from statestore.ports import Records, TopicSpec
from statestore.runtime import Runtime, SystemClock
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from tests.builders import ManualClock, eventually

RATES, INPUT, OUT = "rates", "in", "out"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
POINTS = [point for point in CrashPoint if point.startswith("global.")]


class Killed(BaseException):
    """A death at a crash point."""


def joined() -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized=RATES)
    b.stream(INPUT).left_join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    return b.build()


def without() -> Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream(INPUT).map_values(lambda v: [v, None]).to(OUT)
    return b.build()


@dataclass
class World:
    """A broker in memory with three partitions of rates and two of the input, and a state dir."""

    state_dir: Path
    topology: Topology = field(default_factory=joined)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    clock: Any = field(default_factory=ManualClock)
    refresh_ms: int = 10_000
    read_so_far: int = 0

    def __post_init__(self) -> None:
        self.create(RATES, 3, {"cleanup.policy": "compact"})
        self.create(INPUT, 2, {})
        self.create(OUT, 2, {})

    def create(self, name: str, partitions: int, config: dict[str, str]) -> None:
        self.broker.cluster("app").create([TopicSpec(name, partitions, config)])

    @property
    def versions(self) -> GlobalVersions:
        return GlobalVersions(StateLayout(self.state_dir, "app"))

    def rate(self, key: str, value: Any) -> None:
        data = None if value is None else json.dumps(value).encode()
        partition = sum(key.encode()) % 3
        self.broker.produce(TopicPartition(RATES, partition), Record(key.encode(), data, 1))

    def send(self, *values: str) -> None:
        for at, value in enumerate(values):
            record = Record(b"k", json.dumps(value).encode(), 1)
            self.broker.produce(TopicPartition(INPUT, at % 2), record)

    def run(self, topology: Topology | None = None) -> RunSummary:
        with (
            self.runtime() as runtime,
            start_run(runtime, topology or self.topology, RunRequest()) as started,
        ):
            return serve_here(started, Event())

    def runtime(self) -> Runtime:
        settings = {
            "application.id": "app",
            "state.dir": str(self.state_dir),
            "bootstrap.servers": "memory:9092",
            "processing.guarantee": "exactly_once",
            "statestore.global.refresh.ms": self.refresh_ms,
        }
        return Runtime(settings, clock=self.clock, brokers=self.broker.clients)

    def out(self) -> list[Any]:
        """What came out since the last look."""
        rows = [json.loads(record.value or b"") for record in self.broker.records(OUT)]
        fresh, self.read_so_far = rows[self.read_so_far :], len(rows)
        return sorted(fresh, key=str)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.on_reach(None)


def test_every_task_has_all_rows_whatever_partition_they_are_in(world: World) -> None:
    for key in "abcdef":
        world.rate(key, ord(key))
    world.send(*"abcdef")
    world.send(*"fedcba")
    assert world.run().caught_up
    assert world.out() == sorted(2 * [[key, ord(key)] for key in "abcdef"], key=str)


def test_a_later_run_reads_only_what_the_topic_got_since(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1000):
        world.rate(f"r{number}", number)
    world.send("r7")
    world.run()
    world.rate("r7", "new")
    world.rate("r8", None)
    world.send("r7", "r8", "r9")
    with caplog.at_level("INFO"):
        world.run()
    assert "read 2 records of rates from where it was" in caplog.text
    assert world.out() == [["r7", "new"], ["r7", 7], ["r8", None], ["r9", 9]]


def test_without_news_a_run_goes_on_with_the_last_version(world: World) -> None:
    world.rate("a", 1)
    world.send("a")
    world.run()
    world.send("a")
    world.run()
    assert world.versions.numbers() == [1]
    assert world.out() == [["a", 1], ["a", 1]]


def test_an_empty_topic_is_an_empty_table(world: World) -> None:
    world.send("a")
    world.run()
    assert world.out() == [["a", None]]
    world.rate("a", 1)
    world.send("a")
    world.run()
    assert world.out() == [["a", 1]]


def test_records_of_an_open_transaction_are_not_in_the_table(world: World) -> None:
    world.rate("a", 1)
    outbox = world.broker.outbox("other-0", "other")
    outbox.open()
    outbox.begin()
    outbox.send(Records(RATES, [b"a"], [b"2"], [1], ord("a") % 3))
    world.send("a")
    world.run()
    assert world.out() == [["a", 1]]
    outbox.commit()
    world.send("a")
    world.run()
    assert world.out() == [["a", 2]]


def test_a_topology_without_global_tables_leaves_no_files_of_them(world: World) -> None:
    world.rate("a", 1)
    world.send("a")
    world.run()
    assert world.versions.folder.is_dir()
    world.send("b")
    world.run(without())
    assert not world.versions.folder.exists()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("visit", [1, 3])
def test_a_death_in_the_refresh_costs_nothing_but_the_refresh(
    world: World, point: CrashPoint, visit: int
) -> None:
    world.rate("a", 1)
    world.send("a")
    world.run()
    for key in "abcdef":
        world.rate(key, ord(key))
    world.send(*"abcdef")
    visits = 0

    def die(reached: CrashPoint) -> None:
        nonlocal visits
        visits += reached is point
        if reached is point and visits == visit:
            raise Killed

    faults.on_reach(die)
    if point is CrashPoint.GLOBAL_ROWS_WRITTEN or visit == 1:
        with pytest.raises(Killed):
            world.run()
    faults.on_reach(None)
    world.run()
    wanted = [["a", 1], *([key, ord(key)] for key in "abcdef")]
    assert world.out() == sorted(wanted, key=str)
    assert not list(world.versions.unfinished())


def test_what_a_dead_run_has_read_is_not_read_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "abcdef":
        world.rate(key, ord(key))
    world.send("a")

    def die(reached: CrashPoint) -> None:
        if reached is CrashPoint.GLOBAL_PUBLISHED:
            raise Killed

    faults.on_reach(die)
    with pytest.raises(Killed):
        world.run()
    faults.on_reach(None)
    # As a run that died before the rename leaves it.
    world.versions.path(1).rename(world.versions.folder / ".dead-1")
    with caplog.at_level("INFO"):
        world.run()
    assert "read 0 records of rates from where it was" in caplog.text
    assert world.out() == [["a", ord("a")]]


def test_a_topic_that_was_created_again_makes_the_table_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "abc":
        world.rate(key, 1)
    world.send("a")
    world.run()
    world.broker.cluster("app").remove([RATES], "other")
    world.create(RATES, 3, {"cleanup.policy": "compact"})
    for key in "bcdefgh":
        world.rate(key, 2)
    world.send("a", "b")
    world.run()
    assert "made anew: its topic is another one" in caplog.text
    assert world.out() == [["a", 1], ["a", None], ["b", 2]]


def test_a_table_that_may_lack_deletes_is_made_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.rate("a", 1)
    world.rate("d", 1)  # in the same partition
    world.send("a")
    world.run()
    world.rate("a", None)
    world.rate("d", 2)
    world.broker.compact(RATES, deletes=True)
    world.clock.advance(DAY_MS)
    world.send("a", "d")
    world.run()
    assert "may have forgotten deletes" in caplog.text
    assert world.out() == [["a", 1], ["a", None], ["d", 2]]


def test_a_table_that_every_run_found_complete_is_never_too_old(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.rate("a", 1)
    for _ in range(3):
        world.run()
        world.clock.advance(DAY_MS // 2)
    world.rate("b", 1)
    world.send("a", "b")
    world.run()
    assert "made anew" not in caplog.text
    assert world.out() == [["a", 1], ["b", 1]]


def test_a_truncated_topic_makes_the_table_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        world.rate("a", 1)
    world.send("a")
    world.run()
    world.rate("a", 2)
    world.rate("a", 3)
    tp = TopicPartition(RATES, ord("a") % 3)
    world.broker.cluster("app").delete_before({tp: 4})
    world.send("a")
    world.run()
    assert "made anew: its topic was truncated" in caplog.text
    assert world.out() == [["a", 1], ["a", 3]]


def test_damage_ends_the_run_and_the_next_one_makes_the_table_anew(world: World) -> None:
    for number in range(10_000):
        world.rate(f"r{number:05}", number)
    world.send("r09999")
    world.run()
    files = (world.versions.path(1) / RATES).glob("*.sst")
    rows = max(files, key=lambda path: path.stat().st_size)
    data = rows.read_bytes()
    rows.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    # Its block is in no cache yet.
    world.send("r00001")
    with pytest.raises(TaskCorrupted, match="makes it anew from its topic"):
        world.run()
    world.run()
    assert world.out() == [["r00001", 1], ["r09999", 9999]]


def test_a_folder_that_was_emptied_is_filled_again(world: World) -> None:
    world.rate("a", 1)
    world.send("a")
    world.run()
    shutil.rmtree(world.versions.path(1) / RATES)
    world.send("a")
    world.run()
    assert world.out() == [["a", 1], ["a", 1]]


def test_who_writes_the_topic_of_a_global_table_goes_first(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized=RATES)
    b.stream(INPUT).left_join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    b.stream("news").to(RATES)
    topology = b.build()
    assert [wave.ordinals for wave in topology.waves] == [(1,), (0,)]
    world.create("news", 1, {})
    world.broker.produce(TopicPartition("news", 0), Record(b"a", b"5", 1))
    world.send("a")
    world.run(topology)
    assert world.out() == [["a", 5]]


def test_a_row_that_does_not_decode_is_named(world: World) -> None:
    world.broker.produce(TopicPartition(RATES, 0), Record(b"a", b"{", 1))
    world.send("b")
    world.run()
    world.send("a")
    with pytest.raises(SerdeMismatch, match="the row of key a in store 'rates'"):
        world.run()


@pytest.mark.timeout(900)  # a busy disk takes seconds for each commit
def test_a_continuous_run_shows_newer_rows(world: World) -> None:
    world.clock, world.refresh_ms = SystemClock(), 20
    world.rate("a", 1)
    world.send("a")
    stop = Event()
    seen: list[Any] = []

    def work() -> None:
        request = run_request(run_for=FOREVER)
        with world.runtime() as runtime, start_run(runtime, world.topology, request) as started:
            serve_here(started, stop)

    def shown(wanted: list[Any]) -> bool:
        if fresh := world.out():
            seen.extend(fresh)
            world.send("a")
        return wanted in seen

    thread = Thread(target=work)
    thread.start()
    try:
        eventually(lambda: shown(["a", 1]), "the first row", 80)
        world.rate("a", 2)
        eventually(lambda: shown(["a", 2]), "the newer row", 80)
    finally:
        stop.set()
        thread.join()


def test_a_worker_that_takes_over_late_begins_with_the_rows_of_then(world: World) -> None:
    """By then, the version that was planned for its stream tasks may have been removed."""
    world.refresh_ms = 20
    world.rate("a", 1)
    stop, request = Event(), run_request(run_for=FOREVER)
    with world.runtime() as runtime, start_run(runtime, world.topology, request) as started:
        planned = next(started.waves())
        world.rate("a", 2)
        eventually(lambda: world.versions.newest() == 2, "a newer version")

        def first_is_removed() -> bool:
            world.clock.advance(HOUR_MS)  # a version is kept for a while after the next one
            world.rate("a", 3)
            return 1 not in world.versions.numbers()

        eventually(first_is_removed, "the first version is removed")
        world.send("a")
        told: list[Exception] = []

        def work() -> None:
            try:
                serve_planned(runtime, world.topology, planned, request, slots=1, stop=stop)
            except StateStoreError as error:
                told.append(error)

        def answered() -> bool:
            world.clock.advance(1000)  # so that commits come due
            return bool(told or world.broker.records(OUT))

        thread = Thread(target=work)
        thread.start()
        try:
            eventually(answered, "a result or an error")
        finally:
            stop.set()
            thread.join()
    assert told == []
    assert world.out() == [["a", 3]]


def test_a_topic_that_is_gone_in_a_continuous_run_leaves_the_rows_as_they_were(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.refresh_ms = 20
    world.rate("a", 1)
    request = run_request(run_for=FOREVER)
    with world.runtime() as runtime, start_run(runtime, world.topology, request) as started:
        next(started.waves())
        world.broker.cluster("app").remove([RATES], "other")
        eventually(lambda: "as they were, and tried again" in caplog.text, "a warning")
    assert "topic rates of global table rates does not exist" in caplog.text
    assert world.versions.numbers() == [1]


def test_a_global_table_may_have_the_name_of_any_file_that_we_write(world: World) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized="version.json")
    b.stream(INPUT).join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    topology = b.build()
    for rate in (1, 2):
        world.rate("a", rate)
        world.send("a")
        world.run(topology)
        assert world.out() == [["a", rate]]


def test_a_missing_topic_is_a_refusal(world: World) -> None:
    world.broker.cluster("app").remove([RATES], "other")
    with pytest.raises(TopicMissing, match="rates"):
        world.run()


# What commands show.


def test_commands_show_the_rows_and_how_far_they_are(world: World, tmp_path: Path) -> None:
    state = ["--application-id", "app", "--state-dir", str(tmp_path)]

    def told(*words: str) -> str:
        done = CliRunner().invoke(cli, [*words, *state])
        assert done.exit_code == 0, done.output
        return done.output

    def lags(status: Status) -> list[Any]:
        return [(t.store, t.topic, t.lag_records, t.refreshed_age_seconds is None)
                for t in status.global_tables]  # fmt: skip

    with world.runtime() as runtime:
        wanted = describe_deployment(world.topology, ProcessingGuarantee.EXACTLY_ONCE)
        assert lags(StatusReader(runtime, wanted=wanted).now()) == [("rates", "rates", None, True)]
    world.rate("a", 1)
    world.rate("b", {"x": 2})
    with world.runtime() as runtime:
        assert check_run(runtime, world.topology, RunRequest()).global_tables == {"rates": 2}
    world.send("a")
    world.run()
    world.rate("a", 3)
    assert '"store":"rates","stream_task":null' in told("stores", "ls", "--json").replace(" ", "")
    assert told("stores", "get", "rates", "a") == "1\n"
    assert told("stores", "count", "rates") == "2\n"
    own = "--pipeline=tests.contract.test_global_tables:joined"
    assert told("stores", "get", "rates", "a", own) == "1\n"
    assert json.loads(told("stores", "range", "rates", "b", "--json")) == {
        "stream_task": None,
        "key": "b",
        "value": {"x": 2},
    }
    with world.runtime() as runtime:
        assert lags(read_status(runtime)) == [("rates", "rates", 1, False)]
        assert check_run(runtime, world.topology, RunRequest()).global_tables == {"rates": 1}
        shown = Console(width=80, record=True, file=io.StringIO())
        shown.print(rendered(read_status(runtime)))
        assert "1 records behind rates" in shown.export_text()


@pytest.mark.parametrize(
    "words",
    [
        ["stores", "get", "rates", "a", "--as-of", "5"],
        ["stores", "history", "rates", "a"],
        ["stores", "count", "rates", "--partition", "1"],
        ["offsets", "rates"],
    ],
)
def test_what_a_global_table_has_not_is_said(
    world: World, tmp_path: Path, words: list[str]
) -> None:
    world.run()
    state = ["--application-id", "app", "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(cli, [*words, *state])
    assert isinstance(done.exception, Misuse), done.output
    assert "global table" in str(done.exception)


def test_a_reset_removes_it(world: World) -> None:
    world.rate("a", 1)
    world.run()
    with world.runtime() as runtime:
        reset(runtime, ResetTo(earliest=True))
    assert not world.versions.folder.exists()


def test_its_topic_is_created_compacted_unless_a_stream_reads_it_too() -> None:
    assert table_topics(joined()) == {RATES: {"cleanup.policy": "compact"}}
    b = ss.StreamsBuilder()
    b.global_table(INPUT, materialized="x")
    b.stream(INPUT).to(OUT)
    assert table_topics(b.build()) == {}


def test_a_serde_that_sees_its_place_is_told_the_topic_of_the_table(world: World) -> None:
    seen = set()

    def write(value: Any, at: ss.SerdeContext) -> bytes:
        seen.add((at.topic, at.side))
        return json.dumps(value).encode()

    def read(data: bytes, at: ss.SerdeContext) -> Any:
        seen.add((at.topic, at.side))
        return json.loads(data)

    serde: ss.Serde[Any] = ss.Serde("PLACED", write, read)
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table(RATES, materialized=RATES, key_serde=serde, value_serde=serde)
    b.stream(INPUT).left_join(rates, lambda v, rate: [v, rate], key=lambda _k, v: v).to(OUT)
    world.broker.produce(TopicPartition(RATES, 0), Record(b'"a"', b"1", 1))
    world.send("a")
    world.run(b.build())
    assert world.out() == [["a", 1]]
    assert seen == {(RATES, "key"), (RATES, "value")}

"""Runs on a real broker: what they process, keep, restore and leave, and what they live through."""

import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import statestore as ss
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.outbox import TransactionalOutbox
from statestore.layout.files import read_checkpoint
from statestore.layout.owners import read_owner
from statestore.model.ids import TopicPartition
from statestore.operations.running.runner import run_request, serve_planned, start_run
from statestore.ports import Records
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.tasks.plan import TaskReport
from statestore.testing.local_kafka import LocalKafka
from tests.contract.user_stores import rows_in
from tests.kafka import run_pipelines as pipelines
from tests.kafka.run_rig import (
    START_MS,
    App,
    counted,
    end_of,
    name_of,
    running,
    updates_in_order,
    user,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def app(
    kafka: LocalKafka,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[App]:
    """An application of the test's own; its topics are yet to be made."""
    made = App(kafka, name_of(request.node.name), tmp_path / "state")
    monkeypatch.setenv(pipelines.PREFIX_VARIABLE, made.name)
    yield made
    made.end_children()


def reports_of(app: App, topology: ss.Topology) -> dict[str, TaskReport]:
    """A run in this process as a driver and its workers do it: the report of each stream task."""
    request = run_request()
    found: dict[str, TaskReport] = {}
    with (
        Runtime(app.run_settings()) as runtime,
        start_run(runtime, topology, request) as started,
    ):
        for wave in started.waves():
            stop = threading.Event()
            for report in serve_planned(runtime, topology, wave, request, slots=1, stop=stop):
                found[report.stream_task] = report
    return found


def assert_exact(app: App, numbers: range) -> None:
    """Output, store and oracle agree: every record counted once."""
    assert updates_in_order(app.read()) == counted(numbers) == app.stored()


# What is processed.


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_run_drains_all_waves_and_a_second_one_has_nothing_to_do(
    app: App, guarantee: str
) -> None:
    app.create_topics().produce(range(50))
    settings = app.run_settings(**{"processing.guarantee": guarantee})
    first = ss.run(pipelines.counts(), settings)
    assert (first.stream_tasks, first.records_in, first.records_out) == (4, 100, 100)
    assert (first.caught_up, first.error) == (True, None)
    assert_exact(app, range(50))
    second = ss.run(pipelines.counts(), settings)
    assert (second.stream_tasks, second.records_in, second.records_out) == (4, 0, 0)
    assert (second.commits, second.restored_records, second.caught_up) == (0, 0, True)
    app.produce(range(50, 60))
    assert ss.run(pipelines.counts(), settings).records_in == 20
    assert_exact(app, range(60))


def test_what_a_closed_outbox_committed_can_be_read_at_once(app: App) -> None:
    app.create_topics(partitions=4)
    settings = Settings.from_mapping(app.run_settings())
    cluster = KafkaCluster(settings)
    tps = [TopicPartition(f"{app.name}-out", p) for p in range(4)]
    keys: list[bytes | None] = [b"%d" % n for n in range(40)]
    for number in range(1, 31):
        outbox = TransactionalOutbox(
            settings, transactional_ids=["closed", "closed-2"], group_id=app.name
        )
        outbox.open()
        outbox.begin()
        outbox.send(Records(f"{app.name}-out", keys, keys, [1] * 40))
        outbox.send_offsets({TopicPartition(f"{app.name}-in", 0): number}, "")
        outbox.commit()
        outbox.close()
        # A marker follows the records of each transaction in each partition.
        assert sum(bound.end for bound in cluster.bounds(tps).values()) == number * (40 + 4)


def test_several_inputs_of_a_task_are_taken_in_the_order_of_their_timestamps(app: App) -> None:
    app.create_topics(partitions=3, other=2, out=1)
    for p in range(3):
        app.produce([n for n in range(300) if n % 3 == p and n % 2 == 0], partition=p)
    for p in range(2):
        app.produce([n for n in range(300) if n % 3 == p and n % 2], topic="other", partition=p)
    summary = ss.run(pipelines.merged(), app.run_settings())
    assert (summary.stream_tasks, summary.records_in) == (3, 250)
    seen: dict[int, list[int]] = {}
    for row in app.read():
        topic, partition, number = row.value
        assert topic == f"{app.name}-{'other' if number % 2 else 'in'}"
        assert row.timestamp_ms == START_MS + number
        seen.setdefault(partition, []).append(number)
    assert seen == {
        0: list(range(0, 300, 3)),
        1: list(range(1, 300, 3)),
        2: list(range(2, 300, 6)),
    }


@pytest.mark.parametrize("idle_ms", [0, 60_000])
def test_a_continuous_run_waits_for_the_earlier_record_of_a_silent_input(
    app: App, idle_ms: int
) -> None:
    app.create_topics(partitions=1, other=1).produce([50])
    process = app.start("--run-for=100s", f"--set=max.task.idle.ms={idle_ms}", pipeline="merged")
    owner = app.state_dir / app.name / "0_0" / "owner.json"
    running(app, process, lambda: bool(app.committed()) if idle_ms == 0 else owner.is_file())
    app.produce([40], topic="other")
    # The one that comes last in either case.
    last = "other" if idle_ms == 0 else "in"
    if idle_ms:
        app.produce([60], topic="other")
    running(app, process, lambda: app.committed(last).get(0, 0) > 0)
    process.terminate()
    assert end_of(process, 0).code == 0
    assert [row.value[2] for row in app.read()][:2] == ([50, 40] if idle_ms == 0 else [40, 50])


@pytest.mark.thorough
def test_until_a_time_stops_at_the_first_record_of_that_time(app: App) -> None:
    app.create_topics().produce(range(40))
    assert app.drained(f"--until={START_MS + 10}")["records_in"] == 20
    assert_exact(app, range(10))
    settings = app.run_settings()
    earlier = ss.run(pipelines.counts(), settings, until=START_MS + 5)
    assert (earlier.records_in, earlier.caught_up) == (0, True), "it never goes back"
    at = datetime.fromtimestamp((START_MS + 25) / 1000, tz=UTC)
    assert app.drained(f"--until={at.isoformat()}")["caught_up"]
    assert_exact(app, range(25))
    ss.run(pipelines.counts(), settings, until="latest")
    assert_exact(app, range(40))


def test_a_run_for_a_span_goes_on_commits_and_ends_in_time(app: App) -> None:
    app.create_topics().produce(range(40))
    process = app.start("--run-for=2s")
    running(app, process, lambda: sum(app.committed().values()) == 40)
    app.produce(range(40, 60))
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    assert ended.summary["stream_tasks"] == 4
    app.drained()
    assert_exact(app, range(60))


def test_a_repartition_topic_is_purged_up_to_what_was_processed(app: App) -> None:
    app.create_topics().produce(range(50))
    ss.run(pipelines.counts(), app.run_settings())
    bounds = app.bounds(f"{app.name}-by-user-repartition")
    assert all(start == end for start, end in bounds.values())
    assert sum(end for _, end in bounds.values()) >= 50


# What is kept.


def test_an_in_memory_store_comes_back_from_its_changelog_at_each_start(app: App) -> None:
    app.create_topics().produce(range(50))
    first = ss.run(pipelines.counts_in_memory(), app.run_settings())
    app.produce(range(50, 60))
    second = ss.run(pipelines.counts_in_memory(), app.run_settings())
    assert (first.restored_records, second.restored_records) == (0, len(counted(range(50))))
    assert updates_in_order(app.read()) == counted(range(60))
    assert not list(app.state_dir.glob("*/*/rocksdb"))


def latest_rows(app: App) -> dict[str, object]:
    """Every row of the table, all partitions."""
    with ss.open_snapshot(app.state_dir, app.name, "rows") as snapshot:
        return dict(snapshot.all())


def test_a_table_comes_back_from_its_source_topic_up_to_what_was_processed(app: App) -> None:
    app.create_topics().produce([*range(50), *range(20)])
    settings = app.run_settings(**{"topology.optimization": "all"})
    assert ss.run(pipelines.latest(), settings, until=START_MS + 60).records_in == 70
    assert f"{app.name}-rows-changelog" not in app.topics()
    shutil.rmtree(app.state_dir)
    app.produce(range(40, 60))
    summary = ss.run(pipelines.latest(), settings)
    assert (summary.restored_records, summary.records_in) == (70, 20)
    assert latest_rows(app) == {f"k{n}": {"user": user(n), "number": n} for n in range(60)}


@pytest.mark.slow
def test_a_table_killed_while_it_comes_back_from_its_source_topic_goes_on(app: App) -> None:
    app = replace(app, settings={"topology.optimization": "all"}, pipeline="latest")
    app.create_topics()
    for half in (range(60_000), range(60_000, 120_000)):  # the client's queue holds no more
        app.produce(half)
    app.drained()
    shutil.rmtree(app.state_dir)
    app.produce(range(100_000, 120_010))
    for point in ("restore.batch-written", "restore.batch-written:2", "restore.done"):
        assert app.run(crash_at=point).code == -signal.SIGKILL
    assert app.drained()["records_in"] == 20_010
    assert latest_rows(app) == {f"k{n}": {"user": user(n), "number": n} for n in range(120_010)}


def invert(tables: Sequence[Path], size: int | None = None) -> None:
    for path in tables:
        data = path.read_bytes()
        path.write_bytes(bytes(byte ^ 0xFF for byte in data[:size]) + data[len(data[:size]) :])


def about_offsets(path: Path) -> bool:
    """Whether a table file holds the format and the offsets, not the rows."""
    return b'"keyvalue"' in path.read_bytes()


# Files are found broken on opening, the offsets when they are read then, rows when they are used.
DAMAGE: dict[str, Callable[[Sequence[Path]], None]] = {
    "files": invert,
    "offsets": lambda tables: invert([path for path in tables if about_offsets(path)], 20),
    "rows": lambda tables: invert([path for path in tables if not about_offsets(path)], 20),
    "missing": lambda tables: tables[0].unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_store_with_broken_files_is_quarantined_and_restored_alone(app: App, damage: str) -> None:
    app.create_topics().produce(range(50))
    ss.run(pipelines.counts(), app.run_settings())
    folder = app.state_dir / app.name / "1_0" / "rocksdb" / "counts"
    tables = sorted(folder.glob("*.sst"))
    assert {about_offsets(path) for path in tables} == {True, False}
    DAMAGE[damage](tables)
    before = tables_in(folder)
    app.produce(range(50, 60))
    reports = reports_of(app, pipelines.counts())
    assert {name: report.quarantined for name, report in reports.items()} == {
        "0_0": [],
        "0_1": [],
        "1_0": ["counts"],
        "1_1": [],
    }
    assert [name for name, report in reports.items() if report.restored_records] == ["1_0"]
    (kept,) = (app.state_dir / app.name / "quarantine").iterdir()
    assert kept.name.startswith("counts-")
    assert before.items() <= tables_in(kept).items(), "the broken files are kept as they were"
    assert_exact(app, range(60))


def tables_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.sst")}


def test_a_store_whose_files_are_gone_is_restored_whole(app: App) -> None:
    app.create_topics().produce(range(50))
    ss.run(pipelines.counts(), app.run_settings())
    rows = app.stored()
    for folder in (app.state_dir / app.name).glob("1_*/rocksdb/counts"):
        shutil.rmtree(folder)
        folder.mkdir()
    summary = ss.run(pipelines.counts(), app.run_settings())
    assert (summary.records_in, summary.restored_records) == (0, len(rows))
    assert_exact(app, range(50))


# What is lived through.


def test_sigterm_ends_a_continuous_run_with_a_commit_and_lets_go(app: App) -> None:
    app.create_topics().produce(range(40))
    process = app.start("--run-for=100s")
    running(app, process, lambda: sum(app.committed().values()) == 40)
    process.send_signal(signal.SIGTERM)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    assert ended.summary["error"] is None
    assert ended.summary["commits"] >= 1
    for folder in (app.state_dir / app.name, *(app.state_dir / app.name).glob("?_?")):
        owner = read_owner(folder)
        assert owner is not None
        assert (owner.pid, owner.released) == (process.pid, True), folder
    app.drained()
    assert_exact(app, range(40))


@pytest.mark.thorough
def test_a_restore_killed_half_way_goes_on_where_it_was(app: App) -> None:
    app.create_topics(partitions=1)
    total = 60_000
    app.produce(range(total))
    ss.run(pipelines.latest(), app.run_settings())
    shutil.rmtree(app.state_dir / app.name / "0_0" / "rocksdb")
    # The second batch is written only after the first is on disk.
    often = "--set=statestore.flush.lag.max.records=1000"
    killed = end_of(
        app.start(often, pipeline="latest", crash_at="restore.batch-written:2"), began=0
    )
    assert killed.code == -signal.SIGKILL
    ended = app.run(often, pipeline="latest")
    assert ended.code == 0, ended.err[-4000:]
    said = re.search(r"restored rows: (\d+) records, from offset (\d+)", ended.err)
    assert said is not None, ended.err
    restored, start = int(said[1]), int(said[2])
    assert 0 < restored < total, "it began neither anew nor at the end"
    assert ended.summary["restored_records"] == restored
    spec = ss.persistent_key_value_store("rows")
    with ss.open_store(spec, app.state_dir / app.name / "0_0" / "rocksdb") as store:
        assert store.approximate_num_entries() > 0
        keys = {key.decode() for key, _ in store.all()}
    assert keys == {f"k{n}" for n in range(total)}
    assert start > 0


@pytest.mark.slow
def test_an_outage_of_the_broker_in_mid_run_loses_and_doubles_nothing(app: App) -> None:
    app.create_topics().produce(range(3000))
    # The client waits for any connection to change before it looks for its coordinator again.
    soon = "--set=producer.connections.max.idle.ms=1000"
    process = app.start("--run-for=100s", "--set=statestore.batch.max.records=50", soon)
    running(app, process, lambda: 0 < sum(app.committed().values()) < 3000)
    app.kafka.kill_broker(0)
    app.kafka.start_broker(0)
    app.produce(range(3000, 4000))
    running(app, process, lambda: sum(app.committed().values()) == 4000)
    process.send_signal(signal.SIGTERM)
    ended = end_of(process, 0)
    assert ended.code == 0, ended.err[-4000:]
    app.drained()
    assert_exact(app, range(4000))


@pytest.mark.parametrize("manages", [True, False], ids=["managing", "unmanaging"])
def test_a_users_own_store_is_exact_after_a_kill_behind_the_log(app: App, manages: bool) -> None:
    """ADR 6: one that keeps its offsets replays a transaction, one that does not starts anew."""
    app.create_topics(partitions=1)
    pipeline = "user_store_managing" if manages else "user_store_unmanaging"
    folder = app.state_dir / app.name / "0_0"
    entry = {TopicPartition(f"{app.name}-book-changelog", 0)}

    def produce(numbers: range) -> None:
        app.produce_raw([(user(n), b"{}", START_MS + n) for n in numbers])

    def assert_booked(numbers: range) -> None:
        rows = {key: int(value) for key, value in rows_in(folder / "rocksdb" / "book").items()}
        assert updates_in_order(app.read()) == counted(numbers) == rows
        assert read_checkpoint(folder).keys() == entry, "a clean end vouches for both"

    produce(range(70))
    assert app.drained(pipeline=pipeline)["restored_records"] == 0
    assert_booked(range(70))
    logged = len(app.read("book-changelog"))
    produce(range(70, 140))
    killed = end_of(app.start(pipeline=pipeline, crash_at="commit.log-done:1"), began=0)
    assert killed.code == -signal.SIGKILL, killed.err[-4000:]
    assert (read_checkpoint(folder).keys() == entry) is manages
    replayed = len(app.read("book-changelog")) - (logged if manages else 0)
    produce(range(140, 210))
    summary = app.drained(pipeline=pipeline)
    quarantine = app.state_dir / app.name / "quarantine"
    kept = [path.name for path in quarantine.iterdir()] if quarantine.exists() else []
    assert (len(kept), summary["restored_records"]) == (0 if manages else 1, replayed)
    assert summary["records_in"] < 140, "what the log holds is not processed again"
    assert_booked(range(210))

"""A changed topology deployed over the state of the old one, on a real broker.

Nothing is restored, nothing lost or doubled, nothing of the old transactions is left. Stores are
read back by raw rocksdict; what was read from changelogs is told by the consumers themselves.
"""

import json
import signal
import struct
from collections import Counter
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from rocksdict import AccessType, Options, Rdict

import statestore as ss
from statestore.faults import CrashPoint
from statestore.kafka import clients
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import (
    App,
    counted,
    end_of,
    running,
    updates_in_order,
)

pytestmark = pytest.mark.kafka

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # library gap
PLAIN_POINTS = [CrashPoint.RELOCATE_RENAMED]
OTHER_POINTS = [
    point for point in CrashPoint if point.startswith("relocate.") and point not in PLAIN_POINTS
]


@pytest.fixture
def two(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """An application of two topologies: `counts`, and `counts_reordered` with a part before it."""
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    for name in ("other", "other-out"):
        app.kafka.create_topic(f"{app.name}-{name}", 2, {"retention.ms": -1})
    return app


class Told:
    """What consumers tell, by topic: records handed on, and messages the broker sent them.

    The latter by their own statistics, which count the mark that ends a transaction as one.
    """

    def __init__(self) -> None:
        self.handed_on: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def forget(self) -> None:
        self.handed_on.clear()
        self.sent.clear()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Every consumer made by runs of this process tells."""
    said = Told()

    class Telling(confluent_kafka.Consumer):
        def __init__(self, config: dict[str, Any]) -> None:
            self._latest: dict[str, int] = {}
            super().__init__({**config, "statistics.interval.ms": 20, "stats_cb": self._hear})

        def _hear(self, text: str) -> None:
            for name, topic in json.loads(text)["topics"].items():
                total = sum(p["rxmsgs"] for p in topic["partitions"].values())
                said.sent[name] += total - self._latest.get(name, 0)
                self._latest[name] = total

        def consume(self, *how: Any) -> list[confluent_kafka.Message]:
            messages = super().consume(*how)
            said.handed_on.update(str(m.topic()) for m in messages if not m.error())
            return messages

    monkeypatch.setattr(clients, "Consumer", Telling)
    return said


def raw(app: App, ordinal: int, partition: int) -> tuple[dict[bytes, bytes], int | None]:
    """The rows of `counts` and its changelog offset, by nothing of the library."""
    path = app.state_dir / app.name / f"{ordinal}_{partition}" / "rocksdb" / "counts"
    families = {name: Options(raw_mode=True) for name in ("default", "data", "offsets")}
    db = Rdict(
        str(path),
        Options(raw_mode=True),
        column_families=families,
        access_type=AccessType.read_only(),
    )
    offsets = db.get_column_family("offsets")
    key = b"o" + f"{app.name}-counts-changelog".encode() + b"\0" + struct.pack(">i", partition)
    offset: Any = offsets.get(key)
    data = db.get_column_family("data")
    rows: dict[Any, Any] = dict(data.items())
    data.close()
    offsets.close()
    db.close()
    return rows, None if offset is None else int(struct.unpack(">q", offset)[0])


def counts_in(app: App, ordinal: int) -> dict[str, int]:
    rows = {k: v for p in range(2) for k, v in raw(app, ordinal, p)[0].items()}
    return {key.decode(): int.from_bytes(value, "big") for key, value in rows.items()}


def relocate(app: App, *more: str, pipeline: str = "counts_reordered") -> Any:
    return app.run(*more, pipeline=pipeline, command="relocate")


def test_after_a_clean_stop_a_reordered_topology_restores_nothing(two: App, told: Told) -> None:
    # What consumers tell is librdkafka's.
    settings = two.run_settings(**{"kafka.client": "librdkafka"})
    ss.run(run_pipelines.counts(), settings)
    before = [raw(two, 1, partition) for partition in range(2)]
    two.produce(range(20, 40))
    told.forget()
    done = ss.run(run_pipelines.counts_reordered(), settings)
    assert (done.restored_records, done.records_in, done.caught_up) == (0, 2 * 20, True)
    log, source = (f"{two.name}-{name}" for name in ("counts-changelog", "in"))
    assert told.handed_on[source] == 20
    assert told.handed_on[log] == 0
    assert told.sent[log] <= 2, "at most the end of one transaction per partition"
    assert counts_in(two, 2) == counted(range(40)) == updates_in_order(two.read())
    stable = two.bounds(log)
    for partition, (_, offset) in enumerate(before):
        now = raw(two, 2, partition)[1]
        assert offset is not None
        assert now is not None
        assert offset <= now <= stable[partition][1]
    assert not (two.state_dir / two.name / "1_0" / "rocksdb" / "counts").exists()
    # Back to the old shape.
    two.produce(range(40, 60))
    back = ss.run(run_pipelines.counts(), settings)
    assert (back.restored_records, told.handed_on[log]) == (0, 0)
    assert counts_in(two, 1) == counted(range(60)) == updates_in_order(two.read())


def test_what_is_told_would_tell_of_a_restore(two: App, told: Told) -> None:
    settings = two.run_settings(**{"kafka.client": "librdkafka"})
    ss.run(run_pipelines.counts(), settings)
    for partition in range(2):
        store = two.state_dir / two.name / f"1_{partition}" / "rocksdb" / "counts"
        store.rename(two.state_dir / f"elsewhere-{partition}")
    done = ss.run(run_pipelines.counts_reordered(), settings)
    assert done.restored_records > 0
    assert told.handed_on[f"{two.name}-counts-changelog"] == done.restored_records


def test_the_command_moves_before_the_start_and_the_start_has_nothing_to_do(two: App) -> None:
    two.drained()
    rows = [raw(two, 1, partition) for partition in range(2)]
    shown = relocate(two, "--dry-run")
    assert [move["target"] for move in shown.summary["moves"]] == ["2_0", "2_1"]
    done = relocate(two)
    assert (done.code, done.summary["applied"]) == (0, True), done.err
    assert done.summary["settle"] == ["0_0", "0_1", "1_0", "1_1"]
    assert [raw(two, 2, partition) for partition in range(2)] == rows
    off = "--set=automatic.state.relocation=false"
    assert two.drained(off, pipeline="counts_reordered")["restored_records"] == 0


def ends(app: App, level: IsolationLevel) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": app.kafka.bootstrap_servers, "log_level": 0})
    topics = [name for name in app.topics() if name.startswith(app.name)]
    asked = {TopicPartition(name, p): _LATEST for name in topics for p in range(2)}
    found = admin.list_offsets(asked, isolation_level=level)
    return {(tp.topic, tp.partition): future.result().offset for tp, future in found.items()}


def open_partitions(app: App) -> set[tuple[str, int]]:
    """Where records lie past the last stable offset: written, neither committed nor aborted."""
    stable = ends(app, IsolationLevel.READ_COMMITTED)
    return {
        tp for tp, end in ends(app, IsolationLevel.READ_UNCOMMITTED).items() if end > stable[tp]
    }


@pytest.mark.thorough
def test_a_transaction_left_open_under_an_old_id_is_neither_seen_nor_in_the_way(two: App) -> None:
    # The broker would not abort it by itself for a quarter of an hour.
    slow = ("--set=transaction.timeout.ms=900000", "--set=producer.linger.ms=0")
    two.drained(*slow)
    two.produce(range(20, 40))
    for visit in (1, 2, 3, 4, 5):
        died = two.run(*slow, crash_at=f"{CrashPoint.COMMIT_OFFSETS_SENT}:{visit}")
        assert died.code == -signal.SIGKILL
        if open_partitions(two):
            break
    assert open_partitions(two), "nothing was left open: this proves nothing"
    assert updates_in_order(two.read()) == counted(range(20))
    done = relocate(two, *slow)
    assert done.code == 0, done.err
    assert open_partitions(two) == set(), "nothing blocks"
    ran = two.drained(*slow, pipeline="counts_reordered")
    assert ran["caught_up"]
    assert updates_in_order(two.read()) == counted(range(40)), "nothing of it is visible"
    assert counts_in(two, 2) == counted(range(40))


def survives(app: App, point: CrashPoint) -> None:
    app.drained()
    app.produce(range(20, 40))
    died = app.run(crash_at=str(point), pipeline="counts_reordered")
    assert died.code == -signal.SIGKILL, died.err[-2000:]
    done = app.drained(pipeline="counts_reordered")
    assert done["restored_records"] == 0
    assert counts_in(app, 2) == counted(range(40)) == updates_in_order(app.read())


@pytest.mark.parametrize("point", PLAIN_POINTS)
def test_a_start_killed_while_it_relocates_is_finished_by_the_next(
    two: App, point: CrashPoint
) -> None:
    survives(two, point)


@pytest.mark.slow
@pytest.mark.parametrize("point", OTHER_POINTS)
def test_a_start_killed_elsewhere_while_it_relocates_is_finished_too(
    two: App, point: CrashPoint
) -> None:
    survives(two, point)


@pytest.mark.thorough
def test_a_running_application_is_not_relocated(two: App) -> None:
    process = two.start("--run-for=100s")
    running(two, process, lambda: sum(two.committed().values()) >= 20)
    ended = relocate(two)
    assert (ended.code, f"application {two.name}" in ended.message) == (6, True), ended.err
    process.send_signal(signal.SIGTERM)
    assert end_of(process, 0).code == 0
    assert relocate(two).code == 0


@pytest.mark.thorough
def test_without_a_broker_nothing_is_done_and_offline_needs_none(two: App) -> None:
    two.drained()
    away = ("--set=bootstrap.servers=127.0.0.1:1", "--set=default.api.timeout.ms=1000")
    with two.unchanged():
        ended = relocate(two, *away)
        assert ended.code == 7, ended.err
    two.run("--run-for=100s", crash_at=f"{CrashPoint.CLAIM_OWNED}:2")
    ended = relocate(two, *away, "--offline")
    assert (ended.code, "was not closed cleanly" in ended.message) == (2, True), ended.err
    two.drained()
    assert relocate(two, *away, "--offline").code == 0
    assert two.drained(pipeline="counts_reordered")["restored_records"] == 0

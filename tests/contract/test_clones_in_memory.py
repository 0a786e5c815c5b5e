"""Clones over RocksDB and a broker in memory: own logs, own offsets, nothing of the original.

Shows I19.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import faults
from statestore.errors import Misuse, Unavailable
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.clone_record import as_deployed, read_record
from statestore.operations.clones.clone import CloneReport, clone_export, drop_clone, seed
from statestore.operations.exports.create import create_export_for_clones
from statestore.ports import TopicSpec
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.stores.kinds.versioned_kind import VersionedKind
from statestore.stores.logged import read_versions
from statestore.stores.versioned.store import TransactionalVersionedStore
from statestore.testing.memory_broker import MemoryBroker
from tests.contract.export_rig import ExportRig
from tests.contract.task_rig import APPLICATION
from tests.relocation_rig import Died, dying_at, in_memory_folder

CLONE = "trial"
LOGS = [f"{store}-changelog" for store in ("latest", "copies", "recent")]


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{n}", str(n)) for n in range(20)), ("k3", ""))
        rig.drain()
        yield rig


def for_clone(rig: ExportRig) -> None:
    create_export_for_clones(rig.runtime, rig.tasks.topology)


def cloned(
    rig: ExportRig, clone_id: str = CLONE, topology: ss.Topology | None = None
) -> CloneReport:
    return clone_export(rig.runtime, topology or rig.tasks.topology, clone_id)


def runtime_of(rig: ExportRig, application_id: str, **fields: Any) -> Runtime:
    settings = replace(rig.runtime.settings, application_id=application_id, **fields)
    return rig.runtime.with_settings(settings)


def drop(rig: ExportRig) -> None:
    """Drop the clone; nothing of the original goes with it."""
    topics, groups = rig.tasks.broker.state.topics, rig.tasks.broker.state.groups
    others = {name for name in topics if not name.startswith(f"{CLONE}-")}
    drop_clone(runtime_of(rig, CLONE))
    assert set(topics) == others
    assert {group for group, _ in groups} == {APPLICATION}
    assert not (rig.tasks.layout.state_dir / CLONE).exists()


def folded(broker: MemoryBroker, topic: str) -> dict[bytes | None, bytes]:
    rows: dict[bytes | None, bytes] = {}
    for record in broker.records(topic):
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = record.value
    return rows


def check(rig: ExportRig, report: CloneReport) -> None:
    """Stores, logs and offsets of the clone say what the original's did."""
    broker = rig.tasks.broker
    wanted = {f"k{n}".encode(): str(n).encode() for n in range(20) if n != 3}
    layout = StateLayout(rig.tasks.layout.state_dir, report.application_id)
    for name in LOGS:
        assert folded(broker, f"{report.application_id}-{name}") == wanted
    for store in ("latest", "copies"):
        engine = RocksDatabases().read(layout.store_dir(TaskId(0, 0), store))
        assert dict(engine.table("data").scan()) == wanted
        rows = dict(engine.table("offsets").scan())
        engine.close()
        log = f"{report.application_id}-{store}-changelog"
        end = broker.changelog().bounds([TopicPartition(log, 0)])[TopicPartition(log, 0)].end
        (at,) = [value for key, value in rows.items() if key.startswith(b"o")]
        assert any(log.encode() in key for key in rows)
        assert int.from_bytes(at) == end == 19
        assert not any(APPLICATION.encode() in key for key in rows)
    asked = [TopicPartition("in", 0)]
    own, theirs = (
        broker.cluster(group).group_offsets(asked) for group in (report.application_id, APPLICATION)
    )
    assert own == theirs != {}
    record = read_record(layout)
    assert record is not None
    assert record.finished


def test_a_clone_has_the_rows_logs_and_offsets_of_the_original_under_names_of_its_own(
    rig: ExportRig,
) -> None:
    broker = rig.tasks.broker
    before = {topic: broker.records(topic) for topic in broker.state.topics}
    for_clone(rig)
    report = cloned(rig)
    check(rig, report)
    assert {topic: broker.records(topic) for topic in before} == before
    assert set(broker.state.topics) - before.keys() == set(report.topics.values())


@pytest.mark.parametrize("visit", range(1, 12))
def test_a_clone_that_dies_anywhere_is_made_anew(rig: ExportRig, visit: int) -> None:
    for_clone(rig)
    faults.on_reach(dying_at(visit))
    try:
        with pytest.raises(Died):
            cloned(rig)
    finally:
        faults.on_reach(None)
    layout = StateLayout(rig.tasks.layout.state_dir, CLONE)
    record = read_record(layout)
    assert (record is None) == (visit <= 2), "before clone.json there is nothing but a lock"
    if record is not None and record.finished:
        drop(rig)
    elif record is not None:
        with pytest.raises(Misuse, match="half-made clone of shop"):
            as_deployed(runtime_of(rig, CLONE), rig.tasks.topology)
    check(rig, cloned(rig))


def test_sinks_and_dead_letters_of_a_clone_are_its_own_whatever_settings_say(
    rig: ExportRig,
) -> None:
    for_clone(rig)
    cloned(rig)
    builder = ss.StreamsBuilder()
    builder.stream("in").to("shop-latest-changelog")
    dead_letters = "shop-latest-changelog"
    clone = runtime_of(rig, CLONE, dead_letter_topic=dead_letters)
    known, topology = as_deployed(clone, builder.build())
    assert topology.topics() == ({"in"}, {"trial-latest-changelog"})
    assert known.settings.dead_letter_topic == "trial-latest-changelog"
    _, again = as_deployed(known, topology)
    assert again.topics() == topology.topics()
    original = runtime_of(rig, APPLICATION, dead_letter_topic=dead_letters)
    _, plain = as_deployed(original, builder.build())
    assert plain.topics()[1] == {"shop-latest-changelog"}


def test_what_cannot_be_cloned_is_refused_before_anything_is_made(rig: ExportRig) -> None:
    rig.export()
    broker = rig.tasks.broker

    def refused(says: str, act: Callable[[], object], kind: type[Exception] = Misuse) -> None:
        before = set(broker.state.topics)
        with pytest.raises(kind, match=says):
            act()
        assert set(broker.state.topics) == before
        assert not (rig.tasks.layout.state_dir / CLONE).exists()

    refused("export --for-clone", lambda: cloned(rig))
    for_clone(rig)
    refused("another id than the original", lambda: cloned(rig, APPLICATION))
    other = ss.StreamsBuilder()
    other.stream("in").to("out")
    refused("name the one that was deployed", lambda: cloned(rig, topology=other.build()))
    taken = [TopicSpec(f"{CLONE}-latest-changelog", 1, {})]
    broker.cluster(CLONE).create(taken)
    refused("exist already: name another id", lambda: cloned(rig))
    broker.state.topics.pop(taken[0].name)
    outbox = broker.plain_outbox(CLONE)
    outbox.open()
    outbox.begin()
    outbox.send_offsets({TopicPartition("in", 0): 1}, "")
    refused("group trial has offsets", lambda: cloned(rig))


def test_a_store_in_memory_is_not_cloned_once_the_original_has_gone_on(rig: ExportRig) -> None:
    for_clone(rig)
    rig.send(("later", "1"))
    rig.drain()
    with pytest.raises(Unavailable, match=r"'recent' of task 0_0 .* export for a clone again"):
        cloned(rig)


def test_a_store_that_lacks_what_its_log_has_is_not_exported_for_a_clone(rig: ExportRig) -> None:
    task = rig.tasks.start()
    rig.send(("a", "2"))
    while task.step(0):
        pass
    rig.tasks.clock.advance(1000)
    task.step_commit()
    rig.tasks.crash()
    with pytest.raises(Unavailable, match="left by a crash"):
        for_clone(rig)
    rig.drain()
    for_clone(rig)


# Rows as a changelog has them.


def histories(store: TransactionalVersionedStore[bytes, bytes]) -> dict[bytes, list[Any]]:
    return {key: list(store.history(key)) for key in (b"a", b"b", b"c", b"gone")}


def test_the_versions_of_a_store_written_as_a_changelog_make_the_same_store(
    tmp_path: Path,
) -> None:
    spec = ss.persistent_versioned_key_value_store("rates", 100_000, 2_000)
    with ss.open_store(spec, tmp_path / "one") as store:
        for time, key, value in (
            (5_000, b"a", b"1"),
            (1_000, b"a", b"0"),
            (9_000, b"a", b"3"),
            (7_000, b"a", None),
            (0, b"b", b"x"),
            (1, b"b", b"y"),
            (20_000, b"c", b""),
            (30_000, b"gone", b"z"),
            (31_000, b"gone", None),
        ):
            store.put(key, value, time)
            store.commit()
        wanted, stream_time = histories(store), store.observed_stream_time()
    broker = MemoryBroker()
    log = TopicPartition("rates-changelog", 0)
    broker.cluster("x").create([TopicSpec(log.topic, 1, {})])
    outbox = broker.plain_outbox("x")
    outbox.open()
    engine = RocksDatabases().rewrite(tmp_path / "one" / "rates")
    assert sum(len(batch.keys) for batch in VersionedKind().logged_rows(engine, 0, 9)) == 10
    end = seed(outbox, log, engine, VersionedKind(), 0, 9)
    engine.close()
    assert end == 10
    with ss.open_store(spec, tmp_path / "two") as other:
        for stretch in broker.changelog().replay(log, 0, end):
            found = read_versions(stretch.batch, is_whole=True)
            other.table.restore(found, {log: 10})
        assert histories(other) == wanted
        assert other.observed_stream_time() == stream_time
    # Compaction keeps the last of a key, so each version needs one of its own.
    broker.compact(log.topic)
    assert len(folded(broker, log.topic)) == 10

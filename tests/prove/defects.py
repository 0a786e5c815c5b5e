"""Pipelines whose module puts a defect into the process that runs them: what rules have to find.

A run imports the module of its pipeline, and the function named there makes the topology. Each
function here plants its defect and then gives the pipeline of the kind that PROVE_KIND names.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from rocksdict import Options

import statestore as ss
from statestore.engines import rocks
from statestore.faults import CrashPoint, reach
from statestore.kafka import clients
from statestore.kafka.outbox import TransactionalOutbox
from statestore.kafka.wire import fetching
from statestore.kafka.wire.outbox import WireOutbox
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.running.run import Run
from statestore.ports import Changelog, Cluster, Outbox
from statestore.stores import offsets
from statestore.stores.reads import SourceRows
from statestore.tasks import commit as commits
from statestore.tasks import committer as committers
from statestore.tasks.commit import Settle, TaskCommit
from statestore.tasks.owned import OwnedStore
from statestore.tasks.steps import Pause, Steps
from statestore.topology.nodes import Forward
from statestore.topology.processors.timers import TimerQueue
from statestore.topology.windows.closing import Closed, Closing
from tests.one_epoch import switch_off_epochs
from tests.prove import kinds

KIND = "PROVE_KIND"
SERVERS = "PROVE_SERVERS"
_WAIT_S = 60.0
_PATCH = pytest.MonkeyPatch()  # the process ends with it
_commit_task = commits.commit_task


def none() -> ss.Topology:
    """No defect: the pipeline alone.

    With KEEPS, what was processed of repartition topics is not deleted, so that it can be judged.
    """
    if kinds.KEEPS in os.environ:
        _PATCH.setattr(Run, "_purge_repartitions", lambda _run: None)
    made: ss.Topology = getattr(kinds, os.environ[KIND])()
    return made


def store_before_the_log() -> ss.Topology:
    """The stores commit first, the log after them."""

    def mutated(
        commit: TaskCommit,
        stores: Sequence[OwnedStore],
        outbox: Outbox,
        _guarantee: ProcessingGuarantee,
        settle: Settle,
    ) -> Steps[None]:
        for opened in stores:
            commits._log_changes(opened, outbox, commit.stamp)
        outbox.flush()
        outbox.send_offsets(commit.offsets, commit.stamp.text())
        yield Pause.ASKED
        ends = outbox.ends()
        for opened in stores:
            opened.commit(opened.log.offset_after(ends, commit.offsets), commit.position())
            opened._staged.make_durable()  # type: ignore[attr-defined]  # not of the port
        reach(CrashPoint.COMMIT_OFFSETS_SENT)
        commits._commit_log(outbox, commit, settle)

    _PATCH.setattr(committers, "commit_task", mutated)
    return none()


def offsets_outside_the_transaction() -> ss.Topology:
    """The input offsets follow the transaction, by a client of their own."""
    consumer: list[Consumer] = []

    def send_offsets(group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        if not consumer:
            given = {"bootstrap.servers": os.environ[SERVERS], "group.id": group}
            consumer.append(Consumer(given))
        sent = [KafkaPartition(*tp, at, metadata) for tp, at in offsets.items()]
        consumer[0].commit(offsets=sent, asynchronous=False)

    def mutated(
        commit: TaskCommit,
        stores: Sequence[OwnedStore],
        outbox: Outbox,
        guarantee: ProcessingGuarantee,
        settle: Settle,
    ) -> Steps[None]:
        yield from _commit_task(commit, stores, _WithoutOffsets(outbox), guarantee, settle)
        reach(CrashPoint.COMMIT_LOG_DONE)
        assert isinstance(outbox, (TransactionalOutbox, WireOutbox))
        assert outbox._group_id is not None
        send_offsets(outbox._group_id, commit.offsets, commit.stamp.text())

    _PATCH.setattr(committers, "commit_task", mutated)
    return none()


@dataclass(frozen=True)
class _WithoutOffsets:
    """An outbox that forgets the offsets it is given."""

    outbox: Outbox

    def send_offsets(self, _offsets: Mapping[TopicPartition, int], _metadata: str) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outbox, name)


def dirty_reader() -> ss.Topology:
    """Runs read records of transactions that are open or were aborted."""
    _PATCH.setitem(clients._CONSUMER_FIXED, "isolation.level", "read_uncommitted")
    _PATCH.setattr(fetching, "_READ_COMMITTED", 0)
    return none()


def timer_fired_twice() -> ss.Topology:
    """Every hundredth timer calls its processor twice."""
    fire: Callable[..., None] = TimerQueue._fire_one
    fired = 0

    def mutated(queue: TimerQueue, line: Any, row: bytes) -> None:
        nonlocal fired
        fired += 1
        fire(queue, line, row)
        if fired % 100 == 0:
            fire(queue, line, row)

    _PATCH.setattr(TimerQueue, "_fire_one", mutated)
    return none()


def window_emitted_twice() -> ss.Topology:
    """A process that has begun anew emits the windows again that its first records close."""
    emit: Callable[..., None] = Closing.emit
    begun: set[int] = set()

    def mutated(windows: Closing, closed: Iterable[Closed], batch: Batch, forward: Forward) -> None:
        found = list(closed)
        emit(windows, found, batch, forward)
        if found and id(windows) not in begun:
            begun.add(id(windows))
            emit(windows, found, batch, forward)

    _PATCH.setattr(Closing, "emit", mutated)
    return none()


def one_epoch() -> ss.Topology:
    """All transactions of an owner have one epoch."""
    switch_off_epochs(_PATCH)
    return none()


def settled_is_always_yes() -> ss.Topology:
    """Whatever the log is asked about an unanswered commit, the answer is that it happened."""

    def mutated(
        _commit: TaskCommit, stores: Sequence[OwnedStore], _cluster: Cluster, changelog: Changelog
    ) -> Mapping[TopicPartition, int]:
        logs = [opened.log.tp for opened in stores if opened.log.exists]
        return {tp: bound.end for tp, bound in changelog.bounds(logs).items()} if logs else {}

    _PATCH.setattr(committers, "settled", mutated)
    return none()


def torn_get_many() -> ss.Topology:
    """What is asked for at once is read one by one."""
    pause = threading.Event()

    def mutated(rows: SourceRows, keys: list[bytes]) -> list[bytes | None]:
        found = []
        for key in keys:
            found.append(rows.get(key))
            pause.wait(0.002)
        return found

    _PATCH.setattr(SourceRows, "get_many", mutated)
    return none()


def hoarder() -> ss.Topology:
    """A run keeps a quarter of a megabyte, and an open file, of each commit."""
    kept: list[tuple[bytearray, int]] = []

    def mutated(*what: Any) -> Steps[None]:
        kept.append((bytearray(os.urandom(1 << 18)), os.open(os.devnull, os.O_RDONLY)))
        yield from _commit_task(*what)

    _PATCH.setattr(committers, "commit_task", mutated)
    return none()


def flushed_one_by_one() -> ss.Topology:
    """The tables of a store reach the disk one after the other, its offsets first."""
    options = rocks.options

    def apart(tuning: rocks.RocksTuning) -> Options:
        made = options(tuning)
        made.set_atomic_flush(False)
        return made

    def flushed(engine: rocks.RocksEngine) -> bool:
        families = dict(engine._families)
        for family in (families.pop(offsets.TABLE), *families.values()):
            family.flush()
        return True

    _PATCH.setattr(rocks, "options", apart)
    _PATCH.setattr(rocks.RocksEngine, "_flushed", flushed)
    return none()


def errors_of_the_engine() -> ss.Topology:
    """What RocksDB says of a volume is passed on as it is."""
    _PATCH.setattr(rocks, "translate", lambda _error, _where: None)
    return none()

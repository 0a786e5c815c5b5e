"""The changes of a store since some offsets of its log, for readers who keep these offsets.

    plan.first(start)          where to begin: at the log's start, its end, or with all rows
    plan.following(reached)    up to where to read next: whole commits, unless there is a limit
    changed_rows(…)            the changes between both, in the order of a partition's log
    rows_of_state(…)           all rows that the log made up to an offset, for those who begin

The log is the truth: a change is there as soon as its commit is, and for good until compaction
replaces it. Its end is the last stable offset, which no commit straddles. Where a table has its
source topic for a log, the end is what the application has committed of it.

What can no longer be read is never passed over in silence: the log was created again, or begins
after the offset, or may have forgotten deletes since (`delete.retention.ms`). RecordFailed says so.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec

from statestore.errors import Misuse, RecordFailed, TaskCorrupted, TopicMissing, UnknownStore
from statestore.model.batch import Batch
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import BYTES
from statestore.operations.deployed import DeployedStore, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import existing_application
from statestore.ports import Bounds
from statestore.reading.rows import StoreParts, logged_rows
from statestore.reading.views import StoreView
from statestore.stores.kinds.kind import LoggedChanges
from statestore.stores.kinds.registry import kind_named

STATE: Final = "state"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STARTS: Final = (STATE, EARLIEST, LATEST)
_log = logging.getLogger("statestore.operations")
_DELETES_KEPT_MS: Final = 86_400_000
_WAY_OUT: Final = (
    "begin again with another checkpoint, or pass failOnDataLoss=false to go on without them"
)
Fits = Callable[[bytes, bytes | None], bool]
"""Tells whether a record of a source topic is one of its table."""


class Reached(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a reader has come in the log of a store, as it keeps it.

    `offsets`: by partition, NEXT to read. `complete_ms`: when there was nothing more to read, or
    when the reader began. `whole`: the changes before the offsets are still to be read, as the rows
    that they made. `log`: of which topic they are; empty: not recorded.
    """

    topic_id: str
    complete_ms: int
    offsets: dict[str, int]
    whole: bool = False
    log: str = ""


class ChangedRows(NamedTuple):
    """Changes of one partition by column; a value of None is a delete.

    `offsets` and `times` are None for rows that were there when the reader began.
    """

    rows: LoggedChanges
    offsets: list[int] | None = None


def logged_parts(environment: Environment, store: str, partition: int | None = None) -> StoreParts:
    """Return the parts of a deployed store whose changes can be read; Misuse says why not.

    Its files are not looked at: a store in memory has a log, too.
    """
    said = read_deployed(existing_application(environment.layout))
    known = said.stores.get(store)
    if store in said.global_stores:
        raise Misuse(
            f"store {store!r} is that of a global table, which has no changelog: its "
            f"{said.global_stores[store].origin()} has the same changes"
        )
    if known is None:
        names = ", ".join(sorted(said.stores)) or "none"
        raise UnknownStore(
            f"no store {store!r} is deployed, so nothing says where its changes are; "
            f"there are: {names}"
        )
    if not kind_named(known.kind).is_readable:
        raise Misuse(f"store {store!r} is of a class of your own: only that knows its changelog")
    count = said.partitions(store)
    if count is None:
        raise Misuse(f"store {store!r} was deployed without a broker: run the application first")
    tasks = [TaskId(known.sub_topology, each) for each in range(count)]
    chosen = [task for task in tasks if partition is None or task.partition == partition]
    if not chosen:
        raise Misuse(f"store {store!r} has no partition {partition}; it has {count}")
    view = StoreView.of(said, environment.settings.application_id, store)
    return StoreParts.of(view, chosen)


class ChangePlan:
    """Plans what a reader of a store's changes reads next. It remembers only what it has asked.

    Misuse if what the reader has reached is of another log or of other partitions, or if rows are
    decoded in another way since the last deployment than when the reader began.
    """

    def __init__(
        self, environment: Environment, parts: StoreParts, *, lossless: bool = True
    ) -> None:
        """`lossless`: raise RecordFailed where changes are gone, instead of a warning."""
        self._environment = environment
        self._parts = parts
        self._lossless = lossless
        self._logs = {
            str(partition): TopicPartition(parts.view.log, partition)
            for _, partition in parts.tasks
        }
        self._idle: tuple[dict[str, int], int] | None = None
        self._ends_at: dict[str, int] | None = None

    @property
    def parts(self) -> StoreParts:
        """The stream tasks that had the store when `following` was called last."""
        return self._parts

    def first(self, start: str) -> Reached:
        """Return where to begin, which is one of STARTS."""
        bounds, now_ms = self._bounds(), self._environment.clock.now_ms()
        if start == LATEST:
            offsets = {name: found.end for name, found in bounds.items()}
        else:
            offsets = {name: found.start for name, found in bounds.items()}
        return self._reached(self._topic_id(), now_ms, offsets, whole=start == STATE)

    def stop_here(self) -> None:
        """Let what is there now be the last that `following` returns."""
        self._ends_at = {name: found.end for name, found in self._bounds().items()}

    def following(self, reached: Reached, records_max: int | None = None) -> Reached:
        """Return up to where to read next; the same if there is nothing to read.

        `records_max`: about how many offsets to go on; a commit may then be read in two parts.
        """
        self._find_again()
        self._check_log(reached)
        # In this order: a log that is created again in between is recognized.
        bounds, topic_id = self._bounds(), self._topic_id()
        now_ms = self._environment.clock.now_ms()
        begins = self._begins(reached, bounds, topic_id)
        ends = {name: max(begins[name], found.end) for name, found in bounds.items()}
        if self._ends_at is not None:
            ends = {name: max(begins[name], min(end, self._ends_at.get(name, end)))
                    for name, end in ends.items()}  # fmt: skip
        if ends == reached.offsets and topic_id == reached.topic_id and not reached.whole:
            self._idle = ends, now_ms
            return reached
        if not reached.whole:
            self._check_deletes(reached, now_ms)
        left = sum(ends.values()) - sum(begins.values())
        if records_max is None or reached.whole or left <= records_max:
            return self._reached(topic_id, now_ms, ends)
        parts = {
            name: min(end, begins[name] + max(1, records_max * (end - begins[name]) // left))
            for name, end in ends.items()
        }
        return self._reached(topic_id, reached.complete_ms, parts)

    def spans(self, reached: Reached, until: Reached) -> dict[TopicPartition, Bounds]:
        """Return the offsets to read of each partition that has any between both."""
        self._check_log(until)
        if until.topic_id != self._topic_id():
            # A batch that is read again. Another log has other records at these offsets.
            self._tell(self._created_again())
            return {}
        self._check_partitions(until)
        again = reached.topic_id != until.topic_id
        found = {}
        for name, end in until.offsets.items():
            log = TopicPartition(self._parts.view.log, int(name))
            start = 0 if again else reached.offsets.get(name, 0)
            if start < end or reached.whole:
                found[log] = Bounds(start, end)
        return found

    def _find_again(self) -> None:
        """Look for the stream tasks that have the store now, which may have moved."""
        before = self._parts
        parts = logged_parts(self._environment, before.view.name)
        if _decoding(parts.view) != _decoding(before.view):
            raise Misuse(
                f"store {before.view.name!r} was deployed anew since the query began, with other "
                "rows or another log: start the query again"
            )
        tasks = [task for task in parts.tasks if str(task[1]) in self._logs]
        self._parts = replace(parts, tasks=tasks)

    def _check_log(self, reached: Reached) -> None:
        log = self._parts.view.log
        if reached.log not in {"", log}:
            raise Misuse(
                f"the checkpoint has the changes of {reached.log}, and this query those of {log}: "
                "give the query a checkpoint of its own"
            )

    def _check_partitions(self, reached: Reached) -> None:
        if reached.offsets.keys() != self._logs.keys():
            had, has = (", ".join(sorted(each, key=int)) for each in (reached.offsets, self._logs))
            raise Misuse(
                f"the checkpoint has partitions {had}, and this query reads {has}: leave the "
                "option partition as it was, or give the query a checkpoint of its own"
            )

    def _reached(
        self, topic_id: str, complete_ms: int, offsets: dict[str, int], *, whole: bool = False
    ) -> Reached:
        return Reached(topic_id, complete_ms, offsets, whole, self._parts.view.log)

    def _bounds(self) -> dict[str, Bounds]:
        """Return the start of each partition, and the end of what is committed of it."""
        cluster, topic = self._environment.cluster, self._parts.view.log
        if topic not in cluster.partitions([topic]):
            raise TopicMissing(
                f"store {self._parts.view.name!r} has no log {topic} on these brokers"
            )
        logs = list(self._logs.values())
        found = cluster.bounds(logs)
        if self._parts.view.is_source:
            done = cluster.group_offsets(logs, stable=False)
            found = {
                log: Bounds(of.start, max(of.start, min(of.end, done[log].offset)))
                if log in done
                else Bounds(of.start, of.start)
                for log, of in found.items()
            }
        return {name: found[log] for name, log in self._logs.items()}

    def _topic_id(self) -> str:
        topic = self._parts.view.log
        return self._environment.cluster.topic_ids([topic]).get(topic, "")

    def _begins(
        self, reached: Reached, bounds: Mapping[str, Bounds], topic_id: str
    ) -> dict[str, int]:
        """Return where reading goes on, once whatever is gone has been told."""
        starts = {name: found.start for name, found in bounds.items()}
        if reached.topic_id != topic_id:
            self._tell(self._created_again())
            return starts
        self._check_partitions(reached)
        if reached.whole:
            return starts
        begins = {}
        for name, found in bounds.items():
            offset = reached.offsets[name]
            if offset < found.start:
                self._tell(f"{self._logs[name]} begins at {found.start} now: offsets from {offset} "
                           "on were purged")  # fmt: skip
            elif offset > found.end and not self._parts.view.is_source:
                self._tell(f"{self._logs[name]} ends at {found.end}, before offset {offset}, which "
                           "was read: it was truncated")  # fmt: skip
                offset = found.end
            begins[name] = max(offset, found.start)
        return begins

    def _created_again(self) -> str:
        return f"{self._parts.view.log} was created again since the last batch"

    def _check_deletes(self, reached: Reached, now_ms: int) -> None:
        """Tell if deletes since the last batch may have been removed by compaction (as I29)."""
        complete_ms = reached.complete_ms
        if self._idle is not None and self._idle[0] == reached.offsets:
            complete_ms = max(complete_ms, self._idle[1])
        kept_ms = self._deletes_kept_ms()
        if kept_ms is not None and now_ms - complete_ms >= kept_ms:
            self._tell(
                f"{self._parts.view.log} was read {(now_ms - complete_ms) // 1000} s ago and keeps "
                f"deletes for {kept_ms // 1000} s (delete.retention.ms): some may be gone"
            )

    def _deletes_kept_ms(self) -> int | None:
        """Return how long the log keeps deletes; None: for good, or it is not known."""
        topic = self._parts.view.log
        try:
            told = self._environment.cluster.topic_settings([topic]).get(topic, {})
        except Misuse as error:
            _log.warning("how long %s keeps deletes is not known: %s", topic, error)
            return None
        if "compact" not in told.get("cleanup.policy", ""):
            return None
        return int(told.get("delete.retention.ms", _DELETES_KEPT_MS))

    def _tell(self, what: str) -> None:
        message = f"changes of store {self._parts.view.name!r} are lost: {what}"
        if self._lossless:
            raise RecordFailed(f"{message}: {_WAY_OUT}")
        _log.warning("%s", message)


def changed_rows(
    environment: Environment,
    parts: StoreParts,
    log: TopicPartition,
    span: Bounds,
    fits: Fits,
    *,
    lossless: bool = True,
) -> Iterator[ChangedRows]:
    """Yield the changes of a partition in [start, end), in the order of its log.

    RecordFailed if the log no longer has the start; not `lossless`: they begin where it does.
    """
    kind, start = parts.view.kind, span.start
    if not lossless:
        start = max(start, environment.changelog.bounds([log])[log].start)
    try:
        for part in environment.changelog.replay(log, start, span.end):
            batch = part.batch
            if parts.view.is_source:
                batch = _of_table(batch, fits)
            batch = batch.without(kind.strangers(batch))
            rows = kind.rows_in_log(batch, parts.view.terms)
            if rows.keys:
                offsets: Any = batch.offsets
                yield ChangedRows(rows, [offsets[place] for place in rows.places])
    except TaskCorrupted as error:
        raise RecordFailed(
            f"changes of store {parts.view.name!r} are lost: {log} has no offset {start}: "
            f"{_WAY_OUT}"
        ) from error


def rows_of_state(
    environment: Environment, parts: StoreParts, stream_task: str, log: TopicPartition, end: int
) -> Iterator[ChangedRows]:
    """Yield the rows that the log made up to `end`, each as a change.

    Of a store with history these are all versions, and the deletes that ended some of them.
    """
    history = parts.view.kind.keeps_history
    # The log was folded in memory, so its rows are there already.
    lots = list(logged_rows(environment, parts, stream_task, log.partition, end=end))
    begun = {at for found in lots if history for at in zip(found.keys, found.begins, strict=True)}
    for found in lots:
        begins, ends = found.begins, found.ends
        keys, values = list(found.keys), list(found.values)
        if history:
            gone = [
                (key, at)
                for key, at in zip(keys, ends, strict=True)
                if at is not None and (key, at) not in begun
            ]
            keys += [key for key, _ in gone]
            values += [None] * len(gone)
            begins = [*begins, *(at for _, at in gone)]
            ends = [None] * len(keys)
        yield ChangedRows(LoggedChanges([], keys, values, begins, ends, []))


def _decoding(view: StoreView) -> tuple[object, ...]:
    """Return what a reader of a store's log relies on; which stream tasks have it may change."""
    known = view.known
    assert isinstance(known, DeployedStore)
    return (
        view.kind.name,
        view.log,
        view.partitions,
        view.terms._replace(retention_ms=None),
        known.key_serde,
        known.key_schema,
        known.writers(),
        known.source_topic,
    )


def _of_table(batch: Batch, fits: Fits) -> Batch:
    keys, values = batch.keys.encoded(BYTES), batch.values.encoded(BYTES)
    pairs = enumerate(zip(keys, values, strict=True))
    return batch.take([i for i, (key, value) in pairs if key is not None and fits(key, value)])

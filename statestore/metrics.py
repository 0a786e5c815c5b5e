"""Metrics of stores, as a dict and as OpenTelemetry instruments, updated per commit or batch.

A get only increments an integer; the instruments receive the count with the next commit or at
close. Without an OpenTelemetry SDK they are no-ops. Reads counted by several threads at once may
be counted too low.
"""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from opentelemetry import metrics as otel
from opentelemetry.metrics import CallbackOptions, Observation

from statestore.model.ids import TopicPartition
from statestore.model.left_out import Cause, Counts, Fate
from statestore.ports import CommitWaits

_meter = otel.get_meter("statestore")
_commits = _meter.create_counter("statestore.commits", unit="1", description="Store commits")
_commit_seconds = _meter.create_histogram(
    "statestore.commit.duration", unit="s", description="Time of a store commit"
)
_written = _meter.create_counter(
    "statestore.records.written", unit="1", description="Rows committed, deletes included"
)
_deleted = _meter.create_counter(
    "statestore.records.deleted", unit="1", description="Deletes committed"
)
_read = _meter.create_counter("statestore.records.read", unit="1", description="Keys looked up")
_scanned = _meter.create_counter("statestore.ranges", unit="1", description="Iterators opened")
_restored = _meter.create_counter(
    "statestore.records.restored", unit="1", description="Rows restored"
)
_late = _meter.create_counter(
    "statestore.records.late", unit="1", description="Records too late to be kept"
)
_quarantined = _meter.create_counter(
    "statestore.stores.quarantined", unit="1", description="Stores moved to quarantine"
)
_left_out = {
    Fate.DROPPED: _meter.create_counter(
        "statestore.records.dropped", unit="1", description="Records dropped, by node and reason"
    ),
    Fate.DEAD_LETTER: _meter.create_counter(
        "statestore.records.dead_letters",
        unit="1",
        description="Records dropped into the dead letter topic, by node and reason",
    ),
    Fate.UNMATCHED: _meter.create_counter(
        "statestore.records.unmatched", unit="1", description="Records that an inner join left out"
    ),
}
_task_commit_seconds = _meter.create_histogram(
    "statestore.task.commit.duration",
    unit="s",
    description="Time of a stream task's whole commit, with the brokers' part",
)
_task_wait_seconds = _meter.create_histogram(
    "statestore.task.commit.wait.duration",
    unit="s",
    description="Time for which a stream task's commit waited for brokers, by part",
)
# By OpenTelemetry's semantic conventions for messaging, whose dashboards know Kafka by them.
_consumed = _meter.create_counter(
    "messaging.client.consumed.messages",
    unit="{message}",
    description="Input records processed and committed",
)
_sent = _meter.create_counter(
    "messaging.client.sent.messages", unit="{message}", description="Records written and committed"
)
_processing = _meter.create_histogram(
    "messaging.process.duration",
    unit="s",
    description="Time of processing a batch of input records",
    explicit_bucket_boundaries_advisory=[
        *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5),
        *(0.75, 1, 2.5, 5, 7.5, 10),
    ],
)
_export_seconds = _meter.create_histogram(
    "statestore.export.duration", unit="s", description="Time of the exports that a run made"
)
_export_bytes = _meter.create_counter(
    "statestore.export.uploaded", unit="By", description="Bytes that a run's exports uploaded"
)
_export_failures = _meter.create_counter(
    "statestore.export.failures", unit="1", description="Exports of a run that were not made"
)
# KIP-892 removes store flushes; the instrument remains for dashboards and records nothing.
_flush_seconds = _meter.create_histogram(
    "statestore.flush.duration", unit="s", description="Deprecated, records nothing"
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class StoreMetrics:
    """The counters of one open store (KIP-892: commit-rate, commit-latency-*; SEMANTICS S11)."""

    store: str
    opened_s: float
    uncommitted_bytes: Callable[[], int] = int
    task: str | None = None
    commits: int = 0
    commit_seconds: float = 0.0
    commit_seconds_max: float = 0.0
    rows_written: int = 0
    rows_deleted: int = 0
    rows_restored: int = 0
    gets: int = 0
    ranges: int = 0
    engine_flushes: int = 0
    late: int = 0
    _reported_gets: int = 0
    _reported_ranges: int = 0
    _reported_late: int = 0
    _attributes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._attributes = {"store": self.store}
        if self.task is not None:
            self._attributes["task"] = self.task
        with _opening:
            _open_stores.add(self)

    def committed(self, seconds: float, rows: int, deletes: int) -> None:
        """Count one commit of `rows` writes, of which `deletes` were deletes."""
        self.commits += 1
        self.commit_seconds += seconds
        self.commit_seconds_max = max(self.commit_seconds_max, seconds)
        self.rows_written += rows
        self.rows_deleted += deletes
        _commits.add(1, self._attributes)
        _commit_seconds.record(seconds, self._attributes)
        _written.add(rows, self._attributes)
        if deletes:
            _deleted.add(deletes, self._attributes)
        self._report_reads()

    def restored(self, rows: int) -> None:
        """Count `rows` changelog records that a restore has written."""
        self.rows_restored += rows
        _restored.add(rows, self._attributes)

    def closed(self) -> None:
        """Report the remaining counts; the store is closed."""
        self._report_reads()
        with _opening:
            _open_stores.discard(self)

    def as_dict(self, now_s: float) -> dict[str, float]:
        """Return the metrics under Kafka Streams' names.

        Rates are per second since the store was opened; latencies are in milliseconds.
        """
        age_s = max(now_s - self.opened_s, 1e-9)
        return {
            "commit-rate": self.commits / age_s,
            "commit-latency-avg": 1000 * self.commit_seconds / max(self.commits, 1),
            "commit-latency-max": 1000 * self.commit_seconds_max,
            "put-rate": (self.rows_written - self.rows_deleted) / age_s,
            "delete-rate": self.rows_deleted / age_s,
            "get-rate": self.gets / age_s,
            "range-rate": self.ranges / age_s,
            "restore-rate": self.rows_restored / age_s,
            "late-record-drop-total": float(self.late),
            "uncommitted-bytes": float(self.uncommitted_bytes()),
            "flush-rate": 0.0,
            "flush-latency-avg": 0.0,
            "flush-latency-max": 0.0,
        }

    def observation(self) -> Observation:
        """Return the number of bytes that are pending now."""
        return Observation(self.uncommitted_bytes(), self._attributes)

    def _report_reads(self) -> None:
        gets, ranges = self.gets, self.ranges
        if gets != self._reported_gets:
            _read.add(gets - self._reported_gets, self._attributes)
            self._reported_gets = gets
        if ranges != self._reported_ranges:
            _scanned.add(ranges - self._reported_ranges, self._attributes)
            self._reported_ranges = ranges
        if self.late != self._reported_late:
            _late.add(self.late - self._reported_late, self._attributes)
            self._reported_late = self.late


_left_out_totals: dict[str, Counter[str]] = {}
_tasks: dict[str, "TaskFigures"] = {}
_lags: dict[str, dict[tuple[str, int], int]] = {}
_counting = threading.Lock()
_open_stores: weakref.WeakSet[StoreMetrics] = weakref.WeakSet()
_opening = threading.Lock()  # A set that grows cannot be read by another thread.


def _now_open() -> list[StoreMetrics]:
    with _opening:
        return list(_open_stores)


class StoreFigures(NamedTuple):
    """The metrics of one open store at one moment, for whoever shows them.

    `gauges` have Kafka Streams' names, `totals` those of the fields of `StoreMetrics`.
    """

    store: str
    task: str | None
    gauges: Mapping[str, float]
    totals: Mapping[str, float]


_TOTALS = (
    *("commits", "commit_seconds", "rows_written", "rows_deleted", "rows_restored"),
    *("gets", "ranges", "late"),
)


def figures() -> list[StoreFigures]:
    """Return the metrics of the stores that are open in this process."""
    now_s = time.monotonic()
    return [
        StoreFigures(
            store.store,
            store.task,
            store.as_dict(now_s),
            {name: getattr(store, name) for name in _TOTALS},
        )
        for store in _now_open()
    ]


LeftOutTotals = Mapping[str, Counts]
"""By stream task, how many records it left out, by cause."""


def left_out_totals() -> LeftOutTotals:
    """Return what stream tasks have left out in this process since it began."""
    with _counting:
        return {task: dict(counts) for task, counts in _left_out_totals.items()}


class TaskFigures(NamedTuple):
    """What one stream task has done in this process since it began.

    `commits` and `commit_seconds`: whole commits. `waits`: their waiting for brokers. `records_in`
    and `lags` are by topic and partition; `lags` only as long as this process has the task.
    """

    task: str
    commits: int = 0
    commit_seconds: float = 0.0
    waits: CommitWaits = CommitWaits()
    records_in: Mapping[tuple[str, int], int] = MappingProxyType({})
    lags: Mapping[tuple[str, int], int] = MappingProxyType({})

    def plus(self, more: "TaskFigures") -> "TaskFigures":
        """Return both together; they are of one task."""
        return TaskFigures(
            self.task,
            self.commits + more.commits,
            self.commit_seconds + more.commit_seconds,
            CommitWaits(*map(sum, zip(self.waits, more.waits, strict=True))),
            Counter(self.records_in) + Counter(more.records_in),
            {**self.lags, **more.lags},
        )


def task_figures() -> list[TaskFigures]:
    """Return what the stream tasks of this process have done."""
    with _counting:
        return [
            found._replace(records_in=dict(found.records_in), lags=_lags.get(task, {}))
            for task, found in _tasks.items()
        ]


def count_commit(task: str, seconds: float, waits: CommitWaits) -> None:
    """Count one whole commit of a stream task, of which `waits` was waiting for brokers."""
    attributes = {"task": task}
    _task_commit_seconds.record(seconds, attributes)
    for part, waited_s in waits._asdict().items():
        _task_wait_seconds.record(waited_s, {**attributes, "part": part})
    _add(TaskFigures(task, 1, seconds, waits))


def note_lags(task: str, lags: Mapping[TopicPartition, int]) -> None:
    """Note how many offsets of each input a stream task has not committed; empty: not known."""
    with _counting:
        _lags[task] = {(tp.topic, tp.partition): lag for tp, lag in lags.items()}


def _add(more: TaskFigures) -> None:
    with _counting:
        before = _tasks.get(more.task)
        _tasks[more.task] = more if before is None else before.plus(more)


class GatheredFigures:
    """The metrics that other processes have sent, for any thread."""

    def __init__(self) -> None:
        self._of: dict[int, Sequence[StoreFigures]] = {}
        self._left_out: dict[int, LeftOutTotals] = {}
        self._tasks: dict[int, Sequence[TaskFigures]] = {}
        self._lock = threading.Lock()

    def put(
        self,
        sender: int,
        found: Sequence[StoreFigures],
        left_out: LeftOutTotals | None = None,
        tasks: Sequence[TaskFigures] | None = None,
    ) -> None:
        """Take what a process has sent, in place of what it sent before; no stores let them go.

        What it has left out and done stays so after its end, as a counter never falls.
        """
        with self._lock:
            self._of[sender] = found
            if tasks is not None:
                self._tasks[sender] = tasks
            elif not found:  # It is gone, and so is what it knew of its inputs.
                gone = self._tasks.get(sender, ())
                self._tasks[sender] = [one._replace(lags={}) for one in gone]
            if left_out is not None:
                self._left_out[sender] = left_out

    def left_out(self) -> LeftOutTotals:
        """Return what all of them have left out."""
        found: dict[str, Counter[str]] = {}
        with self._lock:
            for totals in self._left_out.values():
                for task, counts in totals.items():
                    found.setdefault(task, Counter()).update(counts)
        return found

    def tasks(self) -> list[TaskFigures]:
        """Return what all of them have done, by stream task."""
        found: dict[str, TaskFigures] = {}
        with self._lock:
            for _, sent in sorted(self._tasks.items()):
                for one in sent:
                    before = found.get(one.task)
                    found[one.task] = one if before is None else before.plus(one)
        return list(found.values())

    def figures(self) -> list[StoreFigures]:
        """Return the newest of all of them."""
        with self._lock:
            return [store for _, found in sorted(self._of.items()) for store in found]


def _uncommitted(_options: CallbackOptions) -> Iterable[Observation]:
    return [store.observation() for store in _now_open()]


_meter.create_observable_gauge(
    "statestore.uncommitted",
    callbacks=[_uncommitted],
    unit="By",
    description="Bytes written to a store and not committed",
)


class ExportFigures(NamedTuple):
    """What the exports of this process's runs have done; `last_ms`: when the last one was made."""

    application_id: str
    made: int = 0
    seconds: float = 0.0
    uploaded_bytes: int = 0
    failures: int = 0
    last_ms: int | None = None


_exports: dict[str, ExportFigures] = {}


def export_figures() -> list[ExportFigures]:
    """Return what exports have been made by runs of this process, by application."""
    with _counting:
        return list(_exports.values())


def count_export(
    application_id: str, seconds: float, uploaded_bytes: int | None, now_ms: int
) -> None:
    """Count an export that a run has made; `uploaded_bytes` None: it failed."""
    attributes = {"application_id": application_id}
    with _counting:
        was = _exports.get(application_id, ExportFigures(application_id))
        if uploaded_bytes is None:
            _exports[application_id] = was._replace(failures=was.failures + 1)
        else:
            _exports[application_id] = was._replace(
                made=was.made + 1,
                seconds=was.seconds + seconds,
                uploaded_bytes=was.uploaded_bytes + uploaded_bytes,
                last_ms=now_ms,
            )
    if uploaded_bytes is None:
        _export_failures.add(1, attributes)
    else:
        _export_seconds.record(seconds, attributes)
        _export_bytes.add(uploaded_bytes, attributes)


def count_quarantine(store: str, reason: str) -> None:
    """Count one store that was moved to quarantine."""
    _quarantined.add(1, {"store": store, "reason": reason})


def count_left_out(task: str, counts: Counts) -> None:
    """Count records that a stream task left out and whose offsets are now committed."""
    for name, count in counts.items():
        cause = Cause.parse(name)
        if cause is not None:
            attributes = {"task": task, "node": cause.node, "reason": cause.reason}
            _left_out[cause.fate].add(count, attributes)
    if counts:
        with _counting:
            _left_out_totals.setdefault(task, Counter()).update(counts)


def input_attributes(application_id: str, task: str, tp: TopicPartition) -> dict[str, str]:
    """Return what is told of the records that a stream task takes from one partition."""
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.consumer.group.name": application_id,
        "messaging.destination.name": tp.topic,
        "messaging.destination.partition.id": str(tp.partition),
        "task": task,
    }


def count_processing(
    seconds: float, attributes: Mapping[str, str], error: Exception | None
) -> None:
    """Record how long a batch of input records took, whether or not it is ever committed.

    What an error was raised from says more of a user's function than the error itself.
    """
    if error is not None:
        attributes = {**attributes, "error.type": type(error.__cause__ or error).__name__}
    _processing.record(seconds, attributes)


def count_messages(
    task: str,
    consumed: Mapping[TopicPartition, tuple[int, Mapping[str, str]]],
    sent: Mapping[str, int],
) -> None:
    """Count the records that one commit of a stream task has taken and written.

    `consumed`: how many, with the attributes of their input. `sent`: by topic.
    """
    for count, attributes in consumed.values():
        _consumed.add(count, attributes)
    if consumed:
        taken = {(tp.topic, tp.partition): count for tp, (count, _) in consumed.items()}
        _add(TaskFigures(task, records_in=taken))
    for topic, count in sent.items():
        _sent.add(
            count,
            {
                "messaging.system": "kafka",
                "messaging.operation.name": "send",
                "messaging.destination.name": topic,
                "task": task,
            },
        )

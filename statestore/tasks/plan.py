"""What a stream task is given, its edges and its plan, and what it reports."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from statestore.layout.documents import Count
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.left_out import Counts
from statestore.ports import Changelog, Clock, Cluster, LinkStore, Outbox, Source
from statestore.settings import Settings
from statestore.stores.global_store import GlobalKeyValueStore
from statestore.stores.kinds.kind import BuiltIn
from statestore.stores.specs import StoreSpec
from statestore.tasks.intake import Intake, Judge
from statestore.tasks.left_out_counts import dropped, stamped
from statestore.tasks.origins import Origins
from statestore.tasks.time_plan import TimePlan
from statestore.topology.sub_topologies import SubTopology

GlobalStoresByName = Mapping[str, GlobalKeyValueStore[Any, Any]]
NO_GLOBAL_STORES: Final[GlobalStoresByName] = MappingProxyType({})
OpenStoreAt = Callable[[StoreSpec, Path], BuiltIn]


@dataclass(frozen=True)
class TaskEdges:
    """The ports through which one stream task reaches the outside world.

    `global_stores`: those of the global tables, which it shares with all tasks of its process.
    """

    source: Source
    outbox: Outbox
    changelog: Changelog
    cluster: Cluster
    clock: Clock
    open_store: OpenStoreAt
    link_store: LinkStore
    global_stores: GlobalStoresByName = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlan:
    """A stream task, its part of the topology, and its planned ends (None: it has none)."""

    task_id: TaskId
    part: SubTopology
    specs: Mapping[str, StoreSpec]
    inputs: tuple[TopicPartition, ...]
    ends: Mapping[TopicPartition, int] | None
    slots: int = 1
    accept_empty_changelog: bool = False
    serving: str = ""
    """Names this serving of the task, whichever worker attempts it; empty: not known."""
    times: TimePlan = TimePlan()
    origins: Origins = field(default_factory=Origins)

    def intake(
        self, settings: Settings, judge: Judge, partition_times: Mapping[TopicPartition, int]
    ) -> Intake:
        """Return an empty buffer for the inputs, up to the planned ends."""
        extracted = {
            topic.full(settings.application_id): node
            for node in self.part.sources
            for topic in node.topics
            if node.timestamp_extractor is not None
        }
        return Intake(
            self.inputs,
            extracted,
            self.ends,
            judge,
            settings.max_task_idle_ms,
            partition_times=partition_times,
            marked={
                topic.full(settings.application_id)
                for topic in self.part.source_topics
                if topic.internal
            },
        )


def run_of(serving: str) -> str:
    """Return what names the run of a serving, which is in the file `nonce` while it lasts."""
    return serving.partition("-")[0]


def transactional_ids(application_id: str, task: TaskId | str) -> tuple[str, str]:
    """Return the ids of a task's producers, which never change; opening both fences the last owner.

    The commits of a task use them in turn, by their number (docs/adr/0013).
    """
    return f"{application_id}-{task}", f"{application_id}-{task}-2"


class Standing(NamedTuple):
    """How far a running stream task has come, to be shown to people.

    `records`: processed in this run, committed or not. `lag_records`: offsets up to the ends of its
    inputs as last heard of, so never fewer than records; None: not known. `stream_time_ms`: the
    event time that it has reached; None: no record yet. `left_out`: by cause, what was committed
    since this process has the task. `taken` and `sent`: the same of records, by topic.
    """

    stream_task: str
    records: int = 0
    lag_records: int | None = None
    last_commit_ms: int | None = None
    held_records: int = 0
    stream_time_ms: int | None = None
    left_out: Counts = MappingProxyType({})
    taken: Mapping[str, int] = MappingProxyType({})
    sent: Mapping[str, int] = MappingProxyType({})


class Traffic:
    """Counts the committed records that a stream task took from topics and sent to topics."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def committed(self, taken: Mapping[TopicPartition, int], sent: Mapping[str, int]) -> None:
        """Add what one commit took and sent."""
        for tp, count in taken.items():
            self.taken[tp.topic] += count
        self.sent.update(sent)


class Tally(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all commits of one serving of a task have done, whichever workers made them.

    `left_out`: by cause, as far as a stamp has room for causes (left_out.py).
    """

    serving: str = ""
    commits: Count = 0
    records_in: Count = 0
    records_out: Count = 0
    dropped_records: Count = 0
    left_out: dict[str, Count] = {}

    def after(self, *, records_in: int, records_out: int, left_out: Counts) -> "Tally":
        """Return the tally after one more commit."""
        return Tally(
            serving=self.serving,
            commits=self.commits + 1,
            records_in=self.records_in + records_in,
            records_out=self.records_out + records_out,
            dropped_records=self.dropped_records + dropped(left_out),
            left_out=stamped(self.left_out, left_out),
        )


@dataclass
class TaskReport:
    """What one stream task did, for the commit reports and the summary.

    `dropped_records`: passed over by a handler, or dropped by an operator, for a null key and the
    like; `left_out`: these and others that are in no result, by cause. `held`: by store, how many
    records wait in operators for later input, as of the last commit. `caught_up`: every input was
    processed up to its planned end, whatever is held. Commits and records include those of earlier
    workers in the same serving, and `records_before` says how many of `records_in` were theirs;
    times and bytes are the last worker's, and `timed_commits` counts its commits. `start_seconds`
    runs from the claim to the first poll and includes `restore_seconds`. `first_record_ms`, when
    the poll began that brought the first record, and `last_commit_ms` are by the wall clock, so
    that reports of several processes can be compared. `waits_for_time`: it has something that
    happens as time passes, and upstream tasks hold time back.
    """

    stream_task: str
    records_in: int = 0
    records_before: int = 0
    records_out: int = 0
    dropped_records: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    rewinds: int = 0
    restored_records: int = 0
    start_seconds: float = 0.0
    restore_seconds: float = 0.0
    poll_seconds: float = 0.0
    process_seconds: float = 0.0
    commit_seconds: float = 0.0
    timed_commits: int = 0
    bytes_written: int = 0
    snapshots: int = 0
    snapshot_seconds: float = 0.0
    first_record_ms: int | None = None
    last_commit_ms: int | None = None
    quarantined: list[str] = field(default_factory=list)
    caught_up: bool = False
    waits_for_time: bool = False

    @property
    def held_records(self) -> int:
        """How many records wait in all stores."""
        return sum(self.held.values())

    def count(self, before: Tally, now: Tally) -> None:
        """Add what was committed between two tallies."""
        self.commits += now.commits - before.commits
        self.records_in += now.records_in - before.records_in
        self.records_out += now.records_out - before.records_out
        self.leave_out(Counter(now.left_out) - Counter(before.left_out))

    def leave_out(self, counts: Counts) -> None:
        """Add records that are in no result."""
        self.dropped_records += dropped(counts)
        self.left_out = dict(Counter(self.left_out) + Counter(counts))

    def add_commit(self, seconds: float, now_ms: int, *, size: int) -> None:
        """Add a commit of `size` bytes that took `seconds`."""
        self.bytes_written += size
        self.commit_seconds += seconds
        self.timed_commits += 1
        self.last_commit_ms = now_ms

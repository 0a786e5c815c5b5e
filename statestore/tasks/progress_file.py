"""The file `progress.json`, in which a stream task reports its work to people.

No task depends on it: it is not synced to disk, may be missing, and is up to a second old.
`statestore status` reads it together with `owner.json`, which says whether its writer is alive. The
rates are those of the last run that processed enough records to have one.
"""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from statestore.errors import HostFailure
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import Amount, Count, StoreName, Text, TimeMs
from statestore.ports import Clock
from statestore.tasks.plan import Standing, Tally, TaskReport, run_of

NAME = "progress.json"
Slots = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_EVERY_S = 1.0
_AT_REST_EVERY_S = 5.0
_ENOUGH = 1000
"""The smallest number of records from which a rate is computed."""


class Sums(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many records came in, how many of them are in no result, and how long commits took.

    `left_out` is by cause. `commits` and `commit_seconds` go together: commits whose time is not
    known, as those right before a kill, are in neither.
    """

    records_in: Count = 0
    left_out: dict[Text, Count] = {}
    commits: Count = 0
    commit_seconds: Amount = 0.0

    def plus(self, more: "Sums") -> "Sums":
        """Return both together."""
        left_out = Counter(self.left_out) + Counter(more.left_out)
        return Sums(
            self.records_in + more.records_in,
            dict(left_out),
            self.commits + more.commits,
            self.commit_seconds + more.commit_seconds,
        )

    def since(self, before: "Sums") -> "Sums":
        """Return what has been added."""
        left_out = Counter(self.left_out) - Counter(before.left_out)
        return Sums(
            max(0, self.records_in - before.records_in),
            dict(left_out),
            max(0, self.commits - before.commits),
            max(0.0, self.commit_seconds - before.commit_seconds),
        )


class KeptSums(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the commits of a task have counted, in one run after another.

    `serving`: the last one that counted; empty: none did. `in_serving`, `in_run` and `in_all`: what
    it counted, what its run did, and what all runs did since `since_ms`.
    """

    serving: Text = ""
    since_ms: TimeMs = 0
    in_serving: Sums = Sums()
    in_run: Sums = Sums()
    in_all: Sums = Sums()

    def after(self, serving: str, now: Sums) -> "KeptSums":
        """Return the sums if a serving has counted `now` since it began."""
        more = now.since(self.in_serving if serving == self.serving else Sums())
        in_run = self.in_run if run_of(serving) == run_of(self.serving) else Sums()
        since_ms = self.since_ms
        return KeptSums(serving, since_ms, now, in_run.plus(more), self.in_all.plus(more))

    def settled(self, committed: Tally | None) -> "KeptSums":
        """Return the sums with all that was committed, given the tally of the last commit.

        A killed owner did not write its last ones into the file.
        """
        if committed is None or not self.serving or committed.serving != self.serving:
            return self
        known = self.in_serving
        return self.after(
            self.serving,
            Sums(committed.records_in, committed.left_out, known.commits, known.commit_seconds),
        )


class TaskProgress(msgspec.Struct, frozen=True):
    """The content of the file. Rates are records per second; None: not known.

    `slots`: the slots of its host. `held_records`: the records that waited in operators at the last
    commit, and `held` how many of them in each store; None: an older version wrote the file.
    `records`: processed in this run. `lag_records`: up to the ends of its inputs, as last heard of;
    None: not known. If `pid` is not that of the folder's owner, the owner has not begun to process
    yet. `sums`: what its commits have counted, up to the one before the file was written.
    """

    pid: Count = 0
    slots: Slots = 1
    written_ms: TimeMs = 0
    last_commit_ms: TimeMs | None = None
    process_rate: Amount | None = None
    restore_rate: Amount | None = None
    restored_records: Count = 0
    restore_seconds: Amount = 0.0
    held_records: Count | None = None
    records: Count = 0
    lag_records: Count | None = None
    held: dict[StoreName, Count] | None = None
    sums: KeptSums = KeptSums()


class ProgressFile:
    """Writes the progress of one stream task, about once a second; less often if it is at rest."""

    def __init__(self, folder: Path, clock: Clock, *, slots: int, serving: str = "") -> None:
        """`serving`: which one this is, so that its sums are kept; empty: they are not."""
        self._path = folder / NAME
        self._clock = clock
        self._before = read_progress(folder)
        self._slots = slots
        self._serving = serving
        self._sums = self._before.sums
        self._timed = Sums()
        self._written_s = self._looked_s = float("-inf")
        self._told: tuple[int | None, Standing] | None = None

    def begin(self, committed: Tally | None) -> None:
        """Take in what the last commit says that was committed; call it before the first write."""
        self._before = read_progress(self._path.parent)
        self._sums = self._before.sums.settled(committed)
        if self._sums.serving == self._serving:
            self._timed = self._sums.in_serving
        if not self._sums.since_ms:
            self._sums = msgspec.structs.replace(self._sums, since_ms=self._clock.now_ms())

    def note(self, report: TaskReport, standing: Callable[[], Standing]) -> Standing | None:
        """Write the progress after a step of the task, if the file is a second old.

        If nothing has changed, it may be five seconds old. The first commit is written at once: a
        process that dies has got on if it committed. Return how far the task has come if it was
        written, so that others are told the same.
        """
        has_told_commit = self._told is not None and self._told[0] is not None
        is_first = report.last_commit_ms is not None and not has_told_commit
        now_s = self._clock.monotonic()
        if now_s - self._looked_s < _EVERY_S and not is_first:
            return None
        self._looked_s, now = now_s, standing()
        is_news = (report.last_commit_ms, now) != self._told
        if not is_news and now_s - self._written_s < _AT_REST_EVERY_S:
            return None
        self.write(report, now)
        return now

    def write(self, report: TaskReport, standing: Standing) -> None:
        """Write the progress now, as at the end of a run."""
        self._written_s = self._looked_s = self._clock.monotonic()
        self._told = report.last_commit_ms, standing
        before, busy_s = self._before, report.process_seconds + report.commit_seconds
        own = report.records_in - report.records_before
        if self._serving:
            counted = Sums(
                report.records_in,
                report.left_out,
                self._timed.commits + report.timed_commits,
                self._timed.commit_seconds + report.commit_seconds,
            )
            self._sums = self._sums.after(self._serving, counted)
        progress = TaskProgress(
            os.getpid(),
            self._slots,
            self._clock.now_ms(),
            report.last_commit_ms or before.last_commit_ms,
            _rate(own, busy_s) or before.process_rate,
            _rate(report.restored_records, report.restore_seconds) or before.restore_rate,
            report.restored_records,
            report.restore_seconds,
            report.held_records,
            standing.records,
            standing.lag_records,
            report.held,
            self._sums,
        )
        temporary = self._path.with_name(f".{NAME}.tmp")
        # If the folder cannot be written, the task itself will report it.
        with suppress(OSError):
            temporary.write_bytes(msgspec.json.encode(progress))
            temporary.replace(self._path)
            reach(CrashPoint.PROGRESS_WRITTEN)


def read_progress(folder: Path) -> TaskProgress:
    """Return the progress written last; an empty one if there is no readable file."""
    with suppress(HostFailure):
        return documents.read(folder / NAME, TaskProgress, way_out="remove it") or TaskProgress()
    return TaskProgress()


def _rate(records: int, seconds: float) -> float | None:
    return records / seconds if records >= _ENOUGH and seconds > 0 else None

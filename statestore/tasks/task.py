"""The life of one stream task: claim, settle, restore, process, commit, release (SEMANTICS E3).

    start()   claim the folder          claim.locked, claim.owned
              leave a living owner's    takeover.linked, takeover.published
              open the stores           start.stores-open
              fence the last owner      start.producer-ready    (1)
              committed input offsets   start.offsets-known
              restore                   restore.batch-written, restore.done
    step()    work(), then committing(); take the snapshots that others ask for
    close()   release without committing what is pending; a clean end commits first

(1) A bounded run has nothing to do if the group has committed all inputs at their planned ends. If
the last owner released the task, it is then fenced only before the first write, if there is one.

A task works in attempts (attempt.py). When one fails in a way that another try may mend, the task
goes back to its last commit, does what a start does after its claim, and begins a new attempt;
nothing is wiped. Once a newer owner has claimed the folder, any failure is Fenced: the task closes
without writing anything. For one thread; only `prepare`, the first part of `start`, and `release`,
the last part of `close`, may be called by other ones (slot.py).
"""

import logging
from collections.abc import Callable
from typing import Self

from statestore.errors import (
    CommitUnknown,
    Fenced,
    InputLost,
    Misuse,
    StateStoreError,
    TaskCorrupted,
    Unavailable,
    log_left,
)
from statestore.faults import CrashPoint, reach
from statestore.layout.folders import StateLayout
from statestore.ports import Arrival
from statestore.settings import Settings
from statestore.stores.kinds.registry import kind_of
from statestore.tasks.announcer import Announcer
from statestore.tasks.attempt import Attempt, RetryBudget
from statestore.tasks.committer import Committer
from statestore.tasks.context import TaskContext
from statestore.tasks.event_time import EventTime
from statestore.tasks.left_out_counts import LeftOutRecords
from statestore.tasks.memory_share import MemoryLimits, MemoryShare, TaskMemory
from statestore.tasks.owned import OwnedStore
from statestore.tasks.ownership import Ownership
from statestore.tasks.plan import Standing, Tally, TaskEdges, TaskPlan, TaskReport, Traffic
from statestore.tasks.poison import Poison, Rehearsed
from statestore.tasks.rewriting import Chunk, Place, stage, stage_log
from statestore.tasks.snapshot_responder import SnapshotResponder
from statestore.tasks.steps import Pause, Steps, at_once
from statestore.tasks.stores import TaskStores
from statestore.tasks.watermarks import Watermarks
from statestore.topology.failures import NodeFailed
from statestore.topology.nodes import HeldBack

_log = logging.getLogger(__name__)
_LOST_MAX = 10
"""After so many commits in a row that came to nothing, rows are no longer rewritten."""
_MENDABLE = (Unavailable, CommitUnknown, Fenced, TaskCorrupted)


class StreamTask:
    """One stream task from claim to release; use `with`, or start() and close()."""

    def __init__(
        self,
        plan: TaskPlan,
        edges: TaskEdges,
        settings: Settings,
        layout: StateLayout,
        share: MemoryShare | None = None,
    ) -> None:
        """`share`: the memory of all tasks that one thread serves; None: this task has its own."""
        self.report = TaskReport(str(plan.task_id))
        self._plan = plan
        self._edges = edges
        self._settings = settings
        self._ownership = Ownership(plan, edges, settings, layout)
        self._stores = TaskStores(plan, edges, settings, layout)
        self._committer = Committer(
            plan, edges, settings, layout, self._stores, self._ownership.check
        )
        self._poison = Poison(plan.task_id, plan.part, settings, edges.outbox, plan.origins)
        self._retry = RetryBudget(plan.task_id, settings, edges.clock)
        share = share or MemoryShare(MemoryLimits.of(settings, plan.slots))
        self._memory = TaskMemory(
            str(plan.task_id), share, self._stores.usage, foreseen=not plan.part.fans_out
        )
        self._responder = SnapshotResponder(plan.task_id, layout, edges.clock, self.report)
        self._held_back = HeldBack()
        self._left_out = LeftOutRecords(plan.task_id)
        self._traffic = Traffic()
        self._announcer = Announcer(plan.times, plan.part, settings.application_id)
        self._attempt: Attempt | None = None
        """The present attempt; None: the task was not started."""

    def start(self) -> None:
        """Claim, fence, restore. After Locked, Unavailable or HostFailure nothing has changed."""
        self.prepare()
        self.begin()

    @property
    def is_prepared_anywhere(self) -> bool:
        """Whether `prepare` and `release` call nothing of a user, who may want one thread."""
        return all(kind_of(self._plan.specs[name]).is_readable for name in self._plan.part.stores)

    def prepare(self) -> None:
        """Do what comes before processors are made; any thread may, before any other call."""
        plan, edges = self._plan, self._edges
        began = edges.clock.monotonic()
        self._stores.live_in(self._ownership.take())
        for name in plan.part.stores:
            self._stores.open(plan.specs[name])
        reach(CrashPoint.START_STORES_OPEN)
        # What a dead owner left open would keep readers waiting.
        if not (self._ownership.was_released() and self._committer.has_nothing_to_do()):
            self._committer.fence()
        reach(CrashPoint.START_PRODUCER_READY)
        self._read_committed()
        self.report.records_before = self.report.records_in
        reach(CrashPoint.START_OFFSETS_KNOWN)
        self._restore()
        self._stores.write_checkpoint()
        self._ownership.sweep()
        self.report.start_seconds += edges.clock.monotonic() - began

    def begin(self) -> None:
        """Make the processors of a prepared task, which can be stepped then."""
        began = self._edges.clock.monotonic()
        self._begin_attempt()
        for name in self._plan.part.stores:
            self._change_over(name)
        self.report.start_seconds += self._edges.clock.monotonic() - began

    def step(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms`, process, commit if due; return the number of records."""
        return self._recovering(lambda: self._step(timeout_ms))

    def arrival(self, limit_ms: int) -> Arrival | None:
        """Return when there may be something to do, at the latest in `limit_ms`.

        None: the source can only be polled.
        """
        return self._present().arrival(limit_ms)

    def work(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms` and process; return the number of records.

        Whoever calls it runs `committing` next, which may be together with other tasks.
        """
        return self._recovering(lambda: self._work(timeout_ms))

    @property
    def has_open(self) -> bool:
        """Whether anything was processed since the last commit."""
        return self._present().has_open

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits to be processed, committed or told to those below."""
        return self._present().is_at_rest

    @property
    def others_are_asked(self) -> bool:
        """Whether a task of the slot was asked to commit, so that others have memory."""
        return self._memory.anyone_asked

    def commit_is_due(self) -> bool:
        """Return whether `committing` has anything to do."""
        return self._present().commit_is_due()

    def committing(self) -> Steps[int]:
        """Commit if it is due, or soon would be; pause where brokers were asked."""
        return self._recovering_in(lambda: self._present().committing(beside=True))

    def finished(self) -> bool:
        """Return whether every input was processed and committed up to its planned end."""
        return self._present().finished()

    def finish(self) -> None:
        """Commit what was processed, at the clean end of a bounded run or of a stop."""
        if self._present().needs_commit():
            self._recovering(lambda: self._present().commit(last=True))
        self._ownership.check()
        self._responder.finish(self._stores.opened, self._committer.stamp.number)
        self.report.caught_up = self._present().caught_up()
        self.report.waits_for_time = self._present().waits_for_time()

    def step_commit(self) -> None:
        """Commit now; after a failure that can be repaired, the records are processed again."""
        self._recovering(lambda: self._present().commit())

    def rewrite(self, store: str) -> int:
        """Write the rows of a store anew that older serdes wrote; return how many there were.

        Each commit has a part of them. Nothing else is processed meanwhile.
        """
        return self._in_chunks(store, stage)

    def all_seen(self) -> bool:
        """Note that all input there is was processed; return whether that let time pass (E4d)."""
        return bool(self._recovering(lambda: self._present().all_seen()))

    def standing(self) -> Standing:
        """Return how far the task has come, without asking a broker."""
        return self._present().standing()

    def committed_tally(self) -> Tally | None:
        """Return what the last commit says of its serving, whichever that was; None: nothing."""
        return self._committer.stamp.tally

    def store(self, name: str) -> object:
        """Return a store as the task's processors see it."""
        return self._stores.opened[name].store

    def abandon(self) -> None:
        """Release the folder as a dead process would: no rollback, no abort, no checkpoint."""
        self._ownership.abandon()

    def close(self) -> None:
        """Drop what is pending, close the stores and release; never hide an earlier error."""
        self.end()
        self.release()

    def end(self) -> None:
        """Close the processors; what is left is for `release`."""
        attempt, self._attempt = self._attempt, None
        try:
            if attempt is not None:
                self._closing(attempt.close)
        finally:
            self._memory.free()

    def release(self) -> None:
        """Do what comes after the processors are closed; any thread may, after all other calls."""
        self._closing(self._edges.source.close)
        if self._ownership.holds():  # a newer owner has ended what this one had open
            self._closing(self._committer.abort)
        for step in (self._edges.outbox.close, self._responder.end, self._stores.close):
            self._closing(step)
        self._closing(self._write_last_files)
        self._ownership.release()

    def _closing(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StateStoreError as error:
            log_left(_log, error, f"task {self._plan.task_id}: while closing")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _write_last_files(self) -> None:
        # A newer owner writes its own.
        if self._ownership.holds():
            self._stores.write_checkpoint()
            self._committer.write_checkpoint()

    def _present(self) -> Attempt:
        if self._attempt is None:
            raise Misuse(f"task {self._plan.task_id} was not started: call start() first")
        return self._attempt

    def _step(self, timeout_ms: int) -> int:
        processed = self._present().step(timeout_ms)
        self._look_after()
        return processed

    def _work(self, timeout_ms: int) -> int:
        processed = self._present().work(timeout_ms)
        self._look_after()
        return processed

    def _look_after(self) -> None:
        """Do what has to be done often, whether or not there was input."""
        self._stores.maintain()
        self._ownership.glance()
        self._responder.serve(self._stores.opened, self._committer.stamp.number)

    # Rows are written anew.

    def _change_over(self, store: str) -> None:
        """Log each version of a store, if its log is not one that has a record for each."""
        opened = self._stores.opened[store]
        if kind_of(opened.spec).keeps_history and not opened.versions().log.is_whole:
            records = self._in_chunks(store, stage_log)
            _log.info(
                "task %s: %d records have been logged for the versions of store %s, as its "
                "changelog did not have a record for each version",
                self._plan.task_id,
                records,
                store,
            )

    def _in_chunks(
        self, store: str, staged_after: Callable[[OwnedStore, Place | None], Chunk]
    ) -> int:
        """Commit what `staged_after` stages, chunk by chunk; return how many rows there were."""
        total, after, lost = 0, None, 0
        while True:
            staged = staged_after(self._stores.opened[store], after)
            committed = self._committer.stamp.number
            if staged.rows:
                self.step_commit()
                self._stores.maintain()
                self._ownership.glance()
            if staged.rows and self._committer.stamp.number == committed:
                # The task went back to its last commit, and the rows are as they were.
                lost += 1
                if lost > _LOST_MAX:
                    raise Unavailable(
                        f"task {self._plan.task_id}: store {store}: {lost} commits failed: look "
                        "into the log, then start again"
                    )
                continue
            total, after = total + staged.rows, staged.last
            if after is None:
                return total

    # An attempt begins.

    def _read_committed(self) -> None:
        # This includes commits of an earlier worker in this serving, and unanswered ones of ours.
        before = self._committer.tally
        self._committer.read_committed()
        self.report.count(before, self._committer.tally)

    def _restore(self) -> None:
        offsets, stamp = self._committer.offsets, self._committer.stamp
        position, nothing = self._committer.position, stamp.number == 0
        times = self._committer.times
        watermarks = Watermarks(self._plan.times.upstream, times.channels)
        self._stores.hold_time(watermarks.limit_ms(times.stream_time_ms))
        done = self._stores.restore(offsets, position, nothing_committed=nothing)
        self._stores.reached(stamp.stream_time_ms)
        self._held_back.restored()
        self.report.restored_records += done.records
        self.report.leave_out(done.left_out)
        self.report.restore_seconds += done.seconds
        self.report.quarantined = list(self._stores.quarantined)

    def _begin_attempt(self) -> None:
        """Begin an attempt at the last commit, with new processors and empty buffers."""
        plan, edges, settings, committer = self._plan, self._edges, self._settings, self._committer
        if self._attempt is not None:
            self._attempt.close()
        self._held_back.went_back()
        self._left_out.went_back()
        self._announcer.went_back(committer.times.untold)
        watermarks = Watermarks(plan.times.upstream, committer.times.channels)
        context = TaskContext(
            plan.task_id,
            plan.part,
            self._stores.opened,
            edges.outbox,
            application_id=settings.application_id,
            stream_time_ms=committer.times.stream_time_ms,
            seen_ms=committer.times.seen_ms,
            watermarks=watermarks,
            announcer=self._announcer,
            clock=edges.clock,
            poison=self._poison,
            held_back=self._held_back,
            left_out=self._left_out,
            global_stores=edges.global_stores,
        )
        self.report.held = self._held_back.by_store()
        self._poison.went_back()
        intake = plan.intake(settings, self._poison, committer.times.partitions)
        times = EventTime(
            watermarks,
            self._announcer,
            settles=plan.ends is not None and plan.times.settled,
            idle_ms=settings.idle_input_ms if plan.ends is None else None,
            now_s=edges.clock.monotonic(),
        )
        self._attempt = Attempt(
            context,
            intake,
            edges.source,
            committer,
            memory=self._memory,
            poison=self._poison,
            retry=self._retry,
            report=self.report,
            traffic=self._traffic,
            times=times,
            clock=edges.clock,
        )
        edges.source.start(committer.offsets)
        for tp, offset in committer.offsets.items():
            intake.at(tp, offset)

    # An attempt fails.

    def _recovering(self, action: Callable[[], int | None]) -> int:
        """Return what the action returns; 0 after a failure from which the task goes back."""
        return at_once(self._recovering_in(lambda: _without_pause(action)))

    def _recovering_in(self, action: Callable[[], Steps[int | None]]) -> Steps[int]:
        """Likewise, of an action that pauses; there is a pause before the task goes back, too."""
        try:
            done = yield from self._judging(action)
        except StateStoreError as error:
            self._ownership.check(error)
            if not isinstance(error, _MENDABLE):
                raise
            yield Pause.FAILED
            self._go_back(error)
            return 0
        # While an input may have more records, the next failure may still follow soon.
        if not done and self._present().is_idle():
            self._retry.idle()
        return done

    def _judging(self, action: Callable[[], Steps[int | None]]) -> Steps[int]:
        """Return what the action returns; 0 if what failed is passed over or searched for.

        The task then goes back to its last commit, as it does after a trial that succeeded.
        """
        try:
            return (yield from action()) or 0
        except NodeFailed as failed:
            self._ownership.check()
            self._poison.judge(failed, punctuated=self._present().has_punctuated())
        except Rehearsed:
            self._ownership.check()
            self._poison.rehearsed()
        except InputLost as lost:
            self._ownership.check(lost)
            if not self._committer.was_overtaken():
                raise
            # What is between two steps is purged once it is committed, here by the other owner.
            raise Fenced(
                f"task {self._plan.task_id}: another owner has committed its inputs meanwhile, "
                "which are purged up to there"
            ) from lost
        yield Pause.FAILED
        self._undo()
        return 0

    def _undo(self) -> None:
        """Go back to the last commit, which is known and which the stores have."""
        self.report.rewinds += 1
        self._memory.free()
        self._committer.abort()
        # An aborted transaction leaves nothing to restore; at_least_once leaves everything (E6).
        if self._stores.rollback() or not self._settings.exactly_once:
            if self._settings.exactly_once:
                # What the last commit logged can be read once its id was opened again.
                self._committer.fence()
            self._restore()
        self._begin_attempt()

    def _go_back(self, error: StateStoreError) -> None:
        """Go back to the last commit in the log; if that fails too, count another failure."""
        cause: StateStoreError | None = error
        while cause is not None:
            self._retry.failed(cause)
            self.report.rewinds += 1
            try:
                self._begin_again(cause)
                cause = None
            except (Unavailable, CommitUnknown, Fenced) as another:
                self._ownership.check(another)
                cause = another

    def _begin_again(self, cause: StateStoreError) -> None:
        self._memory.free()
        self._committer.drop()
        if isinstance(cause, TaskCorrupted):
            self._stores.replace(cause)
        self._read_committed()
        # The changelog may have more than the stores: a commit without an answer, commits of an
        # owner that noticed its fencing late (E10), and, under at_least_once, all that was dropped
        # here (E6).
        self._restore()
        self._begin_attempt()


def _without_pause(action: Callable[[], int | None]) -> Steps[int | None]:
    yield from ()
    return action()

"""The life of one stream task: claim, settle, restore, process, commit, release (SEMANTICS E3).

    start()   claim the folder          claim.locked, claim.owned
              leave a living owner's    takeover.linked, takeover.published
              open the stores           start.stores-open
              fence the last owner      start.producer-ready
              committed input offsets   start.offsets-known
              restore                   restore.batch-written, restore.done
    step()    poll, process, commit when due; take the snapshots others ask for
    close()   release without committing what is pending; a clean end commits first

One thread. A failure that another try may mend goes back to the last commit and begins anew from
what the log says, as a start does; nothing is wiped. Once a newer owner has claimed the folder, any
failure is Fenced.
"""

import logging
from collections.abc import Callable
from typing import Self

from statestore.errors import (
    CommitUnknown,
    Fenced,
    StateStoreError,
    TaskCorrupted,
    Unavailable,
)
from statestore.faults import CrashPoint, reach
from statestore.layout.folders import StateLayout
from statestore.settings import Settings
from statestore.tasks.committer import Committer
from statestore.tasks.context import TaskContext
from statestore.tasks.input_checkpoint import InputCheckpoint
from statestore.tasks.intake import InputBatch
from statestore.tasks.memory_share import MemoryLimits, MemoryShare, Usage, plan_step, reached
from statestore.tasks.ownership import Ownership
from statestore.tasks.plan import Standing, TaskEdges, TaskPlan, TaskReport
from statestore.tasks.poison import Poison, Rehearsed
from statestore.tasks.retry import RetryBudget
from statestore.tasks.snapshot_responder import SnapshotResponder
from statestore.tasks.stores import TaskStores
from statestore.topology.failures import NodeFailed
from statestore.topology.nodes import HeldBack, Push

_log = logging.getLogger(__name__)
_NOTHING = Usage(0, 0)
_MENDABLE = (Unavailable, CommitUnknown, Fenced, TaskCorrupted)


class StreamTask:
    """One stream task from claim to release; use `with`, or start() and close()."""

    def __init__(
        self,
        plan: TaskPlan,
        edges: TaskEdges,
        settings: Settings,
        layout: StateLayout,
        slot: MemoryShare | None = None,
    ) -> None:
        """`slot`: the share of memory of all tasks served in one thread; None: this one alone."""
        self.report = TaskReport(str(plan.task_id))
        self._plan = plan
        self._edges = edges
        self._settings = settings
        self._slot = slot or MemoryShare(MemoryLimits.of(settings, plan.slots))
        self._ownership = Ownership(plan, edges, settings, layout)
        self._desk = SnapshotResponder(plan.task_id, layout, edges.clock, self.report)
        self._stores = TaskStores(plan, edges, settings, layout)
        self._context: TaskContext | None = None
        self._pushes: dict[str, Push] = {}
        self._poison = Poison(plan.task_id, plan.part, settings, edges.outbox)
        self._intake = plan.intake(settings, self._poison)
        self._checkpoint = InputCheckpoint(layout.task_dir(plan.task_id), edges.clock)
        self._committer = Committer(
            plan, edges, settings, self._stores, self._checkpoint, self._ownership.check
        )
        self._last_commit_s = edges.clock.monotonic()
        self._since_commit = 0
        self._dirty = False
        self._growth: tuple[float, float] | None = None
        self._patience = RetryBudget(plan.task_id, settings, edges.clock)
        self._held_back = HeldBack()

    def start(self) -> None:
        """Claim, fence, restore. Locked, Unavailable, HostFailure leave everything as it was."""
        plan, edges = self._plan, self._edges
        began = edges.clock.monotonic()
        self._stores.live_in(self._ownership.take())
        for name in plan.part.stores:
            self._stores.open(plan.specs[name])
        reach(CrashPoint.START_STORES_OPEN)
        self._committer.fence()
        reach(CrashPoint.START_PRODUCER_READY)
        self._read_committed()
        self.report.records_before = self.report.records_in
        reach(CrashPoint.START_OFFSETS_KNOWN)
        self._restore()
        self._stores.write_checkpoint()
        self._ownership.sweep()
        self._begin_reading()
        self.report.start_seconds += edges.clock.monotonic() - began

    def step(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms`, process, commit if due; returns the records processed."""
        return self._recovering(lambda: self._step(timeout_ms))

    def finished(self) -> bool:
        """Whether every input was processed and committed up to its planned end."""
        assert self._context is not None
        return (
            self._intake.finished()
            and not self._uncommitted_inputs()
            and not self._dirty
            and self._context.punctuations.all_opened()
        )

    def finish(self) -> None:
        """Commit what was processed; the clean end of a bounded run or of a stop."""
        if self._dirty or self._uncommitted_inputs() or self._checkpoint.is_old():
            self.step_commit()
        self._ownership.check()
        self.report.caught_up = self._intake.finished()

    def step_commit(self) -> None:
        """Commit now; a retriable failure rewinds, and the records are processed again."""
        self._recovering(self._commit)

    def standing(self) -> Standing:
        """Where it is now; what others are asked for is what they said last."""
        report, lag = self.report, 0
        records = report.records_in + self._since_commit
        for tp in self._plan.inputs:
            end, reached = self._edges.source.log_end(tp), self._intake.reached(tp)
            if end is None or reached is None:
                return Standing(records, None, report.last_commit_ms, report.held_records)
            lag += max(0, end - reached)
        return Standing(records, lag, report.last_commit_ms, report.held_records)

    def store(self, name: str) -> object:
        """A store as the task's processors see it."""
        return self._stores.opened[name].store

    def abandon(self) -> None:
        """Let go of the folder as a dead process would: no rollback, no abort, no checkpoint."""
        self._ownership.abandon()

    def close(self) -> None:
        """Drop what is pending, close the stores, release; hides no earlier error."""
        steps: list[Callable[[], None]] = [self._edges.source.close]
        if self._context is not None:
            steps.append(self._context.close)
        if self._ownership.holds():  # a newer owner has ended what this one had open
            steps.append(self._committer.abort)
        steps += [self._edges.outbox.close, self._stores.close]
        steps.append(self._write_last_files)
        for step in steps:
            try:
                step()
            except StateStoreError:
                _log.warning("task %s: while closing", self._plan.task_id, exc_info=True)
        self._slot.hold(self.report.stream_task, _NOTHING)
        self._ownership.release()

    def _write_last_files(self) -> None:
        # A newer owner writes its own.
        if self._ownership.holds():
            self._stores.write_checkpoint()
            self._checkpoint.write()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _recovering(self, action: Callable[[], int | None]) -> int:
        """What it returns; 0 after a failure that costs no more than to go back."""
        try:
            done = self._judging(action)
        except StateStoreError as error:
            self._ownership.check(error)
            if not isinstance(error, _MENDABLE):
                raise
            self._go_back(error)
            return 0
        # Nothing from an input that may have more is no quiet time, but perhaps the next failure.
        if not done and not self._dirty and all(map(self._edges.source.at_end, self._plan.inputs)):
            self._patience.idle()
        return done

    def _judging(self, action: Callable[[], int | None]) -> int:
        """What it returns; 0 after a record failed that is passed over or sought from now on.

        A trial that went through is undone likewise.
        """
        try:
            return action() or 0
        except (NodeFailed, Rehearsed) as ended:
            self._ownership.check()
            if isinstance(ended, NodeFailed):
                context = self._context
                fired = context is not None and context.punctuations.has_fired
                self._poison.judge(ended, punctuated=fired)
            else:
                self._poison.rehearsed()
            self.report.rewinds += 1
            self._slot.hold(self.report.stream_task, _NOTHING)
            self._committer.abort()
            # Of an aborted transaction nothing is left to restore; of no transaction, all (E6).
            if self._stores.rollback() or not self._settings.exactly_once:
                if self._settings.exactly_once:
                    # What the last commit logged can be read once its id could be opened anew.
                    self._committer.fence()
                self._restore()
            self._begin_reading()
            return 0

    # Start.

    def _read_committed(self) -> None:
        # Also what an earlier attempt at this serving committed, or this one without an answer.
        before = self._committer.tally
        self._committer.read_committed()
        self.report.count(before, self._committer.tally)

    def _restore(self) -> None:
        offsets, nothing = self._committer.offsets, self._committer.stamp.number == 0
        position = self._committer.position
        done = self._stores.restore(offsets, position, nothing_committed=nothing)
        self._held_back.restored()
        self.report.restored_records += done.records
        self.report.dropped_records += done.dropped
        self.report.restore_seconds += done.seconds
        self.report.quarantined = list(self._stores.quarantined)

    def _begin_reading(self) -> None:
        if self._context is not None:
            self._context.close()
        self._held_back.went_back()
        self._context = TaskContext(
            self._plan.task_id,
            self._stores.opened,
            self._edges.outbox,
            application_id=self._settings.application_id,
            stream_time_ms=self._committer.stamp.stream_time_ms,
            clock=self._edges.clock,
            poison=self._poison,
            held_back=self._held_back,
        )
        self._pushes = self._context.wire(self._plan.part)
        self.report.held_records = self._held_back.total()
        self._poison.went_back()
        self._intake = self._plan.intake(self._settings, self._poison)
        self._edges.source.start(self._committer.offsets)
        for tp, offset in self._committer.offsets.items():
            self._intake.at(tp, offset)
        self._since_commit = 0
        self._dirty = False

    # Process.

    def _step(self, timeout_ms: int) -> int:
        clock, limit = self._edges.clock, self._patience.batch_max_records
        began_ms, started = clock.now_ms(), clock.monotonic()
        if self._slot.take_request(self.report.stream_task) and self._dirty:
            self._commit()
        assert self._context is not None
        wait_ms = self._context.punctuations.wait_ms(began_ms, timeout_ms)
        self._intake.poll(self._edges.source, limit, wait_ms)
        polled = clock.monotonic()
        self.report.poll_seconds += polled - started
        if self.report.first_record_ms is None and self._intake.waiting():
            self.report.first_record_ms = began_ms
        processed = 0
        while (batch := self._intake.next_batch(clock.monotonic())) is not None:
            done = self._process_within_share(batch)
            if done is None:
                break
            processed += done
        self._punctuate()
        self.report.process_seconds += clock.monotonic() - polled
        if self._commit_due():
            self._commit()
        self._patience.took(processed, clock.monotonic() - polled)
        self._stores.maintain()
        self._ownership.glance()
        self._desk.serve(self._stores.opened, self._committer.stamp.number)
        return processed

    def _process_within_share(self, batch: InputBatch) -> int | None:
        """The records processed; None: not before another task of the slot has committed."""
        cut = self._poison.cut(batch)
        if cut.alone and self._dirty:
            self._intake.put_back(batch)
            self._commit()
            return 0
        batch = self._intake.front(batch, cut.take)
        waiting, slot, name = len(batch), self._slot, self.report.stream_task
        held = slot.hold(name, self._stores.usage())
        step = plan_step(held, self._growth, waiting, slot.limits)
        if step.commit_first and not slot.make_room(name):
            self._intake.put_back(batch)
            return None
        if step.commit_first and self._dirty:
            self._intake.put_back(batch)
            self._commit()
            return 0
        batch = self._intake.front(batch, step.take)
        self._process(batch)
        self._stay_within_share()
        if cut.commit and self._dirty:
            self._commit()
        return len(batch)

    def _process(self, batch: InputBatch) -> None:
        context = self._context
        assert context is not None
        before = self._stores.usage()
        self._committer.begin()
        self._dirty = True
        left = self._poison.pass_over(batch, context)
        if len(left):
            context.pass_on(self._pushes[batch.tp.topic], left)
        self._poison.passed()
        after = self._stores.usage()
        count = len(batch)
        self._growth = (
            (after.size_bytes - before.size_bytes) / count,
            (after.records - before.records) / count,
        )
        self._since_commit += count

    def _punctuate(self) -> None:
        """Fire what is due by the wall clock; what it wrote is committed like records' writes."""
        context, now_ms = self._context, self._edges.clock.now_ms()
        assert context is not None
        if context.punctuations.wall_clock_due(now_ms):
            self._committer.begin()
            context.punctuations.wall_clock_is(now_ms)
            if context.has_written() or self._stores.usage() != _NOTHING:
                self._dirty = True
            self._stay_within_share()

    def _stay_within_share(self) -> None:
        slot, name = self._slot, self.report.stream_task
        held = slot.hold(name, self._stores.usage())
        if reached(held, slot.limits) and slot.make_room(name):
            self._commit()

    # Commit.

    def _commit_due(self) -> bool:
        assert self._context is not None
        if not self._dirty:
            moved = self._intake.finished() and self._uncommitted_inputs()
            return moved or self._checkpoint.is_old()
        interval_s = self._settings.effective_commit_interval_ms / 1000
        return (
            self._context.commit_requested
            or self._intake.finished()
            or self._edges.clock.monotonic() - self._last_commit_s >= interval_s
        )

    def _uncommitted_inputs(self) -> bool:
        return any(self._intake.reached(tp) != at for tp, at in self._committer.offsets.items())

    def _commit(self) -> None:
        context, clock = self._context, self._edges.clock
        assert context is not None
        started = clock.monotonic()
        moved = self._intake.all_reached()
        if self._poison.on_trial:
            self._committer.rehearse(context.stream_time_ms)
            raise Rehearsed
        size, before = self._stores.usage().size_bytes, self._committer.tally
        done = before.after(
            records_in=self._since_commit,
            records_out=context.records_out,
            dropped_records=context.dropped.total(),
        )
        self._committer.commit(moved, context.stream_time_ms, done)
        self._slot.hold(self.report.stream_task, _NOTHING)
        context.commit_requested = context.punctuations.has_fired = False
        now_s = self._last_commit_s = clock.monotonic()
        self._patience.committed()
        self._poison.committed(moved)
        self.report.add_commit(now_s - started, clock.now_ms(), size=size)
        self.report.count(before, done)
        context.take_dropped()
        self._held_back.committed()
        self.report.held_records = self._held_back.total()
        self._since_commit = context.records_out = 0
        self._dirty = False

    def _go_back(self, error: StateStoreError) -> None:
        """Drop everything since the last commit and begin anew; a failure of that counts too."""
        cause: StateStoreError | None = error
        while cause is not None:
            self._patience.failed(cause)
            self.report.rewinds += 1
            try:
                self._begin_anew(cause)
                cause = None
            except (Unavailable, CommitUnknown, Fenced) as another:
                self._ownership.check(another)
                cause = another

    def _begin_anew(self, cause: StateStoreError) -> None:
        self._slot.hold(self.report.stream_task, _NOTHING)
        self._committer.drop()
        if isinstance(cause, TaskCorrupted):
            self._stores.replace(cause)
        self._read_committed()
        # The changelog may hold more than the stores: the commit that got no answer, those of an
        # owner that was late to notice (E10), and at least once all that was dropped here (E6).
        self._restore()
        self._begin_reading()

"""One attempt of a stream task: all it does from its last commit on, until something fails.

Everything that going back to the last commit resets lies here and exists from the beginning: the
processors, the records that wait, what was processed and is not committed yet. When something
fails, the attempt is over, and the task begins a new one from its last commit (task.py).

    poll       records of the inputs                       intake.py decides on their order
    process    them, within the slot's share of memory     poison.py leaves out what cannot be taken
    punctuate  what is due by the wall clock
    commit     if a commit is due                          commit.py has the steps
"""

from typing import Final

from statestore.ports import Clock, Source
from statestore.tasks.committer import Committer
from statestore.tasks.context import TaskContext
from statestore.tasks.intake import InputBatch, Intake
from statestore.tasks.memory_share import TaskMemory, Usage
from statestore.tasks.plan import Standing, TaskReport
from statestore.tasks.poison import Poison, Rehearsed
from statestore.tasks.retry import RetryBudget

_NOTHING: Final = Usage(0, 0)


class Attempt:
    """What is under way since the last commit."""

    def __init__(
        self,
        context: TaskContext,
        intake: Intake,
        source: Source,
        committer: Committer,
        *,
        memory: TaskMemory,
        poison: Poison,
        retry: RetryBudget,
        report: TaskReport,
        clock: Clock,
    ) -> None:
        self._context = context
        self._intake = intake
        self._source = source
        self._committer = committer
        self._memory = memory
        self._poison = poison
        self._retry = retry
        self._report = report
        self._clock = clock
        self._records_in = 0
        self._dirty = False

    def step(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms`, process, commit if due; returns the records processed."""
        clock, intake, batch_size = self._clock, self._intake, self._retry.batch_size
        began_ms, started = clock.now_ms(), clock.monotonic()
        if self._memory.take_request() and self._dirty:
            self.commit()
        wait_ms = self._context.punctuations.wait_ms(began_ms, timeout_ms)
        intake.poll(self._source, batch_size.records, wait_ms)
        polled = clock.monotonic()
        self._report.poll_seconds += polled - started
        if self._report.first_record_ms is None and intake.waiting():
            self._report.first_record_ms = began_ms
        processed = 0
        while (batch := intake.next_batch(clock.monotonic())) is not None:
            done = self._process_within_share(batch)
            if done is None:
                break
            processed += done
        self._punctuate()
        self._report.process_seconds += clock.monotonic() - polled
        if self._commit_is_due():
            self.commit()
        batch_size.took(processed, clock.monotonic() - polled)
        return processed

    def commit(self) -> None:
        """Commit everything processed since the last commit; Rehearsed in a trial, instead."""
        context, report, clock = self._context, self._report, self._clock
        started = clock.monotonic()
        offsets = self._intake.all_reached()
        if self._poison.on_trial:
            self._committer.rehearse(context.stream_time_ms)
            raise Rehearsed
        size, before = self._memory.usage().size_bytes, self._committer.tally
        done = before.after(
            records_in=self._records_in,
            records_out=context.records_out,
            dropped_records=context.dropped.total(),
        )
        self._committer.commit(offsets, context.stream_time_ms, done)
        self._memory.free()
        self._retry.committed()
        self._poison.committed(offsets)
        context.committed()
        report.add_commit(clock.monotonic() - started, clock.now_ms(), size=size)
        report.count(before, done)
        report.held_records = context.held_back.total()
        self._records_in = 0
        self._dirty = False

    def needs_commit(self) -> bool:
        """Whether there is anything to commit, if only that idle inputs are still in use."""
        return self._dirty or self._inputs_moved() or self._committer.is_stale()

    def finished(self) -> bool:
        """Whether every input was processed and committed up to its planned end."""
        return (
            self._intake.finished()
            and not self._inputs_moved()
            and not self._dirty
            and self._context.punctuations.all_opened()
        )

    def caught_up(self) -> bool:
        """Whether every input was processed up to its planned end."""
        return self._intake.finished()

    def is_idle(self) -> bool:
        """Whether there is nothing to commit, and no input has more as far as is known."""
        return not self._dirty and self._intake.at_ends_of_logs(self._source)

    def has_punctuated(self) -> bool:
        """Whether a punctuation was fired since the last commit."""
        return self._context.punctuations.has_fired

    def standing(self) -> Standing:
        """Where it is now, by what others said last."""
        report = self._report
        return Standing(
            report.records_in + self._records_in,
            self._intake.lag(self._source),
            report.last_commit_ms,
            report.held_records,
        )

    def close(self) -> None:
        """Close the processors. What is not committed is the task's to drop."""
        self._context.close()

    def _process_within_share(self, batch: InputBatch) -> int | None:
        """The records processed; None: not before another task of the slot has committed."""
        intake, memory = self._intake, self._memory
        portion = self._poison.portion(batch)
        if portion.alone and self._dirty:
            intake.put_back(batch)
            self.commit()
            return 0
        batch = intake.front(batch, portion.take)
        step = memory.plan_step(len(batch))
        if step.commit_first and not memory.make_room():
            intake.put_back(batch)
            return None
        if step.commit_first and self._dirty:
            intake.put_back(batch)
            self.commit()
            return 0
        batch = intake.front(batch, step.take)
        self._process(batch)
        if memory.is_full() and memory.make_room():
            self.commit()
        if portion.commit and self._dirty:
            self.commit()
        return len(batch)

    def _process(self, batch: InputBatch) -> None:
        self._committer.begin()
        self._dirty = True
        left = self._poison.pass_over(batch, self._context)
        if len(left):
            self._context.process(left)
        self._poison.passed()
        self._memory.grew(len(batch))
        self._records_in += len(batch)

    def _punctuate(self) -> None:
        """Fire what is due by the wall clock; what it wrote is committed like records' writes."""
        context, memory, now_ms = self._context, self._memory, self._clock.now_ms()
        if context.punctuations.wall_clock_due(now_ms):
            self._committer.begin()
            context.punctuations.wall_clock_is(now_ms)
            if context.has_written() or memory.usage() != _NOTHING:
                self._dirty = True
            if memory.is_full() and memory.make_room():
                self.commit()

    def _commit_is_due(self) -> bool:
        """After the interval, when asked for, at the planned end; of idle inputs once a day."""
        if not self._dirty:
            at_end = self._intake.finished() and self._inputs_moved()
            return at_end or self._committer.is_stale()
        return (
            self._context.commit_requested
            or self._intake.finished()
            or self._committer.interval_has_passed()
        )

    def _inputs_moved(self) -> bool:
        """Whether an input is to be committed at another offset than it was."""
        return any(self._intake.reached(tp) != at for tp, at in self._committer.offsets.items())

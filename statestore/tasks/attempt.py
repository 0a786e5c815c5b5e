"""One attempt of a stream task: all it does from its last commit on, until something fails.

Everything that going back to the last commit resets lies here and exists from the beginning: the
processors, the records that wait, what was processed and is not committed yet. When something
fails, the attempt is over, and the task begins a new one from its last commit (task.py). Two things
outlive an attempt, because they learn from how attempts end: how often the task may try again, and
how many records it takes at once.

    poll       records of the inputs                       intake.py decides on their order
    process    them, within the slot's share of memory     poison.py leaves out what cannot be taken
    punctuate  what is due by the wall clock
    commit     if a commit is due                          commit.py has the steps
"""

import logging
from typing import Final

from statestore import serdes
from statestore.errors import CommitUnknown, Fenced, StateStoreError, Unavailable, one_line
from statestore.metrics import count_commit, note_lags
from statestore.model.ids import TaskId, TopicPartition
from statestore.ports import Arrival, Clock, Source
from statestore.settings import Settings
from statestore.tasks.committer import Committer
from statestore.tasks.context import TaskContext
from statestore.tasks.event_time import EventTime
from statestore.tasks.intake import InputBatch, Intake
from statestore.tasks.memory_share import TaskMemory, Usage
from statestore.tasks.plan import Standing, TaskReport, Traffic
from statestore.tasks.poison import Poison, Rehearsed
from statestore.tasks.steps import Steps, at_once

_log = logging.getLogger(__name__)

_NOTHING: Final = Usage(0, 0)
_IN_A_ROW = 3
_STEP_S = 2.0
# A commit takes about this long even if it is empty, so a small batch's time says little.
_COMMIT_S = 0.1
_FIRST_RECORDS = 40_000
_LEAST_RECORDS = 1_000
_MOST_GROWTH = 16
# What share of the interval has to have passed for a commit beside those of other tasks.
_EARLY = 0.5


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
        retry: "RetryBudget",
        report: TaskReport,
        traffic: Traffic,
        times: EventTime,
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
        self._traffic = traffic
        self._times = times
        self._clock = clock
        self._records_in = 0
        self._dirty = False
        self._took_marks = False
        self._is_blocked = False
        """Whether records wait for memory that another task of the slot holds."""
        self._worked = 0, 0.0
        """How many records were processed last, and how long that took, with their commit."""

    def step(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms`, process, commit if due; return the number of records."""
        processed = self.work(timeout_ms)
        at_once(self.committing())
        return processed

    def arrival(self, limit_ms: int) -> Arrival | None:
        """Return when `work` may have something to do, at the latest in `limit_ms`.

        None: the source can only be polled.
        """
        found = self._intake.arrival(self._source, self._retry.batch_size.records)
        if found is None:
            return None
        wait_ms = self._context.punctuations.wait_ms(self._clock.now_ms(), limit_ms)
        within_s = 0.0 if self._is_blocked else min(found.within_s, wait_ms / 1000)
        if self._dirty or (self._took_marks and self._times.continuous):
            within_s = min(within_s, max(self._committer.until_interval_s(), 0.0))
        return found._replace(within_s=within_s)

    def work(self, timeout_ms: int) -> int:
        """Poll for up to `timeout_ms` and process; return the number of records.

        Commit only where memory or a failure demands it.
        """
        clock, intake, batch_size = self._clock, self._intake, self._retry.batch_size
        batch_size.took(*self._worked)
        began_ms, started = clock.now_ms(), clock.monotonic()
        if self._memory.take_request() and self._dirty:
            self.commit()
        wait_ms = self._context.punctuations.wait_ms(began_ms, timeout_ms)
        intake.poll(self._source, batch_size.records, wait_ms)
        polled = clock.monotonic()
        self._report.poll_seconds += polled - started
        if self._report.first_record_ms is None and intake.waiting():
            self._report.first_record_ms = began_ms
        processed, self._is_blocked = 0, False
        while (batch := intake.next_batch(clock.monotonic())) is not None:
            done = self._process_within_share(batch)
            if done is None:
                self._is_blocked = True
                break
            processed += done
            self._take_marks()
        self._take_marks()
        if processed:
            self._times.had_input(clock.monotonic())
        if self._times.settles and intake.finished():
            self.all_seen()
        self._punctuate()
        self._report.process_seconds += clock.monotonic() - polled
        self._worked = processed, clock.monotonic() - polled
        return processed

    def committing(self, *, beside: bool = False) -> Steps[None]:
        """Commit if it is due; `beside`: or will be soon, as others of the slot commit now."""
        if self.commit_is_due() or (beside and self._may_commit_early()):
            (records, worked_s), since_s = self._worked, self._clock.monotonic()
            yield from self._commit(last=False)
            self._worked = records, worked_s + self._clock.monotonic() - since_s

    def commit(self, *, last: bool = False) -> None:
        """Commit everything processed since the last commit; raise Rehearsed in a trial.

        `last`: there may be no more, so those below are told all.
        """
        at_once(self._commit(last=last))

    def _commit(self, *, last: bool) -> Steps[None]:
        context, report, clock = self._context, self._report, self._clock
        started = clock.monotonic()
        self._take_marks()
        offsets = self._intake.all_reached()
        if self._poison.on_trial:
            self._committer.rehearse(context.stream_time_ms)
            raise Rehearsed
        size, before = self._memory.usage().size_bytes, self._committer.tally
        waited = self._committer.waited()
        done = before.after(
            records_in=self._records_in,
            records_out=context.records_out,
            left_out=context.left_out.pending(),
        )
        self._committer.begin()
        self._announce(last=last)
        times = self._times.at_commit(
            context.stream_time_ms, context.seen_ms, self._intake.partition_times()
        )
        yield from self._committer.commit(offsets, times, done)
        self._memory.free()
        self._retry.committed()
        self._poison.committed(offsets)
        self._traffic.committed(context.consumed, context.sent)
        context.committed()
        spent_s = clock.monotonic() - started
        report.add_commit(spent_s, clock.now_ms(), size=size)
        count_commit(report.stream_task, spent_s, self._committer.waited().since(waited))
        report.count(before, done)
        report.held = context.held_back.by_store()
        self._records_in = 0
        self._dirty = self._took_marks = False

    def commit_is_due(self) -> bool:
        """Return whether a commit is due: after the interval, on request and at the planned end.

        If there is nothing else to commit, one is due once a day for idle inputs.
        """
        if not self._dirty:
            at_end = self._intake.finished() and (
                self._inputs_moved() or bool(self._times.announcer.sent)
            )
            return at_end or self._committer.is_stale() or self._has_news()
        return (
            self._context.commit_requested
            or self._intake.finished()
            or self._committer.interval_has_passed()
        )

    @property
    def has_open(self) -> bool:
        """Whether anything was processed since the last commit."""
        return self._dirty

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits to be processed, committed or told to those below."""
        has_news = self._dirty or self._took_marks or bool(self._times.announcer.sent)
        return not has_news and not self._intake.waiting()

    def all_seen(self) -> bool:
        """Note that all input there is was processed; return whether that let time pass."""
        self._times.watermarks.all_seen()
        return self._let_time_pass(next(iter(self._committer.offsets.items())))

    def needs_commit(self) -> bool:
        """Return whether there is anything to commit, if only the old offsets of idle inputs."""
        return (
            self._dirty
            or self._inputs_moved()
            or self._committer.is_stale()
            or bool(self._times.announcer.sent)
        )

    def finished(self) -> bool:
        """Return whether every input was processed and committed up to its planned end."""
        return (
            self._intake.finished()
            and not self._inputs_moved()
            and not self._dirty
            and not self._times.announcer.sent
            and self._context.punctuations.all_opened()
        )

    def caught_up(self) -> bool:
        """Return whether every input was processed up to its planned end."""
        return self._intake.finished()

    def waits_for_time(self) -> bool:
        """Return whether something would happen if no upstream task held time back."""
        return self._context.waits_for_time()

    def is_idle(self) -> bool:
        """Return whether nothing is to be committed and no input is known to have more."""
        return not self._dirty and self._intake.at_ends_of_logs(self._source)

    def has_punctuated(self) -> bool:
        """Return whether a punctuation was fired since the last commit."""
        return self._context.punctuations.has_fired

    def standing(self) -> Standing:
        """Return how far the task has come, without asking a broker."""
        report, context = self._report, self._context
        note_lags(report.stream_task, self._intake.lags(self._source))
        return Standing(
            report.stream_task,
            report.records_in + self._records_in,
            self._intake.lag(self._source),
            report.last_commit_ms,
            report.held_records,
            context.stream_time_ms,
            context.left_out.by_cause(),
            dict(self._traffic.taken),
            dict(self._traffic.sent),
        )

    def close(self) -> None:
        """Close the processors. The task drops what is not committed."""
        note_lags(self._report.stream_task, {})
        self._context.close()

    def _process_within_share(self, batch: InputBatch) -> int | None:
        """Return the number of records; None: another task of the slot must commit first."""
        intake, memory = self._intake, self._memory
        if self._fire_timers_before(batch):
            return 0
        portion = self._poison.portion(batch)
        if portion.alone and self._dirty:
            intake.put_back(batch)
            self.commit()
            return 0
        batch = intake.front(batch, portion.take)
        column, done = batch.records.values, 0
        values = column.packed(serdes.BYTES) or column.encoded(serdes.BYTES)
        while done < len(batch):
            step = memory.plan_step(values, done)
            if step.commit_first and done:
                break
            if step.commit_first and not memory.make_room():
                intake.put_back(batch)
                return None
            if step.commit_first and self._dirty:
                intake.put_back(batch)
                self.commit()
                return 0
            part = batch
            if step.take < len(batch):
                part = batch.slice(done, done + step.take)
            if done and self._context.has_timers_before(part):
                break
            self._process(part)
            done += len(part)
            if memory.is_full():
                break
        if done < len(batch):
            intake.put_back(batch.slice(done, len(batch)))
        is_full = memory.is_full() and memory.make_room()
        if is_full or (portion.commit and done == len(batch) and self._dirty):
            self.commit()
        return done

    def _fire_timers_before(self, batch: InputBatch) -> bool:
        """Fire timers that are due before a batch; commit between them if they are many.

        Return whether the batch was put back, as some may be left. Timers that are due within the
        batch fire as it is processed. So do these if a record of it may be passed over, which does
        not move stream time.
        """
        context, memory = self._context, self._memory
        if self._poison.judges_singly or not context.has_timers_before(batch):
            return False
        self._committer.begin()
        self._dirty = True
        are_left = context.fire_timers_before(batch)
        is_full = memory.is_full() and memory.make_room()
        if not (are_left or is_full):
            return False
        self._intake.put_back(batch)
        if is_full or self._committer.interval_has_passed():
            self.commit()
        return True

    def _process(self, batch: InputBatch) -> None:
        self._committer.begin()
        self._dirty = True
        left = self._poison.pass_over(batch, self._context)
        if len(left):
            self._context.process(left)
        self._poison.passed()
        self._committer.processed(batch.tp, batch.offsets[-1])
        self._memory.grew()
        self._records_in += len(batch)
        self._context.consumed[batch.tp] += len(batch)

    def _take_marks(self) -> None:
        """Take in what upstream tasks said of how far they have come, and let time pass."""
        for tp, offset, mark in self._intake.take_marks():
            self._took_marks = True
            self._times.watermarks.take(tp.topic, mark)
            self._let_time_pass((tp, offset))

    def _let_time_pass(self, after: tuple[TopicPartition, int]) -> bool:
        """Let stream time rise as far as it may; what that writes is committed like all else."""
        context, memory = self._context, self._memory
        if not context.time_may_pass():
            return False
        before = memory.usage(), context.stream_time_ms
        self._committer.begin()
        context.let_time_pass(after)
        after_all = memory.usage(), context.stream_time_ms
        if context.has_written() or before != after_all:
            self._dirty = True
        return before != after_all

    def _announce(self, *, last: bool) -> None:
        """Tell those below how far this task has come, within the open transaction."""
        announcer, intake = self._times.announcer, self._intake
        if not announcer:
            return
        now_s, done = self._clock.monotonic(), last or intake.finished()
        marks = announcer.news(self._context, idle=self._is_resting(), now_s=now_s, done=done)
        if marks:
            self._committer.announce(marks, announcer, now_s)

    def _is_resting(self) -> bool:
        """Return whether the task of a continuous run has had nothing to do for long enough."""
        if self._intake.waiting() or not self._times.has_waited(self._clock.monotonic()):
            return False
        return self._intake.at_ends_of_logs(self._source)

    def _punctuate(self) -> None:
        """Fire what is due by the wall clock; its writes are committed like those of records."""
        context, memory, now_ms = self._context, self._memory, self._clock.now_ms()
        if context.punctuations.wall_clock_due(now_ms):
            self._committer.begin()
            context.punctuate(now_ms)
            if context.has_written() or memory.usage() != _NOTHING:
                self._dirty = True
            if memory.is_full() and memory.make_room():
                self.commit()

    def _may_commit_early(self) -> bool:
        return self._dirty and self._committer.interval_has_passed(share=_EARLY)

    def _has_news(self) -> bool:
        """Return whether a commit would say more of time, to those below or of what was taken."""
        announcer, times = self._times.announcer, self._times
        if not times.continuous or not self._committer.interval_has_passed():
            return False
        if self._took_marks or not announcer:
            return self._took_marks
        now_s = self._clock.monotonic()
        return bool(announcer.news(self._context, idle=self._is_resting(), now_s=now_s))

    def _inputs_moved(self) -> bool:
        """Return whether the offset to commit of any input differs from the committed one."""
        return any(self._intake.reached(tp) != at for tp, at in self._committer.offsets.items())


class RetryBudget:
    """Counts how often a task goes back to its last commit before it gives up (SEMANTICS E5).

    It goes back three times in a row. The next failure ends the run, and a later run may succeed. A
    lost transaction also halves the batches.
    """

    def __init__(self, task: TaskId, settings: Settings, clock: Clock) -> None:
        self.batch_size = AdaptiveBatchSize(settings.batch_max_records)
        self._task = task
        self._quiet_s = settings.request_timeout_ms / 1000
        self._clock = clock
        self._failures = 0
        self._failed_s = 0.0

    def failed(self, error: StateStoreError) -> None:
        """Count a failure; raise the fourth in a row, as an error after which a run is retried."""
        self._failures += 1
        self._failed_s = self._clock.monotonic()
        if self._failures > _IN_A_ROW:
            if not isinstance(error, Fenced):
                raise error
            raise Unavailable(
                f"task {self._task}: {self._failures} transactions in a row expired, the last with "
                f"batches of {self.batch_size.cap} records, or were taken over: raise "
                "transaction.timeout.ms, or lower statestore.batch.max.records or "
                "commit.interval.ms; and end any other run of this application that has a "
                "state dir of its own"
            ) from error
        if isinstance(error, Fenced | CommitUnknown):
            self.batch_size.halve()
        _log.warning(
            "task %s: %s; going back to the last commit (%d of %d)",
            self._task,
            one_line(error),
            self._failures,
            _IN_A_ROW,
        )

    def committed(self) -> None:
        """Note a commit: failures before it no longer count."""
        self._failures = 0
        self.batch_size.committed()

    def idle(self) -> None:
        """Note that there is nothing to commit: a failure long ago does not count with the next."""
        if self._clock.monotonic() - self._failed_s > self._quiet_s:
            self._failures = 0


class AdaptiveBatchSize:
    """The size of the next batch: about as many records as the task can process in two seconds.

    The more records it takes at once, the less work each record is: a key that comes again costs
    nothing more in the store, the changelog and the output of an aggregate. But a batch lies in
    memory and is committed as a whole.

    A transaction that was lost may have been too long for transaction.timeout.ms, so it halves the
    size; each commit gives some of that back.
    """

    def __init__(self, most: int) -> None:
        """`most`: the largest size, in records."""
        self._most = most
        self._in_time = min(most, _FIRST_RECORDS)
        self.cap = most
        """The largest size after lost transactions."""

    @property
    def records(self) -> int:
        """The number of records to take now."""
        return min(self.cap, self._in_time)

    def took(self, records: int, seconds: float) -> None:
        """Note how long it took to process these records, and to commit them if that was due."""
        # With few records, most of the time is not spent on the records.
        if 2 * records < self._in_time:
            return
        spent_s = seconds - _COMMIT_S
        in_time = _MOST_GROWTH * records
        if spent_s > 0:
            in_time = min(in_time, int(records * (_STEP_S - _COMMIT_S) / spent_s))
        self._in_time = min(self._most, max(_LEAST_RECORDS, in_time))

    def halve(self) -> None:
        """Note that a transaction was lost."""
        self.cap = max(1, self.records // 2)

    def committed(self) -> None:
        """Note that a transaction was committed."""
        self.cap = min(self.cap + self.cap // 16 + 1, self._most)

"""What stream time was as each record of a batch came: the same wherever the batch ends.

Stream time is the largest timestamp of the task's input so far. A batch passes one operator after
another, so an operator that asks the task finds the time before the batch; a record that another
operator dropped counts too. So the task writes it beside the records of a batch, where a node asked
for that, and operators carry it along.
"""

from itertools import accumulate
from operator import gt
from typing import Protocol

from statestore.model.batch import Batch


class Clocked(Protocol):
    """What tells stream time before a batch."""

    def stream_time(self) -> int | None: ...


def in_order(times: list[int]) -> bool:
    """Whether none is earlier than the one before it."""
    return not any(map(gt, times, times[1:]))


def running(before_ms: int | None, times: list[int]) -> list[int]:
    """The largest so far, at each of `times`; `before_ms`: before them, if there was any."""
    first = times[0] if before_ms is None else max(before_ms, times[0])
    if first == times[0] and in_order(times):
        return times
    return list(accumulate(times[1:], max, initial=first))


def stream_times(context: Clocked, batch: Batch) -> list[int]:
    """Per record; of records that no input brought, as if it had brought them."""
    if batch.stream_times is not None:
        return batch.stream_times
    return running(context.stream_time(), batch.timestamps)

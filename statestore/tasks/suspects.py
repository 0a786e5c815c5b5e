"""The search for what failed, where the failure itself does not say (docs/adr/0009).

Input records that are suspects are tried again in lots, each in a transaction of its own. A lot
that fails is tried again in smaller lots, until one record fails alone. Of the items that waited in
an operator, the task hands on only the first few, in transactions that it never commits. The last
item of the smallest number that fails is the one.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statestore import serdes
from statestore.errors import one_line
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import SESSION_BYTES, WINDOW_BYTES, Header
from statestore.topology.failures import NodeFailed
from statestore.topology.nodes import Origin

_log = logging.getLogger(__name__)
_LOTS = 16
_NONE_YET = -1


class SuspectBatch(NamedTuple):
    """Records of one input, from offset `first` to offset `last`, both inclusive."""

    tp: TopicPartition
    first: int
    last: int
    records: int


class Suspects:
    """The input records of one stream task among which one is known to have failed."""

    def __init__(self, task_id: TaskId) -> None:
        self._task_id = task_id
        # Per input the offsets at which a new lot begins, and last the one after the last lot.
        self._bounds: dict[TopicPartition, list[int]] = {}

    def cut(self, tp: TopicPartition, offsets: Sequence[int]) -> tuple[int, bool]:
        """Return how many of these records to try at once, and whether to commit them alone."""
        bounds = self._bounds.get(tp)
        if bounds is None or offsets[0] >= bounds[-1]:
            return len(offsets), False
        take = bisect_left(offsets, bounds[bisect_right(bounds, offsets[0])])
        return take, offsets[0] >= bounds[0]

    def divide(self, lot: SuspectBatch, failed: NodeFailed) -> None:
        """Try a lot that failed again, in smaller lots."""
        tp, first, after = lot.tp, lot.first, lot.last + 1
        tried = self._bounds.get(tp)
        if failed.culprits and (tried is None or not tried[0] <= first < tried[-1]):
            offset = failed.culprits[0].offset
            bounds = sorted({first, offset, offset + 1})
        else:
            bounds = [*range(first, after, -(-(after - first) // _LOTS)), after]
        self._bounds[tp] = bounds
        _log.info(
            "task %s: %s; to find the record, %s offsets %d to %d are tried again in %d lots",
            self._task_id,
            one_line(failed),
            tp,
            first,
            bounds[-1] - 1,
            len(bounds) - 1,
        )

    def isolate(self, lot: SuspectBatch) -> None:
        """Try a lot again, in a transaction of its own."""
        self._bounds[lot.tp] = [lot.first, lot.last + 1]

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that the inputs are committed up to these offsets, exclusive."""
        for tp, offset in offsets.items():
            bounds = self._bounds.get(tp)
            if bounds is not None and bounds[-1] <= offset:
                del self._bounds[tp]


class HeldItem(NamedTuple):
    """An item that waited in `store`; equal items are interchangeable."""

    store: str
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[Header, ...]
    origin: Origin | None
    what: str

    def __str__(self) -> str:
        if self.origin is not None:
            tp, offset = self.origin
            return f"{tp} offset {offset}, which waited in store {self.store!r}"
        key = self.key or b""
        what = self.what.format(
            key=_text(key),
            in_window=_text(key[:-WINDOW_BYTES]),
            in_session=_text(key[:-SESSION_BYTES]),
            start=int.from_bytes(key[-WINDOW_BYTES:], "big", signed=True),
            time=self.time_ms,
        )
        return f"{what} in store {self.store!r}"


def _text(key: bytes) -> str:
    return f"b'{serdes.printable(key)}'"


class TrialResult(NamedTuple):
    """What trials have shown: which item failed; None: the failure needs none of them."""

    item: HeldItem | None
    failed: NodeFailed


class _Trial:
    """The first `passing` items succeed, the first `failing` fail; `limit` items are tried now."""

    def __init__(self, failed: NodeFailed, failing: int, hint: int) -> None:
        self.failed = failed
        self.passing = _NONE_YET
        self.failing = failing
        self.limit = 0
        self.hint = hint

    def narrow(self) -> None:
        """Choose the next limit."""
        low, high, hint = self.passing, self.failing, self.hint
        self.limit = (low + high) // 2
        if low < hint < high:
            self.limit = hint
        elif low < hint + 1 < high:
            self.limit = hint + 1


class HeldTrials:
    """The items that waited in one stream task and that this transaction has handed on."""

    def __init__(self, task_id: TaskId) -> None:
        self._task_id = task_id
        self._trial: _Trial | None = None
        self._tried: list[HeldItem] = []
        self.handed_on = 0
        """The number of items handed on since the last commit."""

    @property
    def is_on(self) -> bool:
        """Whether a trial is running, which is not committed."""
        return self._trial is not None

    def admits(self, item: HeldItem) -> bool:
        """Return whether to hand on the next item; outside a trial, every item is."""
        if self._trial is None:
            return True
        self._tried.append(item)
        return len(self._tried) <= self._trial.limit

    def begin(self, failed: NodeFailed, hint: int | None) -> bool:
        """Begin to try the items handed on in this transaction; return False if there are none.

        `hint`: the number of items handed on before the one that seems to have failed.
        """
        if not self.handed_on:
            return False
        self._trial = _Trial(failed, self.handed_on, _NONE_YET if hint is None else hint)
        _log.info(
            "task %s: %s; to find out which, the %d that waited are tried in part",
            self._task_id,
            one_line(failed),
            self.handed_on,
        )
        return True

    def ended(self, failed: NodeFailed | None) -> TrialResult | None:
        """Note how a trial failed, None if it succeeded; return None if another trial follows."""
        trial = self._trial
        if trial is None:
            return None
        if failed is None:
            trial.passing = trial.limit
        elif trial.limit == 0:
            self._trial = None
            return TrialResult(None, failed)
        else:
            trial.failing, trial.failed = trial.limit, failed
        if trial.passing + 1 < trial.failing:
            trial.narrow()
            return None
        self._trial = None
        if trial.passing >= len(self._tried):
            where = "what waited, but not in the same way when it was tried again"
            raise trial.failed.error(where, trial.failed.cause) from trial.failed.cause
        return TrialResult(self._tried[trial.passing], trial.failed)

    def stop(self) -> None:
        """End the trials, because it is known what failed."""
        self._trial = None

    def went_back(self) -> None:
        """Forget what was handed on since the last commit."""
        self._tried = []
        self.handed_on = 0

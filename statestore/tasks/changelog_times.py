"""Times of changelog records that Kafka's client cannot send: 0 means "now" to it, less is refused.

Such a record is stamped 1 and carries its true time in a header. So is one whose true time is 1.
"""

from collections.abc import Sequence
from typing import Final

from statestore.model.batch import Batch
from statestore.model.records import Header

_STAMP: Final = 1
_HEADER: Final = "statestore-time"
Headers = list[tuple[Header, ...]]


def sendable(times: list[int]) -> tuple[list[int], Headers | None]:
    """What to stamp the records with, and their headers if any needs one."""
    if min(times, default=_STAMP + 1) > _STAMP:
        return times, None
    headers: Headers = [((_HEADER, b"%d" % t),) if t <= _STAMP else () for t in times]
    return [max(time, _STAMP) for time in times], headers


def true_times(batch: Batch) -> list[int]:
    """The times the records were sent for."""
    if _STAMP not in batch.timestamps or batch.headers is None:
        return batch.timestamps
    return [
        _true(batch.headers[i]) if time == _STAMP else time
        for i, time in enumerate(batch.timestamps)
    ]


def _true(headers: Sequence[Header]) -> int:
    found = dict(headers).get(_HEADER)
    return _STAMP if found is None else int(found)

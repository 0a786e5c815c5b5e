"""What may be asked of a server for rows; each question knows how to ask the service.

The fields are the parameters of a URL, which endpoints.py reads and describes.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from statestore.model.modes import parse_time, to_ms
from statestore.reading import questions
from statestore.serving.documents import row_answer, rows_answer
from statestore.serving.encoding import Encoding
from statestore.serving.service import StateService
from statestore.serving.values import RowsFound

WAIT_MAX_MS: Final = 60_000
_LIMIT_MAX: Final = 10_000
_Text = str | None
_Key = Annotated[
    str, Meta(description="The key: text under STRING, base64 under BYTES and raw, else JSON.")
]
_AsOf = Annotated[_Text, Meta(description="ISO-8601 with a zone, or ms since the epoch.")]
_Lowest = Annotated[_Text, Meta(description="The lowest key.")]
_Highest = Annotated[_Text, Meta(description="The highest key.")]
_From = Annotated[_Text, Meta(description="From this time on, inclusive.")]
_To = Annotated[_Text, Meta(description="Up to this time, inclusive.")]
_Partition = Annotated[int, Meta(ge=0)] | None
_Limit = Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="Rows at most.")]
_WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MAX_MS, description="How long to wait for that.")]
_POSITION: Final = (
    "topic:partition:offset of a record of an input that must have been processed; may be repeated."
)
_PREFIX: Final = "Only keys whose bytes begin with those of this key."


class RowsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What every question for rows may say."""

    raw: Annotated[bool, Meta(description="Keys and values as base64 of their bytes.")] = False
    partition: Annotated[_Partition, Meta(description="Look only at this partition.")] = None
    min_position: Annotated[list[str], Meta(description=_POSITION)] = []
    wait_ms: _WaitMs = 5000


class GetQuery(RowsQuery, frozen=True):
    """Return the row of a key, now or as of a time; null if there is none."""

    key: _Key
    as_of: _AsOf = None

    def answer(self, service: StateService, store: str) -> bytes:
        encoding = service.encoding(store, raw=self.raw)
        keys = [encoding.key_of_text(self.key)]
        found = service.get(store, keys, as_of_ms=_time_ms(self.as_of), partition=self.partition)
        return row_answer(found, encoding)


class KeysQuery(RowsQuery, frozen=True, kw_only=True):
    """What every question for a range of keys may say."""

    prefix: Annotated[_Text, Meta(description=_PREFIX)] = None
    reverse: Annotated[bool, Meta(description="Begin with the largest key.")] = False
    limit: _Limit = 1000
    page_token: Annotated[_Text, Meta(description="next_page_token of the page before.")] = None

    def wanted(self, encoding: Encoding) -> questions.Range:
        """Return the range; Misuse if a key or a time cannot be read."""
        raise NotImplementedError

    def answer(self, service: StateService, store: str) -> bytes:
        encoding = service.encoding(store, raw=self.raw)
        wanted = self.wanted(encoding)
        found = service.range(store, wanted, limit=self.limit, page_token=self.page_token)
        return rows_answer(found, encoding)

    def _range(self, encoding: Encoding, *ends: str | None) -> questions.Range:
        lo, hi, prefix = (
            None if text is None else encoding.key_of_text(text) for text in (*ends, self.prefix)
        )
        reverse, partition = self.reverse, self.partition
        return questions.Range(lo=lo, hi=hi, prefix=prefix, reverse=reverse, partition=partition)


class RangeQuery(KeysQuery, frozen=True):
    """Return rows by key, or by time in a store with windows; all pages are of one moment.

    With `Accept: application/vnd.apache.arrow.stream` all rows come as one stream.
    """

    lowest: _Lowest = field(default=None, name="from")
    highest: _Highest = field(default=None, name="to")
    as_of: _AsOf = None

    def wanted(self, encoding: Encoding) -> questions.Range:
        found = self._range(encoding, self.lowest, self.highest)
        return msgspec.structs.replace(found, as_of_ms=_time_ms(self.as_of))


class RangeHistoryQuery(KeysQuery, frozen=True):
    """Return the versions of keys that were valid in a span of time; pages are of one moment.

    With `Accept: application/vnd.apache.arrow.stream` all of them come as one stream.
    """

    lowest: _Lowest = field(default=None, name="from_key")
    highest: _Highest = field(default=None, name="to_key")
    first: _From = field(default=None, name="from")
    last: _To = field(default=None, name="to")
    ascending: Annotated[bool, Meta(description="Of each key the oldest first.")] = False

    def wanted(self, encoding: Encoding) -> questions.Range:
        found = self._range(encoding, self.lowest, self.highest)
        first_ms, last_ms = _time_ms(self.first), _time_ms(self.last)
        span = questions.VersionSpan(first_ms=first_ms, last_ms=last_ms, ascending=self.ascending)
        return msgspec.structs.replace(found, times=span)


class WindowsQuery(RowsQuery, frozen=True):
    """Return windows of a key that start in a span of time, or sessions that overlap it."""

    key: _Key
    first: _From = field(default=None, name="from")
    last: _To = field(default=None, name="to")
    limit: _Limit = _LIMIT_MAX

    def answer(self, service: StateService, store: str) -> bytes:
        encoding = service.encoding(store, raw=self.raw)
        found = self._finder(service)(
            store,
            encoding.key_of_text(self.key),
            from_ms=_time_ms(self.first),
            to_ms=_time_ms(self.last),
            partition=self.partition,
            limit=self.limit,
        )
        return rows_answer(found, encoding)

    def _finder(self, service: StateService) -> Callable[..., RowsFound]:
        return service.windows


class HistoryQuery(WindowsQuery, frozen=True):
    """Return the versions of a key that were valid in a span of time."""

    ascending: Annotated[bool, Meta(description="Begin with the oldest.")] = False

    def _finder(self, service: StateService) -> Callable[..., RowsFound]:
        return partial(service.history, ascending=self.ascending)


class ManyKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of get-many."""

    keys: list[Any]
    as_of: str | int | None = None
    raw: bool = False
    partition: int | None = None
    min_position: list[str] = []
    wait_ms: int = 5000

    def answer(self, service: StateService, store: str) -> bytes:
        encoding = service.encoding(store, raw=self.raw)
        keys = [encoding.key(key) for key in self.keys]
        found = service.get(store, keys, as_of_ms=_time_ms(self.as_of), partition=self.partition)
        return rows_answer(found, encoding)


Question = GetQuery | RangeQuery | RangeHistoryQuery | WindowsQuery | HistoryQuery | ManyKeys


def _time_ms(time: str | int | None) -> int | None:
    return None if time is None else to_ms(parse_time(str(time)))

"""Long answers in pages, all of the moment at which the first page was read.

A token names a scan that is kept open and the number of a page. The last page is kept as well, so a
page whose answer was lost can be asked for again. A scan is closed when nobody has asked for a page
for a while, or when there are too many: then its token has expired.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from statestore.errors import Misuse, PageExpired
from statestore.ports import Clock

T = TypeVar("T")
_OPEN_MAX = 256
_PAGE_MAX_BYTES = 8 << 20
"""A page ends earlier than its limit if its rows are larger than this."""


class RowPage(NamedTuple, Generic[T]):
    """Rows, and the token of the next page; None: these are the last ones."""

    rows: list[T]
    next_token: str | None
    about: Any
    """What the first page was told with all of them, such as their freshness."""


@dataclass
class _Open:
    rows: Iterator[Any]
    close: Callable[[], None]
    about: Any
    subject: str
    size_of: Callable[[Any], int]
    used_s: float
    number: int = 0
    last: "RowPage[Any] | None" = None
    ahead: list[Any] = field(default_factory=list)
    busy: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False


class RowPages:
    """The scans that are open between two pages. For any thread."""

    def __init__(self, clock: Clock, *, kept_s: float = 60, open_max: int = _OPEN_MAX) -> None:
        self._clock = clock
        self._kept_s = kept_s
        self._open_max = open_max
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def first(
        self,
        rows: Iterator[T],
        limit: int,
        *,
        subject: str,
        about: Any,
        size_of: Callable[[T], int],
        close: Callable[[], None],
    ) -> RowPage[T]:
        """Read the first page. `subject`: what is asked, for which alone the token is good."""
        scan = _Open(rows, close, about, subject, size_of, self._clock.monotonic())
        try:
            token = secrets.token_urlsafe(12)
            page = self._read(scan, token, limit)
        except BaseException:
            close()
            raise
        if page.next_token is None:
            close()
            return page
        with self._lock:
            self._open[token] = scan
        self.sweep()
        return page

    def next(self, token: str, limit: int, *, subject: str) -> RowPage[Any]:
        """Read the page that a token names; PageExpired if its scan is closed."""
        name, _, number = token.partition(".")
        self.sweep()
        with self._lock:
            scan = self._open.get(name)
        if not number.isdecimal() or (scan is not None and scan.subject != subject):
            raise Misuse(
                "page_token: it is not of this request: repeat the first request's parameters, or "
                "leave page_token out to begin anew"
            )
        if scan is None:
            raise self._expired()
        with scan.busy:
            if scan.closed:
                raise self._expired()
            scan.used_s = self._clock.monotonic()
            if number == str(scan.number) and scan.last is not None:
                return scan.last
            if number != str(scan.number + 1):
                raise self._expired()
            page = self._read(scan, name, limit)
        with self._lock:
            if name in self._open:
                self._open.move_to_end(name)
        return page

    def sweep(self) -> None:
        """Close the scans that nobody goes on with, and the oldest of too many."""
        before_s = self._clock.monotonic() - self._kept_s
        with self._lock:
            gone = [name for name, scan in self._open.items() if scan.used_s < before_s]
            beyond = len(self._open) - len(gone) - self._open_max
            gone += [name for name in self._open if name not in gone][: max(beyond, 0)]
            scans = [self._open.pop(name) for name in gone]
        for scan in scans:
            _close(scan)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            scans = list(self._open.values())
            self._open.clear()
        for scan in scans:
            _close(scan)

    def _read(self, scan: _Open, name: str, limit: int) -> RowPage[Any]:
        rows, size = scan.ahead, sum(map(scan.size_of, scan.ahead))
        for row in scan.rows:
            # One row more than the page has tells that another page follows.
            rows.append(row)
            size += scan.size_of(row)
            if len(rows) > limit or (size > _PAGE_MAX_BYTES and len(rows) > 1):
                limit = len(rows) - 1
                break
        scan.ahead = rows[limit:]
        scan.number += 1
        token = f"{name}.{scan.number + 1}" if scan.ahead else None
        scan.last = RowPage(rows[:limit], token, scan.about)
        return scan.last

    def _expired(self) -> PageExpired:
        return PageExpired(
            f"page_token: its pages are gone, because nobody asked for {self._kept_s:g} s, the "
            "server has begun anew, or too many others were asked for: leave page_token out to "
            "begin anew"
        )


def _close(scan: _Open) -> None:
    with scan.busy:
        if not scan.closed:
            scan.closed = True
            scan.close()

"""The naive interpreter's tables: rows in dicts, one update at a time, each told to who follows."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from statestore.model.records import Windowed

Key = Any


class Fact(NamedTuple):
    """A record: `time` in ms; of a table's update, `old` is the value replaced."""

    key: Key
    value: Any
    time: int
    old: Any = None


class Row(NamedTuple):
    """What a table has of a key: a value, and the latest time of what it was made of."""

    value: Any
    time: int


Stage = Callable[[Fact], Iterator[Fact]]
Listener = Callable[[Fact], None]
Joiner = Callable[[Any, Any, Any], Any]
"""Of a key and of two values that met."""
Fold = Callable[[Any, Any], Any]


class Table:
    """What can be looked up, and who is told of its updates, in the order of the pipeline."""

    history: "History | None" = None

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def tell(self, listener: Listener) -> None:
        """Tell `listener` of each update from now on."""
        self._listeners.append(listener)

    def row(self, key: Key) -> Row | None:
        raise NotImplementedError

    def as_of(self, key: Key, _time: int, _tolerance: int | None = None) -> Any:
        """The value a stream's record of this time is joined with, None if there is none."""
        return value_of(self.row(key))

    def updated(self, update: Fact) -> None:
        for listener in self._listeners:
            listener(update)


class Kept(Table):
    """A table with rows of its own: the latest value to come."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Key, Row] = {}

    def row(self, key: Key) -> Row | None:
        return _fresh(self.rows.get(key))

    def keep(self, update: Fact) -> None:
        """Take over an update as it is, then tell of it."""
        put(self.rows, update)
        self.updated(update)

    def take(self, fact: Fact) -> None:
        """A record of the stream this table is made of."""
        if fact.key is not None:
            self.keep(fact._replace(old=value_of(self.row(fact.key))))


class History(Kept):
    """The latest version of each key, and all there ever were."""

    def __init__(self, retention_ms: int) -> None:
        super().__init__()
        self.history = self
        self.retention_ms = retention_ms
        self._now: int | None = None
        self._versions: dict[Key, dict[int, Any]] = {}
        self._before: list[Listener] = []
        self._followers: list[Listener] = []

    def wake(self, waiting: Listener) -> None:
        """Before each update, those that wait are joined, if they are due with it."""
        self._before.append(waiting)

    def follow(self, follower: Listener) -> None:
        """Tell `follower` of every version that is kept, also of those that are no latest ones."""
        self._followers.append(follower)

    def take(self, fact: Fact) -> None:
        for waiting in self._before:
            waiting(fact)
        if fact.key is not None and not self._too_late(fact.time):
            self._put(fact)

    def _too_late(self, time: int) -> bool:
        self._now = time if self._now is None else max(self._now, time)
        return time < self._now - self.retention_ms

    def _put(self, fact: Fact) -> None:
        versions = self._versions.setdefault(fact.key, {})
        newest = max(versions, default=fact.time)
        versions[fact.time] = fact.value
        if fact.time >= newest:
            self.keep(fact._replace(old=value_of(self.row(fact.key))))
        for follower in self._followers:
            follower(fact)

    def as_of(self, key: Key, time: int, tolerance: int | None = None) -> Any:
        versions = self._versions.get(key, {})
        begun = [t for t in versions if t <= time]
        if not begun:
            return None
        assert self._now is not None
        gone = time < self._now - self.retention_ms and max(begun) != max(versions)
        old = tolerance is not None and max(begun) + tolerance < time
        return None if gone or old else copy.deepcopy(versions[max(begun)])


class FoldedHistory(History):
    """An aggregate by key and all its versions: none is before the one that it replaces."""

    def __init__(self, retention_ms: int, fold: Callable[[Any, Any], Any]) -> None:
        """`fold(aggregate or None, value)`."""
        super().__init__(retention_ms)
        self._fold = fold

    def take(self, fact: Fact) -> None:
        for waiting in self._before:
            waiting(fact)
        if fact.key is None or fact.value is None:
            return
        time = max(fact.time, *self._versions.get(fact.key, {}), fact.time)
        if not self._too_late(time):
            made = self._fold(value_of(self.row(fact.key)), fact.value)
            self._put(fact._replace(value=made, time=time))


class Versions(History):
    """The versions of a view: those of its parent's history, or its updates if it has none."""

    def __init__(self, parent: Table, retention_ms: int) -> None:
        super().__init__(retention_ms)
        if parent.history is None:
            parent.tell(self.take)
        else:
            parent.history.follow(
                lambda fact: self.take(fact._replace(value=parent.as_of(fact.key, fact.time)))
            )

    def updated(self, update: Fact) -> None:
        if (update.value, update.old) != (None, None):
            super().updated(update)


class Folded(Kept):
    """An aggregate by key: stamped with the latest of its records, as long as it is there."""

    def __init__(self, fold: Callable[[Any, Any], Any]) -> None:
        """`fold(aggregate or None, value)`."""
        super().__init__()
        self._fold = fold

    def take(self, fact: Fact) -> None:
        if fact.key is not None and fact.value is not None:
            old = self.row(fact.key)
            time = fact.time if old is None else max(fact.time, old.time)
            made = self._fold(value_of(old), fact.value)
            self.keep(Fact(fact.key, made, time, value_of(self.row(fact.key))))


class CountWindows(Kept):
    """The last result of each key in windows of so many records, made of all records ever."""

    def __init__(self, size: int, advance: int, fold: Fold, *, final: bool) -> None:
        super().__init__()
        self._size, self._advance, self._fold, self._final = size, advance, fold, final
        self._taken: dict[Key, list[Fact]] = {}

    def take(self, fact: Fact) -> None:
        if fact.key is None or fact.value is None:
            return
        taken = self._taken.setdefault(fact.key, [])
        taken.append(fact)
        begun = range(0, len(taken), self._advance)
        around = [start for start in begun if start + self._size >= len(taken)]
        full = [start for start in around if start + self._size == len(taken)]
        for start in full or ([] if self._final else around[:1]):
            value = None
            for one in taken[start:]:
                value = self._fold(value, copy.deepcopy(one.value))
            time = max(one.time for one in taken[start:])
            self.keep(Fact(fact.key, value, time, value_of(self.row(fact.key))))


class Windows(Kept):
    """An aggregate by key and window; null values reach the function too. `final`: on close."""

    def __init__(
        self, size: int, hop: int, grace: int, fold: Callable[[Any, Any], Any], *, final: bool
    ) -> None:
        """`hop`: how far apart windows start."""
        super().__init__()
        self._size, self._hop, self._grace, self._fold, self._final = size, hop, grace, fold, final
        self._now = -1
        self._told = -1

    def take(self, fact: Fact) -> None:
        if fact.key is None:
            return
        self._now = max(self._now, fact.time)
        for start in range(max(fact.time - self._size, -1) + 1, fact.time + 1):
            open_still = start + self._size > self._now - self._grace
            if start % self._hop == 0 and open_still:
                self._count(Windowed(fact.key, start, start + self._size), fact)
        if self._final:
            self._close()
        for window in [w for w in self.rows if w.end_ms <= self._now - self._grace]:
            del self.rows[window]

    def _count(self, window: "Windowed[Any]", fact: Fact) -> None:
        old = self.row(window)
        time = fact.time if old is None else max(fact.time, old.time)
        update = Fact(window, self._fold(value_of(old), fact.value), time, value_of(old))
        if self._final:
            put(self.rows, update)
        else:
            self.keep(update)

    def _close(self) -> None:
        closed = [w for w in self.rows if w.end_ms <= self._now - self._grace]
        for window in sorted(closed, key=lambda w: (w.start_ms, w.key)):
            row = self.rows[window]
            self.updated(Fact(window, row.value, row.time))


class Sessions(Kept):
    """An aggregate by key and session; closed sessions take no more records."""

    def __init__(
        self, gap: int, grace: int, fold: Fold, merge: Fold, zero: Any, *, final: bool
    ) -> None:
        """`zero`: the aggregate before the first record."""
        super().__init__()
        self._gap, self._grace, self._final = gap, grace, final
        self._fold, self._merge, self._zero = fold, merge, zero
        self._now = -1

    def take(self, fact: Fact) -> None:
        if fact.key is None:
            return
        self._now = max(self._now, fact.time)
        closed = self._now - self._grace - self._gap
        if fact.time >= 0:
            self._count(fact, closed)
        ended = [w for w in self.rows if w.end_ms < closed]
        for session in sorted(ended, key=lambda w: (w.end_ms, w.start_ms, w.key)):
            row = self.rows.pop(session)
            if self._final:
                self.updated(Fact(session, row.value, session.end_ms))

    def _count(self, fact: Fact, closed: int) -> None:
        reached = sorted(
            (
                w
                for w in self.rows
                if w.key == fact.key
                and w.end_ms >= max(fact.time - self._gap, closed)
                and w.start_ms <= fact.time + self._gap
            ),
            key=lambda w: w.end_ms,
        )
        if not reached and fact.time < closed:
            return
        start = min([fact.time, *(w.start_ms for w in reached)])
        end = max([fact.time, *(w.end_ms for w in reached)])
        value, old = copy.deepcopy(self._zero), None
        for session in reached:
            row = self.row(session)
            assert row is not None
            value = self._merge(value, row.value)
            if (start, end) == (session.start_ms, session.start_ms):
                old = row.value
            else:
                self._told(Fact(session, None, session.end_ms, row.value))
        made = self._fold(value, copy.deepcopy(fact.value))
        self._told(Fact(Windowed(fact.key, start, end), made, end, old))

    def _told(self, update: Fact) -> None:
        if self._final:
            put(self.rows, update)
        else:
            self.keep(update)


class View(Table):
    """Rows of another, each through a function; None: it is not shown. `quiet`: nor told of."""

    def __init__(self, parent: Table, shown: Callable[[Key, Any], Any], *, quiet: bool) -> None:
        super().__init__()
        self._parent, self._shown, self._quiet = parent, shown, quiet
        self.history = parent.history
        parent.tell(self._answer)

    def row(self, key: Key) -> Row | None:
        row = self._parent.row(key)
        value = None if row is None else self._show(key, row.value)
        return None if value is None or row is None else Row(value, row.time)

    def as_of(self, key: Key, time: int, tolerance: int | None = None) -> Any:
        return self._show(key, self._parent.as_of(key, time, tolerance))

    def _answer(self, update: Fact) -> None:
        new, old = self._show(update.key, update.value), self._show(update.key, update.old)
        if not self._quiet or (new, old) != (None, None):
            self.updated(update._replace(value=new, old=old))

    def _show(self, key: Key, value: Any) -> Any:
        return None if value is None else self._shown(key, copy.deepcopy(value))


class Joined(Table):
    """Two tables, joined."""

    def __init__(self, left: Table, right: Table, join: Joiner, *, may_lack: str) -> None:
        """`may_lack`: which sides may be missing, a letter for each: l, r."""
        super().__init__()
        self._left, self._right, self._join = left, right, join
        self._no_left, self._no_right = "l" in may_lack, "r" in may_lack
        left.tell(self._of_left)
        right.tell(self._of_right)

    def row(self, key: Key) -> Row | None:
        left, right = self._left.row(key), self._right.row(key)
        value = self._made(key, value_of(left), value_of(right))
        times = [row.time for row in (left, right) if row is not None]
        return None if value is None else Row(value, max(times))

    def _of_left(self, update: Fact) -> None:
        row = self._right.row(update.key)
        if row is None and not (self._no_right and (update.value, update.old) != (None, None)):
            return
        time = update.time if row is None else max(update.time, row.time)
        new, old = (
            self._made(update.key, value, value_of(row)) for value in (update.value, update.old)
        )
        self.updated(Fact(update.key, new, time, old))

    def _of_right(self, update: Fact) -> None:
        row = self._left.row(update.key)
        if row is None and not (self._no_left and (update.value, update.old) != (None, None)):
            return
        time = update.time if row is None else max(update.time, row.time)
        new, old = (
            self._made(update.key, value_of(row), value) for value in (update.value, update.old)
        )
        self.updated(Fact(update.key, new, time, old))

    def _made(self, key: Key, left: Any, right: Any) -> Any:
        lacks = (left is None and not self._no_left) or (right is None and not self._no_right)
        if lacks or (left, right) == (None, None):
            return None
        return self._join(key, copy.deepcopy(left), copy.deepcopy(right))


class Groups(Kept):
    """Aggregates of rows by another key: the old row is taken out, the new one put in."""

    def __init__(
        self,
        key_of: Callable[[Any], Key],
        add: Callable[[Any, Any], Any],
        subtract: Callable[[Any, Any], Any],
    ) -> None:
        """`add(value, aggregate or None)`, `subtract(value, aggregate)`."""
        super().__init__()
        self._key_of, self._add, self._subtract = key_of, add, subtract

    def take(self, update: Fact) -> None:
        """An update of the table that is grouped."""
        old, new = (
            None if value is None else self._key_of(value) for value in (update.old, update.value)
        )
        if old == new:
            self._change(old, update, old=update.old, new=update.value)
        else:
            self._change(old, update, old=update.old, new=None)
            self._change(new, update, old=None, new=update.value)

    def _change(self, key: Key, update: Fact, *, old: Any, new: Any) -> None:
        if key is None:
            return
        row = self.row(key)
        made = value_of(row)
        if old is not None and made is not None:
            made = self._subtract(copy.deepcopy(old), made)
        if new is not None:
            made = self._add(copy.deepcopy(new), made)
        time = update.time if row is None else max(update.time, row.time)
        self.keep(Fact(key, made, time, value_of(self.row(key))))


class ByForeignKey(Kept):
    """Rows of a table, each joined with the row of another whose key it holds."""

    def __init__(
        self, left: Kept, right: Table, key_of: Callable[[Any], Key], join: Joiner, *, outer: bool
    ) -> None:
        super().__init__()
        self._left, self._right, self._key_of = left, right, key_of
        self._join, self._outer = join, outer
        left.tell(lambda update: self._renew(update.key, update.time))
        right.tell(self._of_right)

    def _of_right(self, update: Fact) -> None:
        for key, row in list(self._left.rows.items()):
            if self._key_of(row.value) == update.key:
                self._renew(key, max(update.time, row.time))

    def _renew(self, key: Key, time: int) -> None:
        row, other = self._left.row(key), None
        if row is not None:
            other = self._right.row(self._key_of(row.value))
        if row is None or (other is None and not self._outer):
            if key in self.rows:
                self.keep(Fact(key, None, time))
            return
        made = self._join(key, row.value, value_of(other))
        self.keep(Fact(key, made, time if other is None else max(time, other.time)))


class Copy(Kept):
    """What another tells, kept."""

    def __init__(self, parent: Table) -> None:
        super().__init__()
        parent.tell(self.keep)


def put(rows: dict[Key, Row], fact: Fact) -> None:
    """As a store does: None deletes."""
    if fact.value is None:
        rows.pop(fact.key, None)
    else:
        rows[fact.key] = Row(copy.deepcopy(fact.value), fact.time)


def value_of(row: Row | None) -> Any:
    return None if row is None else row.value


def _fresh(row: Row | None) -> Row | None:
    return None if row is None else Row(copy.deepcopy(row.value), row.time)

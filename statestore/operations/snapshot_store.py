"""A store as its application committed it, over all partitions: what `open_snapshot` gives.

Each partition is as of the moment its snapshot was taken, that of an export as well; ranges merge
them in key order. It is read-only, for any thread.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from statestore.errors import StateStoreError, StoreClosed
from statestore.model.records import K, V
from statestore.ports import Cursor, Engine
from statestore.stores import keyvalue, offsets
from statestore.stores.codec import Codec, PairScan
from statestore.stores.offsets import check_format
from statestore.stores.specs import BuiltInSpec, KeyValueSpec
from statestore.stores.staged_table import Pair

T = TypeVar("T")


class HeldFiles(Protocol):
    """The files of stores of one stream task, kept for whoever reads them until released."""

    def store_dir(self, store: str) -> Path: ...
    def renew(self) -> None:
        """Keep them for longer; Unavailable if they are gone."""

    def release(self) -> None:
        """Let them go. Twice is harmless."""


class SnapshotStore:
    """What all kinds share: files opened and released together, leases kept up, close."""

    def __init__(
        self,
        spec: BuiltInSpec,
        files: Sequence[HeldFiles],
        open_files: Callable[[Path], Engine],
    ) -> None:
        """Takes over the files: they are released here, also if some cannot be opened.

        Misuse if they are of another kind of store.
        """
        self.name = name = spec.name
        self._files = files
        self._open = True
        with ExitStack() as closing:
            for one in files:
                closing.callback(one.release)
            self._engines = [open_files(one.store_dir(name)) for one in files]
            for engine in self._engines:
                closing.callback(engine.close)
            for engine in self._engines:
                meta = engine.table(offsets.TABLE)
                self._asked(engine, partial(check_format, meta, spec.kind, f"store {name!r}"))
            self._closing = closing.pop_all()

    def is_open(self) -> bool:
        return self._open

    def close(self) -> None:
        """Release the files. Closing twice is harmless."""
        self._open = False
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def check_open(self) -> None:
        """StoreClosed after close; while it is open, its leases are kept up."""
        if not self._open:
            raise StoreClosed(f"this snapshot of {self.name!r} is closed: open a new one")
        for one in self._files:
            one.renew()

    def _asked(self, engine: Engine, ask: Callable[[], T]) -> T:
        """What `ask` gives, its errors as ours."""
        try:
            return ask()
        except StateStoreError:
            raise
        except Exception as error:
            raise engine.failure(error) or error from error


class SnapshotKeyValueStore(SnapshotStore, Generic[K, V]):
    """See `contracts.ReadOnlyKeyValueStore` for the promises; `with`, or close() it."""

    def __init__(
        self,
        spec: KeyValueSpec[K, V],
        files: Sequence[HeldFiles],
        open_files: Callable[[Path], Engine],
    ) -> None:
        """Takes over the files: they are released here, also if some cannot be opened."""
        super().__init__(spec, files, open_files)
        self._codec = Codec(spec)
        self._tables = [engine.table(keyvalue.TABLE) for engine in self._engines]

    def get(self, key: K, default: V | None = None) -> V | None:
        """The value, in whichever partition it is, or `default`."""
        (value,) = self.get_many([key])
        return default if value is None else value

    def __contains__(self, key: K) -> bool:
        return self.get_many([key]) != [None]

    def get_many(self, keys: Iterable[K]) -> list[V | None]:
        """One value per key, in order."""
        self.check_open()
        asked = self._codec.keys(keys)
        found: list[bytes | None] = [None] * len(asked)
        for table, engine in zip(self._tables, self._engines, strict=True):
            values = self._asked(engine, partial(table.get_many, asked))
            found = [
                new if new is not None else old for old, new in zip(found, values, strict=True)
            ]
        return self._codec.read_values(found)

    def range(
        self,
        lo: K | None = None,
        hi: K | None = None,
        reverse: bool = False,  # noqa: FBT001, FBT002  # the public signature
    ) -> PairScan[K, V]:
        """Pairs with lo <= key <= hi by serialized bytes, merged over the partitions."""
        low, high = self._codec.optional_key(lo), self._codec.optional_key(hi)
        return self._scan(low, high, reverse=reverse)

    def all(self, reverse: bool = False) -> PairScan[K, V]:  # noqa: FBT001, FBT002  # as above
        """Every pair, merged over the partitions."""
        return self._scan(None, None, reverse=reverse)

    def prefix_scan(self, prefix: K, reverse: bool = False) -> PairScan[K, V]:  # noqa: FBT001, FBT002  # as above
        """Pairs whose key bytes begin with `prefix`; refused on unordered key serdes."""
        low, beyond = self._codec.prefix(prefix)
        return self._scan(low, beyond, reverse=reverse, exclude=beyond)

    def approximate_num_entries(self) -> int:
        """About how many keys there are."""
        self.check_open()
        return sum(table.approximate_count() for table in self._tables)

    def _scan(
        self, lo: bytes | None, hi: bytes | None, *, reverse: bool, exclude: bytes | None = None
    ) -> PairScan[K, V]:
        self.check_open()
        cursors = [table.scan(lo, hi, reverse=reverse) for table in self._tables]
        scan = _MergedScan(self, cursors, reverse=reverse)
        return PairScan(scan, self._codec.pairs(scan, exclude))


class _MergedScan:
    def __init__(
        self,
        store: SnapshotKeyValueStore[K, V],
        cursors: Sequence[Cursor],
        *,
        reverse: bool,
    ) -> None:
        self._check_store = store.check_open
        self._cursors = cursors
        self._open = True
        self._pairs: Iterator[Pair] = heapq.merge(*cursors, key=itemgetter(0), reverse=reverse)

    def __iter__(self) -> Iterator[Pair]:
        return self._pairs

    def check_open(self) -> None:
        if not self._open:
            raise StoreClosed("this iterator is closed: open a new one")
        self._check_store()

    def close(self) -> None:
        self._open = False
        for cursor in self._cursors:
            cursor.close()

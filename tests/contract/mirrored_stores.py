"""A kind of store that the library does not have, whole in one file: mirrored stores.

A row lies under the bytes of its key in reverse order, where the changelog has the key itself. A
second row for each key, which no changelog has, finds the keys in their own order:

    r, key in reverse order    value
    0xff, key                  nothing

It is registered when this module is imported.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from statestore.errors import Misuse
from statestore.model.modes import IsolationLevel
from statestore.model.records import Serde
from statestore.ports import Writes
from statestore.stores import keyvalue, offsets
from statestore.stores.codec import Codec
from statestore.stores.kinds.kind import LookUp, StoreKind, StoreTerms
from statestore.stores.kinds.registry import register
from statestore.stores.pending import Entries
from statestore.stores.reads import Entry, Pair, Reader, Rows, RowScan, joined
from statestore.stores.row_times import RowTimes
from statestore.stores.staged_table import StagedTable
from statestore.stores.transaction import StagedEngine
from statestore.stores.transactional import TransactionalBase

ROW, INDEX = b"r", b"\xff"


@dataclass(frozen=True)
class MirroredSpec:
    """A mirrored store."""

    kind: ClassVar[str] = "mirrored"

    name: str
    key_serde: Serde[Any]
    value_serde: Serde[Any]
    persistent: bool = True
    changelog_config: dict[str, str] = field(default_factory=dict, hash=False)
    terms: tuple[str, ...] = ()


def row_of(key: bytes) -> bytes:
    return ROW + key[::-1]


def indexed(writes: Writes) -> Entries:
    """The rows that find these rows by their keys."""
    return {INDEX + row[:0:-1]: None if value is None else b"" for row, value in writes.items()}


class MirroredReader(Reader[Rows]):
    """Reads of a mirrored store over any rows."""

    span_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        parts: Sequence[Rows],
        spec: MirroredSpec,
        release: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(spec.name, parts, release)
        self._codec: Codec[Any, Any] = Codec(spec.name, spec.key_serde, spec.value_serde)

    def get(self, key: Any) -> Any:
        row = row_of(self._codec.key(key))
        found = (rows.get(row) for rows in self._opened())
        return next((self._codec.read_value(value) for value in found if value is not None), None)

    def find(self, key: Any, as_of_ms: int | None = None) -> Entry | None:
        self._refuse_time(as_of_ms)
        value = self.get(key)
        return None if value is None else Entry(key, value)

    def entries(
        self,
        lo: Any = None,
        hi: Any = None,
        *,
        as_of_ms: int | None = None,
        reverse: bool = False,
    ) -> RowScan[Entry]:
        self._refuse_time(as_of_ms)
        low, high = self._codec.optional_key(lo), self._codec.optional_key(hi)
        scans = [
            self._of(rows, INDEX + (low or b""), None if high is None else INDEX + high, reverse)
            for rows in self._opened()
        ]
        return joined(scans, key=lambda entry: entry.key, reverse=reverse)

    def everything(self) -> RowScan[Entry]:
        return self.entries()

    def _of(self, rows: Rows, lo: bytes, hi: bytes | None, reverse: bool) -> RowScan[Entry]:
        seen = rows.moment(lo, hi, reverse=reverse)

        def shown(found: Iterator[Pair]) -> Iterator[Entry]:
            for at, _ in found:
                (value,) = seen.get_many([row_of(at[1:])])
                assert value is not None, f"{at!r} finds no row"
                yield Entry(self._codec.read_key(at[1:]), self._codec.read_value(value))

        walk = seen.scan()
        return RowScan(shown(iter(walk)), walk.check_open, seen.close, notices_close=True)

    def _refuse_time(self, as_of_ms: int | None) -> None:
        if as_of_ms is not None:
            raise Misuse(f"store {self.name!r} is mirrored and keeps no history")


class MirroredStore(TransactionalBase, MirroredReader):
    """The owner of a mirrored store."""

    def __init__(
        self,
        staged: StagedEngine,
        spec: MirroredSpec,
        *,
        isolation_level: IsolationLevel,
        owned_by_task: bool,
    ) -> None:
        times = RowTimes(staged.table(offsets.TABLE), kept=True) if owned_by_task else None
        if times is not None:
            staged.keep_sized(times)
        self.table = StagedTable(staged, keyvalue.TABLE, times)
        self.spec = spec
        MirroredReader.__init__(self, [self.table], spec)
        TransactionalBase.__init__(
            self,
            staged,
            self.table.commit,
            isolation_level=isolation_level,
            owned_by_task=owned_by_task,
        )

    def put_all(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Stage many rows; None deletes."""
        rows = {row_of(key): value for key, value in self._codec.writes(pairs).items()}
        self.table.put_all({**rows, **indexed(rows)})


class MirroredKind(StoreKind):
    """What the library asks of mirrored stores."""

    name = MirroredSpec.kind
    specs = (MirroredSpec,)
    owner_class = MirroredStore
    reader_class = MirroredReader
    unlogged_from = INDEX
    beside = b"tm"

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> MirroredSpec:
        assert terms == StoreTerms()
        return MirroredSpec(name, keys, values)

    def keeps_times(self, spec: MirroredSpec) -> bool:
        return True

    def logged_keys(self, rows: Sequence[bytes]) -> list[bytes | None]:
        return [row[:0:-1] if row.startswith(ROW) else None for row in rows]

    def rows_of(self, keys: list[bytes]) -> list[bytes]:
        return list(map(row_of, keys))

    def following(self, spec: MirroredSpec, writes: Writes, look: LookUp) -> Entries:
        return indexed(writes)


register(MirroredKind())

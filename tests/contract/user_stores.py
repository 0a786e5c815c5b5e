"""Stores of a user's own class, by the public Protocol alone: one writes through, one at commit."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import statestore as ss

Rows = Mapping[bytes, bytes | None]


class UserStore:
    """Rows of text in one file.

    `through`: each put is in the file at once, and cannot be taken back. Else pending writes wait
    for commit, and `manages` puts the offsets into the same file.
    """

    def __init__(
        self, context: ss.StoreContext, *, through: bool = False, manages: bool = False
    ) -> None:
        self.name = context.directory.name
        self.context = context
        self.through = through
        self.manages = manages
        self.fails_to_close = False
        self._file = context.directory / "rows.json"
        self._rows: dict[str, str] = {}
        self._offsets: dict[str, int] = {}
        self._last = ss.Position()
        self._pending: dict[str, str | None] = {}
        self._open = True
        if self._file.exists():
            self._rows, self._offsets = json.loads(self._file.read_text())

    # What its users call.

    def put(self, key: str, value: str | None) -> None:
        self._pending[key] = value
        self.context.log(key.encode(), None if value is None else value.encode())
        if self.through:
            self._write()

    def get(self, key: str) -> str | None:
        return self._pending[key] if key in self._pending else self._rows.get(key)

    def all(self) -> dict[str, str]:
        merged = self._rows | self._pending
        return {key: value for key, value in merged.items() if value is not None}

    # The Protocol.

    def persistent(self) -> bool:
        return True

    def is_open(self) -> bool:
        return self._open

    def manages_offsets(self) -> bool:
        return self.manages

    def commit(
        self,
        offsets: Mapping[ss.TopicPartition, int | None] | None = None,
        *,
        position: ss.Position | None = None,
    ) -> None:
        for tp, offset in (offsets or {}).items():
            if offset is not None:
                self._offsets[str(tp)] = offset
        if position is not None:
            self._last = self._last.merge(position)
        self._write()

    def rollback(self) -> None:
        if self.through:
            raise NotImplementedError("it is in the file already")
        self._pending.clear()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        before = dict(self._pending)
        try:
            yield
        except BaseException:
            self._pending = before
            raise

    def committed_offset(self, tp: ss.TopicPartition) -> int | None:
        return self._offsets.get(str(tp)) if self.manages else None

    def durable_offset(self, tp: ss.TopicPartition) -> int | None:
        return self.committed_offset(tp)

    def position(self) -> ss.Position:
        return self._last

    def metrics(self) -> dict[str, float]:
        return {}

    def approximate_num_uncommitted_bytes(self) -> int:
        return (
            0 if self.through else sum(len(key) + len(v or "") for key, v in self._pending.items())
        )

    def approximate_num_uncommitted_entries(self) -> int:
        return 0 if self.through else len(self._pending)

    def flush(self) -> None: ...

    def close(self) -> None:
        if self.fails_to_close:
            raise OSError("the disk is gone")
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def restore(self, rows: Rows) -> None:
        for key, value in rows.items():
            self._pending[key.decode()] = None if value is None else value.decode()

    def _write(self) -> None:
        self._rows = self.all()
        self._pending.clear()
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps([self._rows, self._offsets if self.manages else {}]))
        fresh.replace(self._file)


def supplier(
    name: str = "book", *, through: bool = False, manages: bool = False
) -> ss.StoreSupplier[UserStore]:
    return ss.StoreSupplier(
        name,
        lambda context: UserStore(context, through=through, manages=manages),
        UserStore.restore,
    )


class Notes:
    """Puts each record into the user's store and passes on what was there before."""

    def __init__(self, context: ss.ProcessorContext, name: str = "book") -> None:
        self._context = context
        self._store: UserStore = context.store(name)

    def process(self, record: ss.Record[str, str]) -> None:
        if record.value == "fail":
            raise ValueError("told to")
        before = self._store.get(record.key)
        self._store.put(record.key, record.value)
        self._context.forward(record.replace(value=before or "none"))


def topology(spec: ss.StoreSupplier[UserStore]) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=ss.serdes.STRING, value_serde=ss.serdes.STRING)
    builder.stream("in").process(Notes, spec, name="notes").to("out")
    return builder.build()


def rows_in(folder: Path) -> dict[str, str]:
    """What the file holds, without the class."""
    rows: dict[str, str] = json.loads((folder / "rows.json").read_text())[0]
    return rows

"""The unit of work between edges and operators: columns, decoded when first asked for."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from statestore.model.byte_columns import MaybePacked, PackedRows, unpacked
from statestore.model.fields_read import FieldForm, FieldsRead, Wanted
from statestore.model.lazy_columns import PickedOffsets
from statestore.model.picks import AtPlaces, InPiece, Left, Pick, Where
from statestore.model.records import (
    BYTES,
    ArrowForm,
    Header,
    Record,
    Serde,
    SerdeContext,
    Side,
    T,
)

_RECORD: Callable[[tuple[Any, ...]], Record[Any, Any]] = partial(tuple.__new__, Record)
_FEW = 32
"""The values of so many rows are worth that the next ones are decoded once only."""
_PART = 8
"""One row of so many is decoded alone."""
_FIELDS = ("key", "value", "timestamp_ms", "headers")
_BY_NAME: tuple[Callable[[Any], Any], ...] = tuple(map(attrgetter, _FIELDS))


class Column:
    """One column of a batch: stored bytes, decoded values, or both once both were needed.

    It also keeps the Arrow array of its values, or of their fields, once an operator asked for
    that.
    """

    __slots__ = ("_arrow", "_few", "_fields", "_nulls", "_objects", "_raw", "_serde")

    def __init__(
        self,
        *,
        raw: "MaybePacked | None" = None,
        objects: "list[Any] | None" = None,
        serde: "Serde[Any] | None" = None,
    ) -> None:
        self._raw = raw
        self._objects = objects
        self._serde = serde
        self._arrow: Any = None
        self._few: dict[int, Any] = {}
        self._fields: FieldsRead | None = None
        self._nulls: list[int] | None = None

    @property
    def serde(self) -> "Serde[Any] | None":
        """The serde through which its bytes are read; None: they are the values."""
        return self._serde

    @property
    def stored(self) -> "MaybePacked | None":
        """The bytes; None if there are values only."""
        return self._raw

    def with_serde(self, serde: "Serde[Any]") -> "Column":
        """The same bytes, to be read through `serde`."""
        return Column(raw=self.stored, serde=serde)

    @property
    def serde_name(self) -> str:
        """The name of the serde through which its bytes are read."""
        return BYTES.name if self._serde is None else self._serde.name

    @property
    def objects(self) -> list[Any]:
        """The decoded values; a plain bytes column decodes to itself."""
        if self._objects is None:
            assert self._raw is not None
            if self._fields is not None:
                # Whoever has the values may change them.
                if len(self._raw) >= _FEW:
                    self._fields.wanted.objects = True
                self._fields = None
            raw = unpacked(self._raw)
            if self._serde is None or self._serde is BYTES:
                self._objects = raw
            else:
                decode = self._serde.deserialize
                self._objects = [None if data is None else decode(data) for data in raw]
                for place, value in self._few.items():
                    self._objects[place] = value
        return self._objects

    def objects_at(self, places: NDArray[np.intp]) -> list[Any]:
        """The values of some rows; of a few, no others are decoded."""
        raw, asked = self._raw, places.tolist()
        if self._objects is not None or raw is None or len(asked) * _PART > len(raw):
            return list(map(self.objects.__getitem__, asked))
        assert self._serde is not None
        # Others are to have the same ones, which a user's function may change.
        few, decode = self._few, self._serde.deserialize
        missing = sorted({*asked} - few.keys())
        rows = raw.at(missing) if isinstance(raw, PackedRows) else map(raw.__getitem__, missing)
        for place, data in zip(missing, rows, strict=True):
            few[place] = None if data is None else decode(data)
        return list(map(few.__getitem__, asked))

    def encoded(self, serde: "Serde[Any]") -> "list[bytes | None]":
        """The bytes under `serde`; free where the column arrived as bytes of that serde."""
        raw = self.stored
        if raw is not None and (self._serde is serde or self._serde is None):
            return unpacked(raw)
        if serde is BYTES:
            return _all_bytes(self.objects)
        return serde.serialize_all(self.objects)

    def packed(self, serde: "Serde[Any]") -> "PackedRows | None":
        """What `encoded` gives, in columns; None if it did not come so."""
        own, raw = self._serde is serde or self._serde is None, self.stored
        return raw if own and isinstance(raw, PackedRows) else None

    def bytes_at(self, places: Sequence[int]) -> "list[bytes | None]":
        """The bytes of a few rows, whose places are in rising order; no others are made."""
        raw = self.stored
        if isinstance(raw, PackedRows):
            return raw.at(places)
        return list(map(self.encoded(BYTES).__getitem__, places))

    def arrow(self, serde: "Serde[Any]", form: ArrowForm) -> Any:
        """The values as an Arrow array; `form` is that of `serde`, which is the column's own."""
        if self._arrow is None:
            self._arrow = form.decode(self.encoded(serde))
        return self._arrow

    def keep_arrow(self, column: Any) -> None:
        """Note the Arrow array of the column's values, which the caller knows."""
        self._arrow = column

    @property
    def has_fields(self) -> bool:
        """Whether fields of the values were read, and nobody has had the values since."""
        return self._fields is not None and not self._few

    def fields(
        self, form: FieldForm, names: Collection[str], wanted: Wanted | None = None
    ) -> "dict[str, Any] | None":
        """Arrow arrays of these fields of values, which `form` is that of; all values are decoded.

        None: there are the values, which a user's function may have changed, or somebody has had
        those of an earlier batch, so that they had better be decoded once. `wanted` is kept from
        batch to batch by whoever asks first; None: only what has fields already gives some. Raises
        what decoding raises, or what Arrow says of a value that it does not take.
        """
        found, raw = self._fields, self._raw
        if found is None:
            if self._objects is not None or raw is None or wanted is None or wanted.objects:
                return None
            found, missing = FieldsRead({}, form, wanted), wanted.names | {*names}
        elif form is not found.form or self._few:
            return None
        else:
            missing = {*names} - found.arrays.keys()
        if missing or self._fields is None:
            assert raw is not None
            assert self._serde is not None
            found.arrays |= form.read(self._serde.deserialize, unpacked(raw), missing)
            # Of the next batch they are read together.
            found.wanted.names |= missing
            self._fields = found
        return found.of(names)

    def nulls(self) -> list[int]:
        """The places without a value; nothing is decoded."""
        if self._nulls is None:
            self._nulls = self._found_nulls()
        return self._nulls

    def _found_nulls(self) -> list[int]:
        raw = self.stored
        if isinstance(raw, PackedRows):
            return raw.nulls()
        rows = self._objects if raw is None else raw
        if rows is None or (raw is not None and all(rows)):
            return []
        return [i for i, item in enumerate(rows) if item is None]

    def picked(self, pick: Pick) -> "Column":
        """The rows that `pick` takes."""
        raw, objects = self._raw, self._objects
        if self._fields is not None:
            assert raw is not None
            places = pick.of_places(np.arange(len(raw)))
            return _PickedColumn(self, places, self._fields.picked(pick))
        made = Column(
            raw=None if raw is None else pick.rows(raw),
            objects=None if objects is None else pick.rows(objects),
            serde=self._serde,
        )
        if self._arrow is not None:
            with suppress(NotImplementedError):  # Arrow picks no rows of some types.
                made.keep_arrow(pick.of_array(self._arrow))
        return made


class _PickedColumn(Column):
    """Some rows of a column of which fields were read.

    Their bytes are picked when they are asked for, and whoever wants values has those of the
    column.
    """

    __slots__ = ("_from", "_places")

    def __init__(self, column: Column, places: NDArray[np.intp], fields: FieldsRead) -> None:
        """The rows at these places of a column, which is itself picked of none."""
        super().__init__(serde=column.serde)
        self._from = column
        self._places = places
        self._fields = fields

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            self._fields = None
            self._objects = self._from.objects_at(self._places)
        return self._objects

    @property
    def stored(self) -> "MaybePacked | None":
        raw = self._from.stored
        if self._raw is None and raw is not None:
            if isinstance(raw, PackedRows):
                self._raw = raw.taken(self._places)
            else:
                self._raw = list(map(raw.__getitem__, self._places.tolist()))
        return self._raw

    @property
    def has_fields(self) -> bool:
        return self._fields is not None and self._from.has_fields

    def fields(
        self, form: FieldForm, names: Collection[str], wanted: Wanted | None = None
    ) -> "dict[str, Any] | None":
        del wanted  # The column has one.
        mine = self._fields
        if mine is None or not self._from.has_fields:
            return None
        more = self._from.fields(form, {*names} - mine.arrays.keys())
        if more is None:
            return None
        mine.arrays |= {name: one.take(self._places) for name, one in more.items()}
        return mine.of(names)

    def picked(self, pick: Pick) -> Column:
        if self._fields is None:
            return Column(raw=self.stored, objects=self.objects, serde=self._serde).picked(pick)
        places = pick.of_places(self._places)
        return _PickedColumn(self._from, places, self._fields.picked(pick))

    def _found_nulls(self) -> list[int]:
        return super()._found_nulls() if self._from.nulls() else []


class MadeColumn(Column):
    """Values that an operator made as an Arrow array: others are made of it when asked for.

    None of them is null, and each can be written.
    """

    __slots__ = ("_form", "_read")

    def __init__(
        self,
        column: Any,
        read: "Callable[[Any], list[Any]]",
        serde: "Serde[Any]",
        form: ArrowForm,
    ) -> None:
        """`read(column)`: the objects that reading the bytes of an array would give."""
        super().__init__(serde=serde)
        self._read, self._form = read, form
        self._arrow = column

    def unread(self, serde: "Serde[Any]") -> Any:
        """The array of values of this serde; None once there are objects, or of another serde.

        A user's function may have changed the objects.
        """
        return self._arrow if self._objects is None and serde is self._serde else None

    @property
    def has_fields(self) -> bool:
        return self._objects is None

    def fields(
        self, form: FieldForm, names: Collection[str], wanted: Wanted | None = None
    ) -> "dict[str, Any] | None":
        del wanted  # There is nothing to be read.
        if self._objects is not None or form is not self._form:
            return None
        array = self._arrow
        return {name: array.field(array.type.get_field_index(name)) for name in names}

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            self._objects = self._read(self._arrow)
        return self._objects

    def encoded(self, serde: "Serde[Any]") -> "list[bytes | None]":
        """The bytes under `serde`; all of them at once under the column's own."""
        if self._raw is None and serde is self._serde:
            self._raw = self._form.encode(self._arrow)
        return super().encoded(serde)

    def picked(self, pick: Pick) -> "MadeColumn":
        assert self._serde is not None
        # With its array, because a user's function may have changed the objects meanwhile.
        made = MadeColumn(pick.of_array(self._arrow), self._read, self._serde, self._form)
        made._raw = None if self._raw is None else pick.rows(self._raw)
        made._objects = None if self._objects is None else pick.rows(self._objects)
        return made


class ContextColumn(Column):
    """A column of a topic's records, whose serde sees the topic and the headers of each record."""

    __slots__ = ("_headers", "_side", "_topic")

    def __init__(
        self,
        raw: "list[bytes | None]",
        serde: "Serde[Any]",
        topic: str,
        side: Side,
        headers: "Sequence[tuple[Header, ...]] | None",
    ) -> None:
        super().__init__(raw=raw, serde=serde)
        self._topic = topic
        self._side: Side = side
        self._headers = headers

    @property
    def objects(self) -> list[Any]:
        if self._objects is None:
            raw, serde = self._raw, self._serde
            assert raw is not None
            assert serde is not None
            headers = [()] * len(raw) if self._headers is None else self._headers
            self._objects = [
                None
                if data is None
                else serde.read(data, SerdeContext(self._topic, self._side, list(some)))
                for data, some in zip(raw, headers, strict=True)
            ]
        return self._objects

    def encoded(self, serde: "Serde[Any]") -> "list[bytes | None]":
        """The bytes under `serde` as it writes them elsewhere; never those that were read."""
        return Column(objects=self.objects).encoded(serde)

    def fields(self, form: FieldForm, names: Collection[str], wanted: Wanted | None = None) -> None:
        del form, names, wanted  # Its serde reads no bytes alone.

    def picked(self, pick: Pick) -> "ContextColumn":
        assert self._raw is not None
        assert self._serde is not None
        headers = None if self._headers is None else pick.rows(self._headers)
        raw = pick.rows(unpacked(self._raw))
        made = ContextColumn(raw, self._serde, self._topic, self._side, headers)
        made._objects = None if self._objects is None else pick.rows(self._objects)
        return made


@dataclass_transform(frozen_default=True)
def _frozen_to_checkers(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields type checkers take for read-only.

    At run time nothing checks that: a frozen dataclass with as many fields takes 0.8 us longer to
    make, and records that go one by one are batches of one.
    """
    return dataclass(slots=True, eq=False)(cls)


@_frozen_to_checkers
class Batch:
    """Records in order, as columns of equal length; of one topic partition where `topic` is set.

    A batch is not changed once it is made: its fields are assigned by the constructor alone, and
    nobody changes a list that a batch has, because batches share them. The only exceptions are
    invisible: a Column keeps the values it decoded, and a LazyColumn what it read out. The values
    themselves are the user's, whose functions may change them.

    `headers` is None, or has a tuple per record, which may be empty. `offsets` are those of the
    input; None once an operator made new records. In a batch without a topic, they are places among
    the records that waited in an operator. `old_values` are the values that a table's updates
    replace, where a node below asked for them. `stream_times` are the stream times, in ms, at each
    record's input record, where a node asked for them.
    """

    keys: Column
    values: Column
    timestamps: list[int]
    headers: Sequence[tuple[Header, ...]] | None = None
    topic: str | None = None
    partition: int | None = None
    offsets: Sequence[int] | None = None
    old_values: Column | None = None
    stream_times: list[int] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, indices: Sequence[int]) -> "Batch":
        """Return the records at `indices`, in that order; nobody changes them afterwards."""
        return self._picked(AtPlaces(indices))

    def where(self, mask: list[bool] | NDArray[np.bool_]) -> "Batch":
        """Return the records for which the mask is true; nobody changes it afterwards."""
        every = all(mask) if isinstance(mask, list) else mask.all()
        return self if every else self._picked(Where(mask))

    def slice(self, start: int, stop: int) -> "Batch":
        """Return the records from `start` to `stop`, exclusive."""
        return self._picked(InPiece(start, stop))

    def without(self, places: Sequence[int]) -> "Batch":
        """Return the records but those at these places, which are in rising order."""
        return self._picked(Left(places)) if places else self

    def headers_at(self, indices: Sequence[int]) -> "Sequence[tuple[Header, ...]] | None":
        """Return the headers of the records at `indices`, in that order; None if none has any."""
        return None if self.headers is None else AtPlaces(indices).rows(self.headers)

    def _picked(self, pick: Pick) -> "Batch":
        times = then = pick.rows(self.timestamps)
        if self.stream_times is not self.timestamps:
            then = None if self.stream_times is None else pick.rows(self.stream_times)
        offsets = self.offsets
        if offsets is not None:
            # What is read in pieces is cut again and again.
            offsets = offsets[piece] if (piece := pick.piece) else PickedOffsets(offsets, pick)
        return Batch(
            keys=self.keys.picked(pick),
            values=self.values.picked(pick),
            timestamps=times,
            headers=None if self.headers is None else pick.rows(self.headers),
            topic=self.topic,
            partition=self.partition,
            offsets=offsets,
            old_values=None if self.old_values is None else self.old_values.picked(pick),
            stream_times=then,
        )

    def with_columns(
        self,
        *,
        keys: Column | None = None,
        values: Column | None = None,
        old_values: Column | None = None,
        timestamps: list[int] | None = None,
    ) -> "Batch":
        """Return the same records with other columns; old values are left out unless given."""
        return Batch(
            keys=self.keys if keys is None else keys,
            values=self.values if values is None else values,
            timestamps=self.timestamps if timestamps is None else timestamps,
            headers=self.headers,
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets,
            old_values=old_values,
            stream_times=self.stream_times,
        )

    def read_by(self, key_serde: "Serde[Any]", value_serde: "Serde[Any]") -> "Batch":
        """Return the same records of a topic, to be read through these serdes."""
        return self.with_columns(
            keys=self._read_by(key_serde, self.keys, "key"),
            values=self._read_by(value_serde, self.values, "value"),
        )

    def _read_by(self, serde: "Serde[Any]", column: Column, side: Side) -> Column:
        if not serde.contextual or self.topic is None:
            return column.with_serde(serde)
        raw = column.with_serde(BYTES).objects
        return ContextColumn(raw, serde, self.topic, side, self.headers)

    def with_stream_times(self, stream_times: list[int]) -> "Batch":
        """Return the same records with the stream time at each of them."""
        return Batch(
            keys=self.keys,
            values=self.values,
            timestamps=self.timestamps,
            headers=self.headers,
            topic=self.topic,
            partition=self.partition,
            offsets=self.offsets,
            old_values=self.old_values,
            stream_times=stream_times,
        )

    def records(self) -> Iterator[Record[Any, Any]]:
        """Return the records one by one: for a user's per-record code, not for hot paths."""
        keys, values, times = self.keys.objects, self.values.objects, self.timestamps
        assert len(keys) == len(values) == len(times), "columns differ in length"
        fields = zip(
            keys,
            values,
            times,
            repeat(()) if self.headers is None else self.headers,
            repeat(self.topic),
            repeat(self.partition),
            self.offsets if self.offsets is not None and self.topic else repeat(None),
            strict=False,
        )
        # Without a call in Python for each record, which the constructor of a NamedTuple is.
        return map(_RECORD, fields)

    @classmethod
    def of(
        cls, records: Iterable[Record[Any, Any]], *, stream_times: list[int] | None = None
    ) -> "Batch":
        """Return a batch of decoded records."""
        rows = list(records)
        if set(map(type, rows)) == {Record}:
            # All fields at once, which takes a third of the time of one after the other.
            keys, values, times, headers, *_ = zip(*rows, strict=True)
        else:
            keys, values, times, headers = (tuple(map(get, rows)) for get in _BY_NAME)
        return cls(
            keys=Column(objects=list(keys)),
            values=Column(objects=list(values)),
            timestamps=list(times),
            headers=headers if any(headers) else None,
            stream_times=stream_times,
        )


def no_records() -> Batch:
    """Return the batch that stands for input where there was none."""
    return Batch(keys=Column(raw=[]), values=Column(raw=[]), timestamps=[])


def _all_bytes(items: list[Any]) -> list[bytes | None]:
    for kind in set(map(type, items)) - {bytes, type(None)}:
        raise TypeError(f"expected bytes, found {kind.__name__}")
    return items


def in_lots(
    rows: Iterable[T], size: Callable[[T], int], *, rows_max: int = 10_000, bytes_max: int = 1 << 24
) -> Iterator[list[T]]:
    """Return the rows in lists that memory and an Arrow column hold, whatever the rows' sizes.

    A list ends with the row that brings it to so many rows or bytes; `size` is that of a row.
    """
    lot: list[T] = []
    held = 0
    for row in rows:
        lot.append(row)
        held += size(row)
        if len(lot) >= rows_max or held >= bytes_max:
            yield lot
            lot, held = [], 0
    if lot:
        yield lot

"""Records, and the serdes that convert their keys and values to bytes; all are immutable.

Types with one instance per record are NamedTuples, so that they equal plain tuples.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, cast, overload

from typing_extensions import TypeVar

from statestore.errors import Misuse
from statestore.model.modes import PunctuationType
from statestore.model.nulls import any_none

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
K2 = TypeVar("K2")
K2_co = TypeVar("K2_co", covariant=True)
V2 = TypeVar("V2")
T2 = TypeVar("T2")
# Of what has no serde, the keys or values are bytes.
KD = TypeVar("KD", default=bytes)
VD = TypeVar("VD", default=bytes)
Header = tuple[str, bytes | None]
Side = Literal["key", "value"]
SIDES: tuple[Side, Side] = ("key", "value")
Functions = tuple[Callable[[T2], bytes], Callable[[bytes], T2]]


_new_tuple = tuple.__new__
_UNCHANGED: Any = object()
"""What stands for a field that is not changed, as None is a key or value like any other."""


class Record(NamedTuple, Generic[K_co, V_co]):
    """A record as a processor sees it.

    Topic, partition and offset are those of the input record, or None if there is none.
    """

    key: K_co
    value: V_co
    timestamp_ms: int
    headers: tuple[Header, ...] = ()
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None

    @overload
    def replace(
        self, *, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K_co, V_co]": ...
    @overload
    def replace(
        self, *, key: K2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K2, V_co]": ...
    @overload
    def replace(
        self, *, value: V2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K_co, V2]": ...
    @overload
    def replace(
        self, *, key: K2, value: V2, timestamp_ms: int = ..., headers: tuple[Header, ...] = ...
    ) -> "Record[K2, V2]": ...
    def replace(
        self,
        *,
        key: Any = _UNCHANGED,
        value: Any = _UNCHANGED,
        timestamp_ms: Any = _UNCHANGED,
        headers: Any = _UNCHANGED,
        topic: Any = _UNCHANGED,
        partition: Any = _UNCHANGED,
        offset: Any = _UNCHANGED,
    ) -> "Record[Any, Any]":
        """Return a copy of this record with some fields changed; times are in ms since 1970."""
        # `_replace` takes twice as long, and processors call this for each record.
        old_key, old_value, old_ms, old_headers, old_topic, old_partition, old_offset = self
        made = (
            old_key if key is _UNCHANGED else key,
            old_value if value is _UNCHANGED else value,
            old_ms if timestamp_ms is _UNCHANGED else timestamp_ms,
            old_headers if headers is _UNCHANGED else headers,
            old_topic if topic is _UNCHANGED else topic,
            old_partition if partition is _UNCHANGED else partition,
            old_offset if offset is _UNCHANGED else offset,
        )
        return _new_tuple(type(self), made)


with suppress(ImportError):  # Without a compiler.
    from statestore.model import _record

    # The same in a quarter of the time.
    Record.replace = _record.method(Record)  # type: ignore[method-assign]


class VersionedRecord(NamedTuple, Generic[V_co]):
    """A version of a value that is valid from `timestamp_ms` until before `valid_to_ms` (KIP-889).

    `valid_to_ms` is None if the version is still valid.
    """

    value: V_co
    timestamp_ms: int
    valid_to_ms: int | None


class PutResult(NamedTuple):
    """The result of a versioned put.

    `accepted` is False if the record was older than the history retention allows. `latest` tells
    whether the put became the latest version; if not, `valid_to_ms` is where its validity ends.
    """

    accepted: bool
    latest: bool
    valid_to_ms: int | None


class Windowed(NamedTuple, Generic[K_co]):
    """A key in one window, from `start_ms` (inclusive) to `end_ms` (exclusive).

    Of a session, as in Kafka Streams, the end is inclusive: `start_ms` and `end_ms` are the times
    of its first and its last record.
    """

    key: K_co
    start_ms: int
    end_ms: int


class KeyAtTime(NamedTuple, Generic[K_co]):
    """The key of a record that a join of streams keeps.

    `time_ms` is the record's time. `number` distinguishes the records of one join and rises in the
    order in which they came.
    """

    key: K_co
    time_ms: int
    number: int


class Subscription(NamedTuple, Generic[K_co, K2_co]):
    """The key of a row in the store of a join by foreign key: `key` is that of the left row."""

    foreign_key: K2_co
    key: K_co


class Timer(NamedTuple, Generic[K_co]):
    """A timer of a processor, known by `key` and `name`.

    It fires at `time_ms`: by stream time, or by wall-clock time.
    """

    key: K_co
    name: str
    time_ms: int
    kind: PunctuationType


class TimerRow(NamedTuple, Generic[K_co]):
    """The key of a row in a store of timers.

    Each timer has two rows: one by its time and kind, and one by its key and name alone, whose
    `time_ms` and `kind` are None.
    """

    key: K_co
    name: str
    time_ms: int | None = None
    kind: PunctuationType | None = None


OF_REGISTRY = "CONFLUENT_"
"""The first part of the name of each serde whose rows begin with the id of their schema."""

AT_TIME_BYTES = 16
"""The length of time and number in a serialized KeyAtTime: its last bytes."""

WINDOW_BYTES = 8
SESSION_BYTES = 16
"""The length of a window, and of a session, in a serialized key: its last bytes.

The partitioner hashes only the bytes before them.
"""


APPLICATION: ContextVar[str] = ContextVar("statestore_application")
"""The application whose records this thread processes; it is part of the names of changelogs."""


class SerdeContext(NamedTuple):
    """Where the bytes are that a serde writes or reads.

    `topic` is the topic's full name on the broker; for a row of a store, that of its changelog.
    `headers` are those of the record: a serializer may add to them, and they go out with the
    record. None: the bytes are a row of a store, which has no headers.
    """

    topic: str
    side: Side
    headers: list[Header] | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of what a serde writes, as text that is compared and kept.

    `kind` is AVRO, JSON or PROTOBUF. `text` is in a form that is equal for equal schemas.
    """

    kind: str
    text: str


class ArrowForm(Protocol):
    """How a serde reads and writes a whole column of a batch as an Arrow array.

    Both functions do what the serde does row by row, and raise whatever they like if it does not
    take some row; the rows are then tried one by one, as columns of length 1. Arrow's types are not
    named here, because serdes are also used where Arrow is not loaded.
    """

    @property
    def type(self) -> Any:
        """The pyarrow.DataType of the column; a column of another type is never encoded."""

    def decode(self, rows: "list[bytes | None]") -> Any:
        """Return the values as a pyarrow.Array; None, which is no value, becomes null."""

    def encode(self, column: Any) -> "list[bytes | None]":
        """Return the bytes of each value of a pyarrow.Array; null becomes None."""


class _Place(NamedTuple):
    """What a serde is bound to: a topic, or a store of an application.

    `application` None: that whose records the thread processes.
    """

    side: Side
    topic: str | None = None
    store: str | None = None
    application: str | None = None


@dataclass(frozen=True, slots=True, init=False)
class Serde(Generic[T]):
    """A named pair of functions that convert values to bytes and back.

    `ordered` tells whether the bytes sort in the order of the values. None is never passed to
    either function. The name is stored with the deployed topology, so that tools can decode a
    store without the pipeline.

    A function with two parameters that have no default also takes a SerdeContext. `schema` is what
    `serialize` writes, where that is known. `resolve(writer)` returns the function that reads bytes
    written with another schema; without it, `deserialize` reads them. `arrow()` makes its
    ArrowForm, where it offers one; it is called when a pipeline first needs it.
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]
    ordered: bool
    schema: Schema | None
    _resolve: Callable[[Schema], Callable[[bytes], T]] | None
    _arrow: Callable[[], ArrowForm] | None = field(compare=False)
    _write: Callable[[T, SerdeContext], bytes] | None
    _read: Callable[[bytes, SerdeContext], T] | None
    _place: _Place | None
    _recipe: tuple[Callable[..., Any], tuple[Any, ...]] | None
    _write_all: Callable[[list[T]], list[bytes]] | None = field(compare=False)

    def __init__(
        self,
        name: str,
        serialize: Callable[[T], bytes] | Callable[[T, SerdeContext], bytes],
        deserialize: Callable[[bytes], T] | Callable[[bytes, SerdeContext], T],
        ordered: bool = False,  # noqa: FBT001, FBT002 - as it has always been
        *,
        schema: Schema | None = None,
        resolve: Callable[[Schema], Callable[[bytes], T]] | None = None,
        arrow: Callable[[], ArrowForm] | None = None,
    ) -> None:
        write, read = _in_context(serialize), _in_context(deserialize)
        if write is None and read is not None:
            write = _without_context(serialize)
        if read is None and write is not None:
            read = _without_context(deserialize)
        if write is not None:
            serialize = deserialize = _unplaced(name)
        _assign(
            self,
            name=name,
            serialize=serialize,
            deserialize=deserialize,
            ordered=ordered,
            schema=schema,
            _resolve=resolve,
            _arrow=arrow,
            _write=write,
            _read=read,
            _place=None,
            _recipe=None,
            _write_all=None,
        )

    def __repr__(self) -> str:
        return f"Serde({self.name})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._recipe or (_of_fields, (_fields_of(self),))

    def made_by(self, function: "Callable[..., Serde[T]]", *arguments: Any) -> "Serde[T]":
        """Return this serde so that it travels to other processes as a call of `function`."""
        return _of_fields({**_fields_of(self), "_recipe": (function, arguments)})

    def writing_all(self, write_all: "Callable[[list[T]], list[bytes]]") -> "Serde[T]":
        """Return this serde with a function that does for many values what `serialize` does."""
        return _of_fields({**_fields_of(self), "_write_all": write_all})

    def serialize_all(self, values: "list[T | None]") -> "list[bytes | None]":
        """Return the bytes of values, and None for None; raises what `serialize` may raise."""
        write_all, write = self._write_all, self.serialize
        if write_all is None or any_none(values):
            return [None if value is None else write(value) for value in values]
        return cast("list[bytes | None]", write_all(cast("list[T]", values)))

    @property
    def recipe(self) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        """The function that makes it in another process, and its arguments; None: there is none."""
        return self._recipe

    @property
    def framing(self) -> tuple[object, ...]:
        """What says, besides the schema, how its bytes are read: formats, and a registry."""
        kind = self.name.partition("(")[0]
        made_of = self._recipe[1] if self._recipe else ()
        if made_of and isinstance(made_of[0], Serde):
            inner = made_of[0]
            return inner.framing if inner.name == self.name else (kind, *inner.framing)
        return (kind, made_of[0]) if made_of and kind.startswith(OF_REGISTRY) else (kind,)

    @property
    def contextual(self) -> bool:
        """Whether its functions take a SerdeContext."""
        return self._write is not None

    @property
    def resolving(self) -> bool:
        """Whether it reads bytes by the schema with which they were written, which they lack."""
        return self._resolve is not None

    def arrow_form(self) -> ArrowForm | None:
        """Return how it reads and writes whole columns; None if it offers no Arrow.

        Misuse if Arrow has no type for its values.
        """
        return None if self._arrow is None else self._arrow()

    def at(self, topic: str, side: Side) -> "Serde[T]":
        """Return the serde of keys or values of a topic, whose functions take one argument.

        It is this serde unless its functions take a SerdeContext.
        """
        return self if self._write is None else _placed(self, _Place(side, topic))

    def in_store(self, store: str, side: Side, application: str | None = None) -> "Serde[T]":
        """Return the serde of keys or values of a store; see `at`.

        `application` None: the one whose records the thread processes.
        """
        if self._write is None:
            return self
        place = self._place
        if application is None and place is not None and (place.side, place.store) == (side, store):
            return self
        return _placed(self, _Place(side, store=store, application=application))

    def write(self, value: T, context: SerdeContext) -> bytes:
        """Serialize a value for this place."""
        return self.serialize(value) if self._write is None else self._write(value, context)

    def read(self, data: bytes, context: SerdeContext) -> T:
        """Deserialize bytes from this place."""
        return self.deserialize(data) if self._read is None else self._read(data, context)

    def reading(self, writer: Schema) -> Callable[[bytes], T]:
        """Return the function that reads bytes written with the schema `writer`."""
        if self._resolve is None or writer == self.schema:
            return self.deserialize
        return self._resolve(writer)

    def around(
        self,
        name: str,
        make: "Callable[[Callable[[T], bytes], Callable[[bytes], T]], Functions[T2]]",
        remake: "Callable[..., Serde[T2]]",
        *arguments: Any,
        with_schema: bool = False,
    ) -> "Serde[T2]":
        """Return a serde whose functions `make` makes of the functions of this one.

        In another process, it is made again by `remake(this serde, *arguments)`. `with_schema`: its
        schema is that of this serde, too, and bytes of other schemas are read as this one does.
        """
        schema = self.schema if with_schema else None
        if self._write is None:
            resolve = self._resolve if with_schema else None
            plain = Serde(
                name,
                *make(self.serialize, self.deserialize),
                schema=schema,
                resolve=None
                if resolve is None
                else lambda writer: make(self.serialize, resolve(writer))[1],
            )
            return plain.made_by(remake, self, *arguments)

        def functions(context: SerdeContext) -> Functions[T2]:
            return make(lambda v: self.write(v, context), lambda data: self.read(data, context))

        def write(value: T2, context: SerdeContext) -> bytes:
            return functions(context)[0](value)

        def read(data: bytes, context: SerdeContext) -> T2:
            return functions(context)[1](data)

        made = Serde(name, write, read, schema=schema).made_by(remake, self, *arguments)
        return made if self._place is None else _placed(made, self._place)


def _assign(serde: Serde[Any], **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(serde, name, value)


def _fields_of(serde: Serde[Any]) -> dict[str, Any]:
    return {one.name: getattr(serde, one.name) for one in fields(Serde)}


def _of_fields(values: dict[str, Any]) -> Serde[Any]:
    made: Serde[Any] = object.__new__(Serde)
    _assign(made, **values)
    return made


def _in_context(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function that takes a SerdeContext, too; None if it does not take one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None  # A function in C whose signature is not known takes the value alone.
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return function if len(needed) == 2 else None


def _without_context(function: Callable[..., Any]) -> Callable[[Any, SerdeContext], Any]:
    return lambda item, _context: function(item)


def _unplaced(name: str) -> Callable[[Any], Any]:
    def refuse(_item: Any) -> Any:
        raise Misuse(
            f"serde {name} has to know the topic of what it converts: call "
            "serde.at(topic, 'key') or serde.at(topic, 'value') first"
        )

    return refuse


@cache
def _placed(serde: Serde[T], place: _Place) -> Serde[T]:
    """Return the serde as it is at one place; the same object whenever it is asked for."""
    write, read = serde._write, serde._read  # noqa: SLF001 - it is of the class's own module
    assert write is not None
    assert read is not None
    context = _context_of(place)
    placed = {
        "serialize": lambda value: write(value, context()),
        "deserialize": lambda data: read(data, context()),
        "_place": place,
        "_recipe": (_placed, (serde, place)),
        "_write_all": None,
    }
    return _of_fields({**_fields_of(serde), **placed})


def _context_of(place: _Place) -> Callable[[], SerdeContext]:
    if place.topic is not None:
        of_topic = SerdeContext(place.topic, place.side)
        return lambda: of_topic

    def of_store() -> SerdeContext:
        application = place.application or APPLICATION.get(None)
        prefix = f"{application}-" if application else ""
        return SerdeContext(f"{prefix}{place.store}-changelog", place.side)

    return of_store


def _same(data: bytes) -> bytes:
    return data


def _bytes(value: bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError("expected bytes")
    return value


@cache
def _plain_form(
    kind: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
) -> ArrowForm:
    from statestore.model.arrow_columns import PlainForm

    return PlainForm(kind, serialize, deserialize)


def plain_serde(
    name: str,
    functions: Functions[T],
    arrow_type: str,
    *,
    ordered: bool = False,
) -> Serde[T]:
    """Return a serde of values that Arrow takes as they are, as what its type alias says."""
    arrow = partial(_plain_form, arrow_type, *functions)
    return Serde(name, *functions, ordered, arrow=arrow)


BYTES: Serde[bytes] = plain_serde("BYTES", (_bytes, _same), "large_binary", ordered=True)
"""The serde that leaves bytes as they are.

Columns recognize it by identity, because a user's serde may have the same name.
"""

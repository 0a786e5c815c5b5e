"""The serdes that come with statestore, and the conversion of their failures to SerdeMismatch.

A serde of the user's own is `Serde(name, serialize, deserialize, ordered)`. Register it with
`register`, so that tools find it by name.
"""

import uuid
from typing import Any, Final, Protocol, overload

import msgspec

from statestore.errors import ABOUT_A_RECORD, Misuse, SerdeMismatch, StateStoreError
from statestore.extras import needed
from statestore.model.records import BYTES as PLAIN_BYTES
from statestore.model.records import Serde, T, Windowed
from statestore.serdes import composed, java_serdes, typed_json
from statestore.serdes.serde_names import Constructor, define, head_of, parsed

BYTES: Serde[bytes] = PLAIN_BYTES
STRING: Serde[str] = java_serdes.STRING
INT64: Serde[int] = java_serdes.INT64
INT32: Serde[int] = java_serdes.INT32
INT16: Serde[int] = java_serdes.INT16
FLOAT64: Serde[float] = java_serdes.FLOAT64
FLOAT32: Serde[float] = java_serdes.FLOAT32
BOOLEAN: Serde[bool] = java_serdes.BOOLEAN
UUID: Serde[uuid.UUID] = java_serdes.UUID
VOID: Serde[None] = java_serdes.VOID


JSON: Serde[Any] = Serde("JSON", typed_json.plain_json, msgspec.json.decode).writing_all(
    typed_json.plain_json_of_all
)
MSGPACK: Serde[Any] = Serde("MSGPACK", typed_json.plain_msgpack, msgspec.msgpack.decode)
# The type of JSON(a type) is the pipeline's; without it, the value is read as any other JSON.
define(Constructor("JSON", arity=1, make=lambda _arguments, _by_name: JSON))


_UNCHANGED: tuple[tuple[Serde[Any], frozenset[type]], ...] = (
    (BYTES, frozenset({bytes, type(None)})),
    (STRING, frozenset({str, type(None)})),
    (INT64, frozenset({int, type(None)})),
    (INT32, frozenset({int, type(None)})),
    (INT16, frozenset({int, type(None)})),
    (FLOAT64, frozenset({float, type(None)})),
    (FLOAT32, frozenset({type(None)})),  # It rounds what it is given.
    (BOOLEAN, frozenset({bool, type(None)})),
    (UUID, frozenset({uuid.UUID, type(None)})),
    (VOID, frozenset({type(None)})),
    # Floats are not among them, because JSON has no infinity.
    (JSON, frozenset({str, int, bool, type(None)})),
    (MSGPACK, frozenset({str, bytes, int, float, bool, type(None)})),
)

_THIS: Final = "this serde"
"""What needs an extra, in the words of an error."""
_BUILT_IN: dict[str, Serde[Any]] = {serde.name: serde for serde, _ in _UNCHANGED}
_known: dict[str, Serde[Any]] = dict(_BUILT_IN)


def json(kind: type[T]) -> Serde[T]:
    """Return the serde of JSON that has the fields of a type.

    The type is a msgspec.Struct, a dataclass, a pydantic model, a TypedDict, a NamedTuple, or made
    of such types and of what JSON has, as list[Order]. Bytes without a field that the type requires
    cannot be decoded; fields that it does not know are passed over. A value is refused as it is
    written if it could not be read back. Misuse if JSON cannot have the type.
    """
    asked: Any = kind
    return typed_json.typed_json(asked)


def list_of(serde: Serde[T]) -> Serde[list[T | None]]:
    """Return the serde of lists whose items `serde` has, or are None, as Kafka's ListSerde in Java.

    Items of INT16, INT32, INT64, FLOAT32, FLOAT64 and UUID follow each other; others have lengths.
    """
    return java_serdes.list_of(serde)


def windowed(key_serde: Serde[T], size_ms: int) -> Serde[Windowed[T]]:
    """Return the serde of keys in windows: the key's bytes, then the window's start.

    The start is in ms since the epoch, in 8 bytes, big-endian. The keys of a windowed table written
    by `to()` have this form, and so have those of its changelog.
    """
    return composed.windowed(key_serde, size_ms)


class Registry(Protocol):
    """Where serdes of a schema registry come from: an `ss.SchemaRegistry`."""

    def serde(self, form: str, schema: Any, kind: Any) -> Serde[Any]:
        """Return the serde of a format: AVRO, JSON or PROTOBUF."""


@overload
def avro(schema: Any = None, *, registry: Registry | None = None) -> Serde[Any]: ...
@overload
def avro(
    schema: Any = None, kind: type[T] = ..., *, registry: Registry | None = None
) -> Serde[T]: ...
def avro(schema: Any = None, kind: Any = None, *, registry: Registry | None = None) -> Serde[Any]:
    """Return the serde of Avro data, as dicts or as objects of a type (extra `avro`).

    `schema` is text, a dict or a list. Without `registry`, the bytes are the datum alone. With it,
    they begin with the id of the schema that wrote them, and are read as `schema` says; without
    `schema`, they are read as they were written, and written with the subject's latest schema.
    Misuse if it is not an Avro schema, or there is neither.
    """
    if registry is not None:
        return registry.serde("AVRO", schema, kind)
    if schema is None:
        raise Misuse("serdes.avro: without a schema, a registry has to know it: pass either")
    with needed("avro", _THIS):
        from statestore.serdes.avro_serdes import avro_serde, avro_text
    return avro_serde(avro_text(schema), kind)


def protobuf(message: type[T], *, registry: Registry | None = None) -> Serde[T]:
    """Return the serde of a message class that protoc made (extra `protobuf`).

    Misuse if it is none.
    """
    if registry is not None:
        return registry.serde("PROTOBUF", message, message)
    with needed("protobuf", _THIS):
        from statestore.serdes.protobuf_serdes import protobuf_serde
    return protobuf_serde(message)


@overload
def json_schema(schema: Any = None, *, registry: Registry | None = None) -> Serde[Any]: ...
@overload
def json_schema(
    schema: Any = None, kind: type[T] = ..., *, registry: Registry | None = None
) -> Serde[T]: ...
def json_schema(
    schema: Any = None, kind: Any = None, *, registry: Registry | None = None
) -> Serde[Any]:
    """Return the serde of JSON that a schema allows, as dicts or as objects of a type.

    It is checked both as it is written and as it is read (extra `json-schema`). Without `schema`,
    it is that of `kind`, or the latest one of the registry. Misuse if it is not a JSON Schema,
    or if nothing says what it is.
    """
    if schema is None and kind is not None:
        schema = typed_json.schema_of(kind)
    if registry is not None:
        return registry.serde("JSON", schema, kind)
    if schema is None:
        raise Misuse("serdes.json_schema: pass a schema, a type, or a registry that knows it")
    with needed("json-schema", _THIS):
        from statestore.serdes.json_schema_serdes import json_schema_serde, json_schema_text
    return json_schema_serde(json_schema_text(schema), kind)


def register(serde: Serde[T]) -> Serde[T]:
    """Make a serde known by its name. Misuse if a different one already has that name."""
    if _known.setdefault(serde.name, serde) is not serde:
        raise Misuse(f"serde name {serde.name!r} is taken: choose another")
    return serde


def by_name(name: str) -> Serde[Any]:
    """Return the serde of that name; Misuse lists the known ones.

    JSON of a type is read as any other JSON, because the type is the pipeline's.
    """
    if head_of(name).startswith("MIGRATED["):
        raise Misuse(f"several serdes wrote the rows of {name}, and only the pipeline has them")
    found = parsed(name)
    if found is not None:
        return found.serde(by_name)
    if name.startswith(composed.WAITING) and name not in _known:
        return BYTES
    try:
        return _known[name]
    except KeyError:
        known = ", ".join(sorted(_known))
        raise Misuse(f"no serde named {name!r}; known: {known}") from None


def alike(one: Serde[Any], other: Serde[Any]) -> bool:
    """Tell whether equal keys have equal bytes under both, as under serdes of one name.

    A serde of the user's own with the name of a built-in serde is not like that serde.
    """
    if one is other:
        return True
    built_in = _BUILT_IN.get(one.name)
    return one.name == other.name and one is not built_in and other is not built_in


def unchanged(serde: Serde[Any]) -> frozenset[type]:
    """Return the immutable types whose values `serde` reads back as equal values."""
    return next((kinds for one, kinds in _UNCHANGED if one is serde), frozenset({type(None)}))


def printable(data: bytes) -> str:
    r"""Return printable ASCII as it is, and all other bytes and the backslash as \xNN."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in data
    )


def mismatch(
    *,
    where: str,
    side: str,
    value: object,
    serde: Serde[Any],
    keyword: str,
    cause: Exception,
    taker: str = "",
) -> SerdeMismatch:
    """Return the error for a value that does not fit its serde (INTERFACE rule 3).

    `where` is empty if the caller names the place. `taker`: what takes the keyword, if unclear. If
    `cause` is an error of this library that is about no record, it is raised as it is.
    """
    if isinstance(cause, StateStoreError) and not isinstance(cause, ABOUT_A_RECORD):
        raise cause
    place = f"{where}: " if where else ""
    where_to = f" to {taker}" if taker else ""
    wanted = cause.wanted if isinstance(cause, typed_json.TypeNotKept) else "…"
    return SerdeMismatch(
        f"{place}the {side} is {type(value).__name__} but its serde is {serde.name} ({cause}): "
        f"pass {keyword}={wanted}{where_to}"
    )

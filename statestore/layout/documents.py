"""Files of a state dir or of a target, checked as what their content becomes.

Whoever may write there could call a store `../../x`, list a topic of somebody else's among a
clone's own, or count zero slots. So every such file is read here, and nowhere else, into a Struct
made of the kinds below: what becomes a folder, a file or a topic is the name of one, what is
counted is not negative, and what is `Text` is only ever compared or shown.
"""

import functools
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from statestore.errors import FormatTooNew, HostFailure, StateStoreError

T = TypeVar("T")
_TEXT_MAX: Final = 1 << 20
_UPGRADE: Final = "upgrade statestore"

Text = Annotated[str, Meta(max_length=_TEXT_MAX)]
"""Shown or compared, never a place."""
Word = Annotated[str, Meta(max_length=500)]
"""The name of something known here, looked up: a serde, a kind of store."""
StoreName = Annotated[str, Meta(pattern=r"\A(?!\.)[A-Za-z0-9._-]{1,200}\Z")]
ApplicationName = StoreName
FolderName = Annotated[str, Meta(pattern=r"\A(?!\.)[A-Za-z0-9._-]{1,255}\Z")]
FileName = FolderName
TaskName = Annotated[str, Meta(pattern=r"\A(?:0|[1-9][0-9]{0,8})_(?:0|[1-9][0-9]{0,8})\Z")]
Topic = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")]
ExportName = Annotated[str, Meta(pattern=r"\A[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=-1)]
"""A count, or -1 where there is none."""
Ordinal = Annotated[int, Meta(ge=0, le=999_999_999)]
"""Of a partition or a sub-topology."""
TimeMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Since the epoch, up to the year 9999."""
Amount = Annotated[float, Meta(ge=0)]


def read(
    path: Path,
    kind: type[T],
    *,
    way_out: str,
    version: int | None = None,
    too_new: str = _UPGRADE,
) -> T | None:
    """What a file says; None if there is none.

    HostFailure with the way out if it cannot be read, or is not of that kind; FormatTooNew, with
    its own, if its version is above the one given.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostFailure(
            f"cannot read {path}: {error.strerror}; make it readable and its folder writable, or "
            "pass another --state-dir"
        ) from error
    return decode(data, kind, str(path), way_out=way_out, version=version, too_new=too_new)


def decode(
    data: bytes,
    kind: type[T],
    where: str,
    *,
    way_out: str,
    version: int | None = None,
    too_new: str = _UPGRADE,
    error: type[StateStoreError] = HostFailure,
) -> T:
    """What these bytes say; `error` with the way out if they are not of that kind."""
    try:
        if version is not None:
            found = _decoder(_Versioned).decode(data).version
            if found > version:
                raise FormatTooNew(
                    f"{where} has version {found}, this statestore reads up to {version}: {too_new}"
                )
        wanted: Any = kind
        decoded: T = _decoder(wanted).decode(data)
    except (msgspec.DecodeError, RecursionError) as failure:
        raise error(f"{where} is not readable: {failure}; {way_out}") from failure
    return decoded


def fits(text: str, kind: Any) -> bool:
    """Whether a name found elsewhere, as in a listing of files, is one of that kind."""
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


class _Versioned(msgspec.Struct, frozen=True):
    version: Count = 1


@functools.cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    _check(inspect.type_info(kind), str(kind))
    return msgspec.json.Decoder(kind)


def _check(kind: inspect.Type, where: str) -> None:
    """Our own mistake if a kind has a text or a number that may be anything."""
    match kind:
        case inspect.StrType(pattern=pattern, max_length=length):
            assert pattern is not None or length is not None, f"{where}: a bare str"
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            assert least is not None, f"{where}: a bare number"
        case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields):
            for field in fields:
                _check(field.type, f"{where}.{field.name}")
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            _check(item, where)
        case inspect.TupleType(item_types=parts) | inspect.UnionType(types=parts):
            for part in parts:
                _check(part, where)
        case inspect.DictType(key_type=key, value_type=value):
            _check(key, where)
            _check(value, where)
        case inspect.EnumType() | inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            raise AssertionError(f"{where}: {kind} is not checked")

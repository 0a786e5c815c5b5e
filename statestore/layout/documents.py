"""Validated reading of files from a state dir or a target.

Anybody who can write there could name a store `../../x`, list another application's topic as a
clone's, or count zero slots. Therefore every such file is read here, and nowhere else, into a
Struct made of the types below. A value that becomes a folder, a file or a topic must be a valid
name, a count must not be negative, and a `Text` is only compared or shown.

Keeps I32.
"""

import functools
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from statestore.errors import UNREADABLE, FormatTooNew, HostFailure, StateStoreError
from statestore.layout.files import opener, read_whole
from statestore.model.decoders import converted, json_decoder

T = TypeVar("T")
_TEXT_MAX: Final = 1 << 20
_BYTES_MAX: Final = 256 << 20
"""More than any document has: a file without end must not fill the memory."""
_UPGRADE: Final = "upgrade statestore"

Text = Annotated[str, Meta(max_length=_TEXT_MAX)]
"""A text that is shown or compared, and never used as a path."""
Word = Annotated[str, Meta(max_length=500)]
"""The name of something that this code looks up: a serde, a kind of store."""
StoreName = Annotated[str, Meta(pattern=r"\A(?!\.)[A-Za-z0-9._-]{1,200}\Z")]
ApplicationName = StoreName
FolderName = Annotated[str, Meta(pattern=r"\A(?!\.)[A-Za-z0-9._-]{1,255}\Z")]
FileName = FolderName
TaskName = Annotated[str, Meta(pattern=r"\A(?:0|[1-9][0-9]{0,8})_(?:0|[1-9][0-9]{0,8})\Z")]
Topic = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z")]
ExportName = Annotated[str, Meta(pattern=r"\A[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

_INT64_MAX: Final = (1 << 63) - 1
"""The largest offset, size or time that Kafka, RocksDB and an operating system have."""
Count = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
Number = Annotated[int, Meta(ge=-1, le=_INT64_MAX)]
"""A count, or -1 for none."""
Ordinal = Annotated[int, Meta(ge=0, le=999_999_999)]
"""The number of a partition or a sub-topology."""
TimeMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since the epoch, up to the year 9999."""
Amount = Annotated[float, Meta(ge=0)]


def read(
    path: Path,
    kind: type[T],
    *,
    way_out: str,
    version: int | None = None,
    too_new: str = _UPGRADE,
) -> T | None:
    """Read a file as a value of type `kind`; None if the file does not exist.

    HostFailure, with `way_out` in its message, if the file cannot be read or has other content;
    FormatTooNew, with `too_new` in its message, if its version is larger than `version`.
    """
    try:
        data = read_whole(path, _BYTES_MAX)
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
    """Decode bytes as a value of type `kind`; raise `error` with `way_out` if they are not one."""
    try:
        if version is not None:
            found = _decoder(_Versioned).decode(data).version
            if found > version:
                raise FormatTooNew(
                    f"{where} has version {found}; this statestore reads versions up to {version}: "
                    f"{too_new}"
                )
        wanted: Any = kind
        decoded: T = _decoder(wanted).decode(data)
    except UNREADABLE as failure:
        raise error(f"{where} is not readable: {failure}; {way_out}") from failure
    return decoded


def read_lines(path: Path, kind: type[T], *, most_bytes: int) -> list[T]:
    """Read a file, which nothing depends on, with a value in each line.

    Lines that are unreadable, or beyond `most_bytes`, are skipped.
    """
    wanted: Any = kind
    decoder, found = _decoder(wanted), []
    with suppress(OSError), open(path, "rb", opener=opener) as file:
        for line in file.read(most_bytes).splitlines():
            with suppress(*UNREADABLE):
                found.append(decoder.decode(line))
    return found


def fits(text: str, kind: Any) -> bool:
    """Return whether a name from elsewhere, such as a listing of files, is of that type."""
    try:
        converted(text, kind)
    except msgspec.ValidationError:
        return False
    return True


class _Versioned(msgspec.Struct, frozen=True):
    version: Count = 1


@functools.cache
def _decoder(kind: Any) -> Any:
    _check(inspect.type_info(kind), str(kind))
    return json_decoder(kind)


def _check(kind: inspect.Type, where: str) -> None:
    """Assert that every text and number in a type is limited."""
    match kind:
        case inspect.StrType(pattern=pattern, max_length=length):
            assert pattern is not None or length is not None, f"{where}: a bare str"
        case inspect.IntType(ge=least, le=most):
            assert None not in {least, most}, f"{where}: a bare number"
        case inspect.FloatType(ge=least):
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

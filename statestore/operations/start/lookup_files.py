"""Reads the files of lookups into the stores that stream tasks look into.

A file is read whole, checked whole, and becomes a store of the next version of the global tables
(operations/start/global_stores.py). An unchanged file, which its SHA-256 tells, keeps the store
that the last version has.
"""

import csv
import hashlib
import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from statestore import serdes
from statestore.errors import (
    UNREADABLE,
    FormatTooNew,
    HostFailure,
    Misuse,
    StateStoreError,
    TaskCorrupted,
)
from statestore.faults import CrashPoint, reach
from statestore.layout.global_versions import FileContent, GlobalVersion, GlobalVersions
from statestore.operations.environment import Environment
from statestore.stores import keyvalue
from statestore.topology.nodes import FileFormat, LookupSource

_log = logging.getLogger(__name__)
BYTES_MAX: Final = 64 << 20
"""The largest file of a lookup."""
_AT_ONCE: Final = 20_000

_Row = tuple[str, dict[str, Any]]
"""A row of a file, and where it stands there."""


class LookedUp(NamedTuple):
    """A lookup as its file is now. `rows` None: the store in `since` has them."""

    source: LookupSource
    content: FileContent
    rows: Mapping[bytes, bytes] | None
    since: Path | None


def look_up(
    environment: Environment, source: LookupSource, versions: GlobalVersions, newest: int | None
) -> LookedUp:
    """Return what the file of a lookup has now, without its rows if the last version has them."""
    spec, now_ms = source.spec, environment.clock.now_ms()
    file = environment.read_file(source.url, BYTES_MAX)
    digest = hashlib.sha256(file.content).hexdigest()
    terms = [source.key, source.format.value, spec.key_serde.name, spec.value_serde.name]
    if newest is not None:
        folder = versions.path(newest)
        known = _known(versions, folder).files.get(spec.name)
        same = known is not None and (known.url, known.sha256, known.terms) == (
            source.url,
            digest,
            terms,
        )
        if known is not None and same and (folder / spec.name).is_dir():
            if not versions.damaged(folder):
                content = msgspec.structs.replace(known, tag=file.tag, read_ms=now_ms)
                return LookedUp(source, content, None, folder / spec.name)
            _log.warning("lookup %s is made anew: a reader met damage", spec.name)
    rows = rows_of(source, file.content)
    content = FileContent(source.url, digest, file.tag, len(rows), terms, now_ms)
    return LookedUp(source, content, rows, None)


def write(environment: Environment, found: LookedUp, folder: Path) -> None:
    """Put the store of a lookup into the folder of a new version."""
    spec, content = found.source.spec, found.content
    path = folder / spec.name
    if found.since is not None:
        environment.databases.link(found.since, path, True)  # a port
        reach(CrashPoint.GLOBAL_LINKED)
        return
    assert found.rows is not None, "what no version has was read"
    store = environment.open_store(spec, path)
    assert isinstance(store, keyvalue.TransactionalKeyValueStore)
    with closing(store.staged):
        pairs = iter(found.rows.items())
        while some := list(islice(pairs, _AT_ONCE)):
            keys, values = [key for key, _ in some], [value for _, value in some]
            store.table.restore(keys, list(values), [content.read_ms] * len(some), {})
            reach(CrashPoint.GLOBAL_ROWS_WRITTEN)
    _log.info(
        "lookup %s: read %d rows of %s, of %s, sha256 %s",
        spec.name,
        content.rows,
        content.url,
        content.tag or "an unknown time",
        content.sha256,
    )


def _known(versions: GlobalVersions, folder: Path) -> GlobalVersion:
    try:
        return versions.read(folder)
    except (TaskCorrupted, FormatTooNew, HostFailure) as error:
        _log.warning("all lookups are read anew: %s", error)
        return GlobalVersion()


def rows_of(source: LookupSource, content: bytes) -> dict[bytes, bytes]:
    """Return the rows of a lookup's file by key; Misuse says what is wrong where."""
    spec, rows = source.spec, dict[bytes, bytes]()
    for place, row in _parsed(source, content):
        where = f"lookup {spec.name}: {place} of {source.url}"
        _require_key(where, source, row)
        key = _key(where, source, row[source.key])
        if key in rows:
            raise Misuse(
                f"{where} has the key {row[source.key]!r:.99} again, which "
                f"{_first_place(source, content, row[source.key])} has: a lookup has one row for "
                "each key; mend the file"
            )
        rows[key] = _value(where, source, row)
    return rows


def _first_place(source: LookupSource, content: bytes, key: object) -> str:
    return next(place for place, row in _parsed(source, content) if row[source.key] == key)


def _require_key(where: str, source: LookupSource, names: Iterable[str]) -> None:
    if source.key not in names:
        raise Misuse(
            f"{where} has no {source.key!r}, which is the key: it has "
            f"{', '.join(map(repr, names)) or 'nothing'}; mend the file, or name its key in "
            "lookup(…, key=…)"
        )


def _key(where: str, source: LookupSource, value: object) -> bytes:
    serde = source.spec.key_serde
    if value is None or value == "":
        raise Misuse(f"{where} has no value for its key {source.key!r}: mend the file")
    try:
        return serde.serialize(value)
    except Exception as error:
        raise Misuse(
            f"{where}: its key {value!r:.99} is {type(value).__name__}, but key_serde is "
            f"{serde.name} ({error}): pass one that fits to lookup()"
        ) from error


def _value(where: str, source: LookupSource, row: dict[str, Any]) -> bytes:
    serde = source.spec.value_serde
    try:
        data = serdes.JSON.serialize(msgspec.to_builtins(row, str_keys=True))
        if serde is not serdes.JSON:
            serde.deserialize(data)
    except Exception as error:
        raise Misuse(
            f"{where} is not a valid {serde.name} ({error}): a lookup's value_serde reads rows as "
            "JSON objects; pass one that does, or mend the file"
        ) from error
    return data


def _parsed(source: LookupSource, content: bytes) -> Iterator[_Row]:
    try:
        match source.format:
            case FileFormat.CSV:
                yield from _csv(source, content)
            case FileFormat.JSONL:
                yield from _jsonl(content)
            case FileFormat.PARQUET:
                yield from _parquet(source, content)
    except StateStoreError:
        raise
    except Exception as error:  # what a parser raises
        raise Misuse(
            f"lookup {source.spec.name}: {source.url} is not a {source.format} that can be read: "
            f"{error}; mend the file, or pass another file_format to lookup()"
        ) from error


def _csv(source: LookupSource, content: bytes) -> Iterator[_Row]:
    lines = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    header = next(lines, None)
    if not header:
        raise ValueError("it has no header")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise ValueError(f"its header has {twice!r} twice")
    _require_key(f"lookup {source.spec.name}: the header of {source.url}", source, header)
    for row in lines:
        if len(row) not in (0, len(header)):
            raise ValueError(
                f"line {lines.line_num} has {len(row)} values, and the header {len(header)}"
            )
        if row:
            yield f"line {lines.line_num}", dict(zip(header, row, strict=True))


def _jsonl(content: bytes) -> Iterator[_Row]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                row = serdes.JSON.deserialize(line)
            except UNREADABLE as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise TypeError(f"line {number} is not a JSON object")
            yield f"line {number}", row


def _parquet(source: LookupSource, content: bytes) -> Iterator[_Row]:
    from pyarrow.parquet import ParquetFile

    found = ParquetFile(io.BytesIO(content))
    names = found.schema_arrow.names
    _require_key(f"lookup {source.spec.name}: the schema of {source.url}", source, names)
    rows: Iterable[dict[str, Any]] = (
        row for batch in found.iter_batches() for row in batch.to_pylist()
    )
    for number, row in enumerate(rows, 1):
        yield f"row {number}", row

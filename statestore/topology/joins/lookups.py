"""Lookups: every host has all rows of a small file, and streams join them by any key.

A lookup is a global table whose rows come from a file (topology/joins/global_tables.py). The run
reads it (operations/start/lookup_files.py).
"""

from typing import Any
from urllib.parse import urlsplit

from statestore.errors import Misuse
from statestore.model.records import Serde
from statestore.stores.specs import KeyValueSpec
from statestore.topology.collector import Collector
from statestore.topology.joins.global_tables import GlobalFlow, GlobalKTable
from statestore.topology.nodes import FileFormat, LookupSource

_ENDS = {
    ".csv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".parquet": FileFormat.PARQUET,
}


def lookup(
    builder: Collector,
    url: str,
    *,
    key: str,
    file_format: str | None,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    store: str | None,
    name: str | None,
) -> GlobalKTable[Any, Any]:
    """Add a lookup; Misuse if its file cannot be told, or if its URL has a secret in it."""
    _check_url(url)
    named: object = key
    if not isinstance(named, str) or not named:
        raise Misuse(
            f"lookup({url!r:.99}): key={key!r:.99}: pass the name of the column or field that has "
            "the key of each row"
        )
    found = _format(url, file_format)
    spec = KeyValueSpec(
        store or builder.store_name("lookup", unnamed=False),
        key_serde,
        value_serde,
        terms=(found.value,),
    )
    source = LookupSource(
        builder.number("LOOKUP-SOURCE") if name is None else f"{name}-source",
        name or builder.number("LOOKUP"),
        spec,
        url,
        key,
        found,
    )
    builder.keep_global(source)
    return GlobalKTable(GlobalFlow(builder, spec))


def _check_url(url: object) -> None:
    if not isinstance(url, str) or not url:
        raise Misuse(f"lookup() takes the path or URL of a file, not {url!r:.99}: pass it as str")
    if "://" not in url:
        return
    parts = urlsplit(url)
    if parts.password or parts.query:
        raise Misuse(
            f"lookup(): the URL of {parts.scheme}://{parts.hostname or ''}{parts.path} has a "
            "password or a query in it, and a topology is shown to everybody: leave them out, and "
            "give fsspec the credentials in environment variables"
        )


def _format(url: str, asked: str | None) -> FileFormat:
    known = ", ".join(FileFormat)
    if asked is not None:
        try:
            return FileFormat(asked)
        except ValueError as error:
            raise Misuse(
                f"lookup({url!r:.99}): file_format {asked!r:.99}: it is one of {known}"
            ) from error
    for end, found in _ENDS.items():
        if url.lower().endswith(end):
            return found
    raise Misuse(
        f"lookup({url!r:.99}): the name ends with none of {', '.join(_ENDS)}: pass file_format=, "
        f"one of {known}"
    )

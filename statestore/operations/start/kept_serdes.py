"""Judges whether the serdes of a store read what others wrote: names, schemas, migrations. Pure.

Keys must have the very same bytes as before, because equal keys meet by their bytes. Values must be
readable, whichever serde wrote them: all that may have written rows are in `topology.json`.
"""

from typing import Final, NamedTuple

from statestore import serdes
from statestore.operations.deployed import DeployedStore, DeployedWriter, key_schema_of
from statestore.serdes import composed, schemas
from statestore.serdes.serde_names import head_of, inside_of
from statestore.stores.migration import GONE, Writer, changes_of, writers_of
from statestore.stores.specs import StoreSpec

_KEEP: Final = (
    "keep the serde, or give the store another name, to start it empty; if the new serde reads "
    "what the old one wrote, pass --accept-new-serdes"
)
_MIGRATE: Final = (
    "keep the serde; or say how to make new values of the old ones with "
    "migrate=ss.Migration(old_serde, function); or give the store another name, to start it empty; "
    "if the new serde reads what the old one wrote, pass --accept-new-serdes"
)
_WAIT: Final = (
    "keep the serde until nothing waits there any more (`held_records` is 0), and then give the "
    "operator another name, so that its store starts empty; if the new serde reads what the old "
    "one wrote, pass --accept-new-serdes"
)
_BASE: Final = (
    "name the serde that wrote them as the first migration; if that one reads them, pass "
    "--accept-new-serdes"
)
_NOT_GONE: Final = "bring that migration back, or run `statestore migrate` with it first"
_GO_ON: Final = (
    "bring back all migrations, oldest first, and append new ones: rows say only which of them "
    "wrote them; or give the store another name, to start it empty"
)


class Unlike(NamedTuple):
    """Why a store cannot go on with a serde, and what to do.

    `certain`: not even somebody who knows the serdes can say that it reads the rows.
    """

    what: str
    way_out: str
    certain: bool = False


NO_REASON: Final = Unlike("", _KEEP)


def keys_unlike(known: DeployedStore, spec: StoreSpec) -> Unlike | None:
    """Return why equal keys would have other bytes; None: they have the same."""
    was, now = _plain(known.key_serde), _plain(spec.key_serde.name)
    if was != now:
        return Unlike(f"its keys were written as {was} and would be read as {now}", _KEEP)
    schema = key_schema_of(spec)
    if known.key_schema is None or schema is None:
        return None
    if schemas.same_but_for_notes(known.key_schema.schema(), schema):
        return None
    return Unlike(
        f"the schema of its keys, {now}, changed, so that equal keys would have other bytes", _KEEP
    )


def values_unread(known: DeployedStore, spec: StoreSpec) -> Unlike | None:
    """Return why values that are there could not be read; None: all can."""
    now, was = writers_of(spec.value_serde), known.writers()
    newest = max(one.generation for one in was)
    if newest >= len(now):
        return Unlike(
            f"{newest} migrations wrote its rows, and the pipeline names {len(now) - 1} of them",
            _GO_ON,
            certain=True,
        )
    for one in was:
        if now[one.generation].serde == GONE.name != one.serde:
            said = f"there may be rows that {one.serde} wrote, which its migrations say are gone"
            return Unlike(said, _NOT_GONE, certain=True)
        what = _unread(one, now[one.generation])
        if what is not None:
            return Unlike(what, _way_out(now, newest))
    for old, change, then in zip(now, changes_of(spec.value_serde), now[1:], strict=False):
        reason = None if change is not None else _not_resolved(old, then)
        if reason is not None:
            return Unlike(
                f"its migration from {old.serde} to {then.serde} has no function, and {reason}",
                "give the migration a function that makes new values of the old ones",
            )
    return None


def _way_out(now: list[Writer], newest: int) -> str:
    if len(now) == 1:
        return _WAIT if now[0].serde.startswith(composed.WAITING) else _MIGRATE
    return _BASE if newest == 0 else _GO_ON


def harmless(known: DeployedStore, spec: StoreSpec) -> list[str]:
    """Tell what changed about the values of a store that can go on."""
    told, was = [], known.writers()
    for one in writers_of(spec.value_serde):
        before = [other for other in was if other.generation == one.generation]
        schemas_before = [other.schema.schema() for other in before if other.schema is not None]
        if not before:
            told.append(
                f"migration {one.generation} to {one.serde} begins: older rows are converted when "
                "they are read"
            )
        elif one.schema is not None and schemas_before and one.schema not in schemas_before:
            told.append(f"the schema of its values, {one.serde}, changed and reads all rows")
        elif all(other.serde != one.serde for other in before):
            told.append(f"its values, written as {before[-1].serde}, are read as {one.serde}")
    return told


def _unread(was: DeployedWriter, now: Writer) -> str | None:
    if now.serde.startswith(composed.WAITING) and was.serde == serdes.BYTES.name:
        return None  # A version that did not tell yet what waits there.
    other = f"its values were written as {was.serde} and would be read as {now.serde}"
    if was.schema is None or now.schema is None:
        plain_json = was.schema is not None and was.schema.kind == schemas.JSON
        if was.serde == now.serde or (plain_json and now.serde == serdes.JSON.name):
            return None
        return other
    # What stands before the name of a class or record says how bytes are framed.
    if _framing(was.serde) != _framing(now.serde):
        return other
    written = was.schema.schema()
    if written == now.schema:
        return None
    reason = schemas.unreadable(written, now.schema)
    if reason is None and now.resolves:
        reason = "its rows do not say with which schema they were written"
    if reason is None:
        return None
    return f"the schema of its values, {now.serde}, changed: {reason}"


def _not_resolved(was: Writer, then: Writer) -> str | None:
    if was.schema is None or then.schema is None or was.schema.kind != then.schema.kind:
        return None
    if was.schema != then.schema and _framing(was.serde) != _framing(then.serde):
        return "they have other schemas, which only one of two formats of bytes can resolve"
    return schemas.unreadable(was.schema, then.schema)


def _framing(serde: str) -> tuple[str, ...]:
    """Return what stands before the name of a class or record, also in count windows."""
    heads = [head_of(serde)]
    while heads[-1] == "COUNT_WINDOWS":
        serde = inside_of(serde) or ""
        heads.append(head_of(serde))
    return tuple(heads)


def _plain(serde: str) -> str:
    """Return the serde of the keys in windows; windows of another size are refused elsewhere."""
    of_windows = composed.of_windowed(serde)
    return serde if of_windows is None else of_windows.inner

"""The rows of a table that the records of a batch meet: a row of its own for each record.

A joiner may change the row that it is given, and no other record sees that.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec

from statestore.model.nulls import any_none
from statestore.topology.flows import Look

FIXED: Final = frozenset({type(None), str, bytes, int, float, bool})
"""Types whose values no function can change in place."""
_FIXED_WITHIN: Final = FIXED | {Decimal, UUID, datetime, date, time, timedelta}
_Copy = Callable[[Any], Any]
# Not `copy.copy`, which takes three times as long; msgspec's stubs lack the method.
_COPY_STRUCT: Final[_Copy] = msgspec.Struct.__copy__  # type: ignore[attr-defined]


def may_change(rows: Iterable[Any]) -> bool:
    """Return whether any of the rows is of a type that a function could change in place."""
    return not FIXED.issuperset(map(type, rows))


def rows_of(look: Look, keys: Sequence[bytes | None]) -> list[Any]:
    """Return the row of each key, each distinct key looked up once.

    A row that can be changed is copied for each record if all that is in it cannot be changed;
    that takes a fraction of the time of reading it from bytes. Any other such row is looked up
    again for each further record.
    """
    wanted = sorted({key for key in keys if key is not None})
    rows: dict[bytes | None, Any] = dict(zip(wanted, look(wanted), strict=True))
    found = list(map(rows.get, keys))
    if len(wanted) == len(keys) or not may_change(rows.values()):
        return found
    copies = {key: _copy_of(row) for key, row in rows.items() if type(row) not in FIXED}
    kinds = set(copies.values())
    if len(kinds) == 1 and (copy := kinds.pop()) is not None:
        # The first record of a key could have the row itself, but a look at each costs more.
        if len(copies) == len(rows) and not any_none(found):
            return list(map(copy, found))
        return [row if type(row) in FIXED else copy(row) for row in found]
    seen: set[bytes] = set()
    again: list[tuple[bytes, int]] = []
    for i, key in enumerate(keys):
        if key is None or key not in copies:
            continue
        if key not in seen:
            seen.add(key)
        elif (copy := copies[key]) is not None:
            found[i] = copy(found[i])
        else:
            again.append((key, i))
    again.sort()
    for (_, i), row in zip(again, look([key for key, _ in again]), strict=True):
        found[i] = row
    return found


def _copy_of(row: Any) -> _Copy | None:
    """Return the function that copies a row; None: something in it could be changed."""
    kind = type(row)
    if kind is dict:
        return dict.copy if _are_fixed(chain(row, row.values())) else None
    if kind is list:
        return list.copy if _are_fixed(row) else None
    if isinstance(row, msgspec.Struct) and not kind.__struct_config__.dict:
        fields = (getattr(row, name) for name in kind.__struct_fields__)
        return _COPY_STRUCT if _are_fixed(fields) else None
    return None


def _are_fixed(parts: Iterable[Any]) -> bool:
    return _FIXED_WITHIN.issuperset(map(type, parts))

"""The registry of the kinds of stores: from a spec, or from a name at rest, to its object.

A new kind is a module beside this one and its line in `_BUILT_IN`; docs/architecture.md has the
way. Nothing else in the library lists kinds.
"""

import copyreg
from collections.abc import Callable, Collection
from typing import Any, Final

from typing_extensions import TypeIs

from statestore.errors import Misuse
from statestore.stores.kinds.key_value_kinds import GlobalKind, KeyValueKind, TimerKind
from statestore.stores.kinds.kind import StoreKind
from statestore.stores.kinds.supplied_kind import SuppliedKind
from statestore.stores.kinds.versioned_kind import VersionedKind
from statestore.stores.kinds.window_kinds import SessionKind, WindowKind
from statestore.stores.specs import StoreSpec, VersionedSpec

GLOBAL: Final = GlobalKind()
_SUPPLIED: Final = SuppliedKind()
_BUILT_IN: Final[tuple[StoreKind, ...]] = (
    # A kind whose format row is that of another one comes first, so that its name means the other.
    TimerKind(),
    KeyValueKind(),
    VersionedKind(),
    WindowKind(),
    SessionKind(),
    GLOBAL,
    _SUPPLIED,
)
_BY_NAME: Final[dict[str, StoreKind]] = {}
_BY_SPEC: Final[dict[type, StoreKind]] = {}


def register(kind: StoreKind) -> None:
    """Make a kind known to this process: to whatever opens, reads, moves or describes stores."""
    _BY_NAME[kind.name] = kind
    # In another process it is the object that is registered there.
    copyreg.pickle(type(kind), _by_its_name)
    _BY_SPEC.update(dict.fromkeys(kind.specs, kind))


def _by_its_name(kind: StoreKind) -> tuple[Callable[[str], StoreKind], tuple[str]]:
    return kind_named, (kind.name,)


for _kind in _BUILT_IN:
    register(_kind)


def kind_named(name: str) -> StoreKind:
    """Return the kind that something at rest names; one that is not known here is unreadable."""
    return _BY_NAME.get(name, _SUPPLIED)


def kind_of(spec: StoreSpec) -> StoreKind:
    """Return the kind of a spec; Misuse if it is none of a kind that is known here."""
    found = _BY_SPEC.get(type(spec))
    if found is not None:
        return found
    for each in type(spec).__mro__:
        if each in _BY_SPEC:
            return _BY_SPEC[each]
    raise Misuse(f"{spec!r:.60} is not the spec of a store: pass what describes one, by its name")


def keeps_history(spec: StoreSpec | None) -> TypeIs[VersionedSpec[Any, Any]]:
    """Tell whether a table that is kept in such a store keeps its history; None: in no store."""
    return spec is not None and kind_of(spec).keeps_history


def expires(spec: StoreSpec) -> bool:
    """Tell whether single rows of such a store expire, by the stream time of its task."""
    kind = kind_of(spec)
    return kind.expires(kind.terms(spec))


def tables_in(stored: Collection[str]) -> tuple[str, ...]:
    """Return the tables of the kinds of stores that a database with these tables can be.

    If some are missing, they are those of the kinds that have most of these.
    """
    known = {kind.tables for kind in _BY_NAME.values() if kind.is_readable}
    return max(known, key=lambda tables: (len({*stored} & {*tables}), -len(tables)))

"""The kind of stores of the user's own class, whose files only that class can read."""

from collections.abc import Callable, Sequence
from typing import Any

from statestore.errors import Misuse
from statestore.model.modes import IsolationLevel
from statestore.model.records import Serde
from statestore.stores.kinds.kind import AnyReader, BuiltIn, StoreKind, StoreTerms
from statestore.stores.specs import StoreSpec, StoreSupplier
from statestore.stores.transaction import StagedEngine


class SuppliedKind(StoreKind):
    """A store of a `StoreSupplier` (docs/adr/0006), or one of a kind that is not known here."""

    name = StoreSupplier.kind
    specs = (StoreSupplier,)
    tables = ()
    is_readable = False

    def spec_at_rest(
        self, name: str, keys: Serde[Any], values: Serde[Any], terms: StoreTerms
    ) -> StoreSpec:
        del keys, values, terms
        raise _own_class(name)

    def owner(
        self, staged: StagedEngine, spec: Any, *, level: IsolationLevel, owned_by_task: bool
    ) -> BuiltIn:
        del staged, level, owned_by_task
        raise _own_class(spec.name)

    def reader(self, parts: Sequence[Any], spec: Any, release: Callable[[], None]) -> AnyReader:
        del parts, release
        raise _own_class(spec.name)


def _own_class(store: str) -> Misuse:
    return Misuse(f"store {store!r} is of a class of your own: only that can read its files")

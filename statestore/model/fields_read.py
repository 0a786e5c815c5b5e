"""Fields of values that were read without keeping the values (docs/adr/0058)."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from statestore.model.picks import Pick
from statestore.model.records import ArrowForm


class FieldForm(ArrowForm, Protocol):
    """The form of values that have fields, as ADR 58 has it."""

    def read(
        self, decode: Callable[[bytes], Any], rows: list[bytes | None], names: set[str]
    ) -> dict[str, Any]:
        """Return Arrow arrays of these fields of the values, and keep no value."""


class Wanted:
    """What was asked for of the values that came to a node.

    `names`: which of their fields. `objects`: somebody had the values themselves.
    """

    __slots__ = ("names", "objects")

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.objects = False


class FieldsRead:
    """Fields that were read of the values of a column, as Arrow arrays by their names.

    `form` read them, and `wanted` has what is asked for beside them.
    """

    __slots__ = ("arrays", "form", "wanted")

    def __init__(self, arrays: dict[str, Any], form: FieldForm, wanted: Wanted) -> None:
        self.arrays = arrays
        self.form = form
        self.wanted = wanted

    def of(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these names, which there are."""
        return {name: self.arrays[name] for name in names}

    def picked(self, pick: Pick) -> "FieldsRead":
        """Of the rows that `pick` takes."""
        arrays = {name: pick.of_array(one) for name, one in self.arrays.items()}
        return FieldsRead(arrays, self.form, self.wanted)

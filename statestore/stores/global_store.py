"""The store of a global table, as the stream tasks of one process see it: read-only, one for all.

What it shows are the files of one version of the table (layout/global_versions.py). The process
puts newer files in their place between two batches. The rows are the bytes of the table's topic.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from statestore.errors import Misuse
from statestore.model.records import K, V
from statestore.stores.keyvalue import KeyValueReader
from statestore.stores.reads import Rows
from statestore.stores.specs import KeyValueSpec


def _refused(verb: str) -> Callable[..., NoReturn]:
    def refuse(
        self: "GlobalKeyValueStore[Any, Any]", *_args: object, **_kwargs: object
    ) -> NoReturn:
        raise Misuse(
            f"{verb}() of store {self.name!r}: it is the store of a global table or a lookup, "
            "which is read-only: write the record to the table's topic with to(), or change the "
            "lookup's file, and the store has it at its next refresh"
        )

    return refuse


class GlobalKeyValueStore(KeyValueReader[K, V]):
    """The reads of a key-value store; every write is Misuse, as only the topic changes the rows."""

    def __init__(self, spec: KeyValueSpec[K, V], rows: Rows | None = None) -> None:
        super().__init__([] if rows is None else [rows], spec)

    def show(self, rows: Rows) -> None:
        """Read these rows from now on."""
        self._parts = [rows]

    def look_up(self, keys: list[bytes]) -> list[bytes | None]:
        """Return one value per key, in order, in bytes: for built-in operators."""
        return self._parts[0].get_many(keys)

    def close(self) -> None:
        """Do nothing: the run closes it."""

    put = _refused("put")
    put_all = _refused("put_all")
    put_if_absent = _refused("put_if_absent")
    delete = _refused("delete")
    discard = _refused("discard")
    delete_range = _refused("delete_range")
    delete_prefix = _refused("delete_prefix")
    commit = _refused("commit")

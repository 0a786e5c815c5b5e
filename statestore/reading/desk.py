"""The stores of an application at rest, for somebody who looks: a command, a page.

Rows come from a snapshot of each stream task, so that those of a task are of one commit.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from statestore.errors import Misuse
from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import StoresAtRest
from statestore.reading.questions import Range
from statestore.reading.views import StoreView
from statestore.stores.kinds.kind import AnyReader
from statestore.stores.kinds.registry import kind_named
from statestore.stores.reads import Entry, RowScan
from statestore.stores.specs import VersionedSpec


class FoundRow(NamedTuple):
    """A row of one stream task's store, and what the two times of its entry are called.

    `task` None: of the store of a global table.
    """

    task: TaskId | None
    span_names: tuple[str, ...]
    entry: Entry


class Desk:
    """Looks into the stores of one application; use `with`, or close it."""

    def __init__(self, environment: Environment) -> None:
        """Misuse if there is no such application."""
        self._application_id = environment.settings.application_id
        self.at_rest = StoresAtRest(environment)

    def close(self) -> None:
        """Release the snapshots."""
        self.at_rest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def view(self, store: str) -> StoreView:
        """Return what the topology deployed last says of a store, whether or not it has files."""
        return StoreView.of(self.at_rest.deployed, self._application_id, store)

    def look(
        self,
        store: str,
        partition: int | None = None,
        *,
        needs_history: bool = False,
        needs_times: bool = False,
    ) -> "Looked":
        """Find a store and the stream tasks that have it.

        `needs_history`: it is asked for versions; `needs_times`: for rows as of a time. Misuse if
        it does not have such rows; the errors of `StoresAtRest.find` if nobody has it.
        """
        view = self.view(store)
        if view.is_global:
            if needs_history or needs_times or partition:
                raise Misuse(
                    f"store {store!r} is that of a global table: it has one part and no history: "
                    "leave out times and the partition"
                )
            return Looked(self.at_rest, view, [None])
        if view.known is None and (needs_history or needs_times):
            # Nothing says what it is: its files do, when they are opened.
            view = replace(view, kind=kind_named(VersionedSpec.kind))
        has_times = view.kind.keeps_history or (view.kind.has_windows and not needs_history)
        if (needs_history or needs_times) and not has_times:
            raise Misuse(
                f"store {store!r} is a {view.kind.name} store, which does not keep its history: "
                "leave out times"
            )
        return Looked(self.at_rest, view, self.at_rest.find(store, partition, kind=view.kind.name))


@dataclass(frozen=True)
class Looked:
    """One store that was found. `tasks` has None for the store of a global table."""

    at_rest: StoresAtRest
    view: StoreView
    tasks: Sequence[TaskId | None]

    def rows(
        self, ask: Callable[[AnyReader], RowScan[Entry]], *, key: bytes | None = None
    ) -> Generator[FoundRow, None, None]:
        """Yield what `ask` gets from the reader of each stream task, in turn.

        `key`: of this key alone: begin where it should lie, and end with the partition that has it.
        """
        tasks: Iterable[TaskId | None] = self.tasks
        if key is not None:
            tasks = self.at_rest.likely_first(self.view.name, self.tasks, key)
        for task in tasks:
            is_found = False
            with self._reader(task) as reader, ask(reader) as found:
                for entry in found:
                    is_found = True
                    yield FoundRow(task, reader.span_names, entry)
            if is_found and key is not None:
                return

    def range(self, wanted: Range, *, one_key: bool = False) -> Generator[FoundRow, None, None]:
        """Yield the rows of a range, stream task by stream task; its `partition` is not asked.

        `one_key`: the range is one key, which one partition has.
        """
        key = wanted.lo if one_key else None
        return self.rows(lambda reader: wanted.rows(self.view.kind, reader), key=key)

    def _reader(self, task: TaskId | None) -> AbstractContextManager[AnyReader]:
        if task is None:
            return self.at_rest.global_reader(self.view.name)
        return self.at_rest.reader(task, self.view.in_bytes)

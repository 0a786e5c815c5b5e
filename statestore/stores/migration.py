"""Rows of several schemas in one store: each row says which serde wrote it (docs/adr/0022).

A store's serdes of values are its generations: the first one wrote the rows that say nothing, and
the last one writes now. Rows of all later generations begin with a mark and their number. A row is
converted when it is read; it is written anew only when the pipeline writes it. The mark is part of
the row and of its record in the changelog, so that whatever copies rows copies it, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from statestore.errors import Misuse
from statestore.model.records import Schema, Serde, Side, T

MARK: Final = b"\xff\xd7\x8b\x1f\xe0\x93\x5c\xaa\x06\xf2\x41"
"""What a row of a later generation begins with, before the number of its generation.

No text in UTF-8, no JSON, no MessagePack, no Protobuf and no row with the id of a registry begins
with these bytes.
"""
_HEAD: Final = len(MARK) + 1
GENERATIONS_MAX: Final = 255

Old = TypeVar("Old")


def _no_row(_item: Any) -> Any:
    raise ValueError("the pipeline says that no row of this generation is left")


GONE: Final[Serde[Any]] = Serde("GONE", _no_row, _no_row)
"""The serde of a generation of which no row is left."""


@dataclass(frozen=True, slots=True)
class Migration(Generic[Old]):
    """A serde that wrote values of a store before, and what makes new values of them.

    `change` takes a value as `was` reads it and returns a value of the next serde. It returns the
    same for the same value whenever it is called, and never None, because a row cannot vanish while
    it is read. None: the values stay the same, and only their bytes are others; if both serdes have
    a schema of one kind, the next one reads the bytes by the schema with which they were written.
    """

    was: Serde[Old]
    change: Callable[[Old], Any] | None = None

    def __post_init__(self) -> None:
        given: object = self.was
        if not isinstance(given, Serde):
            raise Misuse(
                f"Migration takes the serde that wrote the rows first, not {type(given).__name__}: "
                "pass Migration(old_serde, function)"
            )
        change: object = self.change
        if change is not None and not callable(change):
            raise Misuse(
                f"Migration: {change!r} cannot be called: pass a function, or leave it out"
            )

    @classmethod
    def gone(cls) -> "Migration[Any]":
        """Stand for a migration whose rows were all written anew, so that others keep their place.

        `statestore migrate` writes them anew. A start is refused while there may be such a row.
        """
        return Migration(GONE)


Migrations = Migration[Any] | Sequence[Migration[Any]] | None
"""The serdes that wrote values of a store before, oldest first; None: no other one did."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class MigratingSerde(Serde[T]):
    """The serde of the values of a store whose rows have several generations."""

    generations: tuple[Serde[Any], ...]
    changes: tuple[Callable[[Any], Any] | None, ...]

    def __init__(self, current: Serde[T], migrations: Sequence[Migration[Any]]) -> None:
        generations = (*(one.was for one in migrations), current)
        if any(isinstance(one, MigratingSerde) for one in generations):
            raise Misuse("a serde with migrations is not migrated again: list all of them at once")
        if len(generations) > GENERATIONS_MAX:
            raise Misuse(f"a store has {GENERATIONS_MAX} generations of rows at most")
        changes = tuple(one.change for one in migrations)
        Serde.__init__(
            self,
            f"MIGRATED[{len(migrations)}]({current.name})",
            _writing(generations),
            _reading(generations, changes),
            schema=current.schema,
        )
        object.__setattr__(self, "generations", generations)
        object.__setattr__(self, "changes", changes)

    def is_newest(self, row: bytes) -> bool:
        """Tell whether the serde that writes now wrote this row."""
        return row.startswith(MARK + bytes([len(self.changes)]))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel to other processes as the serdes of which it is made."""
        *olds, current = self.generations
        return MigratingSerde, (current, list(map(Migration, olds, self.changes)))

    @property
    def contextual(self) -> bool:
        """Whether a function of some generation takes a SerdeContext."""
        return any(one.contextual for one in self.generations)

    def at(self, topic: str, side: Side) -> "MigratingSerde[T]":
        """Return the serde of values of a topic; see `Serde.at`."""
        return self._bound(one.at(topic, side) for one in self.generations)

    def in_store(
        self, store: str, side: Side, application: str | None = None
    ) -> "MigratingSerde[T]":
        """Return the serde of values of a store; see `Serde.in_store`."""
        return self._bound(one.in_store(store, side, application) for one in self.generations)

    def _bound(self, bound: Iterable[Serde[Any]]) -> "MigratingSerde[T]":
        generations = tuple(bound)
        if all(one is own for one, own in zip(generations, self.generations, strict=True)):
            return self
        *olds, current = generations
        return MigratingSerde(current, list(map(Migration, olds, self.changes)))


class Writer(NamedTuple):
    """A serde that writes, or wrote, the rows of one generation of a store."""

    generation: int
    serde: str
    schema: Schema | None
    resolves: bool
    """Whether its rows are read by the schema with which they were written, which they lack."""


def migrating(current: Serde[T], migrations: Migrations) -> Serde[T]:
    """Return the serde that writes values with `current` and also reads those written before.

    `migrations`: the serdes that wrote rows of the store, oldest first. A store must go on with all
    of them; a new one is appended.
    """
    listed = migrations_in(migrations)
    return MigratingSerde(current, listed) if listed else current


def migrations_in(given: Migrations) -> tuple[Migration[Any], ...]:
    """Return the migrations that were given; Misuse if something else was."""
    if given is None:
        return ()
    listed: object = (given,) if isinstance(given, Migration) else given
    if not isinstance(listed, Sequence):
        listed = (listed,)
    for one in listed:
        if not isinstance(one, Migration):
            raise Misuse(
                f"migrate takes a Migration or a list of them, not {one!r:.60}: pass "
                "ss.Migration(old_serde, function)"
            )
    return tuple(listed)


def generation_of(row: bytes) -> tuple[int, bytes]:
    """Return the generation that a row of a store with migrations names, and its value."""
    if not row.startswith(MARK):
        return 0, row
    return (row[_HEAD - 1] if len(row) >= _HEAD else -1), row[_HEAD:]


def outside(serde: Serde[T]) -> Serde[T]:
    """Return the serde of a store's values as they leave the store: without marks."""
    return serde.generations[-1] if isinstance(serde, MigratingSerde) else serde


def writers_of(serde: Serde[Any]) -> list[Writer]:
    """Return what writes, or wrote, the rows of each generation."""
    generations = serde.generations if isinstance(serde, MigratingSerde) else (serde,)
    return [
        Writer(place, one.name, one.schema, one.resolving) for place, one in enumerate(generations)
    ]


def changes_of(serde: Serde[Any]) -> list[Callable[[Any], Any] | None]:
    """Return what makes values of each generation those of the next."""
    return list(serde.changes) if isinstance(serde, MigratingSerde) else []


def _writing(generations: Sequence[Serde[Any]]) -> Callable[[Any], bytes]:
    head, write = MARK + bytes([len(generations) - 1]), generations[-1].serialize

    def marked(value: Any) -> bytes:
        return head + write(value)

    return marked


def _reading(
    generations: Sequence[Serde[Any]], changes: Sequence[Callable[[Any], Any] | None]
) -> Callable[[bytes], Any]:
    readers = [_from(place, generations, changes) for place in range(len(generations))]

    def read(data: bytes) -> Any:
        if not data.startswith(MARK):
            return readers[0](data)
        if len(data) < _HEAD:
            raise ValueError("a marked row has no number of its generation")
        generation = data[_HEAD - 1]
        if generation >= len(readers):
            raise ValueError(
                f"the row is of generation {generation}, and the pipeline knows {len(readers) - 1} "
                "migrations: a newer pipeline wrote it"
            )
        return readers[generation](data[_HEAD:])

    return read


def _from(
    place: int,
    generations: Sequence[Serde[Any]],
    changes: Sequence[Callable[[Any], Any] | None],
) -> Callable[[bytes], Any]:
    """Return the function that reads bytes of one generation as values of the last one."""
    last, written = len(generations) - 1, generations[place]
    read = written.deserialize
    # As long as only schemas changed, the newest reader takes the bytes themselves.
    while place < last and changes[place] is None and _resolvable(written, generations[place + 1]):
        place += 1
        read = _resolved(written, generations[place])
    steps = [
        step
        for at in range(place, last)
        if (step := _step(generations[at], changes[at], generations[at + 1])) is not None
    ]
    if not steps:
        return read

    def changed(data: bytes) -> Any:
        value = read(data)
        for step in steps:
            value = step(value)
            if value is None:
                raise ValueError("a migration returned None: a row cannot vanish while it is read")
        return value

    return changed


def _step(
    was: Serde[Any], change: Callable[[Any], Any] | None, then: Serde[Any]
) -> Callable[[Any], Any] | None:
    """Return what makes values of `then` of those of `was`; None if they are the same."""
    if change is not None:
        return change
    if not _resolvable(was, then):
        return None
    write, read = was.serialize, _resolved(was, then)
    return lambda value: read(write(value))


def _resolved(was: Serde[Any], then: Serde[Any]) -> Callable[[bytes], Any]:
    assert was.schema is not None
    return then.reading(was.schema)


def _resolvable(was: Serde[Any], then: Serde[Any]) -> bool:
    """Tell whether `then` reads the very bytes that `was` wrote, if it knows their schema."""
    return (
        was.schema is not None
        and then.schema is not None
        and was.schema.kind == then.schema.kind
        and was.framing == then.framing
    )

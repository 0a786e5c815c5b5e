"""The grammar of serdes' names: NAME, or NAME(argument,…) of a serde that is made of others.

Tools and topology.json know serdes by their names alone. A constructor registers here what can be
told from a name without the pipeline: how to make the serde, where its keys are placed, and whether
they are keys in windows. Only commas outside of brackets separate arguments, and the last argument
takes the rest, because names of the user's own serdes may have anything in them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from statestore.model.records import Serde

ByName = Callable[[str], Serde[Any]]
Place = Callable[[bytes], bytes]
"""Returns the bytes that place a key."""


class KeysInWindows(NamedTuple):
    """What the name of a serde of keys in windows says.

    `inner` is the name of the serde of the keys themselves, `span_bytes` how many bytes of a key
    its window takes. `size_ms` None: the windows are sessions, which have no size.
    """

    inner: str
    span_bytes: int
    size_ms: int | None


class Constructor(NamedTuple):
    """What a name with this head says, given its `arity` arguments as text.

    `accepts` tells whether these can be its arguments; a name of which they cannot is a user's.
    `place` returns None if the key itself is what places it; without `place`, that always holds.
    """

    head: str
    arity: int
    make: Callable[[Sequence[str], ByName], Serde[Any]]
    place: Callable[[Sequence[str]], Place | None] | None = None
    windows: Callable[[Sequence[str]], KeysInWindows] | None = None
    accepts: Callable[[Sequence[str]], bool] = all


class Construction(NamedTuple):
    """A name that a constructor has made."""

    constructor: Constructor
    arguments: Sequence[str]

    def serde(self, by_name: ByName) -> Serde[Any]:
        """Return the serde, given how to find those that it is made of."""
        return self.constructor.make(self.arguments, by_name)

    def place(self) -> Place | None:
        """Return what gives the bytes that place a key; None: these are the key itself."""
        place = self.constructor.place
        return None if place is None else place(self.arguments)

    def windows(self) -> KeysInWindows | None:
        """Return what the name says of the windows of keys; None if it has no windows."""
        windows = self.constructor.windows
        return None if windows is None else windows(self.arguments)


_constructors: Final[dict[str, Constructor]] = {}


def define(constructor: Constructor) -> None:
    """Register a constructor, once, while its module is imported."""
    assert constructor.head not in _constructors, constructor.head
    _constructors[constructor.head] = constructor


def head_of(name: str) -> str:
    """Return what stands before the first bracket of a name, or all of it."""
    return name.partition("(")[0]


def inside_of(name: str) -> str | None:
    """Return what a name has between its first bracket and its last letter, a bracket too."""
    inside = name[len(head_of(name)) + 1 : -1]
    return inside if inside and name.endswith(")") else None


@functools.lru_cache(maxsize=1024)
def parsed(name: str) -> Construction | None:
    """Return what a name is made of; None if no constructor has made it."""
    constructor, inside = _constructors.get(head_of(name)), inside_of(name)
    if constructor is None or inside is None:
        return None
    arguments = _split(inside, constructor.arity)
    fits = len(arguments) == constructor.arity and constructor.accepts(arguments)
    return Construction(constructor, arguments) if fits else None


def _split(inside: str, count: int) -> list[str]:
    """Split at the first commas that are in no brackets, into `count` arguments at most."""
    arguments: list[str] = []
    depth = start = 0
    for place, letter in enumerate(inside):
        if len(arguments) == count - 1:
            break
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            arguments.append(inside[start:place])
            start = place + 1
    return [*arguments, inside[start:]]

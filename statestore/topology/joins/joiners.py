"""Joiners: a user's function of two values that met, or of their key and the two values."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from statestore.model.batch import Batch
from statestore.model.records import Serde
from statestore.topology.callbacks import takes_key
from statestore.topology.joins.meeting import Meeting
from statestore.topology.nodes import NodeContext

Joining = Callable[[NodeContext], Callable[[Batch], Batch]]
"""Gives, for a context, the function from a batch of a stream to the joined batch."""
OfValues = Callable[[Any, Any], Any]


class ColumnJoiner(Protocol):
    """What joins whole columns of a stream with the rows of a table."""

    @property
    def value_serde(self) -> Serde[Any]:
        """The serde of the results."""

    @property
    def says(self) -> str:
        """What the description of the topology says of it."""

    def joining(self, node: str, meeting: Meeting, *, left: bool) -> Joining: ...


class Joiner(NamedTuple):
    """function(left, right), or function(key, left, right) if it `takes_key`."""

    function: Callable[..., Any]
    takes_key: bool = False

    @classmethod
    def checked(cls, verb: str, function: Callable[..., Any], name: str | None) -> "Joiner":
        """Return the joiner of an operator; Misuse if the function cannot be called."""
        return cls(function, takes_key(verb, function, 2, name))

    def of(self, key: Any) -> OfValues:
        """Return the function of two values of a key."""
        return partial(self.function, key) if self.takes_key else self.function

    def alone(self, key: bytes | None, value: Any, keys: Serde[Any], *, left: bool) -> Any:
        """Return what the function makes of a value without a match, whose key has these bytes."""
        named = None if key is None or not self.takes_key else keys.deserialize(key)
        return self.of(named)(value, None) if left else self.of(named)(None, value)

    def reversed(self) -> "Joiner":
        """Return a joiner that takes the right value before the left one."""
        function = self.function

        def of_two(right: Any, left: Any) -> Any:
            return function(left, right)

        def of_three(key: Any, right: Any, left: Any) -> Any:
            return function(key, left, right)

        return Joiner(of_three if self.takes_key else of_two, self.takes_key)

"""What stands in place of a function: a Polars expression, told without Polars being loaded."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from typing_extensions import TypeIs

from statestore.errors import Misuse
from statestore.extras import needed


class Expression(Protocol):
    """A Polars expression, as type checkers see it where Polars is not installed."""

    @property
    def meta(self) -> Any: ...
    def is_not_null(self) -> Any: ...
    def over(self, *args: Any, **kwargs: Any) -> Any: ...


Expressions = Mapping[str, Expression] | Expression
"""One expression, or several by the names of their results."""


def is_expression(given: object) -> TypeIs[Expression]:
    """Tell whether this is a Polars expression, or one of its unfinished forms."""
    kind = type(given)
    return kind.__module__.partition(".")[0] == "polars" and hasattr(kind, "meta")


def given(function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function that may be left out where aggregates are named; Misuse if it was."""
    if function is None:
        raise Misuse(
            "aggregate: a function is missing: pass all of them, or an aggregate of ss.agg alone"
        )
    return function


def are_expressions(given: object) -> TypeIs[Expressions]:
    """Tell whether these are Polars expressions, one or several by their names."""
    return isinstance(given, Mapping) or is_expression(given)


def joined_by_columns(verb: str) -> Any:
    """Return the joins that take expressions; Misuse if the extra `columns` is missing."""
    with needed("columns", f"{verb} by an expression"):
        from statestore.topology import column_joins
    return column_joins


def by_columns(verb: str) -> Any:
    """Return the operators that take expressions; Misuse if the extra `columns` is missing."""
    with needed("columns", f"{verb} by an expression"):
        from statestore.topology import column_operators
    return column_operators

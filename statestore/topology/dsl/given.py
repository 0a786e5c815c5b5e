"""What stands in place of a function: a Polars expression, told without Polars being loaded."""

from typing import Any, Protocol

from typing_extensions import TypeIs

from statestore.extras import needed


class Expression(Protocol):
    """A Polars expression, as type checkers see it where Polars is not installed."""

    @property
    def meta(self) -> Any: ...
    def is_not_null(self) -> Any: ...
    def over(self, *args: Any, **kwargs: Any) -> Any: ...


def is_expression(given: object) -> TypeIs[Expression]:
    """Tell whether this is a Polars expression, or one of its unfinished forms."""
    kind = type(given)
    return kind.__module__.partition(".")[0] == "polars" and hasattr(kind, "meta")


def by_columns(verb: str) -> Any:
    """Return the operators that take expressions; Misuse if the extra `columns` is missing."""
    with needed("columns", f"{verb} by an expression"):
        from statestore.topology import column_operators
    return column_operators

"""Keywords that were renamed: the old ones work, and say once what they are called now."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**old: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take its keywords by their old names, too: `renamed(size="size_ms")`.

    Python shows a DeprecationWarning once for each place of a call. TypeError if both names are
    given, as for any keyword that is given twice.
    """
    new_of = {before: now for now, before in old.items()}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            for before in new_of.keys() & keywords.keys():
                now = new_of[before]
                name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                if now in keywords:
                    raise TypeError(f"{name}() got {now}= and {before}=, which is its old name")
                warnings.warn(
                    f"{name}: {before}= is called {now}= now, and takes milliseconds or a "
                    "timedelta as before",
                    DeprecationWarning,
                    stacklevel=2,
                )
                keywords[now] = keywords.pop(before)
            return function(*args, **keywords)

        return call

    return decorate

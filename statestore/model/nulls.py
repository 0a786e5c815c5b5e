"""Whether a value is missing."""

from collections.abc import Iterable
from itertools import repeat
from operator import is_


def any_none(items: Iterable[object]) -> bool:
    """Return whether None is among the items; none of them is compared, whatever it is."""
    return any(map(is_, items, repeat(None)))

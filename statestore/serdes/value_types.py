"""The types of values: how messages call them, and what isinstance() can check of them."""

import types
import typing
from typing import Any


def name_of(kind: Any) -> str:
    """Return a type's name without its modules."""
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        return kind.__name__
    written = str(kind)
    for word in {one for one in _words(written) if "." in one}:
        written = written.replace(word, word.rpartition(".")[2])
    return written


def checked(kind: Any) -> Any:
    """Return what isinstance() can check of a type: itself, or the class of which it is made."""
    made_of = typing.get_origin(kind)
    if made_of is typing.Annotated:
        return checked(typing.get_args(kind)[0])
    if made_of in (typing.Union, types.UnionType):
        return tuple(map(checked, typing.get_args(kind)))
    try:
        isinstance(None, kind)
    except TypeError:
        if isinstance(made_of, type):
            return made_of
        return dict if typing.is_typeddict(kind) else object
    return kind


def _words(text: str) -> list[str]:
    found = "".join(c if c.isidentifier() or c in ".0123456789" else " " for c in text).split()
    return [one for one in found if all(part.isidentifier() for part in one.split("."))]

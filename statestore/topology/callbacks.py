"""What a user's callables must be like: refused where the pipeline is written, if that can tell.

A call of a generator function or a coroutine runs nothing: each record would be lost without a
word, or pass every predicate.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from statestore.errors import InvalidTopology, Misuse


def check_arity(
    verb: str,
    function: Callable[..., Any],
    count: int,
    name: str | None = None,
    *,
    may_yield: bool = False,
) -> None:
    """Misuse unless `function` can be called with `count` positional arguments, and then runs.

    `may_yield`: what it gives is iterated, so it may be a generator function.
    """
    where = verb if name is None else f"{verb} {name!r}"
    if not callable(function):
        raise Misuse(f"{where}: want a function of {count} arguments, got {function!r}")
    check_runs(where, function, may_yield=may_yield)
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        raise Misuse(
            f"{where}: {_name(function)!r} cannot take {count} arguments ({error})"
        ) from error
    except ValueError:
        return  # A builtin without a signature: called as it is.


def check_runs(where: str, function: Callable[..., Any], *, may_yield: bool = False) -> None:
    """Misuse if a call of `function` runs nothing."""
    why = _never(function, may_yield=may_yield)
    if why is not None:
        raise Misuse(f"{where}: {_name(function)!r} {why}")


def check_factory(verb: str, factory: Callable[..., Any], name: str | None) -> None:
    """Misuse unless `factory` can make a processor whose method `verb` and close() run.

    Of a factory that is not the processor's class, only what it made shows that: `Maker.make`.
    """
    check_arity(verb, factory, 1, name)
    if isinstance(factory, type):
        why = _of_methods(factory, verb)
        if why is not None:
            raise Misuse(f"{verb if name is None else f'{verb} {name!r}'}: {why}")


class Maker:
    """Makes the processors of one node, a new one for each life of each stream task."""

    def __init__(self, node: str, factory: Callable[..., Any], verb: str) -> None:
        self._node = node
        self._factory = factory
        self._verb = verb
        self._made: list[Callable[[], Any]] = []

    def make(self, context: Any) -> Any:
        """InvalidTopology if it cannot process, or was there before: it may hold what was undone.

        Whatever the factory raises is raised.
        """
        known = [kept() for kept in self._made] + list(_within_reach(self._factory))
        processor = self._factory(context)
        name = type(processor).__name__
        if not callable(getattr(processor, self._verb, None)):
            raise InvalidTopology(
                f"node {self._node}: its factory made {name}, which has no {self._verb}()"
            )
        why = _of_methods(processor, self._verb)
        if why is not None:
            raise InvalidTopology(f"node {self._node}: {why}")
        if any(one is processor for one in known):
            raise InvalidTopology(
                f"node {self._node}: its factory gives again a processor ({name}) that was there "
                "before: what it remembers would outlive records that were not committed, and be "
                "of several stream tasks: make a new one each time"
            )
        self._made = [kept for kept in self._made if kept() is not None]
        self._made.append(_reference(processor))
        return processor


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def _within_reach(factory: Callable[..., Any]) -> Iterator[Any]:
    """What a factory refers to: things that are older than any call of it."""
    if isinstance(factory, partial):
        yield from (*factory.args, *factory.keywords.values())
        yield from _within_reach(factory.func)
        return
    owner = getattr(factory, "__self__", None)
    if owner is not None:
        yield owner
        yield from getattr(owner, "__dict__", {}).values()
    function = getattr(factory, "__func__", factory)
    if not inspect.isfunction(function):
        yield from getattr(function, "__dict__", {}).values()
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    try:
        used = inspect.getclosurevars(function)
    except ValueError:
        return  # A variable of the function around it that has no value yet.
    yield from (*used.nonlocals.values(), *used.globals.values())


def _of_methods(processor: Any, verb: str) -> str | None:
    for method in (verb, "close"):
        why = _never(getattr(processor, method, None), may_yield=False)
        if why is not None:
            owner = processor if isinstance(processor, type) else type(processor)
            return f"{owner.__name__}.{method}() {why}"
    return None


def _never(function: Any, *, may_yield: bool) -> str | None:
    """Why a call would run nothing; None: it runs."""
    while isinstance(function, partial):
        function = function.func
    inner = function
    if not (inspect.isroutine(function) or isinstance(function, type)):
        inner = getattr(type(function), "__call__", function)  # noqa: B004 - the method, not a test
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        return "is asynchronous: it would never be awaited: make it a plain function"
    if inspect.isgeneratorfunction(inner) and not may_yield:
        return "is a generator: it would never run: leave out its yield, return what it makes"
    return None


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", function))

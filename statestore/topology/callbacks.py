"""Checks of a user's callables, made where the pipeline is written as far as that is possible.

Calling a generator function or a coroutine function runs nothing: records would be lost silently,
or all of them would pass a predicate. Therefore such functions are refused.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from statestore.errors import Misuse

_KEY_AND_VALUE = ("filter", "filter_not", "map", "flat_map", "select_key", "peek", "foreach")
_ARGUMENTS = {
    **dict.fromkeys(
        (
            *_KEY_AND_VALUE,
            "branch",
            "split",
            "group_by",
            "to_stream",
            "key of join",
            "key of left_join",
        ),
        "key, value",
    ),
    **dict.fromkeys(("filter_records", "set_timestamp", "set_headers"), "record"),
    **dict.fromkeys(("aggregate", "aggregate adder", "aggregate subtractor"), "key, value, so_far"),
    **dict.fromkeys(("reduce", "reduce adder", "reduce subtractor"), "so_far, value"),
    "aggregate merger": "key, one, other",
    "cogroup": "key, value, so_far",
}
"""What verbs call a function with, as somebody may expect less or more."""

ArrowFunction = Callable[..., Any]
"""A function of whole columns of a batch, as Arrow arrays."""


def check_arity(
    verb: str,
    function: Callable[..., Any],
    count: int,
    name: str | None = None,
    *,
    may_yield: bool = False,
) -> None:
    """Raise Misuse unless `function` takes `count` positional arguments and a call of it runs.

    `may_yield`: what it returns is iterated, so it may be a generator function.
    """
    where = _check_runs(verb, function, count, name, may_yield=may_yield)
    error = _misfit(function, count)
    if error is not None:
        taken = _ARGUMENTS.get(verb.partition(":")[0])
        way_out = "" if taken is None else f": write it as lambda {taken}: …"
        raise Misuse(
            f"{where}: {_name(function)!r} cannot take {count} arguments ({error}){way_out}"
        ) from error


def takes_key(
    verb: str,
    function: Callable[..., Any],
    count: int,
    name: str | None = None,
    *,
    may_yield: bool = False,
) -> bool:
    """Return whether `function` takes the key before `count` other arguments.

    It does not if it can be called without the key, as with defaults or `*args`. Misuse if it can
    be called in neither way, or for the reasons of `check_arity`.
    """
    where = _check_runs(verb, function, count, name, may_yield=may_yield)
    if _misfit(function, count) is None:
        return False
    error = _misfit(function, count + 1)
    if error is not None:
        raise Misuse(
            f"{where}: {_name(function)!r} cannot take {count} arguments, nor {count + 1} with the "
            f"key before them ({error})"
        ) from error
    return True


def check_extractor(function: Callable[..., Any], name: str | None) -> None:
    """Raise Misuse unless `function` takes a record, or a record and the time of its partition."""
    where = _check_runs("timestamp_extractor", function, 1, name, may_yield=False)
    error = _misfit(function, 2)
    if takes_partition_time(function) and error is not None:
        raise Misuse(
            f"{where}: {_name(function)!r} cannot take 1 argument, the record, nor 2, the record "
            f"and the time of its partition ({error})"
        ) from error


def takes_partition_time(extractor: Callable[..., Any]) -> bool:
    """Return whether a timestamp extractor needs the time of the partition, too."""
    return _misfit(extractor, 1) is not None


def _misfit(function: Callable[..., Any], count: int) -> TypeError | None:
    """Return why a function cannot take `count` positional arguments; None: it can."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError as error:
        return error
    except ValueError:
        return None  # A builtin without a signature is called as it is.
    return None


def _check_runs(
    verb: str, function: Callable[..., Any], count: int, name: str | None, *, may_yield: bool
) -> str:
    """Raise Misuse unless a call of `function` runs; return the place of the call, for messages."""
    where = verb if name is None else f"{verb} {name!r}"
    given: object = function
    if not callable(given):
        arguments = f"{count} argument{'' if count == 1 else 's'}"
        way_out = "" if count else f": pass lambda: {given!r:.99}"
        raise Misuse(f"{where} needs a function of {arguments}, not {given!r:.99}{way_out}")
    why = why_idle(function, may_yield=may_yield)
    if why is not None:
        raise Misuse(f"{where}: {_name(function)!r} {why}")
    return where


def check_factory(verb: str, factory: Callable[..., Any], name: str | None, method: str) -> None:
    """Raise Misuse unless `factory` can make a processor whose `method` and close() run.

    If the factory is not the processor's class, only what it makes shows that; see
    `processors.Maker`.
    """
    given: object = factory
    if not callable(given) and hasattr(given, method):
        where = verb if name is None else f"{verb} {name!r}"
        kind = type(given).__name__
        raise Misuse(
            f"{where} needs what makes a processor for each stream task, not one that is made "
            f"already: pass the class {kind}, or lambda context: {kind}(…)"
        )
    check_arity(verb, factory, 1, name)
    if isinstance(factory, type):
        why = why_processor_idle(factory, method)
        if why is not None:
            raise Misuse(f"{verb if name is None else f'{verb} {name!r}'}: {why}")


def why_processor_idle(processor: Any, verb: str) -> str | None:
    """Return why a call of the method `verb`, or of close(), would run nothing; None: both run."""
    for method in (verb, "close"):
        why = why_idle(getattr(processor, method, None), may_yield=False)
        if why is not None:
            owner = processor if isinstance(processor, type) else type(processor)
            return f"{owner.__name__}.{method}() {why}"
    return None


def why_idle(function: Any, *, may_yield: bool) -> str | None:
    """Return why a call of the function would run nothing; None: it runs."""
    while isinstance(function, partial):
        function = function.func
    inner = function
    if not (inspect.isroutine(function) or isinstance(function, type)):
        inner = getattr(type(function), "__call__", function)  # noqa: B004 - the method, not a test
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        return "is asynchronous and would never be awaited: make it a plain function"
    if inspect.isgeneratorfunction(inner) and not may_yield:
        return "is a generator and would never run: return the result instead of yielding it"
    return None


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", function))

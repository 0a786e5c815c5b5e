"""Streams that part by predicates, functions or expressions."""

from collections.abc import Callable, Sequence
from typing import Any

from statestore.errors import Misuse
from statestore.topology import operators as ops
from statestore.topology.callbacks import check_arity
from statestore.topology.dsl.given import Expression, by_columns, is_expression
from statestore.topology.flows import Flow


def branched(
    flow: Flow,
    verb: str,
    predicates: "Sequence[Callable[[Any, Any], object] | Expression]",
    names: Sequence[str | None],
    name: str | None,
) -> dict[str, Flow]:
    """Add the branches of a stream, by their names; the last one is for the rest, None drops it.

    Misuse if some predicates are expressions and others functions.
    """
    functions = [one for one in predicates if not is_expression(one)]
    where = verb if name is None else f"{verb} {name!r}"
    if functions and len(functions) < len(predicates):
        raise Misuse(f"{where}: pass functions, or expressions, and not some of both")
    for each, function in zip(names, functions, strict=False):
        check_arity(verb if verb == "branch" else f"{verb}: branch {each!r}", function, 2, name)
    chosen = name or flow.builder.number("KSTREAM-BRANCH")
    children = [None if each is None else f"{chosen}-{each}" for each in names]
    if predicates and not functions:
        make, text = by_columns(verb).parting(flow, where, predicates, children)
        flow.add("", chosen, make, says=text)
    else:
        flow.add("", chosen, lambda n: ops.branched(n, functions, children))
    return {
        each: flow.same(
            flow.builder.node("", f"{chosen}-{each}", (chosen,), lambda _: ops.passed())
        )
        for each in names
        if each is not None
    }

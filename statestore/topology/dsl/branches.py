"""Streams that part by predicates."""

from collections.abc import Callable, Sequence
from typing import Any

from statestore.topology import operators as ops
from statestore.topology.flows import Flow


def branched(
    flow: Flow,
    predicates: Sequence[Callable[[Any, Any], object]],
    names: Sequence[str | None],
    name: str | None,
) -> dict[str, Flow]:
    """Add the branches of a stream, by their names; the last one is for the rest, None drops it."""
    chosen = name or flow.builder.number("KSTREAM-BRANCH")
    children = [None if each is None else f"{chosen}-{each}" for each in names]
    flow.add("", chosen, lambda n: ops.branched(n, predicates, children))
    return {
        each: flow.same(
            flow.builder.node("", f"{chosen}-{each}", (chosen,), lambda _: ops.passed())
        )
        for each in names
        if each is not None
    }

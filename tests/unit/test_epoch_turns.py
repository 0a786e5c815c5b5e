"""Two owners of one stream task in every order: no commit number is committed twice.

A model of docs/adr/0013, searched whole: what the owners do to the log is modelled, no code of the
library runs here. The same search finds the fault in two rules that are only nearly right.

Shows I31.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

import pytest

NUMBERS = 5
IDS = 2
_T = TypeVar("_T")


class Rule(Enum):
    """How owners choose and check their transactional ids."""

    AS_BUILT = auto()
    NO_CHECK = auto()
    """Nobody asks the group after opening an id anew."""
    OWN_TURNS = auto()
    """Each owner uses the ids in an order of its own, whatever the number."""


class State(Enum):
    """What an owner thinks of one of its ids."""

    TO_OPEN = auto()
    TO_CHECK = auto()
    READY = auto()


@dataclass(frozen=True)
class Owner:
    """What one process knows; `base`: the last number its state has, None before it has read."""

    ids: tuple[State, ...] = (State.TO_OPEN,) * IDS
    base: int | None = None
    turns: int = 0
    gone: bool = False


@dataclass(frozen=True)
class World:
    """The log and both owners."""

    opener: tuple[int, ...] = (-1,) * IDS
    """Per id, which owner has its newest epoch; the others' transactions of it fail."""
    committed: tuple[int, ...] = ()
    """The base of each commit: one of state `n` is number n + 1."""
    owners: tuple[Owner, ...] = (Owner(), Owner())


def with_owner(world: World, who: int, owner: Owner) -> World:
    owners = list(world.owners)
    owners[who] = owner
    return replace(world, owners=tuple(owners))


def changed(values: tuple[_T, ...], index: int, value: _T) -> tuple[_T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def moves(world: World, who: int, rule: Rule) -> Iterator[World]:
    """Whatever owner `who` may do next, at its own pace."""
    me = world.owners[who]
    if me.gone:
        return
    for index, state in enumerate(me.ids):
        if state is State.TO_OPEN:
            yield _opened(world, who, index)
        if state is State.TO_CHECK:
            yield with_owner(world, who, _checked(me, index, len(world.committed), rule))
    if me.base is None:
        if all(state is State.READY for state in me.ids):
            yield with_owner(world, who, replace(me, base=len(world.committed)))
    elif me.base < NUMBERS:
        index = (me.turns if rule is Rule.OWN_TURNS else me.base + 1) % IDS
        if me.ids[index] is State.READY:
            yield _committed(world, who, index)
            # Or it drops what it has, and tries the same number again.
            yield with_owner(world, who, replace(me, ids=changed(me.ids, index, State.TO_OPEN)))


def _opened(world: World, who: int, index: int) -> World:
    me = world.owners[who]
    # Before it has read the log there is nothing to check.
    state = State.READY if me.base is None else State.TO_CHECK
    me = replace(me, ids=changed(me.ids, index, state))
    return with_owner(replace(world, opener=changed(world.opener, index, who)), who, me)


def _checked(me: Owner, index: int, last: int, rule: Rule) -> Owner:
    """What it makes of the group's latest commit number, for the number this id will carry."""
    assert me.base is not None
    upcoming = me.base + 1 if (me.base + 1) % IDS == index else me.base + 2
    if last >= upcoming and rule is not Rule.NO_CHECK:
        return replace(me, gone=True)
    return replace(me, ids=changed(me.ids, index, State.READY))


def _committed(world: World, who: int, index: int) -> World:
    me = world.owners[who]
    assert me.base is not None
    if world.opener[index] != who:  # fenced: it opens all anew and reads, as if it had just begun
        return with_owner(world, who, Owner())
    ids = changed(me.ids, index, State.TO_OPEN)
    after = replace(me, ids=ids, base=me.base + 1, turns=me.turns + 1)
    return with_owner(replace(world, committed=(*world.committed, me.base)), who, after)


def search(rule: Rule) -> World | None:
    """A reachable world with a commit that does not build on the one before it."""
    seen, ahead = {World()}, deque([World()])
    while ahead:
        world = ahead.popleft()
        for who in range(len(world.owners)):
            for after in moves(world, who, rule):
                if after in seen or len(after.committed) > NUMBERS:
                    continue
                if any(base != at for at, base in enumerate(after.committed)):
                    return after
                seen.add(after)
                ahead.append(after)
    return None


def test_no_order_of_two_owners_commits_a_number_twice_or_on_an_older_state() -> None:
    assert search(Rule.AS_BUILT) is None


@pytest.mark.parametrize("rule", [Rule.NO_CHECK, Rule.OWN_TURNS])
def test_the_search_finds_the_fault_in_a_rule_that_is_nearly_right(rule: Rule) -> None:
    assert search(rule) is not None

"""The tree drawn at the top of errors.py is the tree there is."""

import inspect
import re
from typing import NamedTuple

import pytest

from statestore import errors
from statestore.errors import Action, Misuse, StateStoreError, UnknownStore


class Drawn(NamedTuple):
    name: str
    parent: str
    exit_code: int
    action: Action


def drawn() -> list[Drawn]:
    """The rows of the drawing; a class without columns of its own has its parent's."""
    rows: list[Drawn] = []
    above = [Drawn("StateStoreError", "", 1, Action.RETRY)]
    row_of = re.compile(r"^ +((?:[│├└─]|   )*)[├└]── (\w+)(?: \(also \w+\))? *(.*)$")
    for line in (errors.__doc__ or "").splitlines():
        if match := row_of.match(line):
            depth = 1 + len(match[1]) // 4
            parent = above[depth - 1]
            columns = re.match(r"(\d+)  (\S+(?: later)?)", match[3])
            row = Drawn(
                match[2],
                parent.name,
                int(columns[1]) if columns else parent.exit_code,
                Action(columns[2].replace(" ", "_")) if columns else parent.action,
            )
            above[depth:] = [row]
            rows.append(row)
    return rows


DRAWN = drawn()


def test_every_class_is_drawn_and_every_drawn_class_exists() -> None:
    defined = {
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, StateStoreError)
    }
    assert {row.name for row in DRAWN} == defined - {"StateStoreError"}
    assert len(DRAWN) == len(defined) - 1


@pytest.mark.parametrize("row", DRAWN, ids=lambda row: row.name)
def test_a_class_hangs_where_it_is_drawn_with_its_exit_code_and_action(row: Drawn) -> None:
    thing = getattr(errors, row.name)
    assert thing.__bases__[0].__name__ == row.parent
    assert thing.exit_code == row.exit_code
    assert thing.action is row.action


def test_bases_drawn_beside_a_class_are_its_bases() -> None:
    beside = dict(re.findall(r"(\w+) \(also (\w+)\)", errors.__doc__ or ""))
    assert beside == {"Misuse": "ValueError", "UnknownStore": "LookupError"}
    assert issubclass(Misuse, ValueError)
    assert issubclass(UnknownStore, LookupError)


def test_exit_codes_tell_the_direct_branches_apart_and_none_is_success() -> None:
    branches = [row.exit_code for row in DRAWN if row.parent == "StateStoreError"]
    assert len(set(branches)) == len(branches)
    assert not {0, 1} & set(branches)


def test_an_error_nobody_foresaw_is_retried_with_exit_code_1() -> None:
    assert (StateStoreError.exit_code, StateStoreError.action) == (1, Action.RETRY)


def test_what_the_module_offers_is_the_tree_and_what_schedulers_do() -> None:
    assert set(errors.__all__) == {"StateStoreError", "Action", *(row.name for row in DRAWN)}

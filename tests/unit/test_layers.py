"""How the modules of the package depend on each other: no hidden arrow, and one declared circle."""

import ast
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp
import pytest

import statestore
from statestore.extras import OFFERS
from tests.builders import DEADLINE_S, child

PACKAGE = Path(statestore.__file__).parent
ROOT = PACKAGE.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# Which of their arguments is a module to import.
IMPORTERS = {"import_module", "__import__", "find_spec", "load_from", "run_module"}
# The places that may name a module of the package in a string: what extras offer, and public names.
REGISTERED = {"cli.py", "extras.py", "__init__.py"}


def modules_that_import_by_name() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        if any(name in text for name in IMPORTERS):
            yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


def importers(tree: ast.Module) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """Yield what imports by name in a module, and what it is given, if it is called there."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in IMPORTERS and isinstance(node.ctx, ast.Load):
                call = called.get(id(node))
                yield node, call.args if call else []


def is_written_here(argument: ast.expr) -> bool:
    """Tell whether a name is, in whole or in part, a string of the code, or a constant of it."""
    return any(
        isinstance(node, ast.Constant | ast.JoinedStr)
        or (isinstance(node, ast.Name) and node.id.strip("_").isupper())
        for node in ast.walk(argument)
    )


def test_no_module_is_imported_by_a_name_in_a_string_outside_the_registered_places() -> None:
    """Names that users give are variables; whoever passes an importer on hides what it imports."""
    hidden = [
        f"{name}:{by.lineno}"
        for name, tree in modules_that_import_by_name()
        if name not in REGISTERED
        for by, given in importers(tree)
        if not given or any(map(is_written_here, given))
    ]
    assert hidden == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("importlib.import_module('statestore.spark')", True),
        ("import_module(f'statestore.{name}')", True),
        ("await to_thread(importlib.import_module, name)", True),
        ("find_spec(_HOMES[name])", True),
        ("importlib.import_module(module_name)", False),
    ],
)
def test_a_hidden_arrow_is_found(code: str, found: bool) -> None:
    parsed = ast.parse(f"async def f():\n    {code}")
    ((_, given),) = importers(parsed)
    assert (not given or any(map(is_written_here, given))) is found


def test_the_only_circle_is_the_one_that_the_contract_declares() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (fluent,) = (one for one in contracts if one["id"] == "fluent")
    (home,) = fluent["containers"]
    declared = [
        {f"{home}.{name.strip()}" for name in layer.split(":")}
        for layer in fluent["layers"]
        if ":" in layer
    ]
    graph = grimp.build_graph("statestore", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert circles(imports) == declared


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules each of which imports itself by way of the others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, ahead = set[str](), [start]
        while ahead:
            new = imports[ahead.pop()] - found
            found |= new
            ahead += new
        reached[start] = found
    together = {
        frozenset(other for other in there if name in reached[other])
        for name, there in reached.items()
        if name in there
    }
    return sorted(map(set, together), key=sorted)


def test_circles_of_two_modules_and_of_three_are_found() -> None:
    imports = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert circles(imports) == [{"a", "b"}, {"c", "d", "e"}]


@pytest.mark.parametrize("name", OFFERS)
def test_what_an_extra_offers_is_there(name: str) -> None:
    assert callable(OFFERS[name].load())
    assert OFFERS[name].extra in PROJECT["project"]["optional-dependencies"]


IMPORTING = """
import json, sys
import statestore as ss
from statestore import cli
assert all(cli.cli.get_command(None, name).name == name for name in cli._COMMANDS)
assert ss.StreamsBuilder
print(json.dumps(sorted(set(json.loads(sys.argv[1])) & sys.modules.keys())))
"""


def test_commands_and_pipelines_begin_without_what_is_declared_to_be_imported_late() -> None:
    late = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"]
    with child(IMPORTING, json.dumps(late)) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    assert json.loads(output) == []


BEFORE_ANYTHING = """
import statestore.serdes as serdes
from statestore import serdes as same
import statestore as ss
assert serdes is same is ss.serdes
assert serdes.json(list[int]).deserialize(b"[1]") == [1]
"""


def test_serdes_is_one_module_however_it_is_imported() -> None:
    with child(BEFORE_ANYTHING) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (output, errors) == ("", "")

"""The reference has every public name, and each has a docstring that says what a caller needs.

The sources are read and not imported, as Airflow, Spark and Great Expectations load slowly.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache

import griffe
import pytest

import statestore as ss
from scripts import reference_names
from statestore import errors
from tests.builders import ROOT

# `make check` reads all sources; the first tier does not do so again.
pytestmark = pytest.mark.thorough

FACES = ("statestore", "statestore.airflow", "statestore.spark", "statestore.testing")
# Its module is on the page, as that names the options; the face loads it late.
ELSEWHERE = {
    "statestore.spark.TransactionalKafka": "statestore.spark.writing.kafka_sink",
    "statestore.spark.TransactionalStore": "statestore.spark.datasource",
    "statestore.spark.kafka_batches": "statestore.spark.writing.kafka_sink",
    "statestore.spark.read_store": "statestore.spark.datasource",
}
# Modules that a face hands out, with public names of their own.
MODULES = ("statestore.errors", "statestore.serdes")
UNIT = re.compile(r"\bms\b|millisecond|timedelta|_ms\b|(?:see|as) `", re.IGNORECASE)


@cache
def package() -> griffe.Module:
    loaded = griffe.load("statestore", search_paths=[ROOT], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def at(path: str) -> griffe.Object:
    member = package()[path.removeprefix("statestore").removeprefix(".")] if path else package()
    target = member.final_target if isinstance(member, griffe.Alias) else member
    assert isinstance(target, griffe.Object)
    return target


def exported(face: str) -> list[str]:
    names = dir(ss) if face == "statestore" else at(face).exports or ()
    return [f"{face}.{name}" for name in names]


def public() -> Iterator[tuple[str, griffe.Object, str]]:
    """Every public class, function and method: its name, itself, and its class's docstring."""
    names = [name for face in FACES for name in exported(face) if name not in ELSEWHERE]
    names += [f"{home}.{name.rpartition('.')[2]}" for name, home in ELSEWHERE.items()]
    for module in MODULES:
        own = at(module).members.items()
        names += [f"{module}.{n}" for n, it in own if not it.is_alias and it.is_public]
    for name in names:
        thing = at(name)
        if isinstance(thing, griffe.Function):
            yield name, thing, ""
        elif isinstance(thing, griffe.Class):
            yield name, thing, ""
            for kind in (thing, *(base for base in thing.mro() if base.path.startswith("statest"))):
                about = kind.docstring.value if kind.docstring else ""
                for key, member in kind.members.items():
                    is_call = member.is_function or "property" in member.labels
                    if not member.is_alias and not key.startswith("_") and is_call:
                        yield f"{name}.{key}", at(member.path), about


def docstring(thing: griffe.Object) -> str:
    return thing.docstring.value if thing.docstring else ""


@pytest.mark.parametrize("face", FACES)
def test_the_reference_has_every_public_name_once(face: str) -> None:
    documented = [
        name
        for page in sorted((ROOT / "docs" / "reference").glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(documented) > 50
    wanted = [ELSEWHERE.get(name, name) for name in exported(face)]
    assert wanted
    wrong = {name: documented.count(name) for name in wanted if documented.count(name) != 1}
    assert wrong == {}, "give each of these one line `::: NAME` on a page of docs/reference"


def test_the_page_of_names_is_that_of_the_sources() -> None:
    page = reference_names.page()
    assert page.count("\n") > 500
    told = "`make fmt` makes it anew"
    assert reference_names.PAGE.read_text(encoding="utf-8") == page, told


def test_everything_public_has_a_docstring() -> None:
    known = list(public())
    assert len(known) > 200
    assert sorted({name for name, thing, _ in known if not docstring(thing)}) == []


def test_a_docstring_names_the_errors_that_its_function_raises() -> None:
    ours = {name for name, value in vars(errors).items() if isinstance(value, type)}
    silent = {
        f"{name}: {raised}"
        for name, thing, above in public()
        if isinstance(thing, griffe.Function)
        for raised in raises(thing) & ours
        if raised not in f"{docstring(thing)} {above}"
    }
    assert sorted(silent) == []


def raises(function: griffe.Function) -> set[str]:
    return {
        ast.unparse(node.exc.func).rpartition(".")[2]
        for node in ast.walk(ast.parse(textwrap.dedent(function.source)))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
    }


def test_a_docstring_says_the_unit_of_a_time() -> None:
    silent = {
        name
        for name, thing, above in public()
        if isinstance(thing, griffe.Function)
        if any(re.search(r"_ms$|^ms$", parameter.name) for parameter in thing.parameters)
        if not UNIT.search(f"{docstring(thing)} {above}")
    }
    assert sorted(silent) == []

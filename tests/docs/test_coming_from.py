"""The pages for those who come from elsewhere: names that are here, and names that are not."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes, testing
from statestore.topology import missing_methods
from tests.builders import ROOT
from tests.docs.names_elsewhere import NAMES

PAGES = sorted((ROOT / "docs" / "coming-from").glob("*.md"))
SPAN = re.compile(r"`([^`]+)`")
KINDS = (ss.StreamsBuilder, ss.KStream, ss.KTable, ss.KGroupedStream, ss.ProcessorContext)


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without those of the tables' own heads."""
    text = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in row.split("|")] for row in found if "---" not in row][1:]


def is_here(name: str) -> bool:
    """Whether something public has that name, in our spelling or in Java's."""
    snake = re.sub(r"(?<=[a-z])[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
    return any(hasattr(place, one) for place in (ss, *KINDS) for one in (name, snake))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_says_is_here_is_here(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    named = re.findall(r"`(?:[^`]*?[^\w`])?ss\.((?:\w+\.)?\w+)", page)
    named += re.findall(r"`(K\w+\.[a-z_]+)`", "".join(row[1] for row in rows(page, "Names")))
    assert len(named) > 3
    for name in named:
        kind, _, method = name.partition(".")
        assert hasattr(ss, kind), name
        assert not method or hasattr(getattr(ss, kind), method), name
    for serde in re.findall(r"`[^`]*serdes\.([A-Z]\w+)", page):
        assert hasattr(serdes, serde)
    assert "TopologyTestDriver" not in page or hasattr(testing, "TopologyTestDriver")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_says_is_missing_is_missing(path: Path) -> None:
    missing = rows(path.read_text(encoding="utf-8"), "What is missing")
    assert len(missing) > 2
    spans = [span for row in missing for span in SPAN.findall(row[0])]
    # "KStream.outerJoin" is not "KTable.outerJoin".
    wrong = []
    for span in spans:
        kind, _, method = span.rpartition(".")
        if kind and hasattr(ss, kind):
            snake = re.sub(r"[A-Z]", lambda capital: f"_{capital[0].lower()}", method)
            wrong += [span] if hasattr(getattr(ss, kind), snake) else []
        elif span != "KTable" and is_here(span):
            wrong.append(span)
    assert wrong == [], "these have come: say so on the page"


def place_of(kind: str) -> Any:
    if kind == "TopologyTestDriver":
        return testing.TopologyTestDriver
    return ss if kind == "statestore" else getattr(ss, kind)


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_from_elsewhere_is_here_or_leads_to_what_does_the_same(kind: str) -> None:
    place = place_of(kind)
    for name in NAMES[kind].split():
        if hasattr(place, name):
            continue
        made = place if place is ss else place.__new__(place)
        with pytest.raises(AttributeError, match=rf"attribute '{name}': (?!it has|did you)"):
            getattr(made, name)


def test_a_name_of_java_leads_to_its_spelling_here() -> None:
    b = ss.StreamsBuilder()
    with pytest.raises(AttributeError, match=r"did you mean map_values\(\)\?"):
        b.stream("in").mapValues  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"call store\(spec\)"):
        ss.ProcessorContext.__new__(ss.ProcessorContext).getStateStore  # type: ignore[attr-defined]  # noqa: B018


def test_what_is_said_of_missing_names_names_what_there_is() -> None:
    everything = " ".join(
        said
        for name, hints in (vars(missing_methods) | vars(ss)).items()
        if name.startswith("OF_") or name == "_INSTEAD"
        for said in hints.values()
    )
    kinds = [getattr(ss, name) for name in dir(ss)] + [testing.TopologyTestDriver]
    methods = {name for kind in kinds if inspect.isclass(kind) for name in dir(kind)}
    called = set(re.findall(r"\b([a-z_]+)\(", everything))
    assert called - methods - set(dir(ss)) == set()
    for name in re.findall(r"\bss\.(\w+)", everything):
        assert hasattr(ss, name)
    for keyword in set(re.findall(r"\b(\w+)=(?!=)", everything)) - {"expand"}:
        assert any(
            keyword in inspect.signature(function).parameters
            for kind in kinds
            if inspect.isclass(kind)
            for _, function in inspect.getmembers(kind, inspect.isfunction)
        ), keyword

"""Every block of Python on the pages for users runs, and shows what it shows."""

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from tests.builders import DEADLINE_S, ROOT

FOLDERS = ("tutorials", "guides", "coming-from")
# A page that is typed into a shell or a notebook has a test of its own.
TYPED = ("deploying", "notebook")
PAGES = [
    ROOT / "docs" / "settings.md",
    *sorted(
        page
        for folder in FOLDERS
        for page in (ROOT / "docs" / folder).glob("*.md")
        if page.stem not in TYPED
    ),
]
BLOCK = re.compile(r"^```(?P<language>[a-z]+)[^\n]*\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
KNOWN = {"python", "pycon", "console", "toml", "text"}
# What the blocks of a page start.
APPLICATIONS = "# statestore.toml\n"
STARTS = {
    "guides-airflow": [pytest.mark.airflow, pytest.mark.thorough],
    "guides-security": [pytest.mark.kafka, pytest.mark.thorough],
    "guides-serving": [pytest.mark.kafka],
    "guides-spark": [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough],
    "guides-spark-sink": [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough],
    "guides-testing": [pytest.mark.kafka],
    "guides-without-spark": [pytest.mark.kafka, pytest.mark.thorough],
}


def names_of(pages: list[Path]) -> list[Any]:
    named = [(f"{page.parent.name}-{page.stem}", page) for page in pages]
    return [pytest.param(page, id=name, marks=STARTS.get(name, [])) for name, page in named]


@pytest.fixture
def own_jvm() -> Iterator[None]:
    """End the JVM of Spark that a page leaves: its workers start in the folder of the page."""
    yield
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.terminate()
        gateway.proc.communicate(timeout=DEADLINE_S)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.mark.usefixtures("own_jvm")
@pytest.mark.parametrize("page", names_of(PAGES))
def test_the_blocks_of_a_page_run_one_after_another(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        line = text[: block.start()].count("\n") + 1
        match block["language"]:
            case "python":
                source = "\n" * line + block["code"]
                exec(compile(source, str(page), "exec"), names)
            case "toml" if block["code"].startswith(APPLICATIONS):
                config = tmp_path / "statestore.toml"
                config.write_text(block["code"], encoding="utf-8")
                monkeypatch.setenv("STATESTORE_CONFIG", str(config))
            case "pycon":
                check(page, block["code"], line, names)
            case language:
                assert language in KNOWN, f"{page.name}:{line}: a block of {language!r}"


def check(page: Path, code: str, line: int, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
    told: list[str] = []
    test.globs = names  # it would work on a copy
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    runner.run(test, out=told.append, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


def test_there_are_pages() -> None:
    assert len(PAGES) > 5

"""Pages install this package in a way that works today, and tell every extra."""

import re
import tomllib

from statestore import __version__
from tests.builders import ROOT

# The switch: True once the package is on an index. The first test then names each line to change.
# Messages and projects of `statestore init` need none: statestore/extras.py knows where an
# installation came from.
PUBLISHED = False
BY_NAME = re.compile(r"(?<![\w./-])statestore(\[|'|\s|$)")
BY_FILE = re.compile(r"(^|['\s])\.\[|/statestore\[|\.whl")
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
}


def test_pages_install_the_package_in_a_way_that_works() -> None:
    wrong = BY_FILE if PUBLISHED else BY_NAME
    installs = [
        (page, found)
        for page, text in PAGES.items()
        for found in re.findall(r"pip install ([^`\n]+)", text)
    ]
    assert sum(bool(BY_FILE.search(it) or BY_NAME.search(it)) for _, it in installs) > 5
    assert [(page, it) for page, it in installs if wrong.search(it)] == []


def test_the_page_of_ways_to_install_has_every_extra_and_this_version() -> None:
    page = PAGES["docs/install.md"]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(told) == sorted(project["optional-dependencies"])
    wheels = {it for text in PAGES.values() for it in re.findall(r"statestore-([\d.]+)-cp3", text)}
    assert wheels == {__version__}

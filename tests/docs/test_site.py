"""The documentation site builds strictly, names every page, and needs no other host."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT

BUILD_S = 900  # a busy machine takes minutes
# `make check` builds the site; the first tier does not do so again.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(BUILD_S + 60)]
# What a browser loads by itself. A link that a reader may follow is no part of it.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link(?![^>]*rel=["']?canonical)[^>]*\shref=["']?(?P<href>[^"'\s>]+)"""
    r"""|(?:@import\s+|url\()["']?(?P<css>https?:[^"')]+)""",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does; a broken link, heading or reference fails the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_navigation_names_every_page(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    home = (site / "index.html").read_text(encoding="utf-8")
    sidebar = home[home.index("md-nav--primary") :]
    named = set(re.findall(r'class="md-nav__link[^"]*"[^>]*href="([^"#]+)"', sidebar))
    named |= set(re.findall(r'href="([^"#]+)"[^>]*class="md-nav__link', sidebar))
    assert len(pages) > 30
    assert sorted(pages - named) == [], "give each of these a place in docs/.nav.yml"


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    loaded = {
        (path.relative_to(site).as_posix(), address)
        for path in [found for kind in ("html", "css", "svg") for found in site.rglob(f"*.{kind}")]
        for found in LOADED.finditer(path.read_text(encoding="utf-8"))
        if (address := found["src"] or found["href"] or found["css"])
    }
    assert len(loaded) > 100
    assert sorted((page, at) for page, at in loaded if re.match(r"(?:https?:)?//", at)) == []

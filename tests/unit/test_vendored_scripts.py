"""The scripts of others that the page has: each is what its version has, and has its licence."""

import json
from pathlib import Path

import pytest

from scripts import release
from statestore.errors import HostFailure
from statestore.ui import site

STATIC = release.VENDORED


def test_each_is_named_with_its_version_and_served_with_its_licence() -> None:
    assert {one["name"]: one["licenses"][0]["license"]["id"] for one in release.vendored()} == {
        "@dagrejs/dagre": "MIT",
        "htmx.org": "0BSD",
        "uplot": "MIT",
    }
    for one in release.vendored():
        assert one["version"] in one["purl"]
    for path in [*STATIC.glob("*.min.*"), *STATIC.glob("*.LICENSE.txt")]:
        assert path.name in site._STATIC, f"{path.name} is not served"


def test_another_file_than_that_of_the_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in STATIC.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(release, "VENDORED", tmp_path)
    assert len(release.vendored()) == 3
    (tmp_path / "other.min.js").write_text("")
    with pytest.raises(HostFailure, match=r"does not name other\.min\.js"):
        release.vendored()
    (tmp_path / "other.min.js").unlink()
    (tmp_path / "uplot.LICENSE.txt").unlink()
    with pytest.raises(HostFailure, match=r"uplot\.LICENSE\.txt is missing"):
        release.vendored()
    (tmp_path / "dagre.min.js").write_text("alert(1)")
    with pytest.raises(HostFailure, match=r"is not that of @dagrejs/dagre 3\.1\.3"):
        release.vendored()


def test_they_are_in_the_bill_of_materials(tmp_path: Path) -> None:
    materials = tmp_path / "materials.json"
    package = {"name": "click", "version": "8", "licenses": [{"license": {"id": "BSD-3-Clause"}}]}
    materials.write_text(json.dumps({"components": [package]}))
    release.add_vendored(materials)
    told = release.licences(json.loads(materials.read_text()))
    assert told["MIT"] == {"@dagrejs/dagre 3.1.3", "uplot 1.6.32"}
    assert told["BSD-3-Clause"] == {"click 8"}

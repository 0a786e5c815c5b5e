"""Advisories of locked packages: what was looked up is checked offline, and time fails nothing."""

import json
import subprocess
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the stubs are a package of their own

from scripts.advisories import ACCEPTED, FOUND, LOCK, affecting, judged, locked_in, read_database

TODAY = date(2026, 1, 10)
LOCKED = {"left-pad": "1.4"}
ADVISORY = {
    "id": "PYSEC-1",
    "aliases": ["CVE-1"],
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Left_Pad"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {
                    "type": "ECOSYSTEM",
                    "events": [
                        {"introduced": "0"},
                        {"fixed": "1.2"},
                        {"introduced": "1.4"},
                        {"fixed": "1.4.2"},
                    ],
                },
            ],
            "versions": ["2.0.post1"],
        }
    ],
}


def found(*ids: str, version: str = "1.4", as_of: str = "2026-01-01") -> dict[str, Any]:
    advisories = [{"id": one, "aliases": [], "fixed_in": []} for one in ids]
    return {
        "as_of": as_of,
        "packages": {"left-pad": {"version": version, "advisories": advisories}},
    }


def accepted(until: date, advisory: str = "PYSEC-1", version: str = "1.4") -> dict[str, Any]:
    return {
        "package": "left-pad",
        "version": version,
        "id": advisory,
        "reason": "only with a pad of 0",
        "until": until,
    }


def test_the_lock_and_what_was_found_agree() -> None:
    text = LOCK.read_text(encoding="utf-8")
    locked = locked_in(text)
    assert len(locked) == text.count("==") > 100
    known = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    faults, _ = judged(locked, json.loads(FOUND.read_text(encoding="utf-8")), known, date.max)
    assert faults == []


@pytest.mark.parametrize(
    ("version", "is_affected"),
    [
        ("0.1", True),
        ("1.2rc1", True),
        ("1.2", False),
        ("1.3", False),
        ("1.4", True),
        ("1.4.1", True),
        ("1.4.2", False),
        ("2.0.post1", True),
    ],
)
def test_ranges_and_listed_versions_are_affected(version: str, is_affected: bool) -> None:
    assert (affecting(ADVISORY, "left-pad", version) is not None) == is_affected
    assert affecting(ADVISORY, "right-pad", version) is None


def test_a_checkout_of_the_database_is_read_with_its_date(tmp_path: Path) -> None:
    folder = tmp_path / "vulns" / "left-pad"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(yaml.safe_dump(ADVISORY), encoding="utf-8")
    gone = {**ADVISORY, "id": "PYSEC-2", "withdrawn": "2026-01-01T00:00:00Z"}
    (folder / "PYSEC-2.yaml").write_text(yaml.safe_dump(gone), encoding="utf-8")
    git = ("git", "-C", f"{tmp_path}", "-c", "user.name=x", "-c", "user.email=x@example.com")
    day = "2026-01-01T00:00:00+00:00"
    for step in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "x"]):
        subprocess.run(
            [*git, *step],
            check=True,
            env={"PATH": "/usr/bin:/bin", "GIT_COMMITTER_DATE": day, "GIT_AUTHOR_DATE": day},
        )
    read = read_database(LOCKED, tmp_path)
    assert read["as_of"] == "2026-01-01"
    (advisory,) = read["packages"]["left-pad"]["advisories"]
    assert advisory == {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.2", "1.4.2"]}
    assert read_database({"other": "1.0"}, tmp_path)["packages"]["other"]["advisories"] == []


def test_an_advisory_that_nobody_accepted_is_a_fault() -> None:
    (fault,), warnings = judged(LOCKED, found("PYSEC-1"), [], TODAY)
    assert fault.startswith("left-pad 1.4: PYSEC-1:")
    assert warnings == []


def test_a_version_that_was_not_looked_up_is_a_fault_until_it_is_accepted() -> None:
    (fault,), _ = judged(LOCKED, found(version="1.3"), [], TODAY)
    assert fault.startswith("left-pad 1.4: not looked up:")
    known = [accepted(date(2026, 2, 1), "not looked up")]
    assert judged(LOCKED, found(version="1.3"), known, TODAY) == ([], [])
    missing = {"as_of": "2026-01-01", "packages": {}}
    assert judged(LOCKED, missing, [], TODAY)[0] == [fault]


def test_what_is_accepted_is_accepted_for_that_version_only() -> None:
    known = [accepted(date(2026, 2, 1))]
    assert judged(LOCKED, found("PYSEC-1"), known, TODAY) == ([], [])
    other = [accepted(date(2026, 2, 1), version="1.3")]
    assert len(judged(LOCKED, found("PYSEC-1"), other, TODAY)[0]) == 2


def test_what_is_accepted_and_not_there_is_a_fault() -> None:
    faults, _ = judged(LOCKED, found(), [accepted(date(2026, 2, 1))], TODAY)
    assert faults == ["left-pad: PYSEC-1 is accepted and not there"]


def test_time_alone_only_warns() -> None:
    faults, warnings = judged(
        LOCKED, found("PYSEC-1", as_of="2020-01-01"), [accepted(date(2025, 1, 1))], TODAY
    )
    assert faults == []
    assert [warning.split(":")[0] for warning in warnings] == [
        "left-pad 1.4",
        "advisories are those of 2020-01-01",
    ]

"""Look up the advisories of the locked packages, and check offline what was found.

    python -m scripts.advisories refresh               ask, through pip-audit
    python -m scripts.advisories refresh --database D  read PyPA's advisory database, a checkout
    python -m scripts.advisories check                 what `make check` does: asks nobody

`requirements/advisories.json` has, for every locked package, the version and the advisories that
were found for it. `requirements/accepted.toml` has those that are accepted, each with a reason and
a date from which the check warns. The check fails if a locked version was not looked up, or has an
advisory that nobody accepted. It never fails because time has passed: an old look-up, or an
acceptance past its date, is a warning.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import click
import yaml  # type: ignore[import-untyped]  # the stubs are a package of their own
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "lock.txt"
FOUND = ROOT / "requirements" / "advisories.json"
ACCEPTED = ROOT / "requirements" / "accepted.toml"
PIP_AUDIT = "pip-audit==2.10.1"
OLD_DAYS = 60
NOT_ASKED = "not looked up"
_BIN = Path(sys.executable).parent
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)", re.MULTILINE)

Found = dict[str, Any]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look up advisories of the locked packages, and check what was found."""


@main.command()
@click.option(
    "--database",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout of PyPA's advisory database; without it pip-audit asks the package index.",
)
def refresh(database: Path | None) -> None:
    """Look up the advisories of every locked version, and write requirements/advisories.json."""
    locked = locked_in(LOCK.read_text(encoding="utf-8"))
    found = asked(locked) if database is None else read_database(locked, database)
    FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    click.echo(f"{len(found['packages'])} of {len(locked)} packages were looked up")
    if len(found["packages"]) < len(locked):
        raise click.ClickException(
            "the package index told nothing of the others: read a checkout of the advisory "
            "database with --database"
        )


@main.command()
def check() -> None:
    """Fail if a locked version was not looked up, or has an advisory that nobody accepted."""
    faults, warnings = judged(
        locked_in(LOCK.read_text(encoding="utf-8")),
        json.loads(FOUND.read_text(encoding="utf-8")),
        tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", []),
        datetime.now(UTC).date(),
    )
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if faults:
        raise click.ClickException("\n".join(faults))


def locked_in(lock: str) -> dict[str, str]:
    """Return the versions of a lock by the normalized names of packages."""
    return {canonicalize_name(name): version for name, version in _LOCKED.findall(lock)}


def judged(
    locked: dict[str, str], found: Found, accepted: list[dict[str, Any]], today: date
) -> tuple[list[str], list[str]]:
    """Return what is wrong, and what is to be seen to."""
    faults, warnings = [], []
    known = {(one["package"], one["id"]): one for one in accepted}
    used = set()
    for name, version in sorted(locked.items()):
        package = found["packages"].get(name, {})
        ids = [one["id"] for one in package.get("advisories", ())]
        if package.get("version") != version:
            ids = [NOT_ASKED]
        for advisory in ids:
            one = known.get((name, advisory))
            if one is None or one["version"] != version:
                faults.append(
                    f"{name} {version}: {advisory}: `make advisories` looks locked versions up; "
                    "take a version without it, or accept it in requirements/accepted.toml"
                )
                continue
            used.add((name, advisory))
            if one["until"] < today:
                warnings.append(f"{name} {version}: {advisory} was accepted until {one['until']}")
    faults += [
        f"{name}: {advisory} is accepted and not there" for name, advisory in known.keys() - used
    ]
    as_of = date.fromisoformat(found["as_of"])
    if (today - as_of).days > OLD_DAYS:
        warnings.append(f"advisories are those of {as_of}: run `make advisories`")
    return faults, warnings


def asked(locked: dict[str, str]) -> Found:
    """Let pip-audit ask the package index; a package that it was told nothing of is left out."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        subprocess.run(
            [
                *(_BIN / "uv", "tool", "run", PIP_AUDIT, "--disable-pip", "--require-hashes"),
                *("--requirement", LOCK, "--format", "json", "--output", out),
            ],
            check=False,  # it fails if it finds something
        )
        told = json.loads(out.read_text(encoding="utf-8"))["dependencies"]
    packages = {
        canonicalize_name(one["name"]): {
            "version": one["version"],
            "advisories": [
                {"id": each["id"], "aliases": each["aliases"], "fixed_in": each["fix_versions"]}
                for each in one["vulns"]
            ],
        }
        for one in told
        if "skip_reason" not in one
    }
    kept = {name: one for name, one in packages.items() if locked.get(name) == one["version"]}
    return {"as_of": f"{datetime.now(UTC).date()}", "source": PIP_AUDIT, "packages": kept}


def read_database(locked: dict[str, str], database: Path) -> Found:
    """Compare the locked versions with the advisories of a checkout."""
    packages = {}
    for name, version in locked.items():
        advisories = []
        for path in sorted((database / "vulns" / name).glob("*.yaml")):
            one = yaml.safe_load(path.read_text(encoding="utf-8"))
            fixed = affecting(one, name, version)
            if fixed is not None and not one.get("withdrawn"):
                advisories.append(
                    {"id": one["id"], "aliases": one.get("aliases", []), "fixed_in": fixed}
                )
        packages[name] = {"version": version, "advisories": advisories}
    said: list[str | Path] = ["git", "-C", database, "log", "-1", "--format=%cs %h"]
    day, commit = subprocess.run(said, capture_output=True, text=True, check=True).stdout.split()
    return {"as_of": day, "source": f"PyPA advisory database, {commit}", "packages": packages}


def affecting(advisory: Found, name: str, version: str) -> list[str] | None:
    """Return the versions that mend it if it affects this version; None: it does not.

    A version is affected if it is listed, or lies in a range (the OSV format).
    """
    fixed: list[str] = []
    is_affected = False
    for one in advisory.get("affected", ()):
        package = one["package"]
        if package["ecosystem"] != "PyPI" or canonicalize_name(package["name"]) != name:
            continue
        is_affected |= version in one.get("versions", ())
        for each in one.get("ranges", ()):
            if each["type"] == "ECOSYSTEM":
                fixed += [str(event["fixed"]) for event in each["events"] if "fixed" in event]
                is_affected |= any(_spans(each["events"], version))
    return fixed if is_affected else None


def _spans(events: list[dict[str, Any]], version: str) -> Iterator[bool]:
    """Yield, for each span of a range, whether the version lies in it."""
    at, begins = Version(version), None
    for event in events:
        (kind, said), *_ = event.items()
        try:
            limit = Version("0.dev0" if str(said) == "0" else str(said))
        except InvalidVersion:
            continue
        if kind == "introduced":
            begins = limit
        elif begins is not None:
            yield begins <= at < limit if kind == "fixed" else begins <= at <= limit
            begins = None
    if begins is not None:
        yield begins <= at


if __name__ == "__main__":
    main()

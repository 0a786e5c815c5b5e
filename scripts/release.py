"""What a release consists of, built from the tracked files of this checkout into dist/.

    wheel    the wheel alone
    check    the release whole, and what has to hold before anybody publishes it:

    1. Wheel and source distribution come out in the same bytes when they are built twice.
    2. Their metadata are valid, and the long description renders.
    3. All extras together resolve on every Python that is supported; nothing is installed for that.
    4. The wheel installs with all extras in the locked versions.
    5. Every package of that environment has a licence, and is in the bill of materials (CycloneDX),
       as are the scripts of others that the page of applications has.

Times in archives are that of the commit, or SOURCE_DATE_EPOCH.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from statestore import __version__
from statestore.cli import exit_code_of
from statestore.errors import HostFailure

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LOCK = ROOT / "requirements" / "lock.txt"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "statestore")
PYTHONS = ("3.11", "3.12", "3.13")
VENDORED = ROOT / "statestore" / "ui" / "static"
MATERIALS = f"statestore-{__version__}.cdx.json"
SUMS = "SHA256SUMS"
# What these say in no field that tools read: their repositories do.
STATED_ELSEWHERE = {"openlineage_sql": "Apache-2.0", "protobuf": "BSD-3-Clause"}
_BIN = Path(sys.executable).parent


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Build what a release consists of, and check it."""


@main.command("wheel")
def wheel_command() -> None:
    """Build the wheel into dist/, and print its name."""
    with tempfile.TemporaryDirectory() as folder:
        _, wheel = build(Path(folder))
        DIST.mkdir(exist_ok=True)
        click.echo(os.path.relpath(shutil.copy(wheel, DIST)))


@main.command("check")
def check_command() -> None:
    """Build the release into dist/, and check it."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        files = built_twice(scratch)
        click.echo("built twice, to the same bytes")
        run("twine", "check", "--strict", *files)
        for python in PYTHONS:
            click.echo(f"all extras resolve on Python {python}: {resolved(python)} packages")
        materials = scratch / MATERIALS
        bill_of_materials(files[-1], scratch / "environment", materials)
        add_vendored(materials)
        told = licences(json.loads(materials.read_text(encoding="utf-8")))
        for licence, packages in sorted(told.items()):
            click.echo(f"{licence}: {', '.join(sorted(packages))}")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in (*files, materials):
            shutil.copy(file, DIST)
    write_sums(DIST)
    click.echo(f"{os.path.relpath(DIST)}/ has the release of {__version__}")


def built_twice(folder: Path) -> tuple[Path, Path]:
    """Build source distribution and wheel twice; HostFailure if their bytes differ."""
    first, second = (build(folder / name) for name in ("first", "second"))
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise HostFailure(f"{one.name} came out differently when it was built again")
    return first


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from that, of the files that git tracks."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
    source, out = folder / "source", folder / "out"
    for name in output("git", "ls-files", "--", *SOURCES).splitlines():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        target.chmod(0o644)  # whatever the umask of the checkout
    options = ("--quiet", "--offline", "--no-build-isolation", "--python", sys.executable)
    run("uv", "build", "--sdist", *options, "--out-dir", out, source, epoch=epoch)
    (sdist,) = out.glob("*.tar.gz")
    repack(sdist, int(epoch))
    run("uv", "build", "--wheel", *options, "--out-dir", out, sdist, epoch=epoch)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def repack(sdist: Path, epoch: int) -> None:
    """Give all members of a source distribution one time, owner and order: setuptools does not."""
    with tarfile.open(sdist) as given:
        members = [(it, given.extractfile(it)) for it in given.getmembers() if it.isfile()]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as packed:
            for member, content in sorted(members, key=lambda it: it[0].name):
                made = tarfile.TarInfo(member.name)
                made.size, made.mode, made.mtime = member.size, 0o644, epoch
                packed.addfile(made, content)
    sdist.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch))


def resolved(python: str) -> int:
    """How many packages all extras come to on a Python; HostFailure if they do not go together."""
    told = output(
        *("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--all-extras"),
        *("--python-version", python, "pyproject.toml"),
    )
    return len(told.splitlines())


def bill_of_materials(wheel: Path, home: Path, file: Path) -> None:
    """Install the wheel with all extras in the locked versions, and write down what that is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = f"{wheel}[{','.join(project['optional-dependencies'])}]"
    run("uv", "venv", "--quiet", "--python", sys.executable, home)
    python = home / "bin" / "python"
    run("uv", "pip", "install", "--quiet", "--python", python, "--constraint", LOCK, wanted)
    run(
        *("cyclonedx-py", "environment", python, "--pyproject", "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--output-file", file),
    )


def vendored() -> list[dict[str, Any]]:
    """The scripts of others that the wheel has, as components of a bill of materials (CycloneDX).

    HostFailure if a file is not the one that its version has, or has no licence beside it.
    """
    listed = json.loads((VENDORED / "vendored.json").read_text(encoding="utf-8"))
    found, known = [], set[str]()
    for one in listed:
        for name, sha256 in one["files"].items():
            known.add(name)
            if hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() != sha256:
                raise HostFailure(
                    f"{VENDORED / name} is not that of {one['name']} {one['version']}"
                )
            licence = VENDORED / f"{name.partition('.')[0]}.LICENSE.txt"
            if not licence.is_file():
                raise HostFailure(f"{licence} is missing: it belongs to {name}")
        found.append(
            {
                "bom-ref": f"vendored-{one['name']}",
                "type": "library",
                "name": one["name"],
                "version": one["version"],
                "purl": f"pkg:npm/{one['name'].replace('@', '%40')}@{one['version']}",
                "licenses": [{"license": {"id": one["licence"]}}],
            }
        )
    if strange := {path.name for path in VENDORED.glob("*.min.*")} - known:
        raise HostFailure(f"vendored.json does not name {', '.join(sorted(strange))}")
    return found


def add_vendored(materials: Path) -> None:
    """Add the scripts of others to the bill of materials."""
    told = json.loads(materials.read_text(encoding="utf-8"))
    told["components"] += vendored()
    materials.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def licences(materials: dict[str, Any]) -> dict[str, set[str]]:
    """The packages under each licence; HostFailure names those that say none."""
    found = defaultdict(set)
    for package in materials["components"]:
        told = {
            it.get("expression") or it["license"].get("id") or it["license"]["name"]
            for it in package.get("licenses", [])
        }
        # Besides its licence, a package may have classifiers and texts: the shortest name tells.
        licence = min(told, key=len, default=STATED_ELSEWHERE.get(package["name"], ""))
        found[licence.rpartition(" :: ")[2]].add(f"{package['name']} {package['version']}")
    if "" in found:
        raise HostFailure(f"no licence is known of {', '.join(sorted(found['']))}")
    return found


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of every file of a folder beside them."""
    sums = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(folder.iterdir())
    ]
    (folder / SUMS).write_text("".join(sums), encoding="utf-8")


def output(*words: str) -> str:
    """What a program prints; HostFailure says what it complained about."""
    return _called(words, capture=True).stdout.strip()


def run(*words: str | Path, epoch: str = "") -> None:
    """Run a program; HostFailure if it fails."""
    _called(words, env={"SOURCE_DATE_EPOCH": epoch} if epoch else {})


def _called(
    words: Iterable[str | Path], *, capture: bool = False, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    program, *arguments = map(str, words)
    own = _BIN / program
    done = subprocess.run(
        [own if own.exists() else program, *arguments],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        umask=0o022,  # archives record it
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HostFailure(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
    return done


if __name__ == "__main__":
    sys.exit(exit_code_of(main))

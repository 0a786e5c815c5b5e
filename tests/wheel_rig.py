"""The wheel, built and installed outside any checkout, with as much of ours as asked for."""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import filelock
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
BUILD_S = 120
_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")


_KEPT = ROOT / ".scratch" / "wheel"


def built_wheel(folder: Path) -> Path:
    """Put the wheel into a folder; all tests, and later runs, share one of the same sources."""
    source = folder / "source"
    copy_sources(source)
    kept = _KEPT / _digest(source)
    _KEPT.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(_KEPT.with_suffix(".lock"), timeout=2 * BUILD_S):
        if not kept.is_dir():
            for other in _KEPT.iterdir():
                shutil.rmtree(other)
            _build(source, folder / "built")
            shutil.copytree(folder / "built", _KEPT / "new")
            (_KEPT / "new").rename(kept)
        (built,) = kept.glob("*.whl")
        wheel = Path(shutil.copy(built, folder))
    shutil.rmtree(source)
    return wheel


def _build(source: Path, into: Path) -> None:
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into)]
    subprocess.run([*_PIP, *wheel, str(source)], check=True, timeout=BUILD_S)


def _digest(source: Path) -> str:
    """What a wheel is made of, and by what."""
    digest = hashlib.sha256(f"{sys.version} {version('setuptools')}".encode())
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(source)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def copy_sources(folder: Path) -> None:
    """Copy into a new folder what of a checkout pip needs to install it."""
    folder.mkdir()
    for name in _SOURCES:
        shutil.copy(ROOT / name, folder)
    left_out = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "statestore", folder / "statestore", ignore=left_out)


def installed(
    wheel: Path,
    home: Path,
    *,
    extras: Iterable[str] | None = (),
    packages_of: Path | None = None,
    tools: Iterable[str] = (),
) -> Path:
    """Install the wheel into a new environment, and return the folder of its programs.

    The environment has what the wheel requires with these `extras`, and the distributions `tools`,
    and nothing else; None gives it all packages of ours, or of the folder `packages_of`.
    """
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python3.*/site-packages")
    into = ["--python", str(home / "bin" / "python"), "install", "--no-deps", str(wheel)]
    subprocess.run([*_PIP, *into], check=True, timeout=BUILD_S)
    ours = Path(sysconfig.get_path("purelib"))
    if extras is None:
        # It comes behind the environment's own packages, and an editable install in it is ignored.
        (packages / "ours.pth").write_text(str(packages_of or ours), encoding="utf-8")
        return home / "bin"
    for name in _top_level_names("statestore", ("", *extras)).union(
        *(_top_level_names(tool, ("",)) for tool in tools)
    ):
        if (ours / name).exists() and not (packages / name).exists():
            (packages / name).symlink_to(ours / name)
    return home / "bin"


def _top_level_names(distribution_name: str, extras: Iterable[str]) -> set[str]:
    """The files and folders in site-packages of all that a distribution requires."""
    names: set[str] = set()
    seen: set[str] = set()
    wanted = [(distribution_name, tuple(extras))]
    while wanted:
        name, chosen = wanted.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        seen.add(name)
        if name != "statestore":
            names |= {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for requirement in map(Requirement, found.requires or ()):
            marker = requirement.marker
            applies = marker is None or any(marker.evaluate({"extra": e}) for e in chosen)
            if applies and requirement.name not in seen:
                wanted.append((requirement.name, ("", *requirement.extras)))
    return names

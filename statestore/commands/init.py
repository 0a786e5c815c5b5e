"""`statestore init`: a small project of the user's own, which runs and passes its tests at once."""

import importlib.util
import keyword
import re
import shlex
from importlib import resources
from pathlib import Path

import click

from statestore.errors import HostFailure, Misuse
from statestore.extras import install_command

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
_FILES = {
    "README.md": "README.md",
    "Makefile": "Makefile",
    ".gitignore": "gitignore",
    "pyproject.toml": "pyproject.toml",
    "statestore.toml": "statestore.toml",
    "my_pipeline.py": "my_pipeline.py",
    "try_it.py": "try_it.py",
    "tests/test_my_pipeline.py": "test_my_pipeline.py",
    "dags/my_pipeline.py": "dag.py",
}
"""The files of a project, and their templates in the folder `project`.

Each template is the file of a project that is named my-pipeline. Where it installs this package,
the project says how that is done here.
"""
_PLACEHOLDER = re.compile(r"my([-_])pipeline")
_INSTALL = re.compile(r"pip install 'statestore\[([\w,]+)\]'")
# Names that would shadow what a project or its tools import.
_TAKEN = frozenset({"conftest", "dags", "test", "tests", "try_it"})


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
def init_command(folder: Path) -> None:
    """Write a small project into FOLDER, which is new or empty.

    The project is named after the folder. It has a pipeline, its tests, statestore.toml, a DAG, a
    Makefile and a README. `make test` passes at once; `make run` processes a few records on a local
    broker.
    """
    folder = folder.absolute()  # "." has no name
    name = folder.name
    module = _module_of(name, folder)
    _require_empty(folder)
    templates = resources.files("statestore.commands") / "project"
    try:
        for path, template in _FILES.items():
            text = (templates / f"{template}.template").read_text(encoding="utf-8")
            target = folder / _named(path, name, module)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                file.write(_named(text, name, module))
    except OSError as error:
        raise HostFailure(
            f"cannot write {error.filename}: {error.strerror}: pass a folder that can be written"
        ) from error
    place = shlex.quote(str(folder))
    click.echo(f"{name} is written; try it: cd {place} && make test && make run")


def _module_of(name: str, folder: Path) -> str:
    """The name of the project's module; Misuse if the name suits no module or no application."""
    if not _NAME.fullmatch(name):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:90]
        if plain[:1].isdigit():
            plain = f"my-{plain}"
        raise Misuse(
            f"project name {name[:110]!r}: it names a module, topics and folders, so it is a "
            "letter and then at most 99 letters, digits, - or _: pass another one, such as "
            f"{plain or 'my-pipeline'}"
        )
    module = name.replace("-", "_")
    clash = _clash(module, folder)
    if clash is not None:
        raise Misuse(
            f"project name {name!r}: its module would be {module}.py, but {clash}: pass another "
            f"name, such as {name}-pipeline"
        )
    return module


def _clash(module: str, folder: Path) -> str | None:
    """Why a module must not have that name; None if it may."""
    if keyword.iskeyword(module):
        return f"{module} is a keyword of Python"
    if module in _TAKEN:
        return f"{module} stands for something else in a project or in its tools"
    found = importlib.util.find_spec(module)
    if found is None:
        return None
    if found.origin is None and str(folder) in (found.submodule_search_locations or ()):
        return None  # the folder itself, if it is beside the current one
    return f"Python knows a module {module} already ({found.origin or 'a namespace package'})"


def _require_empty(folder: Path) -> None:
    """Misuse if the folder has anything in it but a repository of git."""
    if folder.is_dir():
        present = sorted(path.name for path in folder.iterdir() if path.name != ".git")
        if present:
            raise Misuse(
                f"{folder} is not empty, it has {', '.join(present[:3])}"
                f"{' and more' if present[3:] else ''}: pass a folder that is new or empty"
            )
    elif folder.exists():
        raise Misuse(f"{folder} is a file: pass a folder that is new or empty")


def _named(text: str, name: str, module: str) -> str:
    named = _PLACEHOLDER.sub(lambda found: name if found[1] == "-" else module, text)
    return _INSTALL.sub(lambda found: install_command(*found[1].split(",")), named)

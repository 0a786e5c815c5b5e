"""What the pages tell a reader to type and to open is there, and the README's example runs."""

import re
import runpy
from pathlib import Path

import click
import pytest

from statestore.cli import cli
from tests.builders import ROOT

# Old entries of the changelog may name what is no more.
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
}
# Commands stand alone in a code span, or begin a line of a code block.
COMMAND = re.compile(r"(?:`|^    |^\$ (?:\w+=\S+ )*)statestore ((?:[a-z]|--)[^`\n]*)", re.MULTILINE)


def test_the_example_prints_what_the_readme_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = PAGES["README.md"]
    example = re.findall(r"^```python[^\n]*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "shop.py").write_text(example, encoding="utf-8")
    runpy.run_path(str(tmp_path / "shop.py"), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["Ada 250", "Ada 350"]
    assert all(f"\n{line}\n" in readme for line in printed)


def test_the_commands_and_flags_in_the_pages_exist() -> None:
    typed = [
        (name, command)
        for name, text in PAGES.items()
        for command in COMMAND.findall(text.replace("\\\n", " "))
    ]
    assert len(typed) > 30
    wrong = [f"{name}: {command}: {told}" for name, command in typed if (told := fault(command))]
    assert wrong == []


def fault(typed: str) -> str:
    """Which word of a command line the `statestore` command does not have; "" if it has all."""
    context = click.Context(cli)
    commands: list[click.Command] = [cli]
    for word in typed.split():
        if word.startswith("--"):
            known = {flag for command in commands for one in command.params for flag in one.opts}
            if word.partition("=")[0].strip("[]") not in known:
                return f"no flag {word}"
        elif all(isinstance(command, click.Group) for command in commands):
            groups = [command for command in commands if isinstance(command, click.Group)]
            named = [
                group.get_command(context, part) for group in groups for part in word.split("|")
            ]
            if None in named:
                return f"no command {word}"
            commands = [command for command in named if command is not None]
    return ""


def test_the_files_named_in_the_pages_exist() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    files = [path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    named = {
        (name, path)
        for name, text in PAGES.items()
        for path in re.findall(r"`([\w/]+\.py)(?::[^`]*)?`", text)
        if path != "shop.py" and f'title="{path}"' not in text  # the reader's own
    }
    assert len(named) > 20
    missing = [
        f"{name}: {path}"
        for name, path in sorted(named)
        if not any(file.endswith(f"/{path}") for file in files)
    ]
    assert missing == []

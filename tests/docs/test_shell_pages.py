"""The pages that are typed into a shell show what a reader gets, from a clean folder on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.testing.kafka_jars import kafka_libs, scratch_dir
from statestore.testing.kafka_node import reserved_ports
from tests.builders import ROOT
from tests.docs.shell_page import Done, steps, type_into_shell
from tests.wheel_rig import built_wheel, installed

pytestmark = pytest.mark.kafka

# The path that a reader has: the tutorial makes an environment, guides are for those who have one.
PAGES = [
    pytest.param("tutorial.md", id="tutorial"),
    pytest.param("guides/deploying.md", id="deploying", marks=pytest.mark.slow),
]
PORT = "9092"  # what the pages name; a test takes a free one
STEP_S = 150


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def port() -> Iterator[str]:
    with reserved_ports(1, scratch_dir() / "ports") as (free,):
        yield str(free)


def read(page: str, folder: Path, port: str, **env: str) -> list[Done]:
    """Do what a page says and see what it shows, in a home of its own.

    `python3` is the Python of these tests, or the one that $PYTHON names, and the broker listens on
    `port`.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = text.replace("kafka start\n", f"kafka start --port {PORT}\n").replace(PORT, port)
    tools = folder / "tools"
    tools.mkdir()
    python = tools / "python3"
    ours = sys._base_executable  # type: ignore[attr-defined]  # typeshed leaves it out
    python.write_text(f'#!/bin/sh\nexec "{os.environ.get("PYTHON", ours)}" "$@"\n')
    python.chmod(0o755)
    shop = folder / "shop"
    shop.mkdir(exist_ok=True)
    own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **env}
    programs = "" if page == "tutorial.md" else f"{shop / '.venv' / 'bin'}:"
    path = f"{programs}{tools}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        done = []
        for one in type_into_shell(steps(text), shop, {"PATH": path, **own}, timeout_s=STEP_S):
            assert one.fault() is None, f"{page}: {one.fault()}"
            done.append(one)
        return done
    finally:
        # Also if a step failed or took too long: the broker outlives its shell.
        program = shop / ".venv" / "bin" / "statestore"
        if program.exists():
            command = [str(program), "kafka", "stop"]
            subprocess.run(command, env={"PATH": path, **own}, check=False, timeout=STEP_S)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_typed_into_a_shell_shows_what_it_says(
    page: str, wheel: Path, tmp_path: Path, port: str
) -> None:
    installed(wheel, tmp_path / "shop" / ".venv", extras=["testing"])
    prepared = {"PIP_NO_INDEX": "1", "STATESTORE_KAFKA_LIBS": str(kafka_libs())}
    assert read(page, tmp_path, port, **prepared)


@pytest.mark.slow
def test_the_tutorial_from_nothing_takes_minutes(
    wheel: Path, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With packages and jars from the registries; it prints the minutes to the first result."""
    done = read("tutorial.md", tmp_path, port, PIP_FIND_LINKS=str(wheel.parent))
    (first,) = [i for i, one in enumerate(done) if "stores range spent" in one.step.command][:1]
    seconds = sum(one.seconds for one in done[: first + 1])
    with capsys.disabled():
        # The figure is what one runs this for.
        print(f"\nfrom a clean environment to the first result: {seconds / 60:.1f} min")  # noqa: T201

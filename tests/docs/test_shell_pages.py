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
from tests.wheel_rig import built_wheel, copy_sources, installed

pytestmark = pytest.mark.kafka

# These make an environment; guides are for those who have one.
FROM_NOTHING = ("README.md", "docs/tutorial.md")
PAGES = [
    pytest.param("README.md", id="readme"),
    pytest.param("docs/tutorial.md", id="tutorial", marks=pytest.mark.thorough),
    pytest.param("docs/guides/deploying.md", id="deploying", marks=pytest.mark.slow),
]
# What shows a reader the first result of what they wrote.
FIRST_RESULTS = [("README.md", "python shop.py"), ("docs/tutorial.md", "stores range spent")]
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
    """Do what a page says and see what it shows, in a home of its own, beside a checkout.

    `python3` is the Python of these tests, or the one that $PYTHON names, and the broker listens on
    `port`.
    """
    copy_sources(folder / "statestore")
    text = (ROOT / page).read_text(encoding="utf-8")
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
    programs = "" if page in FROM_NOTHING else f"{shop / '.venv' / 'bin'}:"
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
    tools = ("mypy", "pytest", "setuptools")
    installed(wheel, tmp_path / "shop" / ".venv", extras=["testing"], tools=tools)
    prepared = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which is how pip is told not to isolate
        "STATESTORE_KAFKA_LIBS": str(kafka_libs()),
    }
    assert read(page, tmp_path, port, **prepared)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "shows"), FIRST_RESULTS, ids=["readme", "tutorial"])
def test_from_nothing_to_the_first_result_takes_minutes(
    page: str, shows: str, tmp_path: Path, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With packages and jars from the registries; it prints the minutes to the first result."""
    done = read(page, tmp_path, port)
    (first,) = [i for i, one in enumerate(done) if shows in one.step.command][:1]
    seconds = sum(one.seconds for one in done[: first + 1])
    with capsys.disabled():
        # The figure is what one runs this for.
        print(f"\n{page}, from a clean environment: first result after {seconds / 60:.1f} min, ")  # noqa: T201
        print(f"all after {sum(one.seconds for one in done) / 60:.1f} min")  # noqa: T201

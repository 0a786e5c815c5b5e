"""`statestore init`: what it refuses, with the way out, and what it leaves alone."""

import ast
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore.applications import ConfiguredApplication
from statestore.cli import cli
from statestore.commands.init import _FILES
from statestore.errors import Misuse
from statestore.extras import install_command
from tests.builders import ROOT

REFUSED = {
    "shop.orders": "such as shop-orders",
    "2nd": "such as my-2nd",
    "-x": "such as x",
    "ключ": "such as my-pipeline",
    "a" * 101: "at most 99 letters",
    "class": "class is a keyword of Python: pass another name, such as class-pipeline",
    "json": "Python knows a module json already",
    "numpy": "Python knows a module numpy already",
    "statestore": "Python knows a module statestore already",
    "test": "test stands for something else in a project or in its tools",
    "try-it": "its module would be try_it.py",
    "tests": "pass another name, such as tests-pipeline",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(folder: str) -> str:
    refused = CliRunner().invoke(cli, ["init", "--", folder])
    assert isinstance(refused.exception, Misuse), refused.output
    return str(refused.exception)


def init(folder: str) -> None:
    done = CliRunner().invoke(cli, ["init", folder])
    assert done.exit_code == 0, done.exception


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_suits_no_module_is_refused_with_another_one(
    name: str, elsewhere: Path
) -> None:
    assert REFUSED[name] in refusal(name)
    assert list(elsewhere.iterdir()) == []


def test_a_folder_with_anything_in_it_is_left_alone(elsewhere: Path) -> None:
    (elsewhere / "shop").mkdir()
    (elsewhere / "shop" / "notes.txt").write_text("mine")
    said = refusal("shop")
    assert f"{elsewhere / 'shop'} is not empty, it has notes.txt: pass a folder that is" in said
    assert [path.name for path in (elsewhere / "shop").iterdir()] == ["notes.txt"]
    (elsewhere / "file").write_text("mine")
    assert "is a file: pass a folder that is new or empty" in refusal("file")


@pytest.mark.parametrize("folder", ["shop", "deep/er/shop", "shop/../shop"])
def test_a_new_folder_is_made(folder: str, elsewhere: Path) -> None:
    (elsewhere / "shop").mkdir()
    init(folder)
    made = elsewhere / folder
    assert {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()} == {
        path.replace("my_pipeline", "shop") for path in _FILES
    }


def test_an_empty_repository_of_git_and_the_current_folder_will_do(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "shop" / ".git").mkdir(parents=True)
    monkeypatch.chdir(elsewhere / "shop")
    init(".")
    assert (elsewhere / "shop" / "shop.py").is_file()


def test_every_file_bears_the_name_and_none_of_another_project(elsewhere: Path) -> None:
    init("web-shop_2")
    made = elsewhere / "web-shop_2"
    texts = {path: path.read_text(encoding="utf-8") for path in made.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "my_pipeline" in text + path.name] == []
    assert [path for path, text in texts.items() if "my-pipeline" in text] == []
    for path, text in texts.items():
        if path.suffix == ".py":
            ast.parse(text)
    known = ConfiguredApplication.load(made / "statestore.toml", "web-shop_2")
    assert known.pipeline == "web_shop_2:topology"


def test_a_project_says_how_to_install_what_it_needs_here(elsewhere: Path) -> None:
    init("shop")
    told = (elsewhere / "shop" / "README.md").read_text(encoding="utf-8")
    for extras in (("testing",), ("spark",), ("airflow", "spark")):
        assert f"    {install_command(*extras)}" in told
    assert "'statestore[" not in told


def test_the_dag_is_three_lines() -> None:
    dag = ROOT / "statestore" / "commands" / "project" / "dag.py.template"
    assert len(dag.read_text(encoding="utf-8").splitlines()) == 3


def test_every_template_is_used_and_travels_in_the_wheel() -> None:
    folder = ROOT / "statestore" / "commands" / "project"
    assert {path.name for path in folder.iterdir()} == {f"{it}.template" for it in _FILES.values()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = project["tool"]["setuptools"]["package-data"]["statestore"]
    assert "commands/project/*.template" in packed

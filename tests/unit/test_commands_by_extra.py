"""Commands of statestore.testing: imported only when asked for, refused without the extra."""

import json
import sys

import click
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.commands.help import CommandGroup
from statestore.errors import Misuse
from statestore.extras import install_command
from tests.builders import DEADLINE_S, child

ASKING = """
import json, sys
from click.testing import CliRunner
from statestore.cli import cli
imports = {}
for command in sys.argv[1:]:
    assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0
    imports[command] = any(name.startswith("statestore.testing") for name in sys.modules)
print(json.dumps(imports))
"""


def test_only_commands_of_testing_import_it() -> None:
    # Once it is imported it stays: that command comes last.
    with child(ASKING, "run", "status", "audit", "drill") as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    imports = {"run": False, "status": False, "audit": False, "drill": True}
    assert json.loads(output) == imports


OTHERS = """
import json, sys
from statestore.cli import cli
cli.get_command(None, sys.argv[1])
print(json.dumps(sorted(name for name in sys.modules if name.startswith("statestore.commands."))))
"""


def test_a_command_imports_no_other_one() -> None:
    with child(OTHERS, "topics") as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    shared = {"arguments", "help", "interrupts", "printing"}
    assert set(json.loads(output)) == {f"statestore.commands.{it}" for it in shared | {"topics"}}


LISTING = """
import json, sys
from click.testing import CliRunner
from statestore.cli import cli
for asked in (["--help"], ["serve", "--help"]):
    assert CliRunner().invoke(cli, asked).exit_code == 0
heavy = {"fastapi", "jinja2", "prometheus_client", "psutil", "pyarrow", "pydantic", "starlette"}
heavy |= {"statestore.testing", "uvicorn"}
print(json.dumps(sorted(heavy & sys.modules.keys())))
"""


def test_help_imports_no_more_than_the_commands_that_need_no_extra() -> None:
    with child(LISTING) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert errors == ""
    assert json.loads(output) == []


def test_the_list_says_of_each_command_what_it_says_itself() -> None:
    assert isinstance(cli, CommandGroup)
    context = click.Context(cli)
    listed = cli.list_commands(context)
    assert {"audit", "drill", "kafka", "serve", "ui"} <= set(listed)
    for name in listed:
        command = cli.get_command(context, name)
        assert command is not None
        assert cli.first_sentence(context, name) == command.get_short_help_str(500), name


@pytest.mark.parametrize("command", ["drill", "kafka"])
def test_without_the_extra_a_command_says_how_to_install_it(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("statestore.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psutil", None)
    refused = CliRunner().invoke(cli, [command, "--json", "start"])
    assert isinstance(refused.exception, Misuse)
    assert f"`statestore {command}` needs the extra `testing`" in str(refused.exception)
    assert install_command("testing") in str(refused.exception)
    listed = CliRunner().invoke(cli, ["--help"])
    assert listed.exit_code == 0
    assert "Not available: install the extra `testing`." in listed.output

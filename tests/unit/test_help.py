"""What `--help` tells a stranger: every command, in whole sentences, under a title."""

import re

import click
import pytest
from click.testing import CliRunner

from statestore.cli import cli


def shown(*words: str) -> str:
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0
    return done.output


def test_every_command_stands_in_one_section() -> None:
    listed = [name for names in getattr(cli, "sections").values() for name in names]  # noqa: B009  # typed as a group
    assert sorted(listed) == cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("group", ["", "topology", "topics", "stores", "exports", "kafka"])
def test_no_sentence_is_cut_off(group: str) -> None:
    assert re.findall(r"\w+\.\.\.", shown(*group.split())) == []


def test_it_says_where_flags_may_stand_and_what_exit_codes_mean() -> None:
    text = shown()
    assert "statestore.toml" in text
    assert "STATESTORE_STATE_DIR" in text
    assert "statestore.errors" in text

"""Ctrl-C that an extension module reports as an error of its own."""

import click
import pytest
from click.testing import CliRunner, Result

from statestore.commands.help import CommandGroup

REPORTED = "<built-in method list_offsets> returned a result with an exception set"


def interrupted_in(cause: BaseException | None) -> Result:
    @click.group(cls=CommandGroup)
    def group() -> None: ...

    @group.command()
    def look() -> None:
        raise SystemError(REPORTED) from cause

    return CliRunner().invoke(group, ["look"])


def test_an_interrupt_that_a_library_reports_as_its_error_ends_a_command_as_any() -> None:
    done = interrupted_in(KeyboardInterrupt())
    assert (done.exit_code, done.stderr) == (1, "\nAborted!\n")


@pytest.mark.parametrize("cause", [None, ValueError("no")])
def test_any_other_such_error_is_told_as_it_is(cause: BaseException | None) -> None:
    done = interrupted_in(cause)
    assert str(done.exception) == REPORTED

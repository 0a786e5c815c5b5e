"""How a group of commands lists them, each with its whole first sentence, and is interrupted."""

from collections.abc import Mapping
from typing import Any, ClassVar

import click

from statestore.commands.interrupts import plain_interrupts

_SENTENCE_MAX = 500


class CommandGroup(click.Group):
    """A group that does not cut off what its commands are for."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Titles, and the commands under them; without any, all stand under one title."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; it ends with "Aborted!" wherever an interrupt meets it."""
        with plain_interrupts():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by sections."""
        names = self.list_commands(ctx)
        for title, listed in (self.sections or {"Commands": tuple(names)}).items():
            rows = []
            for name in listed:
                about = self.first_sentence(ctx, name)
                if about is not None:
                    rows.append((name, about))
            with formatter.section(title):
                formatter.write_dl(rows)

    def first_sentence(self, ctx: click.Context, name: str) -> str | None:
        """Return what the list says of a command; None if it does not list it."""
        command = self.get_command(ctx, name)
        if command is None or command.hidden:
            return None
        return command.get_short_help_str(_SENTENCE_MAX)

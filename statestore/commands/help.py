"""How a group of commands lists them: each with its whole first sentence."""

from collections.abc import Mapping
from typing import ClassVar

import click

_SENTENCE_MAX = 500


class CommandGroup(click.Group):
    """A group that does not cut off what its commands are for."""

    sections: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Titles, and the commands under them; without any, all stand under one title."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, by sections."""
        names = self.list_commands(ctx)
        for title, listed in (self.sections or {"Commands": tuple(names)}).items():
            rows = []
            for name in listed:
                command = self.get_command(ctx, name)
                if command is not None and not command.hidden:
                    rows.append((name, command.get_short_help_str(_SENTENCE_MAX)))
            with formatter.section(title):
                formatter.write_dl(rows)

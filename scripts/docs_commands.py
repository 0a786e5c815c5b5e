"""A hook of MkDocs: the page of commands gets what `--help` prints, of every command there is."""

from collections.abc import Iterator

import click
from mkdocs.structure.pages import Page

from statestore.cli import cli

PAGE = "reference/commands.md"
COLUMNS = 100


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Return the text of a page; that of commands has a section for each."""
    if page.file.src_uri != PAGE:
        return markdown
    return "\n".join([markdown, *_sections(cli, "statestore", None)])


def _sections(command: click.Command, name: str, above: click.Context | None) -> Iterator[str]:
    context = click.Context(
        command,
        parent=above,
        info_name=name,
        terminal_width=COLUMNS,
        max_content_width=COLUMNS,
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from _sections(found, child, context)

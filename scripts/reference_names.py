"""Write docs/reference/names.md: every public name with its parameters and its promise.

The other pages of docs/reference name what mkdocstrings fills in when the site is built. This page
has the same names in the same order for those who read the repository. `python -m
scripts.reference_names` writes it; tests/docs/test_reference.py fails when it is out of date. The
sources are read and not imported, except for the command line.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe
import yaml  # type: ignore[import-untyped]  # the stubs are a package of their own

from statestore.cli import cli

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
PAGE = FOLDER / "names.md"
PAGES = ("pipelines", "stores", "running", "values", "errors", "testing", "airflow", "spark")
COLUMNS = 120
NAMED = re.compile(r"^::: (?P<path>\S+)\n(?P<more>(?:    .*\n)*)", re.MULTILINE)
BEGIN = """\
# Names

Every public name with its parameters and the first sentence of what it promises, to be read without
building the site. The pages behind the headings have types, errors and the rest; `help(ss.KStream)`
shows the same in Python. `python -m scripts.reference_names` makes this page of the sources.
"""


def page() -> str:
    """Return the text of the page."""
    loaded = griffe.load("statestore", search_paths=[ROOT], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    lines = [BEGIN]
    for name in PAGES:
        text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        lines.append(f"## [{title}]({name}.md)\n")
        for named in NAMED.finditer(text):
            path = named["path"].removeprefix("statestore.")
            more = yaml.safe_load(textwrap.dedent(named["more"])) or {}
            lines += _told(_target(loaded[path]), more.get("options", {}))
    lines += ["## [Command line](commands.md)\n", *_commands(cli, "statestore"), ""]
    return "\n".join(lines)


def _told(thing: griffe.Object, options: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about a name and about the members that its page shows."""
    indent, prefix = "    ", ""
    if isinstance(thing, griffe.Module):
        indent, prefix = "", f"{thing.name}."
    else:
        is_made = options.get("merge_init_into_class", True)
        yield from _item(thing, _parameters(thing) if is_made else "")
    wanted = options.get("members")
    members = dict(thing.members)
    if options.get("inherited_members"):
        members = {**thing.inherited_members, **members}
    own = [name for name, it in members.items() if name[0] != "_" and not it.is_imported]
    for name in own if wanted is None else wanted or ():
        member = _target(members[name])
        if wanted or member.is_function or member.is_class or "property" in member.labels:
            yield from _item(member, _parameters(member), indent=indent, prefix=prefix)
    yield ""


def _item(
    thing: griffe.Object, parameters: str, *, indent: str = "", prefix: str = ""
) -> list[str]:
    promise = re.split(r"(?<=\.) (?=[A-Z`])", _first_paragraph(thing))[0]
    if isinstance(thing, griffe.Class) and _is_enum(thing):
        values = ", ".join(f"`{one}`" for one, it in thing.members.items() if it.is_attribute)
        promise = f"{promise} One of {values}."
    told = f"- `{prefix}{thing.name}{parameters}`{': ' if promise else ''}{promise}"
    # A code span goes on in the next line, so a long list of parameters may be wrapped.
    return textwrap.wrap(
        told,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _is_enum(kind: griffe.Class) -> bool:
    return any("Enum" in str(base) for it in (kind, *kind.mro()) for base in it.bases)


def _first_paragraph(thing: griffe.Object) -> str:
    about = thing.docstring.value.split("\n\n")[0] if thing.docstring else ""
    return " ".join(about.split()).removesuffix(":")


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    found = member.final_target if isinstance(member, griffe.Alias) else member
    assert isinstance(found, griffe.Object)
    return found


def _parameters(thing: griffe.Object) -> str:
    """Return the parameters in parentheses; "" for what is not called."""
    if isinstance(thing, griffe.Class):
        if "NamedTuple" in map(str, thing.bases):
            fields = [(name, it.value) for name, it in thing.attributes.items()]
            told = [name if value is None else f"{name}={value}" for name, value in fields]
            return f"({', '.join(told)})"
        made = thing.all_members.get("__init__")
        return "" if made is None else _parameters(_target(made))
    if not isinstance(thing, griffe.Function):
        return ""
    told, is_keyword_only = [], False
    for one in thing.parameters:
        if one.name in {"self", "cls"}:
            continue
        is_variadic = one.kind is griffe.ParameterKind.var_positional
        if one.kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            told.append("*")
        is_keyword_only |= is_variadic or one.kind is griffe.ParameterKind.keyword_only
        stars = "*" if is_variadic else "**"
        if is_variadic or one.kind is griffe.ParameterKind.var_keyword:
            told.append(f"{stars}{one.name}")
        else:
            told.append(one.name if one.default is None else f"{one.name}={one.default}")
    return f"({', '.join(told)})"


def _commands(command: click.Command, name: str) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield from textwrap.wrap(
            f"- `{name}`: {command.get_short_help_str(limit=10_000)}",
            COLUMNS,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        return
    context = click.Context(command)
    for child in command.list_commands(context):
        found = command.get_command(context, child)
        if found is not None:
            yield from _commands(found, f"{name} {child}")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

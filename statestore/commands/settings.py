"""`statestore settings`: every setting, wherever the package is installed."""

import click

from statestore.commands.printing import print_rows
from statestore.errors import Misuse
from statestore.settings import describe_settings


@click.command("settings")
@click.argument("text", required=False, default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line per setting.")
def settings_command(*, text: str, as_json: bool) -> None:
    """List the settings whose key or meaning has TEXT in it, with default and unit.

    Set them with --set KEY=VALUE, or in statestore.toml under [applications.<id>.settings].
    """
    rows = [
        {"key": key, "default": default, "unit": unit, "about": about}
        for key, default, unit, about in describe_settings()
        if text.lower() in f"{key} {about}".lower()
    ]
    if not rows:
        raise Misuse(f"no setting has {text!r} in its key or meaning: leave it out to list all")
    print_rows(rows, as_json=as_json)

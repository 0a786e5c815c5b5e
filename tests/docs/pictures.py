"""Draw the pictures of the documentation anew: `python -m tests.docs.pictures`.

It types the tutorial into a shell, with a terminal for the commands that have a picture, and takes
the report of the audit by a headless Chromium.
"""

import io
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from statestore.testing.kafka_jars import kafka_libs, scratch_dir
from statestore.testing.kafka_node import reserved_ports
from tests.builders import ROOT
from tests.docs.shell_page import steps, type_into_shell
from tests.wheel_rig import built_wheel, installed

PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 84
STEP_S = 150
PAGE = (1000, 380)
# They are of another host.
FONTS = re.compile(r"\s*@font-face \{\{.*?\}\}", re.DOTALL)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        reserved_ports(1, scratch_dir() / "ports") as (port,),
    ):
        shop = Path(scratch) / "shop"
        shop.mkdir()
        programs = installed(built_wheel(Path(scratch)), shop / ".venv", extras=["testing"])
        env = {
            "HOME": scratch,
            "XDG_CACHE_HOME": f"{scratch}/cache",
            "STATESTORE_KAFKA_LIBS": str(kafka_libs()),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
        page = page.replace("kafka start\n", "kafka start --port 9092\n").replace("9092", str(port))
        made = ("python3 ", ". ", "pip ")  # the environment is there
        todo = [step for step in steps(page) if not step.command.startswith(made)]
        try:
            for done in type_into_shell(todo, shop, env, timeout_s=STEP_S):
                if done.step.command.startswith("statestore status"):
                    draw(done.step.command, "status", shop, env)
                if done.step.command.startswith("statestore audit"):
                    (report,) = (shop / "state" / "shop" / "audits").glob("*.html")
                    photograph(report, "audit-report")
        finally:
            subprocess.run([programs / "statestore", "kafka", "stop"], env=env, check=False)


def draw(command: str, name: str, folder: Path, env: Mapping[str, str]) -> None:
    """Run the command in a terminal, and save what that shows as a picture."""
    shown = subprocess.run(
        ["script", "--quiet", "--return", "--command", command, "/dev/null"],
        cwd=folder,
        env={**env, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=STEP_S,
    ).stdout
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(f"$ {command}\n{shown}"))
    plain = FONTS.sub("", CONSOLE_SVG_FORMAT)
    drawn = console.export_svg(title="statestore", code_format=plain, unique_id=name)
    tidy = re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE).strip() + "\n"
    (PICTURES / f"{name}.svg").write_text(tidy, encoding="utf-8")


def photograph(page: Path, name: str) -> None:
    """Save the top of a page as Chromium shows it."""
    to = f"--screenshot={PICTURES / name}.png"
    size = f"--window-size={PAGE[0]},{PAGE[1]}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size, to]
    subprocess.run(["chromium", *flags, page.as_uri()], check=True, timeout=STEP_S)


if __name__ == "__main__":
    main()

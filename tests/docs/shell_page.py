"""A page whose commands are typed into a shell, as its reader would.

- A block with a `title` is a file, which is saved under that name in the current folder.
- A block of `console` has commands behind "$ ", and below each what a terminal shows, both of its
  streams; "…" stands for anything. A command goes on in the next line behind a backslash.

All commands of a page go into one shell, so `cd`, variables and `$?` last.
"""

import doctest
import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```(?P<info>[a-z]+[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_MARK = "@@-what-follows-is-of-the-next-step-@@"


@dataclass(frozen=True)
class Step:
    """A command, or a file to save; `line` is where it stands on the page."""

    line: int
    command: str
    expected: str | None


@dataclass(frozen=True)
class Done:
    """What a step has shown, and in how many seconds."""

    step: Step
    shown: str
    seconds: float

    def fault(self) -> str | None:
        """How what was shown differs from what the page shows; None if it does not."""
        if self.step.expected is None:
            return None
        wanted = self.step.expected.replace("…", "...")
        if doctest.OutputChecker().check_output(wanted, self.shown, OPTIONS):
            return None
        return (
            f"line {self.step.line}: $ {self.step.command}\nexpected:\n{wanted}got:\n{self.shown}"
        )


def steps(page: str) -> list[Step]:
    """What a reader of the page does, in order."""
    found = []
    for block in BLOCK.finditer(page):
        line = page[: block.start()].count("\n") + 2
        title = TITLE.search(block["info"])
        if title:
            name, text = shlex.quote(title[1]), shlex.quote(block["text"])
            saved = f'mkdir -p "$(dirname {name})" && printf %s {text} >{name}'
            found.append(Step(line, saved, None))
        elif block["info"].startswith("console"):
            found += _commands(block["text"], line)
    return found


def _commands(text: str, line: int) -> list[Step]:
    found: list[Step] = []
    continued = False
    for number, row in enumerate(text.splitlines(), start=line):
        if row.startswith("$ "):
            found.append(Step(number, row[2:], ""))
        elif continued:
            found[-1] = Step(found[-1].line, f"{found[-1].command}\n{row}", "")
        else:
            assert found, f"line {number}: output without a command"
            last = found[-1]
            found[-1] = Step(last.line, last.command, f"{last.expected}{row}\n")
        continued = (row.startswith("$ ") or continued) and row.endswith("\\")
    return found


def type_into_shell(
    todo: list[Step], folder: Path, env: Mapping[str, str], *, timeout_s: float
) -> Iterator[Done]:
    """Do the steps in one shell in that folder, and yield each; TimeoutError if one takes longer.

    The shell has of our environment nothing that Python or the library reads.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STATESTORE", "PYTHON"))}
    with subprocess.Popen(
        ["bash"],
        cwd=folder,
        env={**kept, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as shell:
        try:
            for step in todo:
                began = time.monotonic()
                yield Done(step, _typed(shell, step, timeout_s), time.monotonic() - began)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def _typed(shell: "subprocess.Popen[bytes]", step: Step, timeout_s: float) -> str:
    assert shell.stdin is not None
    assert shell.stdout is not None
    # What comes before shows its exit code to the command; what comes after keeps that of it.
    typed = f"(exit $was)\n{{ {step.command}\n}} </dev/null\nwas=$?\necho; echo {_MARK}\n"
    shell.stdin.write(typed.encode())
    shell.stdin.flush()
    shown = b""
    deadline = time.monotonic() + timeout_s
    while not shown.endswith(f"\n{_MARK}\n".encode()):
        left = deadline - time.monotonic()
        ready, _, _ = select.select([shell.stdout], [], [], max(left, 0))
        if not ready:
            raise TimeoutError(f"line {step.line}: {step.command}\n{shown.decode()}")
        read = os.read(shell.stdout.fileno(), 65536)
        assert read, f"line {step.line} ended the shell: {step.command}\n{shown.decode()}"
        shown += read
    return shown.decode().removesuffix(f"\n{_MARK}\n")

"""Whether the code that records pass has been measured since it was last changed.

`make bench-turns` writes tests/bench/turns.json: a digest of that code, and what each job took of a
processor beside another commit. `make check` compares the digest. So nothing that a record passes
lands unmeasured, and a job that takes longer needs a reason in words. Comments, docstrings and the
layout of code are not in the digest.
"""

import ast
import json
import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

TABLE: Final = Path(__file__).with_name("turns.json")
PASSED: Final = ("engines", "kafka", "model", "serdes", "stores", "tasks", "topology")
"""The packages of the library whose code records pass."""
WORSE: Final = 1.1
"""From this quotient on, a job needs a reason: what is nearer to 1, machines do on their own."""
_COMMAND: Final = "make bench-turns BASE=<the commit before the change>"


class Turns(msgspec.Struct):
    """What was measured: each job's least CPU a record, in us, at the base and then."""

    digest: str
    python: str
    base: str
    records: int
    turns: int
    jobs: dict[str, tuple[float, float]]
    reason: str = ""

    def worse(self) -> dict[str, float]:
        """Return the jobs that took more than at the base, and how many times as much."""
        found = {job: now / before for job, (before, now) in self.jobs.items()}
        return {job: times for job, times in found.items() if times >= WORSE}


def digest(library: Path) -> str:
    """Return what changes with the code that records pass, in the folder of the library."""
    found = sha256()
    files = (path for package in PASSED for path in (library / package).rglob("*"))
    for path in sorted(path for path in files if path.suffix in {".py", ".c", ".h"}):
        code = path.read_bytes()
        if path.suffix == ".py":
            code = ast.dump(_bare(ast.parse(code))).encode()
        found.update(f"{path.relative_to(library)} {len(code)}\n".encode() + code)
    return found.hexdigest()[:16]


def python() -> str:
    """Return the version of Python on which a digest depends."""
    return ".".join(platform.python_version_tuple()[:2])


def kept(path: Path = TABLE) -> Turns:
    """Return what was last measured."""
    return msgspec.json.decode(path.read_bytes(), type=Turns)


def keep(turns: Turns, path: Path = TABLE) -> None:
    """Write what was measured."""
    made: Mapping[str, Any] = msgspec.to_builtins(turns)
    path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def unmeasured(library: Path, path: Path = TABLE) -> str:
    """Return what is wrong with what was last measured, in words; empty: nothing."""
    last = kept(path)
    if last.python == python() and last.digest != digest(library):
        return (
            f"the code that records pass ({', '.join(PASSED)}) is not the one that was measured "
            f"last: run {_COMMAND} on an idle machine, some minutes, and commit {path.name}"
        )
    if (worse := last.worse()) and not last.reason:
        told = ", ".join(f"{job} {times:.2f}" for job, times in worse.items())
        return (
            f"these jobs take more of a processor than at {last.base}: {told}: win it back, or say "
            f'why with {_COMMAND} ACCEPT="reason"'
        )
    return ""


def _bare(tree: ast.Module) -> ast.Module:
    """Take the docstrings out."""
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                node.body = [line for line in node.body if not _is_text(line)]
    return tree


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


def main() -> None:
    """Say what is wrong, if anything is."""
    if wrong := unmeasured(Path(__file__).resolve().parents[2] / "statestore"):
        raise SystemExit(wrong)


if __name__ == "__main__":
    main()

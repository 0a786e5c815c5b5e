"""The repository's own rules, those no linter knows. Only tracked files count."""

import ast
import gc
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.test_times import measured, page, told_durations
from statestore.faults import CrashPoint
from statestore.operations.audits.checks import AuditCheck
from statestore.settings import describe_settings

ROOT = Path(__file__).resolve().parents[1]
MODULE_LINES_MAX = 600
PAGE_COLUMNS_MAX = 120
FUNCTION_LINES_MAX = 70

# Written so that this file does not match itself.
OF_ONE_MACHINE = {
    "a path of one machine": re.compile(r"(?<![\w.}])/(?:[w]ork|[r]oot|[h]ome|[U]sers)/"),
    "a registry's host": re.compile(
        r"[p]ypi\.|[p]ythonhosted|[n]pmjs|[a]rtifactory|repo1?\.[m]aven"
        r"|[m]aven\.(?:org|apache\.org(?!/(?:POM|xsd)))",
        re.IGNORECASE,
    ),
    "how the text came about, not what it says": re.compile(
        r"\b(?:[a]ssistant|[h]elper|[s]ubagent)s?\b", re.IGNORECASE
    ),
}
LEFTOVER = re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX)\b")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module", autouse=True)
def _trees_cost_once() -> Iterator[None]:
    """To look for garbage among millions of nodes takes longer than to parse them."""
    gc.disable()
    yield
    for kept in (parsed, texts, tracked):
        kept.cache_clear()
    gc.enable()


@cache
def tracked() -> tuple[Path, ...]:
    # A clone made by another user is fine: nothing here runs its hooks.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())


def is_code(name: str) -> bool:
    return name.endswith((".py", ".pyi"))


class Parsed(NamedTuple):
    """A module, and all nodes of its tree."""

    tree: ast.Module
    nodes: list[ast.AST]


@cache
def parsed() -> dict[str, Parsed]:
    trees = {name: ast.parse(text, name) for name, text in texts().items() if is_code(name)}
    return {name: Parsed(tree, list(ast.walk(tree))) for name, tree in trees.items()}


def in_folders(folders: tuple[str, ...]) -> dict[str, Parsed]:
    starts = tuple(f"{folder}/" for folder in folders)
    return {name: one for name, one in parsed().items() if not folders or name.startswith(starts)}


def modules(*folders: str) -> dict[str, ast.Module]:
    """Path as shown in messages -> syntax tree of every tracked Python file in the folders."""
    return {name: one.tree for name, one in in_folders(folders).items()}


@cache
def texts() -> dict[str, str]:
    found = {}
    for path in tracked():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image
    return found


def nodes(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    for name, one in in_folders(folders).items():
        for node in one.nodes:
            yield name, node


def first_cells(table: str) -> set[str]:
    """What stands in backticks in the first column of a Markdown table."""
    return set(re.findall(r"^\|\s*`([^`]+)`\s*\|", table, re.MULTILINE))


def tables(text: str) -> list[str]:
    return re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {name: len(text.splitlines()) for name, text in texts().items() if is_code(name)}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_no_line_of_a_page_is_longer_than_120_characters() -> None:
    pages = {name: text for name, text in texts().items() if name.endswith(".md")}
    too_long = [
        f"{name}:{number}: {len(line)}"
        for name, text in pages.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if len(line) > PAGE_COLUMNS_MAX
    ]
    assert too_long == []


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, node in nodes()
        if isinstance(node, FUNCTIONS)
    }
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES_MAX} == {}


# What a test waits with: these name a time in seconds, or have it as their last argument.
WAITS = {
    *("abort_transaction", "commit_transaction", "communicate", "flush"),
    *("init_transactions", "join", "result", "wait", "wait_procs"),
}
TIMED = {*WAITS, *("eventually", "AsyncClient", "Client", "connect", "delete_topics", "FileLock")}
TIMED |= {"list_offsets", "list_topics", "run", "urlopen"}
IN_SECONDS = {"timeout", "deadline_s", "operation_timeout", "request_timeout"}


def waited_s(call: ast.Call) -> Iterator[float]:
    """How long a call waits, as far as a number says it; a pause of less than 1 s is not a wait."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    given = [word.value for word in call.keywords if word.arg in IN_SECONDS and name in TIMED]
    if name in WAITS and isinstance(function, ast.Attribute):
        given += call.args[-1:]
    for value in given:
        if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
            yield value.value


def test_what_a_test_waits_for_has_a_minute_to_come() -> None:
    short = [
        f"{name}:{node.lineno} {ast.unparse(node)[:60]}"
        for name, node in nodes("tests")
        if isinstance(node, ast.Call) and "/bench/" not in name
        if any(1 <= seconds < 60 for seconds in waited_s(node))
    ]
    assert short == [], "wait DEADLINE_S: a busy machine is slow"


def test_no_test_judges_a_wall_clock() -> None:
    """A lower bound is fine; an upper one makes a busy machine a defect."""
    clock = re.compile(r"(?:monotonic|perf_counter|time)\(\) - \w+ <")
    judged = [
        f"{name}:{node.lineno} {ast.unparse(node.test)}"
        for name, node in nodes("tests")
        if isinstance(node, ast.Assert) and "/bench/" not in name
        if clock.search(ast.unparse(node.test))
    ]
    assert judged == []


def test_durations_in_contributing_are_those_measured() -> None:
    kept = measured()
    told = told_durations((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert told.keys() >= kept.keys()
    apart = {
        command: (told[command], run["seconds"])
        for command, run in kept.items()
        if abs(told[command] - run["seconds"]) > 0.3 * run["seconds"]
    }
    assert apart == {}, "python -m scripts.test_times write"


def test_the_page_of_costs_is_what_was_measured() -> None:
    shown = (ROOT / "docs" / "test-times.md").read_text(encoding="utf-8")
    assert shown == page(measured()), "python -m scripts.test_times write"


def test_the_library_does_not_sleep_print_or_ask_the_wall_clock() -> None:
    banned = re.compile(
        r"(?:time\.)?sleep|print|(?:datetime\.)*(?:now\(\)|utcnow\(\)|today\(\))", re.ASCII
    )
    calls = [
        f"{name}:{node.lineno} {called}"
        for name, node in nodes("statestore")
        if isinstance(node, ast.Call)
        for called in (ast.unparse(node), ast.unparse(node.func))
        if banned.fullmatch(called)
    ]
    assert calls == []


def test_no_import_is_for_type_checkers_only() -> None:
    flagged = [
        f"{name}:{node.lineno}"
        for name, node in nodes()
        if isinstance(node, ast.Name | ast.Attribute | ast.alias)
        and _named(node).endswith("TYPE_CHECKING")
    ]
    assert flagged == []


def _named(node: ast.Name | ast.Attribute | ast.alias) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.alias():
            return node.asname or node.name


def test_no_marker_of_unfinished_work_is_left() -> None:
    assert lines_with(LEFTOVER) == []


@pytest.mark.parametrize("what", OF_ONE_MACHINE)
def test_no_file_tells(what: str) -> None:
    assert lines_with(OF_ONE_MACHINE[what]) == []


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_every_text_file_ends_with_one_newline_and_no_line_with_a_blank() -> None:
    wrong = [
        name
        for name, text in texts().items()
        if (text and (not text.endswith("\n") or text.endswith("\n\n")))
        or re.search(r"[ \t]$", text, re.MULTILINE)
    ]
    assert wrong == []


def test_every_module_of_the_library_is_used() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    programs = [project["scripts"], *project["entry-points"].values()]
    used = {place.partition(":")[0] for group in programs for place in group.values()}
    used |= {"statestore", "statestore.__main__"}
    for name, node in nodes():
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            used |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif name.startswith("statestore/") and isinstance(node, ast.Constant):
            used.add(str(node.value).partition(":")[0])  # what is imported later, by its name
    dead = [
        name
        for name in modules("statestore")
        if Path(name).stem != "__init__" and ".".join(Path(name).with_suffix("").parts) not in used
    ]
    assert dead == []


def test_every_crash_point_is_reached_by_the_library() -> None:
    reached = {
        ast.unparse(node.args[0])
        for _, node in nodes("statestore")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"reach", "faults.reach"}
    }
    assert sorted({f"CrashPoint.{point.name}" for point in CrashPoint} - reached) == []


def test_the_documented_crash_points_are_those_of_the_library() -> None:
    documented = [
        first_cells(table)
        for name, text in texts().items()
        if name.startswith("docs/")
        for table in tables(text)
        if f"`{CrashPoint.COMMIT_LOG_DONE}`" in table
    ]
    assert len(documented) == 1, "one table under docs/ has the crash points as its first column"
    assert sorted(documented[0]) == sorted(CrashPoint)


def test_the_documented_settings_are_those_of_the_library() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- (\*\*`.*(?:\n  .*)*)", page, re.MULTILINE)
    assert [" ".join(entry.split()) for entry in entries] == [
        f"**`{key}`** ({' '.join([default or 'unset', unit]).strip()}): {about}"
        for key, default, unit, about in describe_settings()
    ]


def test_the_tests_named_in_the_documentation_exist() -> None:
    defined = {node.name for _, node in nodes("tests") if isinstance(node, FUNCTIONS)}
    named = {
        test
        for name, text in texts().items()
        if name.startswith("docs/")
        for test in re.findall(r"`(test_\w+)`", text)
    }
    assert sorted(named - defined) == []


def test_every_rule_cited_is_one_of_the_pages_of_rules() -> None:
    """SEMANTICS S3, I7 and ADR 4 lead somewhere; a page says each of its rules once."""
    pages = {
        "semantics": r"^- \*\*([SETRV]\d+[a-z]?)\*\*",
        "invariants": r"^- \*\*(I\d+)\*\*",
        "interface": r"^- \*\*(INTERFACE rule \d+)\*\*",
    }
    said = {
        name: re.findall(rule, (ROOT / "docs" / f"{name}.md").read_text("utf-8"), re.MULTILINE)
        for name, rule in pages.items()
    }
    twice = [rule for rules in said.values() for rule, n in Counter(rules).items() if n > 1]
    assert twice == []
    records = {int(path.name[:4]) for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    known = {*chain(*said.values()), *(f"ADR {number}" for number in records)}
    cited = {
        (name, rule)
        for name, text in texts().items()
        for group in re.findall(r"SEMANTICS ((?:[SETRV]\d+[a-z]?(?:, | and )?)+)", text)
        for rule in re.findall(r"[SETRV]\d+[a-z]?", group)
    }
    cited |= {
        (name, rule)
        for name, text in texts().items()
        for rule in re.findall(r"(?<![\w*])(?:I\d{1,2}|ADR \d+|INTERFACE rule \d+)(?![\w*])", text)
    }
    assert sorted((name, rule) for name, rule in cited if rule not in known) == []


def test_the_messages_quoted_in_the_runbook_are_those_of_the_library() -> None:
    """A bold quotation is a message of the code; "…" stands for what differs from case to case."""
    said = [
        node.value if isinstance(node, ast.Constant) else "".join(map(_spelt, node.values))
        for _, node in nodes("statestore", "dags")
        if isinstance(node, ast.JoinedStr | ast.Constant)
    ]
    messages = "\n".join(text for text in said if isinstance(text, str))
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", runbook)
    assert [check for check in AuditCheck if check not in quoted] == []
    parts = [part.strip() for quotation in quoted for part in quotation.split("…")]
    assert [part for part in parts if part not in messages] == []


def _spelt(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def test_links_between_pages_lead_to_a_file_and_to_a_heading_in_it() -> None:
    pages = {name: text for name, text in texts().items() if name.endswith(".md")}
    headings = {
        name: {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)
        }
        for name, text in pages.items()
    }
    files = {path.relative_to(ROOT).as_posix() for path in tracked()}
    broken = []
    for name, text in pages.items():
        for path, heading in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
            target = (ROOT / name).parent.joinpath(path).resolve() if path else ROOT / name
            there = target.relative_to(ROOT).as_posix()
            if there not in files or (heading and heading not in headings.get(there, set())):
                broken.append(f"{name}: {path}#{heading}")
    assert broken == []


def test_decision_records_are_numbered_without_a_gap() -> None:
    numbers = sorted(
        int(path.name[:4]) for path in tracked() if path.parent == ROOT / "docs" / "adr"
    )
    assert numbers == list(range(len(numbers)))


def test_every_exception_stands_in_errors_or_is_named_there() -> None:
    drawn = (ROOT / "statestore" / "errors.py").read_text(encoding="utf-8")
    raised = {
        (name, node.name)
        for name, node in nodes("statestore", "jobs", "dags")
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"(Error|Exception)$", ast.unparse(base)) for base in node.bases)
    }
    assert len(raised) > 5
    missing = sorted(place for place in raised if not re.search(rf"\b{place[1]}\b", drawn))
    assert not missing, f"draw these in statestore/errors.py: {missing}"


def test_a_class_of_the_library_has_one_home() -> None:
    homes: dict[str, list[str]] = {}
    for name, tree in modules("statestore").items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("folder", ["statestore", "tests"])
def test_every_invariant_is_cited_by_what_keeps_it_and_by_a_test_that_shows_it(folder: str) -> None:
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    said = re.findall(r"^- \*\*(I\d+)\*\*", page, re.MULTILINE)
    cited = {
        rule
        for name, text in texts().items()
        if name.startswith(f"{folder}/") and name.endswith(".py")
        for rule in re.findall(r"(?<![\w*])I\d{1,2}(?![\w*])", text)
    }
    assert len(said) > 30
    assert [rule for rule in said if rule not in cited] == []

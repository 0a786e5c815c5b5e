"""Which tests a run has: the first tier whole, and of the second tier as much as there is time for.

The first tier is what is neither `thorough` nor `slow`, the second one what is `thorough`. Of a
test whose cases together cost more than half a second of a processor (tests/times.json) the first
tier has as many as cost that, at least one, which the commit chooses; the others are `thorough`
then. Kills at crash points and simulations are all in the first tier.

A run with SECOND_TIER_SECONDS, as in CI, takes modules in an order that the commit decides, and
begins no other one when these seconds have passed. It does not fail for what it left out, and says
which modules those are.
"""

import json
import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
_UNTIL = "SECOND_TIER_UNTIL"
# A module that began in time may go on for so long.
_RUNS_OUT_S = 300.0
_CASES_S = 0.5
_WHOLE = ("tests/crash/", "tests/simulation/")
_DEAR = ("kafka", "spark", "airflow", "timeout")


@cache
def commit_seed() -> int:
    """A number that is another one for each commit; COMMIT_SEED repeats an earlier one."""
    if given := os.environ.get("COMMIT_SEED"):
        return int(given)
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(told[:7] or "0", 16)


def first_of(values: Iterable[object], count: int = 1) -> list[Any]:
    """Parameters: the first few for the first tier, the others for the second."""
    return [
        pytest.param(value, marks=[] if place < count else pytest.mark.thorough)
        for place, value in enumerate(values)
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases of the first tier.

    Modules that cost most come first, or all processes wait for one of them in the end.
    """
    kept = json.loads((ROOT / "tests" / "times.json").read_text(encoding="utf-8"))
    run = kept.get("make test", {})
    leave_cases_out(items, run.get("cases", {}))
    modules = run.get("modules", {})
    costs: dict[str, float] = {name: cpu for name, (_, cpu, _) in modules.items()}
    for item in items:
        unknown = 1.0 if any(map(item.get_closest_marker, _DEAR)) else 0.0
        costs[_module(item.nodeid)] = max(costs.get(_module(item.nodeid), 0.0), unknown)
    items.sort(key=lambda item: -costs[_module(item.nodeid)])


def leave_cases_out(items: Iterable[pytest.Item], costs: Mapping[str, float]) -> None:
    """Mark cases of dear tests as `thorough`; `costs`: of one case, in seconds of a processor."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function, is_case, _ = item.nodeid.partition("[")
        left = any(map(item.get_closest_marker, ("thorough", "slow")))
        if is_case and function in costs and not left and not function.startswith(_WHOLE):
            cases[function].append(item)
    for function, found in cases.items():
        count = max(1, int(_CASES_S / costs[function]))
        if count < len(found):
            chance = random.Random(f"{commit_seed()} {function}")
            for item in chance.sample(found, len(found) - count):
                item.add_marker("thorough")


def pytest_configure(config: pytest.Config) -> None:
    seconds = os.environ.get("SECOND_TIER_SECONDS")
    if seconds is None:
        return
    # The workers of a run are started with the environment of the process that started the run.
    until = float(os.environ.setdefault(_UNTIL, str(time.time() + float(seconds))))
    config.pluginmanager.register(Budget(config, until), "second-tier")


class Budget:
    """Begins modules until a time, in the order of a seed."""

    def __init__(self, config: pytest.Config, until: float) -> None:
        self._config = config
        self._until = until
        self._begun: set[str] = set()
        self._left_out: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        modules = sorted({_module(item.nodeid) for item in items})
        random.Random(commit_seed()).shuffle(modules)
        places = {name: place for place, name in enumerate(modules)}
        items.sort(key=lambda item: places[_module(item.nodeid)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True says that there is nothing left to do for this test."""
        module = _module(item.nodeid)
        until = self._until + (_RUNS_OUT_S if module in self._begun else 0)
        if time.time() > until:
            self._left_out.add(module)
            return True
        self._begun.add(module)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._begun.add(_module(report.nodeid))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out.update(getattr(node, "workeroutput", {}).get("left_out", ()))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if (told := getattr(self._config, "workeroutput", None)) is not None:
            told["left_out"] = sorted(self._left_out)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("second tier")
        terminalreporter.write_line(
            f"seed {commit_seed()}: {len(self._begun)} modules begun; "
            f"repeat it with: make test-thorough SEED={commit_seed()}"
        )
        terminalreporter.write_line(f"begun: {_listed(self._begun)}")
        terminalreporter.write_line(f"no time for, whole or in part: {_listed(self._left_out)}")


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _listed(modules: Iterable[str]) -> str:
    return ", ".join(sorted(modules)) or "none"

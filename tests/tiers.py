"""Which tests a run has: the first tier whole, and of the second tier as much as there is time for.

The first tier is what is neither `thorough` nor `slow`, the second one what is `thorough`. What is
dear takes turns: the commit chooses, by what tests cost (tests/times.json), and what it leaves out
is `thorough` then.

- Of a test with cases, the first tier has as many as cost `_CASES_S`, at least one.
- Of the dear tests of a module, or of a family of modules, it has as many as cost `_MODULE_S`, at
  least one; but what costs more than `_RARE_S` has its turn in one commit of `_RARE_TURNS` only.
- `WHOLE` and `KEPT` are there in each commit: they keep promises that no sibling keeps.
- Of the applications of tests, two in three have the default of `kafka.client`, the others
  librdkafka.

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
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).resolve().parents[1]
_UNTIL = "SECOND_TIER_UNTIL"
# A module that began in time may go on for so long.
_RUNS_OUT_S = 300.0
# Seconds of a processor.
_CASES_S = 0.1
_MODULE_S = 0.5
_DEAR_S = 0.2
_RARE_S = 1.5
_RARE_TURNS = 3
_CLIENT_TURNS = 3
# What a module is thought to take that was never measured, if it starts a broker or the like.
_UNKNOWN_S = 60.0
_DEAR = ("kafka", "spark", "airflow", "timeout")

# In the first tier of each commit with all cases: a kill at each crash point, simulated schedules.
WHOLE = ("tests/crash/", "tests/simulation/")

# In the first tier of each commit, by module, none for all of it; of cases, one at least.
KEPT: Mapping[str, tuple[str, ...]] = {
    # The path of `make run`.
    "tests/dags/test_end_to_end.py": (),
    # A suite of kills for each kind of owner.
    "tests/kafka/test_flights.py": (
        "test_killed_load_leaves_nothing_visible_and_the_next_one_loads_all",
        "test_store_holds_the_figures_of_the_csv_exactly",
    ),
    "tests/kafka/test_left_out.py": (
        "test_a_killed_run_leaves_what_it_committed_to_see_and_no_more",
    ),
    "tests/kafka/test_migrations.py": (
        "test_values_change_twice_under_runs_that_are_killed_and_no_number_counts_twice",
    ),
    "tests/kafka/test_old_versions.py": (
        "test_a_backfill_of_2013_that_is_killed_keeps_every_version",
    ),
    "tests/kafka/test_patterns.py": ("test_a_run_killed_as_a_topic_joins_counts_each_record_once",),
    "tests/kafka/test_punctuation_killed.py": (),
    "tests/kafka/test_relocation.py": (
        "test_a_start_killed_while_it_relocates_is_finished_by_the_next",
    ),
    "tests/kafka/test_schema_registry_killed.py": ("test_killed_runs_lose_and_double_nothing",),
    "tests/kafka/test_timers_killed.py": (),
    "tests/kafka/test_times_below_repartitions.py": (),
    "tests/kafka/test_versions.py": (
        "test_a_temporal_join_killed_again_and_again_gives_each_row_once_and_exact_history",
    ),
    "tests/kafka/test_workers.py": (
        "test_a_killed_worker_is_replaced_and_the_workers_of_a_killed_run_end",
    ),
    "tests/spark/test_process_killed.py": (),
    "tests/kafka/test_writing_attempts.py": (
        "test_a_kill_at_any_step_neither_loses_nor_doubles_a_row",
    ),
    "tests/stateful/test_versioned_kills.py": (),
    # Late and lost messages, and commits that nobody answers.
    "tests/kafka/test_late_messages.py": (
        "test_no_late_message_of_those_of_the_commit_loses_or_doubles_anything",
    ),
    "tests/kafka/test_unanswered_commits.py": (
        "test_a_commit_that_stays_unanswered_is_settled_by_asking_the_log",
        "test_a_connection_cut_at_a_commit_costs_nothing",
    ),
    # Random programs of the commit, and random lives of stores.
    "tests/stateful/test_keyvalue_machine.py": (),
    "tests/stateful/test_random_topologies.py": (
        "test_a_pipeline_does_what_its_naive_interpreter_does",
    ),
    "tests/stateful/test_versioned_machine.py": (),
}

# Modules whose dear tests take turns with each other's: most of what they cost is the same start.
_STARTS = {
    "a broker behind a proxy": (
        "tests/contract/test_silent_brokers.py",
        "tests/kafka/test_clients_let_go.py",
        "tests/kafka/test_late_messages.py",
        "tests/kafka/test_skipped_stretches.py",
        "tests/kafka/test_unanswered_commits.py",
    ),
    "a broker with users": ("tests/kafka/test_acls.py", "tests/kafka/test_passwords.py"),
    "an environment with the wheel": (
        "tests/docs/test_shell_pages.py",
        "tests/kafka/test_init_from_wheel.py",
        "tests/typing/test_types.py",
        "tests/unit/test_release.py",
    ),
    "a schema registry": (
        "tests/kafka/test_registry_columns.py",
        "tests/kafka/test_schema_registry.py",
        "tests/kafka/test_schema_registry_secured.py",
        "tests/kafka/test_writing_schemas.py",
    ),
    "a session of Spark": (
        "tests/spark/test_kafka_sink.py",
        "tests/spark/test_kafka_sink_schemas.py",
        "tests/spark/test_reading_state.py",
    ),
}
FAMILIES = {module: start for start, modules in _STARTS.items() for module in modules}

# Modules that one process of a run takes: the second session of Spark has the first one's Java.
_ONE_PROCESS = (
    "tests/spark/test_kafka_sink.py",
    "tests/spark/test_kafka_sink_schemas.py",
    "tests/spark/test_process_killed.py",
    "tests/spark/test_reading_state.py",
)


@cache
def commit_seed() -> int:
    """A number that is another one for each commit; COMMIT_SEED repeats an earlier one."""
    if given := os.environ.get("COMMIT_SEED"):
        return int(given)
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(told[:7] or "0", 16)


def client_settings(application: str) -> dict[str, str]:
    """Which Kafka client an application of a test has: the commit chooses.

    KAFKA_CLIENT chooses for all of them.
    """
    if given := os.environ.get("KAFKA_CLIENT"):
        return {"kafka.client": given}
    chance = random.Random(f"{commit_seed()} {application}")
    return {"kafka.client": "librdkafka"} if chance.randrange(_CLIENT_TURNS) == 0 else {}


def first_of(values: Iterable[object], count: int = 1) -> list[Any]:
    """Parameters: the first few for the first tier, the others for the second."""
    return [
        pytest.param(value, marks=[] if place < count else pytest.mark.thorough)
        for place, value in enumerate(values)
    ]


def chosen_of(values: Iterable[object]) -> list[Any]:
    """Parameters: one that the commit chooses for the first tier, the others for the second."""
    found = list(values)
    place = commit_seed() % len(found)
    return [
        pytest.param(value, marks=[] if at == place else pytest.mark.thorough)
        for at, value in enumerate(found)
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose what the first tier has of dear tests.

    Modules that take longest come first, or all processes wait for one of them in the end.
    """
    kept = json.loads((ROOT / "tests" / "times.json").read_text(encoding="utf-8"))
    run = kept.get("make test", {})
    leave_cases_out(items, run.get("functions", {}))
    leave_tests_out(items, run.get("functions", {}))
    modules = run.get("modules", {})
    took: dict[str, float] = {name: real for name, (_, _, real) in modules.items()}
    for item in items:
        unknown = _UNKNOWN_S if any(map(item.get_closest_marker, _DEAR)) else 0.0
        took.setdefault(_module(item.nodeid), unknown)
    items.sort(key=lambda item: -took[_module(item.nodeid)])


def leave_cases_out(items: Iterable[pytest.Item], costs: Mapping[str, float]) -> None:
    """Mark cases of dear tests as `thorough`; `costs`: of one case, in seconds of a processor."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function, is_case, _ = item.nodeid.partition("[")
        if function.startswith(WHOLE):
            continue
        if is_case and function in costs and not _is_left_out(item):
            cases[function].append(item)
    for function, found in cases.items():
        count = max(1, int(_CASES_S / costs[function]))
        if count < len(found):
            chance = random.Random(f"{commit_seed()} {function}")
            for item in chance.sample(found, len(found) - count):
                item.add_marker("thorough")


def leave_tests_out(items: Iterable[pytest.Item], costs: Mapping[str, float]) -> None:
    """Mark dear tests of dear modules as `thorough`; `costs`: of one test or case of a function."""
    families: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        function, module = _function(item), _module(item.nodeid)
        is_dear = costs.get(function, 0.0) >= _DEAR_S
        if is_dear and not _is_kept(function) and not _is_left_out(item):
            families[FAMILIES.get(module, module)].append(item)
    for family, found in families.items():
        chance = random.Random(f"{commit_seed()} {family}")
        chance.shuffle(found)
        spent = 0.0
        for item in found:
            cost = costs[_function(item)]
            has_turn = cost <= _RARE_S or chance.randrange(_RARE_TURNS) == 0
            if has_turn and (not spent or spent + cost <= _MODULE_S):
                spent += cost
            else:
                item.add_marker("thorough")


def _is_kept(function: str) -> bool:
    module, _, name = function.partition("::")
    kept = KEPT.get(module)
    return function.startswith(WHOLE) or (kept is not None and (not kept or name in kept))


def _is_left_out(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("thorough", "slow")))


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    seconds = os.environ.get("SECOND_TIER_SECONDS")
    if seconds is None:
        return
    # The workers of a run are started with the environment of the process that started the run.
    until = float(os.environ.setdefault(_UNTIL, str(time.time() + float(seconds))))
    config.pluginmanager.register(Budget(config, until), "second-tier")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "ByModule | None":
    """For `--dist=loadfile`: who gets which tests."""
    return ByModule(config, log) if config.getoption("dist") == "loadfile" else None


class ByModule(LoadFileScheduling):  # type: ignore[misc]  # xdist publishes no types
    """A module stays in one process, and so do modules that share what they start."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        return _ONE_PROCESS[0] if module in _ONE_PROCESS else module


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

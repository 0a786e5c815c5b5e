"""How the suite runs: skips that are failures, time limits by marker, Hypothesis profiles."""

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from statestore.testing.local_kafka import LocalKafka

# Abandoned transactions are looked for every 10 s by default, what to compact every 15 s. Nobody
# restarts this broker, but a test freezes it for 3 s: its own controller must not give it up.
_SHARED = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.cleaner.backoff.ms": 200,
    "broker.session.timeout.ms": 30_000,
}
# What starts a broker, Spark or Airflow takes longer than the limit in pyproject.toml.
TIMEOUT_S = {"slow": 3000, "airflow": 420, "spark": 300, "kafka": 180}

# Set before a test module imports Spark or Airflow: Spark's workers run this interpreter, and
# Airflow reads the repository's airflow.cfg and writes nothing into the user's home.
ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("AIRFLOW_CONFIG", str(ROOT / "airflow.cfg"))
os.environ.setdefault("AIRFLOW__CORE__DAGS_FOLDER", str(ROOT / "dags"))
_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".scratch" / f"airflow-tests-{_PROCESS}"))

_REQUIRED = os.environ.get("REQUIRE_KAFKA") == "1"
_SLOW_MACHINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

# quick: the same examples every time. long: new ones; a failure prints how to repeat it.
settings.register_profile(
    "quick", derandomize=True, deadline=None, max_examples=60, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "long", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=_SLOW_MACHINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """One broker for all modules that neither stop it nor want one of their own making.

    They keep apart by the names of their topics and applications.
    """
    with LocalKafka(config=_SHARED) as broker:
        yield broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time limits by marker; modules in the order of theirs, as long ones had better begin first.

    Where there are several processes, a module stays in one: its tests share a broker.
    """
    limits: dict[Path, int] = {}
    for item in items:
        if own := item.get_closest_marker("timeout"):
            limit = own.args[0]
        else:
            limit = max(
                (s for name, s in TIMEOUT_S.items() if item.get_closest_marker(name)), default=0
            )
            if limit:
                item.add_marker(pytest.mark.timeout(limit))
        limits[item.path] = max(limits.get(item.path, 0), limit)
    items.sort(key=lambda item: -limits[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under REQUIRE_KAFKA=1 a skipped test is a failed one: what cannot run proves nothing."""
    report = yield
    if _REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself while it is imported."""
    report = yield
    if _REQUIRED and report.skipped:
        _fail(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report set-up apart: the summary line's time is that of the tests."""
    if seconds := os.environ.get("SET_UP_SECONDS"):
        terminalreporter.write_line(
            f"set-up took {seconds} s when it was last needed; the time below is that of the tests"
        )


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"REQUIRE_KAFKA=1 allows no skip: {reason}"

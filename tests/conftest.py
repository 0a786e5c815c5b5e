"""How the suite runs: skips that are failures, time limits by marker, Hypothesis profiles."""

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.shared_kafka", "tests.tiers", "tests.times"]

# What starts a broker, Spark or Airflow takes longer than the limit in pyproject.toml.
TIMEOUT_S = {"slow": 3000, "airflow": 900, "spark": 900, "kafka": 600}

# Set before a test module imports Spark or Airflow: Spark's workers run this interpreter, and
# Airflow reads the repository's airflow.cfg and writes nothing into the user's home.
ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
# A Spark of a test does not live long enough for the second compiler of Java to pay.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
os.environ.setdefault("AIRFLOW_CONFIG", str(ROOT / "airflow.cfg"))
os.environ.setdefault("AIRFLOW__CORE__DAGS_FOLDER", str(ROOT / "dags"))
_PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ.setdefault("AIRFLOW_HOME", str(ROOT / ".scratch" / f"airflow-tests-{_PROCESS}"))

# jsonschema makes dozens of grammars of it, for a second in each process, to check addresses: no
# schema of ours or of Airflow's asks for that.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # it is not there

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Time limits by marker."""
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        limits = [s for name, s in TIMEOUT_S.items() if item.get_closest_marker(name)]
        if limits:
            item.add_marker(pytest.mark.timeout(max(limits)))


def pytest_collection_finish() -> None:
    """Let no search for garbage look through all modules and tests: they stay to the end."""
    gc.collect()
    gc.freeze()


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

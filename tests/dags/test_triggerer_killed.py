"""A triggerer is killed while a task waits in it: the next one goes on, and misses no input."""

import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.dags.airflow_rig import eventually
from tests.dags.foreign_rig import ORDERS, PIPELINE, ForeignAirflow, counted, produce

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.slow]

READY_S = 300.0
DAGS = """
from datetime import timedelta
from statestore.airflow import micro_batches, when_input

dags = [micro_batches("orders"), when_input("orders", poll=timedelta(seconds=1))]
"""
WAITS = ("orders__when_input", "wait_for_input")


class Component:
    """One of Airflow's processes with all that it starts, its log in a file."""

    def __init__(self, airflow: ForeignAirflow, name: str) -> None:
        self.log = airflow.home / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(airflow.programs / "airflow"), name],
                cwd=airflow.home,
                env=airflow.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _tree(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self.process.pid)
            return [whole, *whole.children(recursive=True)]
        return []

    def kill(self) -> None:
        """SIGKILL for it and for all that it started, at once."""
        tree = self._tree()
        for one in tree:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        psutil.wait_procs(tree, DEADLINE_S)
        self.process.wait(DEADLINE_S)

    def end(self) -> None:
        """SIGTERM, then SIGKILL for what is left."""
        tree = self._tree()
        for finish in (psutil.Process.terminate, psutil.Process.kill):
            for one in tree:
                with suppress(psutil.NoSuchProcess):
                    finish(one)
            psutil.wait_procs(tree, DEADLINE_S)
        self.process.wait(DEADLINE_S)


@pytest.fixture
def airflow(kafka: LocalKafka, tmp_path: Path) -> ForeignAirflow:
    for topic in ("orders", "orders-counted"):
        kafka.create_topic(topic, partitions=1)
    made = ForeignAirflow.made(
        tmp_path,
        {
            "mine.py": DAGS,
            "shop.py": PIPELINE,
            "statestore.toml": ORDERS.format(servers=kafka.bootstrap_servers),
            ".airflowignore": "shop.py",
        },
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    secret = os.urandom(32).hex()
    made.variables |= {
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        # How soon another triggerer takes over what a dead one had.
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
        "AIRFLOW__SCHEDULER__PARSING_CLEANUP_INTERVAL": "5",
    }
    made.airflow("db", "migrate")
    return made


@contextmanager
def up(airflow: ForeignAirflow) -> Iterator[None]:
    """All of Airflow but the triggerer."""
    started: list[Component] = []
    try:
        for name in ("api-server", "dag-processor", "scheduler"):
            started.append(Component(airflow, name))  # noqa: PERF401  # those begun must be ended
        yield
    finally:
        for one in reversed(started):
            one.end()


def asked(airflow: ForeignAirflow, query: str, *values: Any) -> list[Any]:
    """Rows of Airflow's database; none while it is locked."""
    path = airflow.home / "airflow.db"
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(path, timeout=DEADLINE_S)) as database,
    ):
        return database.execute(query, values).fetchall()
    return []


def waiting_in(airflow: ForeignAirflow) -> int | None:
    """The triggerer in which the newest run waits for input."""
    query = (
        "select triggerer_id from trigger join task_instance on trigger.id = trigger_id "
        "where dag_id = ? and task_id = ? and state = 'deferred'"
    )
    rows = asked(airflow, query, *WAITS)
    return rows[0][0] if rows else None


def ended(airflow: ForeignAirflow, dag_id: str) -> list[str]:
    """How the runs of a DAG ended that did."""
    query = "select state from dag_run where dag_id = ? and state in ('success', 'failed')"
    return [state for (state,) in asked(airflow, query, dag_id)]


def test_a_task_waits_on_in_the_next_triggerer_and_no_input_is_missed(
    airflow: ForeignAirflow, kafka: LocalKafka
) -> None:
    servers = kafka.bootstrap_servers
    # The first run of an application needs no input.
    produce(servers, "orders", "a")
    flags = ("--application-id", "orders", "--config", "dags/statestore.toml")
    state = ("--set", f"state.dir={airflow.home / 'dags' / 'state'}")
    airflow.variables["PYTHONPATH"] = str(airflow.home / "dags")
    airflow.call("-m", "statestore", "run", *flags, *state)
    del airflow.variables["PYTHONPATH"]

    triggerers = [Component(airflow, "triggerer")]
    with up(airflow):
        try:
            first = eventually(lambda: waiting_in(airflow), READY_S)
            triggerers[-1].kill()
            produce(servers, "orders", "ab")  # while nobody looks
            triggerers.append(Component(airflow, "triggerer"))
            eventually(lambda: ended(airflow, "orders__micro_batches"), READY_S)
            assert ended(airflow, "orders__micro_batches") == ["success"]
            assert counted(servers, "orders-counted") == {"a": 2, "b": 1}

            # Again, in the triggerer that took over: now input comes after the next one is up.
            eventually(lambda: waiting_in(airflow) not in {None, first}, READY_S)
            triggerers[-1].kill()
            triggerers.append(Component(airflow, "triggerer"))
            produce(servers, "orders", "b")
            eventually(lambda: len(ended(airflow, "orders__micro_batches")) == 2, READY_S)
            assert counted(servers, "orders-counted") == {"a": 2, "b": 2}
            assert ended(airflow, "orders__when_input").count("failed") == 0
        finally:
            for one in triggerers:
                one.end()

"""Status asked again and again beside a run as it is shipped, and after it was killed.

The newest record then lies in an open transaction nearly always: the case that once had no answer.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statestore.kafka.clients import Trouble, producer
from statestore.layout.folders import StateLayout
from statestore.layout.owners import read_owner
from statestore.model.ids import TaskId
from statestore.operations.status.status import State, Status, StatusReader, read_status
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import STATESTORE, Rig
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.processes import Process

pytestmark = pytest.mark.kafka


@contextmanager
def running(rig: Rig, log: Path) -> Iterator[Process]:
    """A continuous run with the commit interval it has by default."""
    arguments = [str(STATESTORE), "run", *rig.command(), "--run-for=3000s"]
    variables = {PREFIX_VARIABLE: rig.topic_prefix, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        run = processes.start(arguments, stdout=out, stderr=out, env={**os.environ, **variables})
        try:
            yield run
        finally:
            run.kill()
            run.wait(DEADLINE_S)


def status_of(settings: Settings) -> Status:
    """The status over a connection of its own."""
    with Runtime(settings) as runtime:
        return read_status(runtime)


def failures(settings: Settings, calls: int) -> list[str]:
    """What went wrong in so many calls: half of them over one connection, as --watch does it."""
    found = []
    with Runtime(settings) as runtime:
        reader = StatusReader(runtime)
        for number in range(calls):
            try:
                said = status_of(settings) if number % 2 else reader.now()
            except Exception as error:  # noqa: BLE001  # any at all is what this looks for
                found.append(f"{type(error).__name__}: {error}")
                continue
            if said.broker is not None or said.problems or said.lag_records is None:
                found.append(f"not told: {said}")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("calls", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_no_call_fails_beside_a_run_or_after_it_was_killed(
    kafka: LocalKafka, tmp_path: Path, calls: int
) -> None:
    name = f"beside{calls}"
    shipped = {"commit.interval.ms": 0}
    state_dir = tmp_path / "state"
    rig = Rig(kafka, state_dir, application_id=name, topic_prefix=name, settings=shipped)
    rig.create_topics()
    rig.produce(500)
    settings = Settings.from_mapping(
        {
            "application.id": name,
            "state.dir": str(rig.state_dir),
            "bootstrap.servers": kafka.bootstrap_servers,
        }
    )
    layout = StateLayout(rig.state_dir, name)

    def owned(partition: int) -> bool:
        owner = read_owner(layout.task_dir(TaskId(1, partition)))
        return owner is not None and owner.pid == run.pid

    with running(rig, tmp_path / "log") as run:
        eventually(lambda: owned(0) and owned(1), "the run owns the stores")
        with rig.producing(20):
            assert failures(settings, calls) == []
            run.kill()
            run.wait(DEADLINE_S)
        assert failures(settings, calls) == []
        assert status_of(settings).state is State.CRASHED


def test_the_seconds_behind_are_of_committed_records_whatever_transactions_end_or_stay_open(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    name = "hidden"
    rig = Rig(kafka, tmp_path / "state", application_id=name, topic_prefix=name)
    rig.create_topics()
    rig.produce(100)
    rig.run()
    settings = Settings.from_mapping(
        {
            "application.id": name,
            "state.dir": str(rig.state_dir),
            "bootstrap.servers": kafka.bootstrap_servers,
        }
    )
    rig.produce(3000)
    writer = producer(settings, {"transactional.id": "somebody-elses"}, Trouble())
    writer.init_transactions(DEADLINE_S)

    def write() -> None:
        """A record of long after, in either partition."""
        writer.begin_transaction()
        for partition in range(2):
            writer.produce(f"{name}-in", b"x", b"y", partition, timestamp=1_700_000_100_000)
        assert writer.flush(DEADLINE_S) == 0

    write()
    open_still = status_of(settings)
    assert open_still.lag_records == 3000
    assert open_still.lag_seconds == pytest.approx(3, abs=0.1)
    writer.abort_transaction(DEADLINE_S)
    # The mark that ends a transaction has the broker's time, which is years after the records'.
    aborted = status_of(settings)
    assert aborted.lag_seconds == pytest.approx(3, abs=0.1)
    write()
    writer.commit_transaction(DEADLINE_S)
    assert status_of(settings).lag_seconds == pytest.approx(100, abs=1)

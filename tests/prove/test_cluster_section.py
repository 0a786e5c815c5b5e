"""The section `cluster`, with little time."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.prove import cluster
from tests.prove.cluster import Event, Met, Tally, Where, a_round
from tests.prove.kind_rig import rig_on
from tests.prove.section import Deadline, Harm, Verdict

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]
_LITTLE = 3000


@pytest.fixture(scope="module")
def where() -> Iterator[Where]:
    with cluster._brokers() as made:
        yield made


@pytest.fixture(autouse=True)
def little(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that are there already, and few records."""

    @contextmanager
    def brokers() -> Iterator[Where]:
        yield where

    monkeypatch.setattr(cluster, "_brokers", brokers)
    monkeypatch.setattr(cluster, "_RECORDS", _LITTLE)
    monkeypatch.setattr(cluster, "_PLANTED", ())
    # Small batches, so that a quick machine has much to do yet when something happens.
    monkeypatch.setitem(cluster._SETTINGS, "statestore.batch.max.records", 10)
    monkeypatch.setattr(cluster, "_WHEN", (0.02, 0.2))


def test_a_little_of_the_cluster_holds_and_catches_runs_without_transactions() -> None:
    result = cluster.run(3, Deadline(0))
    assert result.verdict is Verdict.HELD, result.findings
    assert result.tried["rounds"] == result.tried["events in time"] == 1
    (planted,) = result.planted
    assert planted.caught_by == ("duplicate",)


@pytest.mark.parametrize(
    "event", [Event.COORDINATOR_KILLED, Event.CONTROLLER_KILLED, Event.CUT_ONE_WAY]
)
def test_a_broker_that_is_killed_or_cut_off_within_a_run_loses_and_doubles_nothing(
    where: Where, event: Event
) -> None:
    exact_in_a_round(where, event)


@pytest.mark.parametrize(
    "event",
    [
        Event.DRIVER_KILLED,
        Event.EXECUTOR_KILLED,
        Event.SPARK_WORKER_KILLED,
        Event.MASTER_KILLED,
    ],
)
def test_a_process_of_spark_that_is_killed_within_a_job_loses_and_doubles_nothing(
    where: Where, event: Event
) -> None:
    assert exact_in_a_round(where, event).on_spark


def exact_in_a_round(where: Where, event: Event) -> Met:
    """A round to which it happened in time, and in which nothing was found."""
    name = f"little-{event.name.lower()}"
    rig = rig_on(where.brokers.kafka, where.folder, "repartition", name, settings=cluster._SETTINGS)
    met, found = a_round(where, rig, event, Random(5), _LITTLE)
    assert found == []
    assert met.in_time
    return met


def test_a_defect_in_the_product_is_a_finding_with_its_rule_and_the_command(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    rounds = cluster._Rounds(where, 4, _LITTLE, tally)
    kafka, folder = where.brokers.kafka, where.folder
    settings = {**cluster._SETTINGS, "kafka.client": "wire"}
    broken = rig_on(
        kafka, folder, "timers", "defect", defect="timer_fired_twice", settings=settings
    )
    monkeypatch.setattr(rounds, "_rig", lambda _kind: broken)
    rounds._events = [Event.WORKER_KILLED]
    rounds.next()
    (finding,) = tally.findings
    assert (finding.rule, finding.harm) == ("duplicate", Harm.DOUBLED)
    assert finding.repeat == "make prove SECTIONS=cluster SEED=4"


def test_in_the_night_there_are_fifty_rounds() -> None:
    assert cluster._promised(Deadline(4400, 8 * 3600))["rounds"] == 50
    assert "rounds" not in cluster._promised(Deadline(300, 1800))

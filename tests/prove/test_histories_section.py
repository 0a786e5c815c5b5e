"""The section `histories`, with little time."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from statestore.model.modes import KafkaClient
from tests.prove import histories, history_rig
from tests.prove.histories import Tally, Where
from tests.prove.history_rig import HistoryRig
from tests.prove.kinds import KINDS
from tests.prove.section import Deadline, Harm, Verdict

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def where() -> Iterator[Where]:
    with histories._broker() as made:
        yield made


@pytest.fixture(autouse=True)
def little(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is there already, and few runs."""

    @contextmanager
    def broker() -> Iterator[Where]:
        yield where

    monkeypatch.setattr(histories, "_broker", broker)
    monkeypatch.setattr(histories, "_AT_ONCE", 1)
    monkeypatch.setattr(histories, "_LIVES", 1)
    monkeypatch.setattr(histories, "_RESTARTS", 0.0)


def test_a_little_of_the_histories_holds_and_catches_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (torn,) = [it for it in histories.DEFECTS if it.name == "torn_get_many"]
    monkeypatch.setattr(histories, "DEFECTS", [torn])
    seed = list(KINDS).index("bank")
    result = histories.run(seed, Deadline(0))
    assert result.verdict is Verdict.HELD, result.findings
    assert result.tried["histories"] == result.tried["planted defects"] == 1
    assert int(result.figures["answers of running stores"]) > 0
    (planted,) = result.planted
    assert "rw cycle" in planted.caught_by
    assert "sum not conserved" in planted.caught_by


def test_a_defect_in_the_product_is_a_finding_with_its_rule_and_the_command(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(where: Where, seed: int) -> HistoryRig:
        client = KafkaClient.WIRE
        return HistoryRig(
            *where, "timers", f"defect-{seed}", client=client, defect="timer_fired_twice"
        )

    seed, tally = list(KINDS).index("timers"), Tally()
    monkeypatch.setattr(histories, "_made", made)
    histories._round(where, [seed], tally)
    (doubled,) = [finding for finding in tally.findings if finding.rule == "duplicate"]
    assert doubled.harm is Harm.DOUBLED
    assert doubled.repeat == f"make prove SECTIONS=histories SEED={seed} HOURS=0.01"


def test_what_is_found_after_the_broker_skipped_markers_is_not_judged(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(where: Where, seed: int) -> HistoryRig:
        client, name = KafkaClient.WIRE, f"spoilt-{seed}"
        return HistoryRig(*where, "timers", name, client=client, defect="timer_fired_twice")

    asked: list[str] = []

    def skipped(address: str) -> list[str]:
        asked.append(address)
        return ["a partition has no marker"] if len(asked) == 1 else []

    tally = Tally()
    monkeypatch.setattr(histories, "_made", made)
    monkeypatch.setattr(history_rig, "skipped_markers", skipped)
    monkeypatch.setattr(histories, "_AT_ONCE", 1)
    assert not histories._live_on(where, 9, Deadline(0).rounds(least=2), tally)
    assert (tally.findings, tally.histories.total()) == ([], 0)
    assert tally.counts[histories._SPOILT] == 1
    assert histories._live_on(where, 10, Deadline(0).rounds(), tally)
    assert {finding.rule for finding in tally.findings} >= {"duplicate"}
    assert asked == [where.kafka.bootstrap_servers] * 2


@pytest.mark.thorough
@pytest.mark.parametrize("defect", histories.DEFECTS, ids=lambda defect: defect.name)
def test_each_planted_defect_is_caught(where: Where, defect: histories.Defect) -> None:
    found = histories._planted(where, 5, defect)
    assert found.caught_by, f"{found.defect} is missed"


def test_each_kind_of_operator_has_both_clients_in_turns() -> None:
    seeds = range(100, 100 + 2 * len(KINDS))
    met = {(histories._kind(seed), histories._client(seed)) for seed in seeds}
    assert len(met) == 2 * len(KINDS)

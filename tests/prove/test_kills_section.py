"""The section `kills`, with little time."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from statestore.faults import CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.prove import chains, kills
from tests.prove.chains import Tally
from tests.prove.kind_rig import rig_on
from tests.prove.section import Coverage, Deadline, Harm, Verdict

pytestmark = pytest.mark.kafka


@pytest.fixture(autouse=True)
def little(
    over_given_broker: Callable[[ModuleType], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is there already, and few kills."""
    over_given_broker(kills)
    monkeypatch.setattr(chains, "_AT_ONCE", 1)
    monkeypatch.setattr(kills, "_KILLS_A_ROUND", 2)
    monkeypatch.setattr(kills, "POINTS", (CrashPoint.COMMIT_LOG_DONE, CrashPoint.CLAIM_OWNED))


def test_a_little_of_the_kills_holds_and_catches_what_was_planted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (twice,) = [it for it in kills.DEFECTS if it.name == "timer_fired_twice"]
    monkeypatch.setattr(kills, "DEFECTS", [twice])
    result = kills.run(3, Deadline(0))
    assert result.verdict is Verdict.HELD, result.findings
    assert result.tried == {"kills": 2, "audits": 1, "records": 1080, "planted defects": 1}
    (planted,) = result.planted
    assert planted.caught_by == ("duplicate",)
    (coverage,) = result.coverage
    assert coverage.rows["commit.log-done"][coverage.columns.index("stateless")] == 1


def test_a_defect_in_the_product_is_a_finding_with_its_rule_and_the_command(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    tally = Tally()
    chain = kills.Kills(kafka, tmp_path, "timers", 4, tally)
    chain.rig = rig_on(kafka, tmp_path, "timers", "kills-4-defect", defect="timer_fired_twice")
    chain.next_round()
    (finding,) = tally.findings
    assert (finding.rule, finding.harm) == ("duplicate", Harm.DOUBLED)
    assert finding.repeat == "make prove SECTIONS=kills SEED=4"
    kept = tally.met.copy()
    chain.next_round()  # what is broken is not tried on
    assert tally.met == kept


@pytest.mark.thorough
@pytest.mark.parametrize("defect", kills.DEFECTS, ids=lambda defect: defect.name or "none")
def test_each_planted_defect_is_caught(
    kafka: LocalKafka, tmp_path: Path, defect: kills.Defect
) -> None:
    found = kills.planted_in(kafka, tmp_path, 5, defect)
    assert found.caught_by, f"{found.defect} is missed"


def test_in_the_night_each_point_has_twenty_kills_of_each_kind() -> None:
    tally = Tally()
    tally.met[CrashPoint.CLAIM_OWNED, "join"] = 20
    table = kills._coverage(tally, 20)
    assert "claim.owned x join: 20 of 20" not in table.short_of()
    assert "claim.owned x table: 0 of 20" in table.short_of()
    assert isinstance(table, Coverage)


def test_a_store_is_compared_with_its_changelog_partition_by_partition(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    rig = rig_on(kafka, tmp_path, "bank", "kills-of-a-bank")
    rig.produce(101)
    rig.ended()
    (store, form), *_ = rig.of.stores.items()
    first, second = (dict(rows) for rows, _ in rig.stored(store, form).values())
    assert first.keys() == second.keys()
    assert first != second
    # Both orders of the partitions, one of which any merged view takes for a difference.
    for _ in range(2):
        assert rig.anomalies() == []
        rig.stored = _turned(rig.stored)  # type: ignore[method-assign]


def _turned(stored: Callable[..., dict[int, Any]]) -> Callable[..., dict[int, Any]]:
    """The same in the other order."""
    return lambda *given: dict(reversed(stored(*given).items()))

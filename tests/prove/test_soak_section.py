"""The section `soak`, with little time."""

from collections.abc import Callable
from types import ModuleType

import pytest

from tests.prove import soak
from tests.prove.section import Deadline, Verdict
from tests.prove.soak import LIMITS, Watched

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


def test_a_little_soaking_holds_and_catches_a_hoarder(
    over_given_broker: Callable[[ModuleType], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    over_given_broker(soak)
    monkeypatch.setattr(soak, "_KILL_EVERY_S", 4.0)
    result = soak.run(5, Deadline(50))
    assert result.verdict is Verdict.HELD, result.findings
    assert result.tried["kills"] > 0
    (planted,) = result.planted
    assert planted.caught_by == ("grows without end",)
    assert any("memory" in name for name in result.figures)


def test_what_grows_is_told_by_quarters_and_what_warms_up_is_not() -> None:
    watched = Watched()
    watched.samples.update({name: by_quarters(1, 60, 60, 61) for name in LIMITS})
    assert watched.grown() == []
    watched.samples["open files"] = by_quarters(1, 60, 70, 80)
    watched.samples["memory"] = by_quarters(1, 50 << 20, 60 << 20, 80 << 20)
    watched.samples["threads"] = [1.0, 10.0, 10.0, 100.0]  # too few to judge
    assert watched.grown() == [
        "memory, by quarters of the time: 1 B, 50.0 MiB, 60.0 MiB, 80.0 MiB",
        "open files, by quarters of the time: 1, 60, 70, 80",
    ]


def by_quarters(*values: float) -> list[float]:
    return [float(value) for value in values for _ in range(5)]

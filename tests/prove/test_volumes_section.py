"""The section `volumes`, with little time."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.kafka import faulty_volume
from tests.prove import chains, volumes
from tests.prove.chains import Tally
from tests.prove.section import Deadline, Harm, Verdict
from tests.prove.volumes import FAULTS, Faults

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_volume.built(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("kind", ["processor", "windows"])
def test_each_fault_holds(
    kafka: LocalKafka, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(volumes, "_FAULTS_A_ROUND", len(FAULTS))
    tally = Tally()
    chain = Faults(kafka, tmp_path / volumes._NAME, library, kind, 5, tally)
    # A run may not come to the call that is drawn; it comes to the first one.
    monkeypatch.setattr(chain.rng, "randrange", lambda first, _end: first)
    chain.next_round()
    assert tally.findings == []
    assert tally.audits == 1
    # How many files a run has open is its own affair.
    met = {name for name, _ in tally.met} | {"too few open files"}
    assert met == {fault.name for fault in FAULTS}
    assert tally.ends["ended well"] > 1


def test_a_little_of_the_volumes_holds_and_catches_what_was_planted(
    over_given_broker: Callable[[ModuleType], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    over_given_broker(volumes)
    monkeypatch.setattr(chains, "_AT_ONCE", 1)
    monkeypatch.setattr(volumes, "_FAULTS_A_ROUND", 2)
    name = "errors_of_the_engine"
    monkeypatch.setattr(volumes, "DEFECTS", {name: volumes.DEFECTS[name]})
    result = volumes.run(3, Deadline(0))
    assert result.verdict is Verdict.HELD, result.findings
    (planted,) = result.planted
    assert planted.caught_by == ("unforeseen end",)


def test_stores_whose_tables_are_flushed_apart_are_found(
    kafka: LocalKafka, library: Path, tmp_path: Path
) -> None:
    found = volumes._planted(kafka, tmp_path, library, 1, "flushed_one_by_one")
    assert set(found.caught_by) & {"store unlike its changelog", "lost write", "duplicate"}


def test_a_run_that_ends_as_it_must_not_is_a_finding(
    kafka: LocalKafka, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A volume that fails is no reason for a run over it to end well.
    (full,) = [fault for fault in FAULTS if fault.how.get("errno") == errno.ENOSPC]
    full = full._replace(passes=False, codes=())
    monkeypatch.setattr(volumes, "FAULTS", (full,))
    tally = Tally()
    chain = Faults(kafka, tmp_path / "chain", library, "aggregate", 1, tally)
    for _ in range(5):
        chain.next_round()
    (finding,) = tally.findings
    assert (finding.rule, finding.harm) == ("unforeseen end", Harm.ANOMALY)
    assert finding.repeat == "make prove SECTIONS=volumes SEED=1"

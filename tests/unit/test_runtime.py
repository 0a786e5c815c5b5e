"""A runtime makes each part when it is first asked for, once, and closes what it made."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.errors import InvalidSetting, Misuse, Unavailable
from statestore.ports import Cluster, MonitoringClient, Outbox
from statestore.runtime import Runtime, portable_target
from statestore.settings import Settings
from statestore.testing.memory_broker import MemoryBroker, MemoryBrokers
from tests.builders import ManualClock

NAMED = {"application.id": "shop", "bootstrap.servers": "memory"}


class NotingBrokers(MemoryBrokers):
    """Notes what is made of it, and that it was closed."""

    def __init__(self, broker: MemoryBroker, settings: Settings, noted: list[str]) -> None:
        super().__init__(broker, settings)
        self._noted = noted

    def cluster(self) -> Cluster:
        self._noted.append("cluster")
        return super().cluster()

    def outbox(self) -> Outbox:
        self._noted.append("outbox")
        return super().outbox()

    def monitoring_client(self) -> MonitoringClient:
        self._noted.append("monitoring")
        return super().monitoring_client()

    def close(self) -> None:
        self._noted.append(f"closed {self._settings.application_id}")


def noting(broker: MemoryBroker, noted: list[str]) -> Callable[[Settings], NotingBrokers]:
    return lambda settings: NotingBrokers(broker, settings, noted)


def test_nothing_is_made_before_it_is_asked_for_and_each_part_only_once() -> None:
    noted: list[str] = []
    with Runtime(NAMED, clock=ManualClock(), brokers=noting(MemoryBroker(), noted)) as runtime:
        assert noted == []
        assert runtime.cluster is runtime.cluster
        assert runtime.outbox is runtime.outbox
        assert noted == ["cluster", "outbox"]
    assert noted == ["cluster", "outbox", "closed shop"]
    runtime.close()
    assert noted.count("closed shop") == 1


def test_a_runtime_that_asked_no_broker_closes_none() -> None:
    noted: list[str] = []
    with Runtime(NAMED, brokers=noting(MemoryBroker(), noted)) as runtime:
        assert runtime.settings.application_id == "shop"
    assert noted == []


def test_a_runtime_under_other_settings_is_closed_with_the_one_it_came_from() -> None:
    noted: list[str] = []
    with Runtime(NAMED, brokers=noting(MemoryBroker(), noted)) as runtime:
        other = runtime.with_settings(replace(runtime.settings, application_id="trial"))
        assert other.clock is runtime.clock
        assert other.databases is runtime.databases
        assert other.cluster is not runtime.cluster
    assert sorted(noted) == ["closed shop", "closed trial", "cluster", "cluster"]


def test_brokers_that_do_not_answer_are_found_out_when_the_cluster_is_asked_for() -> None:
    broker = MemoryBroker()
    broker.stop()
    with Runtime(NAMED, brokers=broker.clients) as runtime:
        with pytest.raises(Unavailable):
            runtime.cluster  # noqa: B018  # the look-up is the point
        broker.resume()
        assert runtime.cluster.partitions([]) == {}


@pytest.mark.parametrize("part", ["cluster", "changelog", "outbox", "monitoring_client"])
def test_a_part_on_brokers_needs_their_addresses(part: str) -> None:
    with (
        Runtime({"application.id": "shop"}, brokers=MemoryBroker().clients) as runtime,
        pytest.raises(InvalidSetting, match=r"bootstrap\.servers is not set"),
    ):
        getattr(runtime, part)


def test_the_folder_needs_an_application_and_a_state_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"application\.id is not set"):
        Runtime({"state.dir": str(tmp_path)}).layout  # noqa: B018  # the look-up is the point
    with pytest.raises(InvalidSetting, match=r"state\.dir is not set"):
        Runtime({"application.id": "shop"}).layout  # noqa: B018  # the look-up is the point
    known = {"application.id": "shop", "state.dir": str(tmp_path)}
    assert Runtime(known).layout.application_dir == tmp_path / "shop"
    with pytest.raises(Misuse, match="name another folder"):
        Runtime({**known, "state.dir": "a" * 5000}).layout  # noqa: B018  # the look-up is the point


def test_exports_in_the_memory_of_a_process_are_refused(tmp_path: Path) -> None:
    gone = {**NAMED, "statestore.export.target": "memory://x"}
    with pytest.raises(Misuse, match="ends with this process"):
        Runtime(gone).target  # noqa: B018  # the look-up is the point
    kept = {**NAMED, "statestore.export.target": str(tmp_path)}
    assert Runtime(kept).target.url == str(tmp_path)


def test_a_target_with_a_secret_is_not_carried_to_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARGET", "exports")
    monkeypatch.setenv("SECRET", "s3://key:hunter2@bucket/a")
    assert portable_target(Settings(export_target="${TARGET}")) == str(tmp_path / "exports")
    assert portable_target(Settings(export_target="${SECRET}")) is None
    assert portable_target(Settings()) is None

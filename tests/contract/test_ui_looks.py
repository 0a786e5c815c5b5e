"""What the page looks at besides stream tasks, and what it tells of its own defects."""

import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.run import RunRequest
from statestore.operations.serving import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.runtime import Runtime, SystemClock
from statestore.testing.memory_broker import MemoryBroker
from statestore.ui.looks import Lookout
from statestore.ui.site import application
from tests.builders import ManualClock, eventually
from tests.contract.test_ui_pages import PATH, cells, shown


def test_rows_that_all_stream_tasks_share_are_listed_and_shown(tmp_path: Path) -> None:
    (tmp_path / "tariffs.csv").write_text("code,cents\nFR,7\nNO,9\n")
    broker = MemoryBroker()
    broker.cluster("a").create([TopicSpec(name, 1, {}) for name in ("in", "rates", "out")])
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table("rates", materialized="all-rates")
    tariffs = b.lookup(str(tmp_path / "tariffs.csv"), key="code", store="tariffs")
    rated = b.stream("in").join(rates, lambda _one, rate: rate, key=lambda key, _value: key)
    rated.left_join(tariffs, lambda rate, _row: rate, key=lambda key, _value: key).to("out")
    known = {"application.id": "a", "state.dir": str(tmp_path / "state")}
    lookout = Lookout(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    page = TestClient(application(lookout, ["testserver"]))
    try:
        settings = {**known, "bootstrap.servers": "memory:9092"}
        with Runtime(settings, brokers=broker.clients) as runtime:
            for key, value in (("eur", b"1"), ("nok", b"11")):
                broker.produce(TopicPartition("rates", 0), Record(key.encode(), value, 0))
            with start_run(runtime, b.build(), RunRequest()) as started:
                serve_here(started, threading.Event())
        text = shown(page, PATH)
        assert "global, of topic rates" in text
        assert f"global, of file {tmp_path / 'tariffs.csv'}" in text
        assert text.count('class="n">1</td>') >= 2, "each has one part"
        assert cells(page.get(f"{PATH}/stores/all-rates").text) == [
            ["all", "eur", "1"],
            ["all", "nok", "11"],
        ]
        one = page.get(f"{PATH}/stores/tariffs?key=NO").text
        assert [row[:2] for row in cells(one)] == [["all", "NO"]]
        assert "cents" in cells(one)[0][2]
        assert "as of the last time that a run read file" in one
        assert "does not have the key SE" in page.get(f"{PATH}/stores/tariffs?key=SE").text
        assert page.get(f"{PATH}/stores/all-rates?as_of=5&history=1").status_code == 200
    finally:
        lookout.close()


def test_a_defect_behind_a_look_is_logged_once_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def broken(name: str) -> str | None:
        asked.append(name)
        raise RuntimeError("the pipelines cannot be told")

    clock = ManualClock()
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    lookout = Lookout(lambda: {"a": lambda: Runtime(known)}, clock, broken)
    try:
        for count in (1, 2, 3):

            def is_told(count: int = count) -> bool:
                told = lookout.seen(["a"], wait_s=1.0)["a"].problem
                return len(asked) >= count and told is not None and "see the log" in told

            eventually(is_told, f"look {count}")
            clock.advance(60_000)
    finally:
        lookout.close()
    assert len([record for record in caplog.records if "a look at" in record.message]) == 1

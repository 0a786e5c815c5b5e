"""What the page looks at besides stream tasks, and what it tells of its own defects."""

import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import statestore as ss
from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Record
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import serve_here, start_run
from statestore.ports import TopicSpec
from statestore.runtime import Runtime, SystemClock
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.nodes import TopicName
from statestore.ui.polling import Poller
from statestore.ui.site import application
from tests.builders import DEADLINE_S, ManualClock, eventually
from tests.contract.test_ui_pages import PATH, cells, shown
from tests.ui_rig import NAMES, Passing


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
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    page = TestClient(application(lookout, frozenset({"testserver"})))
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


def test_a_key_is_found_in_whichever_of_many_stream_tasks_it_lies(tmp_path: Path) -> None:
    layout, count = StateLayout(tmp_path, "a"), 24
    for partition in range(count):
        with ss.open_store(NAMES, layout.task_dir(TaskId(0, partition)) / "rocksdb") as names:
            names.put(f"only-{partition}", {"is": partition})
            names.commit()
    known = {"application.id": "a", "state.dir": str(tmp_path)}
    b = ss.StreamsBuilder()
    b.stream("orders").process(lambda _: Passing(), NAMES, name="all")
    counts = {TopicName("orders"): count}
    publish_deployed(
        layout, describe_deployment(b.build(), ProcessingGuarantee.EXACTLY_ONCE, counts)
    )
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, SystemClock())
    page = TestClient(application(lookout, frozenset({"testserver"})))
    for partition in (0, count - 1):
        one = page.get(f"{PATH}/stores/names?key=only-{partition}").text
        assert cells(one) == [[f"0_{partition}", f"only-{partition}", f'{{"is":{partition}}}']]
    assert "does not have the key none" in page.get(f"{PATH}/stores/names?key=none").text
    assert list(tmp_path.rglob("snapshots/*")) == []
    lookout.close()


def test_a_look_is_as_old_as_its_beginning_and_the_next_one_waits_for_its_end(
    tmp_path: Path,
) -> None:
    clock, held, opened = ManualClock(1_000_000), threading.Event(), list[int]()
    known = {"application.id": "a", "state.dir": str(tmp_path)}

    def opening() -> Runtime:
        opened.append(clock.now_ms())
        assert held.wait(DEADLINE_S)
        return Runtime(known, clock=clock)

    lookout = Poller(lambda: {"a": opening}, clock)
    lookout.seen(["a"])
    eventually(lambda: opened == [1_000_000], "a look is under way")
    clock.advance(60_000)
    held.set()
    eventually(lambda: lookout.seen(["a"])["a"].look is not None, "it has ended")
    last = lookout.seen(["a"])["a"]
    assert (last.age_s, last.is_old) == (60.0, True)
    clock.advance(4_999)
    lookout.seen(["a"], wait_s=DEADLINE_S)
    assert len(opened) == 1, "a long look does not follow upon itself"
    clock.advance(1)
    assert lookout.seen(["a"], wait_s=DEADLINE_S)["a"].age_s == 0.0
    assert opened[1:] == [1_065_000]
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
    lookout = Poller(lambda: {"a": lambda: Runtime(known)}, clock, broken)
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

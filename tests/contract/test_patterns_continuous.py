"""Continuous runs over sources with patterns: they begin anew when other topics match.

Shows I41.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from statestore.operations.running.continuous import serve_run
from statestore.operations.running.run import RunSummary
from statestore.operations.running.runner import run_request, serve_here
from statestore.runtime import SystemClock
from tests.builders import eventually
from tests.contract.test_patterns import World, counting


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@contextmanager
def continuous(world: World, told: list[RunSummary]) -> Iterator[None]:
    """A continuous run in a thread; it looks for topics again and again and is ended gently."""
    stop = Event()
    request = run_request(run_for="forever")
    settings = {"statestore.pattern.refresh.ms": 1, "commit.interval.ms": 1}
    world.clock = SystemClock()
    with world.runtime(**settings) as runtime:

        def work() -> None:
            told.append(serve_run(runtime, counting(), request, stop, serve_here))

        thread = Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def test_a_continuous_run_begins_anew_with_each_topic_that_joins(world: World) -> None:
    told: list[RunSummary] = []
    world.send("orders-a", "a", 2)
    with continuous(world, told):
        eventually(lambda: world.sums() == {"a": 2}, "the first topic is read")
        for name in ("orders-b", "orders-c"):
            world.create(name, 2)
            world.send(name, "a")
            world.send(name, name)
        expected = {"a": 4, "orders-b": 1, "orders-c": 1}
        eventually(lambda: world.sums() == expected, "the new topics are read")
    (summary,) = told
    assert summary.records_in == 6
    assert summary.stream_tasks == 2


def test_a_continuous_run_waits_for_the_first_topic(world: World) -> None:
    told: list[RunSummary] = []
    world.drop("orders-a")
    with continuous(world, told):
        world.create("orders-b", 2)
        world.send("orders-b", "a", 3)
        eventually(lambda: world.sums() == {"a": 3}, "the topic is read")
    assert [summary.records_in for summary in told] == [3]


def test_a_continuous_run_goes_on_without_a_topic_that_a_start_refuses(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[RunSummary] = []
    world.send("orders-a", "a")
    with continuous(world, told):
        eventually(lambda: world.sums() == {"a": 1}, "the first topic is read")
        world.create("orders-wide", 3)
        world.send("orders-wide", "a")
        told_of = "goes on with the topics that matched at its start"
        eventually(lambda: told_of in caplog.text, "the refusal is told")
        world.send("orders-a", "a")
        eventually(lambda: world.sums() == {"a": 2}, "the rest is read")
        world.drop("orders-wide")
        world.create("orders-b", 2)
        world.send("orders-b", "a")
        eventually(lambda: world.sums() == {"a": 3}, "a topic that fits joins")
    assert caplog.text.count("has 2 partitions, the topology needs 3") == 1
    assert [summary.records_in for summary in told] == [3]

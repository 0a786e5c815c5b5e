"""A server of Spark Connect is killed while a stream of a client writes: each row is there once."""

import json
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from statestore.faults import VARIABLE, CrashPoint
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.writing_rig import Sink
from tests.spark.cluster_rig import CHECKOUT, RUN_S, connect_server, kill_tree
from tests.spark.test_kafka_sink import Program, add_file, has_moved

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]
# In a task with rows on the way; in one that Spark does not know to have ended; and before Spark's
# own log says that the batch is done.
POINTS = [CrashPoint.WRITE_ROWS_SENT, CrashPoint.WRITE_COMMITTED, CrashPoint.WRITE_FINISHED]
# A server, its client and Kafka start one after the other, on a machine that may be busy.
BUSY_S = 2 * RUN_S


def killed_at(point: CrashPoint, program: Program, folder: Path) -> None:
    """Kill a server, once one of its workers has ended itself at that point, and its client."""
    token = folder / "killed"
    variables = CHECKOUT | {VARIABLE: f"{point}:1:{token}"}
    with connect_server(folder, variables) as (server, address):
        process = program.start(address)
        try:
            eventually(token.exists, "the kill of a worker", BUSY_S)
            server.kill()
        finally:
            kill_tree(process)


@pytest.mark.parametrize("point", POINTS)
def test_a_server_killed_at_any_step_loses_and_doubles_nothing(
    kafka: LocalKafka, tmp_path: Path, point: CrashPoint
) -> None:
    sink = Sink(kafka, f"connect-killed-{point}").create()
    expected = add_file(tmp_path / "lines", 0) + add_file(tmp_path / "lines", 1)
    program = Program(sink, tmp_path)
    killed_at(point, program, tmp_path)
    with connect_server(tmp_path) as (_, address):
        program.run_to_the_end(address)
    assert sink.read() == expected


def test_without_its_markers_the_same_kill_doubles_rows(kafka: LocalKafka, tmp_path: Path) -> None:
    sink = Sink(kafka, "connect-killed-unprotected").create()
    expected = add_file(tmp_path / "lines", 0) + add_file(tmp_path / "lines", 1)
    program = Program(sink, tmp_path)
    killed_at(CrashPoint.WRITE_COMMITTED, program, tmp_path)
    (query,) = json.loads((tmp_path / "checkpoint" / "metadata").read_text()).values()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for done in admin.delete_topics([f"{query}-spark-markers"]).values():
        done.result(DEADLINE_S)
    program.run_to_the_end()
    assert sink.read() > expected, "some rows are there twice, and none is lost"


def test_a_server_killed_between_batches_goes_on_from_the_checkpoint(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    sink = Sink(kafka, "connect-killed-between").create()
    expected = add_file(tmp_path / "lines", 0)
    for batch in range(1, 6):
        expected += add_file(tmp_path / "lines", batch)
    program = Program(sink, tmp_path)
    with connect_server(tmp_path) as (server, address):
        process = program.start(address)
        try:
            eventually(partial(has_moved, sink, process, 0), "a batch", BUSY_S)
            server.kill()
        finally:
            kill_tree(process)
    with connect_server(tmp_path) as (_, address):
        program.run_to_the_end(address)
    assert sink.read() == expected

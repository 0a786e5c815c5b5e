"""What a Spark worker, and a call with a session, refuse before anything is opened."""

import json
import threading

import msgspec
import pyarrow as pa
import pytest

import statestore as ss
from statestore.commands.arguments import RunArguments
from statestore.errors import Misuse
from statestore.operations.running.run import PlannedTask
from statestore.spark.spark_task import PlanRow, serving


def test_a_worker_with_another_version_of_statestore_names_both() -> None:
    arguments = RunArguments(application_id="a", pipeline="nowhere:at_all")
    task = PlannedTask("0_0", [], bounded=True, nonce="n")
    row = PlanRow(arguments, [task], slots=1, max_failures=1, twins=False, version="0.0.0")
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    (answer,) = serving([msgspec.json.encode(row).decode()], None)(iter([numbers]))
    error = json.loads(answer.to_pylist()[0]["error"])
    assert error["class"] == "Misuse"
    assert error["message"].startswith(
        f"the driver has statestore 0.0.0, and a Spark worker has {ss.__version__} ("
    )


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder()
    builder.stream("in").to("out")
    return builder.build()


def test_what_is_no_session_is_refused() -> None:
    with pytest.raises(Misuse, match=r"spark='local\[2\]': pass a SparkSession"):
        ss.run(topology(), {"application.id": "a"}, spark="local[2]")


def test_an_event_to_stop_is_refused_with_a_session() -> None:
    with pytest.raises(Misuse, match="stop= does not reach Spark's workers"):
        ss.run(topology(), {"application.id": "a"}, spark="any", stop=threading.Event())

"""A query over the changes of a store is killed within a batch: each change is in one batch."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import statestore as ss
from statestore.model.ids import TopicPartition
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import PARTITIONS, Audited, audited
from tests.builders import ROOT, eventually
from tests.kafka import audit_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.spark.cluster_rig import RUN_S, kill_tree

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
# Batches are written under their ids, so that one that is repeated replaces itself.
QUERY = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from statestore.spark import TransactionalStore

folder, attempt, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(TransactionalStore)

def keep(frame, number):
    rows = [row.asDict() for row in frame.drop("timestamp").collect()]
    (folder / f"batch-{number}.{attempt}").write_text(json.dumps(rows))
    if number == 1 and attempt == "killed":
        (folder / "reached").touch()
        signal.pause()

frame = spark.readStream.format("transactional_store").options(**options).load()
writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
writer.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
spark.stop()
"""


def begin(one: Audited, folder: Path, attempt: str, **options: str) -> "subprocess.Popen[bytes]":
    asked = {
        "state_dir": str(one.app.state_dir),
        "application_id": one.app.name,
        "bootstrap_servers": one.app.kafka.bootstrap_servers,
        "store": "counts",
        "changes": "true",
        **options,
    }
    command = [sys.executable, "-c", QUERY, str(folder), attempt, json.dumps(asked)]
    with (folder / f"{attempt}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def batches(folder: Path, attempt: str) -> dict[int, list[dict[str, Any]]]:
    return {
        int(path.stem.removeprefix("batch-")): json.loads(path.read_text())
        for path in folder.glob(f"batch-*.{attempt}")
    }


def logged(one: Audited) -> list[tuple[int, int]]:
    """The place of each change in the log of the counts."""
    found = []
    with Runtime(one.settings()) as runtime:
        logs = [TopicPartition(one.log("counts"), p) for p in range(PARTITIONS)]
        for log, bounds in runtime.cluster.bounds(logs).items():
            for part in runtime.changelog.replay(log, *bounds):
                offsets: Any = part.batch.offsets
                found += [(log.partition, offset) for offset in offsets]
    return sorted(found)


def test_each_change_is_in_one_batch_though_the_query_was_killed(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    one = audited(kafka, "changing", tmp_path / "state", records=200)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    process = begin(one, tmp_path, "killed", **options)
    try:
        eventually(
            lambda: (tmp_path / "reached").exists() or process.poll() is not None, "1", RUN_S
        )
        assert process.poll() is None, (tmp_path / "killed.log").read_text()[-4000:]
    finally:
        kill_tree(process)
    with mock.patch.dict(os.environ, {PREFIX_VARIABLE: one.app.name}):
        one.app.produce(range(200, 300))
        ss.run(audit_pipelines.every_kind(), one.app.run_settings())
    again = begin(one, tmp_path, "again", **options)
    assert again.wait(RUN_S) == 0, (tmp_path / "again.log").read_text()[-4000:]
    first, second = batches(tmp_path, "killed"), batches(tmp_path, "again")
    assert sorted(first) == [0, 1]
    assert second[1] == first[1], "the batch that was repeated has other changes"
    every = [row for _, rows in sorted((first | second).items()) for row in rows]
    assert sorted((row["partition"], row["offset"]) for row in every) == logged(one)
    # The last change of each key is what the store has.
    last = {row["key"]: row["value"] for row in every}
    with ss.open_snapshot(str(one.app.state_dir), one.app.name, "counts") as store:
        assert last == dict(store.all())
    assert Counter(row["change"] for row in every) == {"upsert": len(every)}

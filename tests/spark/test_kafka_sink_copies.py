"""Copies of tasks that write to Kafka, as Spark itself makes them on a cluster.

Speculation, and a stage whose input is lost while it writes: each row is there once.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.kafka.writing_rig import Sink, committed, values_of
from tests.spark.cluster_rig import RUN_S, Cluster, standalone, submit
from tests.spark.copies_program import ROWS
from tests.spark.test_second_attempts import SPECULATION

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]


@contextmanager
def writing(
    sink: Sink, folder: Path, case: str, conf: Mapping[str, object]
) -> Iterator[tuple[Cluster, "subprocess.Popen[bytes]", Path]]:
    """A cluster, and on it a program that writes; the folder of its files."""
    files, log = folder / "files", folder / "submit.log"
    files.mkdir()
    with standalone(folder) as cluster, log.open("wb") as file:
        process = submit(
            cluster.address,
            ROOT / "tests" / "spark" / "copies_program.py",
            *(sink.kafka.bootstrap_servers, sink.name, str(files), case),
            cwd=folder,
            log=file,
            conf=conf,
        )
        try:
            yield cluster, process, files
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def written(sink: Sink, isolation: str = "read_committed") -> "Counter[str]":
    messages = committed(sink.kafka.bootstrap_servers, sink.name, isolation=isolation)
    return Counter({value.strip(): n for value, n in values_of(messages).items()})


def has_open_rows(sink: Sink) -> bool:
    """Whether rows are there that no transaction has committed."""
    return written(sink, "read_uncommitted").total() > written(sink).total()


def copies(files: Path, case: str, partition: int) -> int:
    return len(list(files.glob(f"{case}-{partition}-*")))


def test_copies_that_spark_speculates_with_write_each_row_once(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    sink = Sink(kafka, "speculated-sink").create()
    with writing(sink, tmp_path, "speculated", SPECULATION) as (_, process, files):
        assert process.wait(RUN_S) == 0, (tmp_path / "submit.log").read_text()[-4000:]
        ran = {case: copies(files, case, 0) for case in ("beaten", "racing")}
    assert min(ran.values()) > 1, f"Spark ran no second copy: {ran}"
    assert has_open_rows(sink), "no copy was ended with rows on the way"
    assert written(sink) == Counter(map(str, range(2 * ROWS)))


def test_a_stage_that_is_run_again_because_its_input_was_lost_writes_each_row_once(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    sink = Sink(kafka, "lost-stage-sink").create()
    with writing(sink, tmp_path, "lost", {}) as (cluster, process, files):

        def have_begun() -> bool:
            assert process.poll() is None, (tmp_path / "submit.log").read_text()[-4000:]
            waiting = all((files / f"reached-lost-{place}").exists() for place in (1, 3))
            return waiting and has_open_rows(sink)

        eventually(have_begun, "two partitions have rows on the way", RUN_S)
        waits = psutil.Process(int((files / "reached-lost-3").read_text()))
        above = {one.pid for one in waits.parents()}
        (worker,) = (one for one in cluster.workers if one.process.pid in above)
        worker.kill()
        (files / "gate").touch()
        assert process.wait(RUN_S) == 0, (tmp_path / "submit.log").read_text()[-4000:]
        said = (tmp_path / "submit.log").read_text()
        assert re.search(r"Resubmitting ShuffleMapStage .* and ResultStage", said), said[-4000:]
    assert written(sink) == Counter(map(str, range(ROWS)))

"""Spark's own Kafka sink repeats the rows of tasks that failed; ours writes them once."""

import json
import os
import subprocess
import sys

import pytest

from tests.builders import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]
_RUN_S = 900


def test_of_tasks_that_each_failed_once_only_sparks_own_sink_repeats_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_spark_sink", "--repeats", "0"],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_RUN_S,
    )
    # No row was lost by either, which the program asserts.
    repeated = json.loads(done.stdout.splitlines()[-1])
    assert repeated["ours"] == 0
    assert repeated["spark"] > 0

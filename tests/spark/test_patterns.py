"""Sources that find their topics by a pattern, on Spark: its workers read what the driver found."""

from collections import Counter
from pathlib import Path

import pytest

import statestore as ss
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.run_pipelines import PREFIX_VARIABLE, counts_by_pattern
from tests.kafka.run_rig import App
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
FIRST, SECOND = range(30), range(20, 50)


def test_a_new_topic_joins_at_the_next_run_on_spark(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(kafka, "spark-patterns", tmp_path / "state").create_topics(partitions=2)
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    topology = counts_by_pattern()
    settings = ss.Settings.from_mapping(app.run_settings())
    app.delete_topic(f"{app.name}-in")
    with local_spark("patterns", "local[2,1]") as spark:

        def records_in() -> int:
            return ss.run(topology, settings, spark=spark).records_in

        assert records_in() == 0
        kafka.create_topic(f"{app.name}-in", 2, {"retention.ms": -1})
        app.produce(FIRST)
        assert records_in() == len(FIRST)
        kafka.create_topic(f"{app.name}-in-2", 2, {"retention.ms": -1})
        app.produce(SECOND, topic="in-2")
        assert records_in() == len(SECOND)
    assert app.stored(ordinal=0) == Counter(f"k{n}" for n in [*FIRST, *SECOND])

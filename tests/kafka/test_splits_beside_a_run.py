"""Splits of a store while a run moves its rows: each read has every row once, of one commit."""

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore import serdes
from statestore.spark.reading.read_options import plan_of
from statestore.spark.reading.store_reader import StoreReader
from statestore.testing.local_kafka import LocalKafka

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]
TOKENS = [f"t{n}" for n in range(300)]
_STEP = 7_919


class Hop:
    """Moves the row of a token to another key, which mostly lies in another split."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._rows = context.store("rows")
        self._places = context.store("places")

    def process(self, record: ss.Record[str, int]) -> None:
        token, number = record.key, record.value
        assert token is not None
        before = self._places.get(token)
        if before is not None:
            self._rows.delete(before)
        after = f"{(number * _STEP + int(token[1:]) * 31) % 1000:03d}-{token}"
        self._rows.put(after, number)
        self._places.put(token, after)


def topology() -> ss.Topology:
    texts: Any = {"key_serde": serdes.STRING, "value_serde": serdes.STRING}
    numbers: Any = {"key_serde": serdes.STRING, "value_serde": serdes.INT64}
    rows = ss.persistent_key_value_store("rows", **numbers)
    places = ss.persistent_key_value_store("places", **texts)
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    b.stream("hops").process(Hop, rows, places, name="hop")
    return b.build()


def test_no_row_is_lost_or_doubled_between_splits_while_a_run_moves_them(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    kafka.create_topic("hops", partitions=1)
    settings = {
        "application.id": "hopping",
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path),
        "processing.guarantee": "exactly_once",
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def send(number: int) -> None:
        for token in TOKENS:
            producer.produce("hops", key=token, value=serdes.INT64.serialize(number))
        producer.flush()

    send(0)
    ss.run(topology(), settings)
    ended, sums = threading.Event(), set()
    running = threading.Thread(
        target=lambda: ss.run(topology(), settings, run_for="forever", stop=ended)
    )
    running.start()
    options = {"state_dir": str(tmp_path), "application_id": "hopping", "store": "rows"}
    try:
        for number in range(1, 11):
            send(2 * number)
            source = StoreReader(plan_of({**options, "splits": "5"}))
            parts = source.partitions()
            assert len(parts) == 5
            found = []
            for part in parts:
                for batch in source.read(part):
                    found += batch.to_pylist()
                if part is parts[1]:
                    send(2 * number + 1)
            assert sorted(row["key"].split("-")[1] for row in found) == sorted(TOKENS)
            sums.add(sum(row["value"] for row in found))
    finally:
        ended.set()
        running.join()
    assert len(sums) > 1

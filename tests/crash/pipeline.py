"""The pipeline of the kill tests: nothing in it forgives a record seen twice or never.

`passed` carries each input record's topic, partition and offset through; `counts` emits every
single update, so its output per key must read 1, 2, 3 …; both sub-topologies, a repartition topic
and a store take part.
"""

import os

import statestore as ss
from statestore import serdes
from statestore.topology.operators import ProcessorContext

PREFIX_VARIABLE = "KILL_TOPICS"
COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)


class Pass:
    """Forwards where each record came from."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: "ss.Record[str, int]") -> None:
        origin = [record.topic, record.partition, record.offset]
        self._context.forward(record.replace(value=origin))


def topology() -> ss.Topology:
    return over(os.environ.get(PREFIX_VARIABLE, "kill"))


def worker_moments() -> ss.Topology:
    """For a Spark session whose workers already run: their environment does not change."""
    return over("worker-moments")


def over(prefix: str, passing: type[Pass] = Pass) -> ss.Topology:
    """The pipeline over the topics of that prefix."""
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    source = builder.stream(f"{prefix}-in")
    source.process(passing, name="pass").to(f"{prefix}-passed")
    (
        source.group_by(lambda _key, value: f"user-{value % 17}", name="by-user")
        .count(ss.Materialized(COUNTS, caching=False), name="count")
        .to_stream(name="count-updates")
        .to(f"{prefix}-counts")
    )
    return builder.build()

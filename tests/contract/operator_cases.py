"""All cases of all operators, and the topology of some or all of them."""

from typing import Any

from statestore import serdes
from statestore.model.records import Serde
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from tests.contract import (
    arrow_cases,
    cogroup_cases,
    count_cases,
    foreign_key_cases,
    global_cases,
    history_cases,
    serde_cases,
    session_cases,
    sliding_cases,
    stream_cases,
    stream_join_cases,
    suppress_cases,
    table_cases,
    timer_cases,
    window_cases,
)
from tests.contract.operator_tables import Case, Seen, shown

MODULES = (
    stream_cases,
    serde_cases,
    table_cases,
    history_cases,
    timer_cases,
    window_cases,
    session_cases,
    sliding_cases,
    count_cases,
    stream_join_cases,
    foreign_key_cases,
    suppress_cases,
    cogroup_cases,
    global_cases,
    arrow_cases,
)
CASES = {name: case for module in MODULES for name, case in module.CASES.items()}


def topology(
    *names: str,
    prefix: str = "",
    key_serde: Serde[Any] = serdes.STRING,
    value_serde: Serde[Any] = serdes.JSON,
) -> Topology:
    """These cases, or all of them, as one; `prefix` before the names of topics and stores."""
    builder = StreamsBuilder(key_serde=key_serde, value_serde=value_serde)
    for name in names or CASES:
        CASES[name].build(Case(builder, name, prefix))
    return builder.build()


def on_kafka() -> Topology:
    """All cases, for a run without Spark."""
    return topology(prefix="kafka.")


def on_spark() -> Topology:
    """All cases, for Spark's workers to import."""
    return topology(prefix="spark.")


def seen(driver: TopologyTestDriver, built: Topology, name: str) -> list[Seen]:
    """What came out of a case since the last look, its topics in order of name."""
    _, written = built.topics()
    return [
        Seen(topic.removeprefix(f"{name}."), shown(record.key), record.value, record.timestamp_ms)
        for topic in sorted(written)
        for record in driver.read(topic)
    ]


def follow_table(name: str, built: Topology, *, crashing: bool = False) -> None:
    """Each record of a case brings out what its row says; `crashing`: after a crash."""
    with TopologyTestDriver(built) as driver:
        for row, (record, expected) in enumerate(CASES[name].rows()):
            if crashing:
                driver.crash()
            driver.pipe(f"{name}.{record.topic}", record.key, record.value, record.timestamp_ms)
            assert seen(driver, built, name) == expected, f"row {row + 1}: {record}"

"""All cases of all operators, and the topology of some or all of them."""

from typing import Any

from statestore import serdes
from statestore.model.records import Serde
from statestore.topology.builder import StreamsBuilder
from statestore.topology.graph import Topology
from tests.contract import (
    cogroup_cases,
    foreign_key_cases,
    global_cases,
    serde_cases,
    session_cases,
    sliding_cases,
    stream_cases,
    stream_join_cases,
    suppress_cases,
    table_cases,
    window_cases,
)
from tests.contract.operator_tables import Case

MODULES = (
    stream_cases,
    serde_cases,
    table_cases,
    window_cases,
    session_cases,
    sliding_cases,
    stream_join_cases,
    foreign_key_cases,
    suppress_cases,
    cogroup_cases,
    global_cases,
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

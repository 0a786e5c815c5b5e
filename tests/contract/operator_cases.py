"""All cases of all operators, and the topology of some or all of them."""

from statestore import serdes
from statestore.topology.builder import StreamsBuilder
from statestore.topology.graph import Topology
from tests.contract import stream_cases, table_cases, window_cases
from tests.contract.operator_tables import Case

CASES = stream_cases.CASES | table_cases.CASES | window_cases.CASES


def topology(*names: str) -> Topology:
    """These cases, or all of them, as one."""
    builder = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    for name in names or CASES:
        CASES[name].build(Case(builder, name))
    return builder.build()

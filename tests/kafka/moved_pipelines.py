"""A pipeline that is moved: counts behind a repartition topic, and a table that its topic restores.

Its inputs bear a prefix where they are mirrors.
"""

import os

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import COUNTS, prefix

MIRROR_VARIABLE = "MIRROR_PREFIX"
ROWS = "rows"


def house() -> ss.Topology:
    mirror = os.environ.get(MIRROR_VARIABLE, "")
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    (
        b.stream(f"{mirror}{prefix()}-in")
        .group_by(lambda _key, value: value["user"], name="by-user")
        .count(ss.Materialized(COUNTS, caching=False))
        .to_stream()
        .to(f"{prefix()}-out")
    )
    b.table(f"{mirror}{prefix()}-rows", materialized=ROWS, name="rows-table")
    return b.build()

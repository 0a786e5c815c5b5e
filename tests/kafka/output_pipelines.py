"""Pipelines that write as much as they read; topics as in run_pipelines."""

import statestore as ss
from tests.kafka.run_pipelines import builder, prefix


def copied() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").to(f"{prefix()}-out")
    return b.build()

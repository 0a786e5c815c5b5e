"""The pipeline of the kill tests, which is that of the drills, over topics of another variable.

Nothing in it forgives a record seen twice or never.
"""

import os

import statestore as ss
from statestore.testing.drills.workload import COUNTS, Pass, over

__all__ = ["COUNTS", "PREFIX_VARIABLE", "Pass", "over", "topology", "worker_moments"]
PREFIX_VARIABLE = "KILL_TOPICS"


def topology() -> ss.Topology:
    return over(os.environ.get(PREFIX_VARIABLE, "kill"))


# For Spark sessions whose workers already run: their environment does not change.


def workers() -> ss.Topology:
    return over("workers")


def worker_points() -> ss.Topology:
    return over("worker-points")


def worker_moments() -> ss.Topology:
    return over("worker-moments")

"""The pipeline of the kill tests, where some records cannot be taken; see `pipeline`."""

import os

import statestore as ss
from tests.crash.pipeline import PREFIX_VARIABLE, Pass, over


def is_refused(number: int) -> bool:
    return number % 97 == 5


class Refusing(Pass):
    """Forwards where each record came from, and refuses some of them then."""

    def process(self, record: "ss.Record[str, int]") -> None:
        super().process(record)
        if is_refused(record.value):
            raise ValueError(f"refused: {record.value}")


def topology() -> ss.Topology:
    return over(os.environ[PREFIX_VARIABLE], Refusing)


def worker_poison() -> ss.Topology:
    """For a Spark session whose workers already run: their environment does not change."""
    return over("worker-poison", Refusing)

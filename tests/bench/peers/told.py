"""What a peer's program in Python is told, as one argument in JSON. It needs no package."""

import json
import sys
from dataclasses import dataclass

from tests.bench.peers.jobs import Job


@dataclass(frozen=True)
class Told:
    """Brokers, topics, a name and a folder of its own, and jars of Java where it has some."""

    servers: str
    name: str
    folder: str
    job: Job
    jars: list[str]
    input: str
    table: str
    output: str


def told() -> Told:
    """The order on the command line."""
    given = json.loads(sys.argv[1])
    return Told(**{**given, "job": Job(given["job"])})

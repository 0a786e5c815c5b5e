"""The generated workload of drills: it shows every record that is processed twice or not at all.

`passed` gets the topic, partition and offset of each input record. `counts` gets every single
update, so its output per key must read 1, 2, 3 …. Two sub-topologies, a repartition topic and a
store take part. The variable `PREFIX_VARIABLE` says how the names of the topics begin.

Keeps I20.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statestore import serdes
from statestore.model.records import Record
from statestore.stores.specs import persistent_key_value_store
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.graph import Topology
from statestore.topology.materialized import Materialized
from statestore.topology.processors.user_processors import ProcessorContext

PREFIX_VARIABLE = "STATESTORE_DRILL_TOPICS"
STORE = "counts"
COUNTS = persistent_key_value_store(STORE, key_serde=serdes.STRING, value_serde=serdes.INT64)
TOPICS = ("in", "passed", "counts", "other", "other-out")
PARTITIONS = 2
_USERS = 17
_START_MS = 1_700_000_000_000
_POISON = "poison-"


class Pass:
    """Forwards the origin of each record, and raises at a poison record."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: Record[str, int]) -> None:
        if record.key.startswith(_POISON):
            raise ValueError(f"poison {record.value}, as drilled")
        origin = [record.topic, record.partition, record.offset]
        self._context.forward(record.replace(value=origin))


def over(prefix: str, passing: type[Any] = Pass) -> Topology:
    """The pipeline over the topics with that prefix."""
    builder = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    return _counted(builder, prefix, passing)


def topology() -> Topology:
    """The pipeline as it is deployed first."""
    return over(os.environ[PREFIX_VARIABLE])


def moved() -> Topology:
    """The pipeline with a sub-topology before it, so that every store has another place."""
    prefix = os.environ[PREFIX_VARIABLE]
    builder = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream(f"{prefix}-other").to(f"{prefix}-other-out")
    return _counted(builder, prefix, Pass)


def _counted(builder: StreamsBuilder, prefix: str, passing: type[Any]) -> Topology:
    source = builder.stream(f"{prefix}-in")
    source.process(passing, name="pass").to(f"{prefix}-passed")
    (
        source.group_by(lambda _key, value: f"user-{value % _USERS}", name="by-user")
        .count(Materialized(COUNTS, caching=False), name="count")
        .to_stream(name="count-updates")
        .to(f"{prefix}-counts")
    )
    return builder.build()


class Row(NamedTuple):
    """A committed record."""

    partition: int
    key: bytes | None
    value: bytes | None


class Seen(NamedTuple):
    """What a drill left: input offsets by partition, topics in order, and the store's rows."""

    inputs: Mapping[int, int]
    passed: Sequence[Row]
    counts: Sequence[Row]
    changelog: Iterable[Row]
    rows: Mapping[bytes, bytes]


@dataclass
class Ledger:
    """The records that went in, and so what must come out."""

    prefix: str
    produced: int = 0
    poison: int = 0
    expected: Counter[bytes] = field(default_factory=Counter)

    def lot(self, count: int, *, poisonous: bool = False) -> list[tuple[bytes, bytes, int]]:
        """The next records as key, value and time; with `poisonous`, every 500th is poison."""
        rows = []
        for number in range(self.produced, self.produced + count):
            is_poison = poisonous and number % 500 == 499
            key = f"{_POISON if is_poison else 'k'}{number}".encode()
            rows.append((key, str(number).encode(), _START_MS + number))
            self.poison += is_poison
            if not is_poison:
                self.expected[f"user-{number % _USERS}".encode()] += 1
        self.produced += count
        return rows

    def findings(self, seen: Seen) -> list[str]:
        """Every duplicate, loss and disagreement; exactly-once means that there are none."""
        return [*self._of_passed(seen), *self._of_counts(seen)]

    def _of_passed(self, seen: Seen) -> list[str]:
        found = []
        passed = [(row.partition, tuple(json.loads(row.value or b"[]"))) for row in seen.passed]
        times = Counter(origin for _, origin in passed)
        if twice := [origin for origin, n in times.items() if n > 1]:
            found.append(f"passed: {len(twice)} records more than once, such as {twice[:3]}")
        source = f"{self.prefix}-in"
        wanted = {(source, p, at) for p, end in seen.inputs.items() for at in range(end)}
        missing = wanted - times.keys()
        if len(missing) != self.poison:
            some = sorted(missing)[:3]
            found.append(
                f"passed: {len(missing)} records missing, {self.poison} are poison: {some}"
            )
        latest: dict[tuple[int, int], int] = {}
        for partition, (_, read_from, offset) in passed:
            if latest.get((partition, read_from), -1) > offset:
                found.append(f"passed-{partition}: input {read_from} is out of order at {offset}")
                break
            latest[partition, read_from] = offset
        return found

    def _of_counts(self, seen: Seen) -> list[str]:
        found = []
        updates: dict[bytes, list[int]] = defaultdict(list)
        for row in seen.counts:
            updates[row.key or b""].append(int.from_bytes(row.value or b""))
        for user, total in self.expected.items():
            if updates[user] != list(range(1, total + 1)):
                read = updates[user]
                wrong = next((at for at, n in enumerate(read) if n != at + 1), len(read))
                found.append(f"counts: {user.decode()} is wrong from update {wrong + 1} of {total}")
        folded = {row.key or b"": int.from_bytes(row.value or b"") for row in seen.changelog}
        if folded != dict(self.expected):
            found.append(f"the changelog gives other counts: {_unlike(folded, self.expected)}")
        stored = {key: int.from_bytes(value) for key, value in seen.rows.items()}
        if stored != dict(self.expected):
            found.append(f"the store has other counts: {_unlike(stored, self.expected)}")
        return found


def _unlike(found: Mapping[bytes, int], wanted: Mapping[bytes, int]) -> list[Any]:
    keys = sorted(found.keys() | wanted.keys())
    unlike = [(k.decode(), found.get(k), wanted.get(k)) for k in keys]
    return [(k, is_, should) for k, is_, should in unlike if is_ != should][:3]

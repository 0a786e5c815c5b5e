"""A sum for each key whose values changed twice; topics as in `run_pipelines`."""

from typing import Any

import msgspec

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import prefix

HOUR_MS = 3_600_000
NUMBERS: ss.Serde[Any] = serdes.JSON


class Sum(msgspec.Struct):
    """What the store began with."""

    sum: int


class SumAndCount(msgspec.Struct):
    """Old rows do not have the count."""

    sum: int
    count: int


class Described(msgspec.Struct):
    """Another shape."""

    text: str


V1, V2, V3 = serdes.json(Sum), serdes.json(SumAndCount), serdes.json(Described)
TO_V2 = ss.Migration(V1, lambda old: SumAndCount(old.sum, 0))
TO_V3 = ss.Migration(V2, lambda old: Described(f"{old.sum} {old.count}"))


def _summing(initial: Any, plus: Any, kept: ss.Materialized[Any, Any]) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    numbers = b.stream(f"{prefix()}-in").group_by_key()
    numbers.aggregate(initial, lambda _key, value, old: plus(value["number"], old), kept)
    return b.build()


def _plus_v2(number: int, old: SumAndCount) -> SumAndCount:
    return SumAndCount(old.sum + number, old.count + 1)


def _plus_v3(number: int, old: Described) -> Described:
    total, count = map(int, old.text.split())
    return Described(f"{total + number} {count + 1}")


def v1() -> ss.Topology:
    kept = ss.Materialized("sums", value_serde=V1)
    return _summing(lambda: Sum(0), lambda number, old: Sum(old.sum + number), kept)


def v2_without_migration() -> ss.Topology:
    return _summing(lambda: SumAndCount(0, 0), _plus_v2, ss.Materialized("sums", value_serde=V2))


def v2() -> ss.Topology:
    kept = ss.Materialized("sums", value_serde=V2, migrate=TO_V2)
    return _summing(lambda: SumAndCount(0, 0), _plus_v2, kept)


def v3() -> ss.Topology:
    kept = ss.Materialized("sums", value_serde=V3, migrate=[TO_V2, TO_V3])
    return _summing(lambda: Described("0 0"), _plus_v3, kept)


def _recent(value_serde: ss.Serde[Any], migrate: Any = None) -> ss.Topology:
    """The last number of each key, for an hour."""
    recent = ss.persistent_key_value_store(
        "recent",
        key_serde=serdes.STRING,
        value_serde=value_serde,
        ttl=HOUR_MS,
        migrate=migrate,
    )

    class Keep:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store(recent)

        def process(self, record: ss.Record[str, Any]) -> None:
            number = record.value["number"]
            self._store.put(record.key, Sum(number) if migrate is None else SumAndCount(number, 1))

    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream(f"{prefix()}-in").process(Keep, recent, name="keep")
    return b.build()


def recent_v1() -> ss.Topology:
    return _recent(V1)


def recent_v2() -> ss.Topology:
    return _recent(V2, TO_V2)


def recent_v2_alone() -> ss.Topology:
    return _recent(V2, ss.Migration.gone())


def _past(value_serde: ss.Serde[Any], migrate: Any = None) -> ss.Topology:
    """Every number of each key, for a day."""
    made = Sum if migrate is None else lambda number: SumAndCount(number, 1)
    kept = ss.Materialized(
        "past", value_serde=value_serde, migrate=migrate, history_retention=24 * HOUR_MS
    )
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=value_serde)
    numbers = b.stream(f"{prefix()}-in", value_serde=serdes.JSON)
    numbers.map_values(lambda value: made(value["number"])).to_table(kept)
    return b.build()


def past_v1() -> ss.Topology:
    return _past(V1)


def past_v2() -> ss.Topology:
    return _past(V2, TO_V2)


def past_v2_alone() -> ss.Topology:
    return _past(V2, ss.Migration.gone())

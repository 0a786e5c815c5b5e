"""The pipeline of the simulation: whatever is seen twice, never, or out of turn shows for good.

in ─┬ pass ───────────────────────► passed     each record: where it came from, its number
    │                               dead       what cannot be decoded, and what `pass` refuses
    ├ sums (reduce) ──────────────► sums       per key, the sum of its numbers
    └ by-user ══ repartition ═┬ counts ► counts     every single update: 1, 2, 3 …
                              └ seen   ► seen       the list of all numbers of a user
"""

import statestore as ss
from statestore import serdes
from statestore.topology.processors.user_processors import ProcessorContext

KEYS = 6
USERS = 4
COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)
SEEN = ss.persistent_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.JSON)
SUMS = ss.persistent_key_value_store("sums", key_serde=serdes.STRING, value_serde=serdes.JSON)


class Pass:
    """Forwards where each record came from, and its number; some it refuses then."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: "ss.Record[str, int]") -> None:
        origin = [record.partition, record.offset, record.value]
        self._context.forward(record.replace(value=origin))
        if is_refused(record.value):
            raise ValueError(f"refused: {record.value}")


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


def is_unreadable(number: int) -> bool:
    """Whether it is fed as a value that nobody can decode."""
    return number % 29 == 13


def is_refused(number: int) -> bool:
    """Whether a processor raises for it, having forwarded it."""
    return number % 23 == 9


def user_of(number: int) -> str:
    return f"user-{number % USERS}"


def topology() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    source = builder.stream("in")
    source.process(Pass, name="pass").to("passed")
    (
        source.group_by_key()
        .reduce(lambda old, new: old + new, ss.Materialized(SUMS), name="add-up")
        .to_stream(name="sum-updates")
        .to("sums")
    )
    by_user = source.select_key(lambda _key, value: user_of(value), name="user")
    users = by_user.repartition("by-user")
    (
        users.group_by_key()
        .count(ss.Materialized(COUNTS, caching=False), name="count")
        .to_stream(name="count-updates")
        .to("counts")
    )
    (
        users.group_by_key()
        .aggregate(
            list, lambda _key, value, seen: [*seen, value], ss.Materialized(SEEN), name="collect"
        )
        .to_stream(name="seen-updates")
        .to("seen")
    )
    return builder.build()

"""A pipeline of most operators for the kill tests: its output is known record by record.

Three sub-topologies: `in` is joined with another stream, filtered, mapped, counted in windows that
close, in windows that overlap, whose last results go out once more, in sessions, and by key with
few updates, collected by fours, numbered by a processor, and rekeyed; what is rekeyed is joined
with the table of users, counted in windows and in all, and that count joined with the users again,
once filtered and once with users who have no count. A third one counts the users whose counts have
the same rest, and each user is joined with that count by a foreign key. A processor writes a window
store, a session store and a store whose rows expire. Each record is also joined with a global table
of the users.
"""

import os
from typing import Any

import statestore as ss
from statestore import serdes
from tests.crash.pipeline import PREFIX_VARIABLE

USERS = 17
GROUPS = 3
NEAR = ss.JoinWindows(5)
BURST = 60
"""Of a thousand numbers, how many come in sessions."""
CLOSING = ss.TumblingWindows(1000)
HOPS = ss.HoppingWindows(1000, 400, retention=10**9)
# A key has a number every five: three of them in the window that ends with the last one.
SLIDING = ss.SlidingWindows(12)
LASTS = ss.CountWindows.of(4).advance_by(2)
SESSIONS = ss.SessionWindows(100, retention=10**9)
SEEN = ss.persistent_window_store(
    "seen", 1, 10**9, key_serde=serdes.STRING, value_serde=serdes.INT64
)
BY_HAND = ss.persistent_session_store(
    "by-hand", 10**9, key_serde=serdes.STRING, value_serde=serdes.INT64
)
TURNS = ss.persistent_key_value_store("turns", key_serde=serdes.STRING, value_serde=serdes.INT64)
LATE_RESTS, LATE_EVERY, LATELY_MS = 35, 11, 300
LATELY = ss.persistent_key_value_store(
    "lately", ttl=LATELY_MS, key_serde=serdes.STRING, value_serde=serdes.INT64
)
LIMIT_MS, MOST_HELD = 50, 3
FEWER = ss.Suppressed.until_time_limit(LIMIT_MS, max_records=MOST_HELD)
# Records of two partitions meet in one: no order holds between them, and none must be late.
OPEN = ss.TumblingWindows(4000, grace=10**9)


def topology() -> ss.Topology:
    prefix = os.environ.get(PREFIX_VARIABLE, "operators")
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    users = b.table(f"{prefix}-users", materialized="users", name="users-table")
    source = b.stream(f"{prefix}-in")
    turns = source.process_values(Turns, TURNS, name="turns-taken")
    turns.to(
        f"{prefix}-turns",
        value_serde=serdes.INT64,
        partitioner=lambda _topic, key, _turn, partitions: int(key[1:]) % partitions,
    )
    source.process(Visits, SEEN, BY_HAND, LATELY, name="visits").to(f"{prefix}-again")
    (
        source.filter(lambda _key, number: number % 3)
        .map_values(lambda number: [number])
        .flat_map_values(lambda numbers: numbers)
        .to(f"{prefix}-passed")
    )
    _in_windows(source, prefix)
    joined = source.select_key(lambda _key, number: f"user-{number % USERS}").join(
        users, lambda number, user: [number, user], name="joined"
    )
    joined.to(f"{prefix}-joined")
    grouped = joined.group_by_key()
    grouped.windowed_by(OPEN).count(every("windows")).to_stream().to(f"{prefix}-windows")
    totals = grouped.aggregate(int, lambda _user, _value, total: total + 1, every("totals"))
    rich = totals.join(users, lambda total, user: [total, user], name="rich")
    even = rich.filter(lambda _user, value: value[0] % 2 == 0)
    even.to_stream().to(f"{prefix}-rich")
    either = totals.outer_join(users, lambda total, user: [total, user], name="either")
    either.to_stream().to(f"{prefix}-either")
    groups = totals.group_by(lambda _user, total: (str(total % GROUPS), total), name="by-rest")
    sizes = groups.count(every("groups"))
    sizes.to_stream().to(f"{prefix}-groups")
    peers = totals.join(
        sizes,
        lambda total, size: [total, size],
        every("peers"),
        foreign_key=lambda total: str(total % GROUPS),
        name="peers",
    )
    peers.to_stream().to(f"{prefix}-peers")
    others = b.stream(f"{prefix}-others")
    both = source.group_by_key().cogroup(lambda _key, _number, total: total + 1)
    both = both.cogroup(others.group_by_key(), lambda _key, _number, total: total + 1_000_000)
    both.aggregate(int, every("both")).to_stream().to(f"{prefix}-both")
    _keep_history(source, prefix)
    met = source.left_join(others, lambda number, other: [number, other], NEAR, name="met")
    met.to(f"{prefix}-met")
    _know_everyone(b, source, prefix)
    return b.build()


def _in_windows(source: ss.KStream[str, Any], prefix: str) -> None:
    (
        source.group_by_key()
        .windowed_by(CLOSING, emit=ss.EmitStrategy.ON_WINDOW_CLOSE)
        .count("closing")
        .to_stream()
        .to(f"{prefix}-closed")
    )
    hops = source.group_by_key().windowed_by(HOPS).count(every("hops"))
    hops.to_stream().to(f"{prefix}-hops")
    final = hops.suppress(ss.Suppressed.until_window_closes(), name="final")
    final.to_stream().to(f"{prefix}-final")
    fewer = source.group_by_key().count(every("counted")).suppress(FEWER, name="fewer")
    fewer.to_stream().to(f"{prefix}-fewer")
    slides = source.group_by_key().windowed_by(SLIDING).count(every("slides"))
    slides.to_stream().to(f"{prefix}-slides")
    lasts = source.group_by_key().windowed_by(LASTS, emit=ss.EmitStrategy.ON_WINDOW_CLOSE)
    every_other = lasts.aggregate(list, lambda _key, number, seen: [*seen, number], "lasts")
    every_other.to_stream().to(f"{prefix}-lasts")
    bursts = source.filter(lambda _key, number: number % 1000 < BURST).group_by_key()
    sessions = bursts.windowed_by(SESSIONS).count(every("sessions"))
    sessions.to_stream().to(f"{prefix}-sessions")


class Turns:
    """Numbers the records of each key."""

    def __init__(self, context: ss.ProcessorContext[str, int]) -> None:
        self._context = context
        self._turns = context.store(TURNS)

    def process(self, record: ss.Record[str, int]) -> None:
        turn = self._turns.get(record.key, 0) + 1
        self._turns.put(record.key, turn)
        self._context.forward(record.replace(value=turn))


class Visits:
    """Keeps each number in a window of its own, and merges bursts as sessions do.

    Forwards a number whose rest came before, and not too long ago.
    """

    def __init__(self, context: ss.ProcessorContext) -> None:
        self._context = context
        self._seen = context.store(SEEN)
        self._lately = context.store(LATELY)
        self._sessions = context.store(BY_HAND)

    def process(self, record: ss.Record[str, int]) -> None:
        key, number, at = record.key, record.value, record.timestamp_ms
        self._seen.put(key, number, at)
        rest = f"{key} {number % LATE_RESTS}"
        before = self._lately.get(rest)
        if before is not None:
            self._context.forward(record.replace(value=[number, before]))
        if number % LATE_EVERY == 0:
            self._lately.put(rest, number)
        if number % 1000 >= BURST:
            return
        made, count = ss.Windowed(key, at, at), 1
        gap = SESSIONS.gap_ms
        with self._sessions.fetch(key, from_time=at - gap, to_time=at + gap) as near:
            for session, known in list(near):
                self._sessions.remove(session)
                made = ss.Windowed(
                    key, min(made.start_ms, session.start_ms), max(made.end_ms, session.end_ms)
                )
                count += known
        self._sessions.put(made, count)


def _keep_history(source: ss.KStream[str, Any], prefix: str) -> None:
    timed = source.group_by_key().count(ss.Materialized("timed", history_retention=10**9))
    timed.to_stream().to(f"{prefix}-timed")
    evens = ss.Materialized("evens", history_retention=10**9)
    timed.filter(lambda _key, total: total % 2 == 0, evens)


def _know_everyone(
    b: ss.StreamsBuilder[str, Any], source: ss.KStream[str, Any], prefix: str
) -> None:
    everyone = b.global_table(f"{prefix}-users", materialized="everyone")
    known = source.join(
        everyone,
        lambda number, user: [number, user["n"]],
        key=lambda _key, number: f"user-{number % USERS}",
        name="known",
    )
    known.to(f"{prefix}-known")


def every(store: str) -> ss.Materialized:
    """Every update emitted, so that each must be there once."""
    return ss.Materialized(store, caching=False)

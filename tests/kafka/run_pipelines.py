"""Pipelines of the run tests, sound ones and faulty ones; their topics begin with a prefix.

A child process has the prefix from its environment.
"""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import statestore as ss
from statestore import serdes
from statestore.model.modes import PunctuationType
from statestore.topology.nodes import OperatorNode, Push
from statestore.topology.processors.user_processors import ProcessorContext
from tests.contract.user_stores import UserStore, supplier

PREFIX_VARIABLE = "RUN_TOPICS"
COUNTS = "counts"
# What a wrong pipeline path may lead to.
no_function = "text"


def prefix() -> str:
    return os.environ[PREFIX_VARIABLE]


def builder() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)


def counts() -> ss.Topology:
    """Two sub-topologies: `in` by user through a repartition topic, counted into `out`."""
    return _counting(builder())


def counts_reordered() -> ss.Topology:
    """The same as `counts`, behind a sub-topology that is new: the store's number is one more."""
    b = builder()
    others = b.stream(f"{prefix()}-other").group_by_key().count("others")
    others.to_stream().to(f"{prefix()}-other-out")
    return _counting(b)


def counts_by_pattern() -> ss.Topology:
    """The same as `counts_by_key` over all topics whose names begin with `in`."""
    b = builder()
    matching = b.stream(re.compile(f"{prefix()}-in.*"))
    matching.group_by_key().count(COUNTS).to_stream().to(f"{prefix()}-out")
    return b.build()


def counts_by_key() -> ss.Topology:
    """The same store in the first sub-topology."""
    b = builder()
    b.stream(f"{prefix()}-in").group_by_key().count(COUNTS).to_stream().to(f"{prefix()}-out")
    return b.build()


def counts_by_key_twice() -> ss.Topology:
    """The same, and a second store that is new."""
    b = builder()
    grouped = b.stream(f"{prefix()}-in").group_by_key()
    grouped.count(COUNTS).to_stream().to(f"{prefix()}-out")
    grouped.count("again")
    return b.build()


def counts_by_key_of_y() -> ss.Topology:
    """The store of `counts_by_key` under a name that begins as another application's id ends."""
    b = builder()
    b.stream(f"{prefix()}-in").group_by_key().count(f"y-{COUNTS}").to_stream().to(f"{prefix()}-out")
    return b.build()


def repartitioned() -> ss.Topology:
    """Records by user, and nothing kept."""
    return _repartitioned("by-user")


def repartitioned_as_y() -> ss.Topology:
    """The same through a topic whose name begins as another application's id ends."""
    return _repartitioned("y-by-user")


def _repartitioned(name: str) -> ss.Topology:
    b = builder()
    by_user = b.stream(f"{prefix()}-in").select_key(lambda _key, value: value["user"])
    by_user.repartition(name).to(f"{prefix()}-out")
    return b.build()


def placed_by_number() -> ss.Topology:
    """Counts by key behind a partitioner that leaves nearly all keys where their hash puts them."""
    return _placed(lambda _topic, _key, value, _count: 1 if value["number"] % 20 == 0 else None)


def placed_by_hash() -> ss.Topology:
    return _placed(None)


def _placed(partitioner: Callable[[str, str, Any, int], int | None] | None) -> ss.Topology:
    b = builder()
    again = b.stream(f"{prefix()}-in").repartition("again", partitioner=partitioner)
    again.group_by_key().count(COUNTS).to_stream().to(f"{prefix()}-out")
    return b.build()


def deleting_changelog() -> ss.Topology:
    b = builder()
    forgetful = ss.Materialized(COUNTS, changelog_config={"cleanup.policy": "delete"})
    b.stream(f"{prefix()}-in").group_by_key().count(forgetful)
    return b.build()


def windowed() -> ss.Topology:
    """Windows of an hour, kept for a day."""
    b = builder()
    hours = ss.TumblingWindows(3_600_000, retention=86_400_000)
    b.stream(f"{prefix()}-in").group_by_key().windowed_by(hours).count("windows")
    return b.build()


def history_reordered() -> ss.Topology:
    """A table with history under the name of the counts, in a sub-topology behind a new one."""
    b = builder()
    others = b.stream(f"{prefix()}-other").group_by_key().count("others")
    others.to_stream().to(f"{prefix()}-other-out")
    by_user = b.stream(f"{prefix()}-in").select_key(lambda _key, value: value["user"])
    kept = ss.Materialized(COUNTS, history_retention=86_400_000)
    by_user.repartition("by-user").to_table(kept)
    return b.build()


def named_by_user() -> ss.Topology:
    """Each row of `in` with the name of its user, which `users` has."""
    return _named_by_user(builder())


def named_by_user_reordered() -> ss.Topology:
    """The same as `named_by_user`, behind a sub-topology that is new."""
    b = builder()
    b.stream(f"{prefix()}-other").group_by_key().count("others")
    return _named_by_user(b)


def _named_by_user(b: ss.StreamsBuilder) -> ss.Topology:
    rows = b.table(f"{prefix()}-in", materialized="rows")
    users = b.table(f"{prefix()}-users", materialized="users")
    rows.left_join(
        users,
        lambda row, name: {"number": row["number"], "name": name},
        foreign_key=lambda row: row["user"],
        name="named",
    ).to_stream().to(f"{prefix()}-out")
    return b.build()


def windows_in_memory() -> ss.Topology:
    """Windows under the name of the counts that `counts_in_memory` has."""
    b = builder()
    hours = ss.TumblingWindows(3_600_000)
    by_user = b.stream(f"{prefix()}-in").group_by(lambda _key, value: value["user"], name="by-user")
    by_user.windowed_by(hours).count(COUNTS)
    return b.build()


def latest_as_text() -> ss.Topology:
    """`latest`, with another serde for its values: it reads what the other wrote."""
    b = builder()
    rows = ss.Materialized("rows", value_serde=serdes.STRING)
    texts = b.stream(f"{prefix()}-in", value_serde=serdes.STRING)
    texts.to_table(rows)
    return b.build()


def latest_renamed() -> ss.Topology:
    """`latest` under another name, beside a store that is the same in both."""
    b = builder()
    b.table(f"{prefix()}-in", materialized="rows-of-late")
    b.stream(f"{prefix()}-in").group_by_key().count(COUNTS)
    return b.build()


def latest_and_counts() -> ss.Topology:
    b = builder()
    b.table(f"{prefix()}-in", materialized="rows")
    b.stream(f"{prefix()}-in").group_by_key().count(COUNTS)
    return b.build()


def counts_in_memory() -> ss.Topology:
    b = builder()
    store = ss.in_memory_key_value_store(COUNTS, key_serde=serdes.STRING)
    (
        b.stream(f"{prefix()}-in")
        .group_by(lambda _key, value: value["user"], name="by-user")
        .count(ss.Materialized(store, caching=False))
        .to_stream()
        .to(f"{prefix()}-out")
    )
    return b.build()


def latest() -> ss.Topology:
    """The latest value per key."""
    b = builder()
    b.table(f"{prefix()}-in", materialized="rows")
    return b.build()


class Where:
    """Forwards which record of which input this was."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: "ss.Record[str, dict[str, int]]") -> None:
        origin = [record.topic, record.partition, record.value["number"]]
        self._context.forward(record.replace(value=origin))


def merged() -> ss.Topology:
    """Two topics as one stream."""
    b = builder()
    left, right = b.stream(f"{prefix()}-in"), b.stream(f"{prefix()}-other")
    left.merge(right).process(Where).to(f"{prefix()}-out")
    return b.build()


def other_stores() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").group_by_key().count("others").to_stream().to(f"{prefix()}-out")
    return b.build()


def unnamed() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").group_by(lambda _key, value: value["user"]).count()
    return b.build()


def joined() -> ss.Topology:
    """Two topics whose records meet by key: they must have equal partition counts."""
    b = builder()
    left, right = b.stream(f"{prefix()}-in"), b.stream(f"{prefix()}-other")
    left.merge(right, name="meet").to(f"{prefix()}-out")
    topology = b.build()
    nodes = [
        replace(node, copartitioned=True)
        if isinstance(node, OperatorNode) and node.name == "meet"
        else node
        for node in topology.nodes
    ]
    return replace(topology, nodes=tuple(nodes))


def missing_topics() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-nowhere").to(f"{prefix()}-nobody")
    return b.build()


def raising() -> ss.Topology:
    raise ZeroDivisionError("no such luck")


def wrong_arguments(_needed: str) -> ss.Topology:
    return counts()


def refused_by_the_builder() -> ss.Topology:
    return builder().build()


def no_topology() -> str:
    return "a text"


class Failing:
    def __init__(self, _context: ProcessorContext) -> None:
        pass

    def process(self, record: "ss.Record[str, dict[str, int]]") -> None:
        if record.value["number"] == 7:
            raise KeyError("seven")


def failing_processor() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").process(Failing, name="picky").to(f"{prefix()}-out")
    return b.build()


def failing_start() -> ss.Topology:
    """A processor that cannot even be made."""

    def factory(_context: ProcessorContext) -> Failing:
        raise ZeroDivisionError("at start")

    b = builder()
    b.stream(f"{prefix()}-in").process(factory, name="stillborn")
    return b.build()


def unforeseen() -> ss.Topology:
    """A node that fails as none of ours does."""

    def build(_context: object, _forward: object) -> Push:
        raise ZeroDivisionError("at start")

    topology = failing_processor()
    nodes = [
        replace(node, build=build) if isinstance(node, OperatorNode) else node
        for node in topology.nodes
    ]
    return replace(topology, nodes=tuple(nodes))


def unfit() -> ss.Topology:
    b = builder()
    stream = b.stream(f"{prefix()}-in").map_values(lambda value: value["number"])
    stream.to(f"{prefix()}-out", value_serde=serdes.STRING, name="texts")
    return b.build()


class Ticking:
    """Counts its records; tells the count by stream time, and by the wall clock how often it did.

    Output: `stream-<partition>` with [stream time, records so far], `wall-<partition>` with 1, 2 …
    """

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._store = context.store("ticks")
        context.schedule(10, PunctuationType.STREAM_TIME, self._by_stream_time)
        context.schedule(
            20,
            PunctuationType.WALL_CLOCK_TIME,
            self._by_wall_clock,
            at=context.wall_clock_ms(),
        )

    def process(self, _record: "ss.Record[str, dict[str, int]]") -> None:
        self._add("records")

    def _by_stream_time(self, time_ms: int) -> None:
        self._tell("stream", [time_ms, self._store.get("records")], time_ms)

    def _by_wall_clock(self, time_ms: int) -> None:
        self._tell("wall", self._add("walls"), time_ms)

    def _add(self, key: str) -> int:
        count: int = self._store.get(key, 0) + 1
        self._store.put(key, count)
        return count

    def _tell(self, kind: str, value: object, time_ms: int) -> None:
        key = f"{kind}-{self._context.task_id.partition}"
        self._context.forward(ss.Record(key, value, time_ms))


def ticking() -> ss.Topology:
    b = builder()
    ticks = ss.persistent_key_value_store("ticks", key_serde=serdes.STRING, value_serde=serdes.JSON)
    b.stream(f"{prefix()}-in").process(Ticking, ticks).to(f"{prefix()}-out")
    return b.build()


REMINDERS = ss.timer_store("reminders", key_serde=serdes.STRING)


class Reminding:
    """Sets timers for each user, and tells what fires.

    Output: `<partition>` with [kind, user, name, time].
    """

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._timers = context.timers(REMINDERS)

    def process(self, record: "ss.Record[str, dict[str, Any]]") -> None:
        of, number, at = record.value["user"], record.value["number"], record.timestamp_ms
        self._timers.schedule(of, at + 8)
        if number % 10 == 0:
            self._timers.schedule(of, at + 25, name="later")
        if number % 30 == 0:
            self._timers.cancel(of, name="later")
        if number % 100 == 0:
            self._timers.schedule(
                of, number, name=f"{number}", kind=PunctuationType.WALL_CLOCK_TIME
            )

    def on_timer(self, timer: "ss.Timer[str]") -> None:
        told = [timer.kind, timer.key, timer.name, timer.time_ms]
        key = str(self._context.task_id.partition)
        self._context.forward(ss.Record(key, told, self._context.stream_time or 1))


def reminding() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in").process(Reminding, REMINDERS).to(f"{prefix()}-out")
    return b.build()


def reminding_elsewhere() -> ss.Topology:
    """The same in the second sub-topology, so that the store of timers is relocated."""
    b = builder()
    b.stream(f"{prefix()}-other").to(f"{prefix()}-elsewhere")
    b.stream(f"{prefix()}-in").process(Reminding, REMINDERS).to(f"{prefix()}-out")
    return b.build()


def own_or_previous(record: "ss.Record[str, dict[str, Any]]", previous_ms: int | None) -> int:
    """The time of every third record; the others have that of their partition so far."""
    if record.value["number"] % 3 == 0 or previous_ms is None:
        return record.timestamp_ms
    return previous_ms


def previous_times() -> ss.Topology:
    b = builder()
    b.stream(f"{prefix()}-in", timestamp_extractor=own_or_previous).to(f"{prefix()}-out")
    return b.build()


def _counting(b: ss.StreamsBuilder) -> ss.Topology:
    (
        b.stream(f"{prefix()}-in")
        .group_by(lambda _key, value: value["user"], name="by-user")
        .count(ss.Materialized(COUNTS, caching=False))
        .to_stream()
        .to(f"{prefix()}-out")
    )
    return b.build()


def fails_behind_counts() -> ss.Topology:
    """Two sub-topologies as those of `counts`; the second one fails at every record."""

    def fail(count: int) -> float:
        return 1 / (count - count)

    b = builder()
    grouped = b.stream(f"{prefix()}-in").group_by(lambda _key, it: it["user"], name="by-user")
    grouped.count(COUNTS).to_stream().map_values(fail, name="fail").to(f"{prefix()}-out")
    return b.build()


def counted_together() -> ss.Topology:
    """Two topics counted by key into one store."""
    b = builder()
    both = b.stream(f"{prefix()}-in").merge(b.stream(f"{prefix()}-other"))
    both.group_by_key().count(COUNTS).to_stream().to(f"{prefix()}-out")
    return b.build()


class Book:
    """Counts the records of each key in a store of a user's own class; tells each count."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context
        self._store: UserStore = context.store("book")

    def process(self, record: "ss.Record[str, object]") -> None:
        count = int(self._store.get(record.key) or "0") + 1
        self._store.put(record.key, str(count))
        self._context.forward(record.replace(value=count))


def user_store_managing() -> ss.Topology:
    return _booked(manages=True)


def user_store_unmanaging() -> ss.Topology:
    return _booked(manages=False)


def _booked(*, manages: bool) -> ss.Topology:
    b = builder()
    book = supplier("book", manages=manages)
    b.stream(f"{prefix()}-in").process(Book, book, name="book").to(f"{prefix()}-out")
    return b.build()

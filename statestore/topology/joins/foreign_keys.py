"""Joins of tables by a foreign key: each row of the left table holds the key of a row of the right.

This module adds such a join to a pipeline and has the nodes of the left row's task. They subscribe
the row with the task of the right row, and join what that answers with the row as it is; a row
without a foreign key asks nobody. See subscriptions.py.

Keeps I24.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from statestore import serdes
from statestore.model.batch import Batch, Column
from statestore.model.records import Serde
from statestore.serdes import composed
from statestore.stores.kinds.registry import keeps_history
from statestore.stores.migration import outside
from statestore.stores.specs import KeyValueSpec, VersionedSpec
from statestore.topology.callbacks import takes_key
from statestore.topology.collector import Collector
from statestore.topology.failures import decoded, each, encoded, processing
from statestore.topology.flows import Stamp, TableFlow
from statestore.topology.joins.joiners import Joiner
from statestore.topology.joins.subscriptions import (
    DIGEST_BYTES,
    NONE,
    SOME,
    ForeignKey,
    ForeignKeyJoin,
    digest,
    following,
    right_value,
    subscriber,
    subscribing,
)
from statestore.topology.materialized import Materialized, wished
from statestore.topology.nodes import Build, Forward, NodeContext, Push, SendOldValues
from statestore.topology.operators import passed
from statestore.topology.tables.versioned_views import keep_in_time

_TAKER: Final = "the right table, or let foreign_key return a key that fits"


@dataclass(frozen=True)
class _Names:
    """The names of what a join adds, after the user's name for it; without one, generated."""

    builder: Collector
    base: str | None

    def of(self, suffix: str, kind: str) -> str:
        """Return the name of a node or of a topic."""
        return self.builder.number(kind) if self.base is None else f"{self.base}-{suffix}"

    def of_store(self, suffix: str, kind: str) -> str:
        """Return the name of a store."""
        return self.builder.store_name(kind) if self.base is None else f"{self.base}-{suffix}"

    def through(self, parent: str, topic: str, key_serde: Serde[Any]) -> str:
        """Add an internal topic of messages; return the source that reads it."""
        return self.builder.repartition(
            parent,
            topic,
            explicit=self.base is not None,
            key_serde=key_serde,
            value_serde=serdes.BYTES,
            partitions=None,
            taker=_TAKER,
        )


def join_by_foreign_key(
    left: TableFlow,
    right: TableFlow,
    foreign_key: ForeignKey,
    joiner: Joiner,
    *,
    left_join: bool,
    materialized: Materialized[Any, Any] | str | None,
    name: str | None,
) -> TableFlow:
    """Add the join of a table with the rows of another whose keys it holds.

    The result has a store: without one, nobody could tell which rows it has. Topics and stores that
    the user does not name are named after the join, or else after that store. A history of the
    result has one of its own beside it.
    """
    builder, wanted = left.builder, wished(materialized)
    names = _Names(builder, name or (None if wanted is None else wanted.name))
    registration = names.of("subscription-registration", "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION")
    subscriptions: KeyValueSpec[Any, Any] = KeyValueSpec(
        names.of_store("subscription-store", "KTABLE-FK-JOIN-SUBSCRIPTION"),
        composed.subscription(right.key_serde, left.key_serde),
        serdes.BYTES,
    )
    builder.keep(subscriptions)
    asked = left.keep(wanted, builder.value_serde)
    kept = _own_store(names, left, asked) if asked is None or keeps_history(asked) else asked
    join = ForeignKeyJoin(
        left,
        right,
        foreign_key,
        joiner,
        subscriptions,
        left_join,
        keys=left.key_serde.in_store(subscriptions.name, "key"),
        foreign_keys=right.key_serde.in_store(subscriptions.name, "key"),
        left_values=left.values_in(kept.name),
        right_values=right.values_in(subscriptions.name),
    )
    left.send_old_values()
    sent, alone = f"{registration}-sent", f"{registration}-alone"
    # It reads its table beside the node that writes it: named as its stores, they would have
    # records go one by one, for what comes to the same (sub_topologies.py).
    builder.node(
        "", registration, (left.node,), lambda n: _registering(n, join, sent=sent, alone=alone)
    )
    for child in (sent, alone):
        builder.node("", child, (registration,), lambda _: passed())
    answers = _in_the_right_task(join, names, names.through(sent, registration, right.key_serde))
    response = names.of("subscription-response", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE")
    resolver = builder.node(
        "",
        names.of("subscription-response-resolver", "KTABLE-FK-JOIN-SUBSCRIPTION-RESPONSE-RESOLVER"),
        (names.through(answers, response, left.key_serde),),
        lambda n: _resolving(n, join),
        left.stores,
        copartitioned=True,
    )
    old_values = SendOldValues()
    node = builder.node(
        "KTABLE-FK-JOIN-OUTPUT",
        name,
        (alone, resolver),
        lambda n: _keeping(n, kept, old_values),
        (kept.name,),
    )
    made = TableFlow.stored(builder, node, kept, old_values)
    return keep_in_time(made, asked, name) if keeps_history(asked) else made


def _own_store(
    names: _Names, left: TableFlow, history: VersionedSpec[Any, Any] | None
) -> KeyValueSpec[Any, Any]:
    """Declare the store of a result that the user gave none, or only one for its history."""
    builder = left.builder
    value_serde = builder.value_serde if history is None else outside(history.value_serde)
    own = Materialized[Any, Any](names.of_store("store", "KTABLE-FK-JOIN-OUTPUT"))
    kept = own.spec(left.key_serde, value_serde)
    builder.keep(kept)
    return kept


def _in_the_right_task(join: ForeignKeyJoin, names: _Names, registrations: str) -> str:
    """Add the nodes that keep subscriptions and answer them; return the one of all answers."""
    builder, right, store = names.builder, join.right, join.subscriptions.name
    answers = (
        builder.node(
            "",
            names.of("subscription-processor", "KTABLE-FK-JOIN-SUBSCRIPTION-PROCESSOR"),
            (registrations,),
            lambda n: subscribing(n, join),
            tuple(dict.fromkeys((*right.stores, store))),
            copartitioned=True,
            writes=True,
        ),
        builder.node(
            "",
            names.of("foreign-processor", "KTABLE-FK-JOIN-FOREIGN-PROCESSOR"),
            (right.node,),
            lambda n: following(n, join),
            (store,),
            copartitioned=True,
        ),
    )
    merged = names.of("subscription-answers", "KTABLE-FK-JOIN-SUBSCRIPTION-ANSWERS")
    return builder.node("", merged, answers, lambda _: passed())


def foreign_keys_by(verb: str, function: Callable[..., Any], name: str | None) -> ForeignKey:
    """Return the function of key and value for one of the value, or of both (KIP-1104).

    Misuse if it takes neither.
    """
    if takes_key(f"{verb} foreign_key", function, 1, name):
        return function
    return lambda _key, value: function(value)


class _Changed(NamedTuple):
    """A left row that a batch changes: its foreign keys before and after, and its last record."""

    place: int
    old: bytes | None
    new: bytes | None


def _registering(node: str, join: ForeignKeyJoin, *, sent: str, alone: str) -> Build:
    """Build the node that says of each left row that changes which foreign key it has.

    What has none, or is gone, has its result at once: `alone` takes those, `sent` the rest.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        look = join.left.look_in_bytes(context, join.left_values)

        def push(batch: Batch) -> None:
            with processing(node, batch):
                changed = _changes_of(node, join, batch)
                rows = look(list(changed))
            held = dict(zip(changed, rows, strict=True))
            asking = _registrations(node, join, batch, held, changed)
            if len(asking):
                forward(asking, sent)
            # A value that its serde makes a null has no row.
            places = [
                one.place for key, one in changed.items() if one.new is None or held[key] is None
            ]
            if places:
                forward(_alone(node, join, batch, places, held), alone)

        return push

    return build


def _changes_of(node: str, join: ForeignKeyJoin, batch: Batch) -> dict[bytes, _Changed]:
    """Return what the batch changes, by the key of the left row."""
    assert batch.old_values is not None
    keys = encoded(node, batch, "key", join.left.key_serde)
    decoded(node, batch, "value")
    firsts: dict[bytes | None, int] = {}
    for place, key in enumerate(keys):
        firsts.setdefault(key, place)
    # The old value of any other record is the value of the one before it.
    old = _foreign_keys(node, join, batch, batch.old_values, sorted(firsts.values()))
    new = _foreign_keys(node, join, batch, batch.values, range(len(batch)))
    # A table's updates have keys.
    return {
        key: _Changed(place, old.get(firsts[key]), new.get(place))  # type: ignore[misc]
        for place, key in enumerate(keys)
    }


def _foreign_keys(
    node: str, join: ForeignKeyJoin, batch: Batch, values: Column, places: Sequence[int]
) -> dict[int, bytes | None]:
    """Return the foreign keys of the values at these places, by place, where there are any."""
    keys, objects = decoded(node, batch, "key"), values.objects
    found: dict[int, Any] = {}

    def select(ahead: Iterator[int]) -> None:
        for place in ahead:
            if objects[place] is None:
                continue
            foreign = join.foreign_key(keys[place], objects[place])
            if foreign is not None:
                found[place] = foreign

    each(node, batch, places, select, place_of=places.__getitem__)
    rows = batch.take(list(found)).with_columns(keys=Column(objects=list(found.values())))
    return dict(
        zip(found, encoded(node, rows, "key", join.right.key_serde, taker=_TAKER), strict=True)
    )


def _registrations(
    node: str,
    join: ForeignKeyJoin,
    batch: Batch,
    rows: dict[bytes, bytes | None],
    changed: dict[bytes, _Changed],
) -> Batch:
    """Return the registrations of a batch, each end of one before what replaces it."""
    own = encoded(node, batch, "key", join.keys)
    places: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for key, (place, old, new) in changed.items():
        row, told = rows[key], own[place]
        # A table's updates have keys.
        assert told is not None
        if old is not None and old != new:
            places.append(place)
            keys.append(old)
            values.append(NONE + told)
        if new is not None and row is not None:
            places.append(place)
            keys.append(new)
            values.append(SOME + digest(row) + told)
    return batch.take(places).with_columns(
        keys=Column(raw=keys, serde=join.right.key_serde),
        values=Column(raw=values, serde=serdes.BYTES),
    )


def _alone(
    node: str,
    join: ForeignKeyJoin,
    batch: Batch,
    places: list[int],
    held: dict[bytes, bytes | None],
) -> Batch:
    """Return the results of the records at these places, which have no foreign key."""
    rows = batch.take(places)
    keys = encoded(node, rows, "key", join.left.key_serde)
    pairs = zip(keys, rows.values.objects, strict=True)
    # A table's updates have keys.
    lefts = [None if held[key] is None else value for key, value in pairs]  # type: ignore[index]
    return rows.with_columns(values=_results(node, join, rows, lefts, _nothing))


def _nothing() -> Any:
    return None


def _resolving(node: str, join: ForeignKeyJoin) -> Build:
    """Build the node that joins left rows with the answers that are for their present values."""
    read_left, read_right = join.left_values.deserialize, join.right_values.deserialize

    def build(context: NodeContext, forward: Forward) -> Push:
        look, stamp = join.left.look_in_bytes(context, join.left_values), join.left.stamp(context)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", join.left.key_serde)
            told = encoded(node, batch, "value", serdes.BYTES)
            unique = sorted({key for key in keys if key is not None})
            with processing(node, batch):
                rows: dict[bytes | None, bytes | None] = dict(
                    zip(unique, look(unique), strict=True)
                )
            digests = {key: digest(row) for key, row in rows.items() if row is not None}
            places: list[int] = []
            others: list[_Other] = []
            for place, (key, data) in enumerate(zip(keys, told, strict=True)):
                if data is None or key not in digests:
                    continue
                if digests[key] == data[1 : 1 + DIGEST_BYTES]:
                    places.append(place)
                else:
                    others.append(_Other(place, key, rows[key], data))  # type: ignore[arg-type]
            if others:
                places = sorted(places + _rewritten(node, join, batch, others, stamp))
            if not places:
                return
            lefts = [rows[keys[i]] for i in places]
            # Those places have answers.
            rights = [right_value(told[i]) for i in places]  # type: ignore[arg-type]
            taken = batch.take(places)
            # Each result has values of its own, because a joiner may change them.
            lefts_read = (None if row is None else read_left(row) for row in lefts)
            rights_read = (None if row is None else read_right(row) for row in rights)
            values = _results(node, join, taken, list(lefts_read), rights_read.__next__)
            forward(taken.with_columns(values=values), None)

        return push

    return build


class _Other(NamedTuple):
    """An answer for other bytes than the left row has: where it is, and both."""

    place: int
    key: bytes
    row: bytes
    answer: bytes


def _rewritten(
    node: str, join: ForeignKeyJoin, batch: Batch, others: list[_Other], stamp: Stamp
) -> list[int]:
    """Return the places of the answers that are for a row that was only written anew.

    Its foreign key is the one that subscribed. If the row is later than what subscribed, it has
    subscribed again, and the answer to that is under way.
    """
    known = [(one, of) for one in others if (of := subscriber(one.answer)) is not None]
    with processing(node, batch):
        times = stamp([one.key for one, _ in known], [of.time_ms for _, of in known])
        same = [pair for pair, time in zip(known, times, strict=True) if time == pair[1].time_ms]
        values = [join.left_values.deserialize(one.row) for one, _ in same]
    rows = batch.take([one.place for one, _ in same])
    found = _foreign_keys(node, join, rows, Column(objects=values), range(len(same)))
    return [
        one.place
        for i, (one, of) in enumerate(same)
        if (foreign := found.get(i)) is not None and digest(foreign) == of.foreign_key
    ]


def _results(
    node: str,
    join: ForeignKeyJoin,
    batch: Batch,
    lefts: list[Any],
    next_right: Callable[[], Any],
) -> Column:
    """Return the results of the records of a batch; NodeFailed names the one that fails."""
    keys = decoded(node, batch, "key") if join.joiner.takes_key else [None] * len(lefts)

    def join_all(ahead: Iterator[Any]) -> list[Any]:
        pairs = zip(ahead, keys, strict=True)
        return [join.joined(key, left, next_right()) for left, key in pairs]

    return Column(objects=each(node, batch, lefts, join_all))


def _keeping(node: str, kept: KeyValueSpec[Any, Any], old_values: SendOldValues) -> Build:
    """Build the node that keeps the results, and tells of a delete only where there was a row.

    A delete has the later of its own time and that of the row.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(kept.name)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", kept.key_serde)
            values = encoded(node, batch, "value", kept.value_serde)
            replaced: list[bytes | None] = []
            if old_values.enabled or None in values:
                unique = sorted({key for key in keys if key is not None})
                held: dict[bytes | None, bytes | None] = dict(
                    zip(unique, table.get_many(unique), strict=True)
                )
                times = _times_of_deletes(table.later, keys, values, batch.timestamps, held)
                places = []
                for place, (key, value) in enumerate(zip(keys, values, strict=True)):
                    if value is not None or held[key] is not None:
                        places.append(place)
                        replaced.append(held[key])
                        held[key] = value
                if not places:
                    return
                batch = batch.with_columns(timestamps=times).take(places)
                keys, values = [keys[i] for i in places], [values[i] for i in places]
            writes = dict(zip(keys, values, strict=True))
            last = list(dict(zip(keys, batch.timestamps, strict=True)).values())
            # A table's updates have keys.
            table.put_all(writes, last)  # type: ignore[arg-type]
            old = Column(raw=replaced, serde=kept.value_serde) if old_values.enabled else None
            forward(batch.with_columns(old_values=old), None)

        return push

    return build


def _times_of_deletes(
    later: Callable[[list[bytes], list[int]], list[int]],
    keys: list[bytes | None],
    values: list[bytes | None],
    times: list[int],
    held: dict[bytes | None, bytes | None],
) -> list[int]:
    """Return the times of results; those of deletes are not before the rows that they delete."""
    raised = list(times)
    places = [
        i
        for i, (key, value) in enumerate(zip(keys, values, strict=True))
        if value is None and held[key] is not None
    ]
    found = later([keys[i] for i in places], [times[i] for i in places])  # type: ignore[misc]
    for place, time in zip(places, found, strict=True):
        raised[place] = time
    return raised

"""Subscriptions of left rows to the right rows whose keys they hold: joins by a foreign key.

Both rows lie in stream tasks of their own. The task of a left row (foreign_keys.py) subscribes it
with the task of the right row, which keeps the subscription and answers with the right row, then
and whenever that changes. An answer says by a digest for which left value it is, and the left task
takes it only while the row has that value. Every subscription is answered, so the last answer that
is taken is that of both rows as they are (docs/adr/0023).

A migration, and a view with another function, give rows other bytes that nobody subscribes. So an
answer for other bytes is taken, too, if the row is not later than what subscribed and has the same
foreign key.

    registration topic    key: the foreign key; value, one of
                          0 <key>                 this left row no longer has the foreign key
                          1 <digest, 16> <key>    this left row has it, and the value of the digest
    subscription store    key: `composed.subscription`; value: <digest, 16> <time of left row, 8>
    response topic        key: that of the left row; value, one of
                          2 <of, 40>              there is no right row
                          3 <of, 40> <right value>
                          of: what the subscription store has, <digest of the foreign key, 16>

Answers that begin with 0 or 1, which an earlier version may have left in the topic, have no more of
`of` than the first digest.

A batch makes one registration per left row, one answer per subscription and, of a right row, those
of its last value only: what comes in between is stale before it arrives.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from struct import Struct
from typing import Any, Final, NamedTuple

from statestore import serdes
from statestore.model.batch import Batch, Column
from statestore.model.records import Serde
from statestore.serdes import composed
from statestore.stores.specs import KeyValueSpec
from statestore.topology.failures import encoded, processing
from statestore.topology.flows import TableFlow
from statestore.topology.joins.joiners import Joiner
from statestore.topology.nodes import Build, Forward, NodeContext, Push

ForeignKey = Callable[[Any, Any], Any]
"""From the key and the value of a left row to its foreign key, or None."""

NONE: Final = b"\x00"
SOME: Final = b"\x01"
_ANSWERED_NONE: Final = b"\x02"
_ANSWERED_SOME: Final = b"\x03"
DIGEST_BYTES: Final = 16
_TIME: Final = Struct(">q")
_SUBSCRIBER: Final = Struct(f">q{DIGEST_BYTES}s")
_BEFORE_RIGHT: Final = 1 + DIGEST_BYTES + _SUBSCRIBER.size
_ANSWERED_AT_ONCE: Final = 10_000
_SCANNED_AT_ONCE: Final = 500


def digest(data: bytes) -> bytes:
    """Return the digest of a left value or of a foreign key."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Subscriber(NamedTuple):
    """What an answer says of the left value that subscribed: its time, and its foreign key."""

    time_ms: int
    foreign_key: bytes
    """A digest."""


def subscriber(answer: bytes) -> Subscriber | None:
    """Return what an answer says of the left value that subscribed; None if it does not."""
    if answer[:1] in {NONE, SOME}:
        return None
    return Subscriber(*_SUBSCRIBER.unpack_from(answer, 1 + DIGEST_BYTES))


def right_value(answer: bytes) -> bytes | None:
    """Return the right value of an answer; None: there is no right row."""
    kind = answer[:1]
    if kind == SOME:
        return answer[1 + DIGEST_BYTES :]
    return answer[_BEFORE_RIGHT:] if kind == _ANSWERED_SOME else None


@dataclass(frozen=True)
class ForeignKeyJoin:
    """What the nodes of a join share.

    `subscriptions` has the left rows by foreign key. `left_join`: a left row without a right row
    has a result, too. `keys` and `foreign_keys` are the serdes of both keys in a subscription; the
    serdes of values are those of the bytes that are looked up.
    """

    left: TableFlow
    right: TableFlow
    foreign_key: ForeignKey
    joiner: Joiner
    subscriptions: KeyValueSpec[Any, Any]
    left_join: bool
    keys: Serde[Any]
    foreign_keys: Serde[Any]
    left_values: Serde[Any]
    right_values: Serde[Any]

    def joined(self, key: Any, left: Any, right: Any) -> Any:
        """Return the result of two values, None if there is none."""
        if left is None or (right is None and not self.left_join):
            return None
        return self.joiner.of(key)(left, right)


def subscribing(node: str, join: ForeignKeyJoin) -> Build:
    """Build the node that keeps subscriptions and answers each with the right row as it is."""

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(join.subscriptions.name)
        look = join.right.look_in_bytes(context, join.right_values)
        stamp = join.right.stamp(context)

        def push(batch: Batch) -> None:
            foreign_keys = encoded(node, batch, "key", join.right.key_serde)
            told = encoded(node, batch, "value", serdes.BYTES)
            own = encoded(node, batch, "key", join.foreign_keys)
            writes: dict[bytes, tuple[bytes | None, int]] = {}
            asked: dict[bytes, tuple[int, bytes, bytes, bytes]] = {}
            for place, (foreign, prefix, data, time) in enumerate(
                zip(foreign_keys, own, told, batch.timestamps, strict=True)
            ):
                assert foreign is not None
                assert prefix is not None
                assert data is not None
                if data[:1] == NONE:
                    row = composed.subscription_row(prefix, data[1:])
                    writes[row] = None, time
                    asked.pop(row, None)
                else:
                    key = data[1 + DIGEST_BYTES :]
                    row = composed.subscription_row(prefix, key)
                    subscribed = data[1 : 1 + DIGEST_BYTES] + _TIME.pack(time)
                    writes[row] = subscribed, time
                    asked[row] = place, foreign, subscribed, key
            table.put_all(
                {row: value for row, (value, _) in writes.items()},
                [time for _, time in writes.values()],
            )
            unique = sorted({foreign for _, foreign, _, _ in asked.values()})
            with processing(node, batch):
                rows = dict(zip(unique, look(unique), strict=True))
                times = _later(stamp, batch.timestamps, foreign_keys, rows)
            digests = {foreign: digest(foreign) for foreign in unique}
            made = _Answers(
                (
                    (place, key, subscribed + digests[foreign], rows[foreign], times[place])
                    for place, foreign, subscribed, key in asked.values()
                ),
                join,
            )
            made.hand_on(batch, forward)

        return push

    return build


def _later(
    stamp: Callable[[list[bytes], list[int]], list[int]],
    times: list[int],
    foreign_keys: list[bytes | None],
    rows: dict[bytes, bytes | None],
) -> list[int]:
    """Return the later of each time and that of the right row, where there is one."""
    there = [
        (i, foreign)
        for i, foreign in enumerate(foreign_keys)
        if foreign is not None and rows.get(foreign) is not None
    ]
    raised = list(times)
    found = stamp([foreign for _, foreign in there], [times[i] for i, _ in there])
    for (place, _), time in zip(there, found, strict=True):
        raised[place] = time
    return raised


def following(node: str, join: ForeignKeyJoin) -> Build:
    """Build the node that tells all that subscribed to a right row when it changes."""

    def build(context: NodeContext, forward: Forward) -> Push:
        table = context.table(join.subscriptions.name)
        look = join.right.look_in_bytes(context, join.right_values)

        def push(batch: Batch) -> None:
            keys = encoded(node, batch, "key", join.right.key_serde)
            own = encoded(node, batch, "key", join.foreign_keys)
            places = {key: place for place, key in enumerate(keys) if key is not None}
            prefixes = sorted(
                # A table's updates have keys.
                (composed.subscription_row(own[place], b""), key)  # type: ignore[arg-type]
                for key, place in places.items()
            )
            for part in _parts(prefixes, _SCANNED_AT_ONCE):
                with processing(node, batch):
                    rows = look([key for _, key in part])
                found = table.scan_many([(prefix, _after(prefix)) for prefix, _ in part])
                answers = (
                    (
                        places[key],
                        row[len(prefix) :],
                        subscribed + foreign,
                        value,
                        max(
                            batch.timestamps[places[key]],
                            _TIME.unpack_from(subscribed, DIGEST_BYTES)[0],
                        ),
                    )
                    for (prefix, key), value, pairs in zip(part, rows, found, strict=True)
                    for foreign in (digest(key),)
                    for row, subscribed in pairs
                    if row.startswith(prefix)
                )
                _Answers(answers, join).hand_on(batch, forward)

        return push

    return build


@dataclass(frozen=True)
class _Answers:
    """Answers to left rows: place in the batch, key, what they are of, right value and time."""

    rows: Iterable[tuple[int, bytes, bytes, bytes | None, int]]
    join: ForeignKeyJoin

    def hand_on(self, batch: Batch, forward: Forward) -> None:
        """Hand them on, some at a time: a right row may have very many left ones."""
        for part in _parts(self.rows, _ANSWERED_AT_ONCE):
            values: list[bytes | None] = [
                _ANSWERED_NONE + of if value is None else _ANSWERED_SOME + of + value
                for _, _, of, value, _ in part
            ]
            made = batch.take([place for place, *_ in part]).with_columns(
                keys=Column(raw=[key for _, key, *_ in part], serde=self.join.keys),
                values=Column(raw=values, serde=serdes.BYTES),
                timestamps=[time for *_, time in part],
            )
            forward(made, None)


def _parts(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part


def _after(prefix: bytes) -> bytes:
    """Return the first bytes after all that begin with the prefix, whose first byte is small."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])

"""Where the offset of a group is in a mirror of the topic: exactly there, or it is refused.

In the table, a letter is a record; two equal letters are equal records, of one time. `|` is the
offset of the group, `~` an offset without a record, and `<` the start of a log that had more.
"""

import struct
from typing import Any

import pytest

from statestore.errors import StateStoreError
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.exports.marks import RECORDS, mark_of
from statestore.operations.moves.offset_syncs import read_syncs
from statestore.operations.moves.translation import Mirror
from statestore.ports import Bounds, TopicSpec
from statestore.runtime import Runtime
from statestore.testing.memory_broker import MemoryBroker

THERE, HERE = TopicPartition("in", 0), TopicPartition("source.in", 0)
SYNCS = "mm2-offset-syncs.here.internal"
APPLICATION = "shop"

# The source, its mirror, offset syncs (source>copy), and the mirror with `|` where it goes on, or
# a part of the refusal.
CASES = """
abcd|ef        abcdef          -        abcd|ef
abcd|ef        ~~abcdef        -        ~~abcd|ef
a~b~cd~|ef     abcdef          -        abcd|ef
abcd|          abcd            -        abcd|
abcd|          abcde           -        abcd|e
|abc           abc             -        |abc
|              -               -        |
~~|abc         xabc            -        |xabc
<~~~|abc       xabc            -        records before offset 3 of in-0 were gone
<~~~|abc       -               -        |
<~~cd|ef       abcdef          -        abcd|ef
<~~cd|ef       <~~~~cdef       -        <~~~~cd|ef
abcd|ef        <~~cdef         -        <~~cd|ef
abcd|ef        <~~~def         -        <~~~d|ef
abcd|ef        abc             -        is not in source.in-0
abcd|ef        -               -        is not in source.in-0
abcd|ef        <~~~~ef         -        is not in source.in-0
aaa|a          aaaa            -        2 times
baaa|a         baaaa           -        baaa|a
aaaa|a         aaaaa           -        2 times
xyaa|aa        xyaaaa          -        xyaa|aa
abcd|ef        abcdcdef        -        abcd|cdef
abcd|ef        abcdabcdef      -        2 times
abcd|ef        axbdef          -        leaves records out
abcd|ef        xd              -        leaves records out
aaaa|a         aaaaa           4>4      aaaa|a
aaaa|a         aaaaa           3>3      aaaa|a
aaaa|a         aaaaa           2>2      2 times
aaa~|a         <~aaaa          2>3      <~aaa|a
aaa~|a         <~aaaa          3>3      2 times
<~~~|abc       xabc            3>1      x|abc
abcd|ef        abcdef          3>4      it is another one
abcd|ef        abcdef          4>9      they are of another topic
abcd|ef        abcdef          3>3;0>9  abcd|ef
"""


def logged(broker: MemoryBroker, tp: TopicPartition, text: str) -> None:
    """A log with these records, at these offsets."""
    broker.cluster(APPLICATION).create([TopicSpec(tp.topic, 1, {})])
    for letter in text.replace("|", "").replace("<", "").strip("-"):
        hole = letter == "~"
        time_ms = 0 if hole else ord(letter)
        data = None if letter in "x~" else letter.encode()
        offset = broker.produce(tp, Record(letter.encode(), data, time_ms))
        if hole:
            log = broker.state.log(tp)
            log.entries = [entry for entry in log.entries if entry.offset != offset]
    if text.startswith("<"):
        broker.cluster(APPLICATION).delete_before({tp: len(text) - len(text[1:].lstrip("~")) - 1})


def runtime_of(broker: MemoryBroker) -> Runtime:
    settings = {"application.id": APPLICATION, "bootstrap.servers": "memory", "state.dir": "unused"}
    return Runtime(settings, brokers=broker.clients)


def sync(broker: MemoryBroker, there: int, here: int, **other: bytes) -> None:
    key = struct.pack(">h", 2) + b"in" + struct.pack(">i", 0)
    row = {"key": key, "value": struct.pack(">qq", there, here), **other}
    broker.produce(TopicPartition(SYNCS, 0), Record(row["key"], row["value"], 0))


@pytest.mark.parametrize("line", CASES.strip().splitlines())
def test_the_offset_is_found_exactly_or_refused(line: str) -> None:
    source, copy, syncs, *words = line.split()
    wanted, broker = " ".join(words), MemoryBroker()
    logged(broker, THERE, source)
    logged(broker, HERE, copy)
    broker.cluster(APPLICATION).create([TopicSpec(SYNCS, 1, {})])
    for pair in syncs.strip("-").split(";") if syncs != "-" else ():
        sync(broker, *map(int, pair.split(">")))
    runtime = runtime_of(broker)
    group = source.replace("<", "").index("|")
    bounds = Bounds(broker.changelog().bounds([THERE])[THERE].start, group)
    mark = mark_of(runtime.changelog, THERE, bounds)
    known = read_syncs(runtime, SYNCS)
    if "|" in wanted:
        place = Mirror(runtime, known).place(mark, group, HERE)
        assert place.offset == wanted.replace("<", "").index("|")
    else:
        with pytest.raises(StateStoreError, match=wanted):
            Mirror(runtime, known).place(mark, group, HERE)


def test_a_mark_has_the_last_records_of_a_long_log_whatever_the_gaps() -> None:
    broker = MemoryBroker()
    logged(broker, THERE, "ab" + "~" * 5 * RECORDS + "c" * RECORDS + "~" * 300 + "|")
    broker.state.log(THERE).start = 1
    offset = 2 + 6 * RECORDS + 300
    mark = mark_of(broker.changelog(), THERE, Bounds(1, offset))
    assert (len(mark.digests), mark.whole) == (RECORDS, False)
    assert mark.offset_last == 2 + 6 * RECORDS - 1
    assert mark_of(broker.changelog(), THERE, Bounds(1, 2)).digests[-1] != mark.digests[-1]


def test_the_copy_of_a_compacted_topic_may_lack_what_came_before_the_last_record() -> None:
    broker = MemoryBroker()
    logged(broker, THERE, "abad|e")
    broker.cluster(APPLICATION).create([TopicSpec(HERE.topic, 1, {"cleanup.policy": "compact"})])
    for letter in "bade":
        broker.produce(HERE, Record(letter.encode(), letter.encode(), ord(letter)))
    mark = mark_of(broker.changelog(), THERE, Bounds(0, 4))
    assert Mirror(runtime_of(broker), {}).place(mark, 4, HERE).offset == 3


@pytest.mark.parametrize(
    "wrong", [{"key": b"in"}, {"value": b"1"}, {"key": b"\0\x02\xff\xff\0\0\0\0"}]
)
def test_a_topic_that_has_no_offset_syncs_is_refused(wrong: dict[str, Any]) -> None:
    broker = MemoryBroker()
    broker.cluster(APPLICATION).create([TopicSpec(SYNCS, 1, {})])
    sync(broker, 1, 1, **wrong)
    with pytest.raises(StateStoreError, match="no offset sync of MirrorMaker"):
        read_syncs(runtime_of(broker), SYNCS)
    with pytest.raises(StateStoreError, match=r"offset-syncs\.topic\.location"):
        read_syncs(runtime_of(broker), "other")

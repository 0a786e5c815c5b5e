"""What others write into the topics of an application: records, stamps of commits and time marks.

A changelog with records that nobody of ours wrote is restored, or its store is refused by an error
of the library's own; so is a committed offset with other metadata, and a mark of an internal topic.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

import statestore as ss
from statestore.errors import StateStoreError
from statestore.model import time_marks
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.model.time_marks import TimeMark
from statestore.ports import GroupOffset
from statestore.tasks.commit import (
    CommitStamp,
    channels_in,
    check_metadata,
    partition_times_in,
    topic_digest,
)
from statestore.tasks.plan import Tally
from statestore.tasks.watermarks import Channels, Watermarks
from tests.contract import test_changelog_without_keys as stores
from tests.contract.task_rig import TaskRig
from tests.mangling import OTHERS, foreseen, mangled

SEED = int(os.environ.get("BAD_INPUT_SEED", "31"))
IN = TopicPartition("in", 0)
MOST = 100_000
"""What brokers take of a record, and more than enough."""
COUNTS = [1, pytest.param(40, marks=pytest.mark.thorough)]


def junk(chance: random.Random, real: list[Record[bytes | None, bytes | None]]) -> Any:
    """A record like one of those that are there, or like none."""
    like = chance.choice(real)
    key, value = like.key or b"", like.value or b""
    any_bytes = chance.randbytes(chance.choice((0, 1, 7, 8, 9, 16, 17, 300)))
    return Record(
        chance.choice((None, b"", any_bytes, mangled(chance, key)[:MOST], key[:-1], key + b"\xff")),
        chance.choice((None, b"", any_bytes, mangled(chance, value)[:MOST], value)),
        chance.choice((0, 1, -1, like.timestamp_ms, 2**53, 2**62)),
        headers=chance.choice(((), (("h", b"\xff"),), (("", None),))),
    )


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    "build",
    [
        *(stores.key_value, stores.in_memory, stores.versioned, stores.windowed),
        stores.in_sessions,
    ],
)
def test_a_changelog_with_records_of_others_is_restored_or_refused(
    build: Callable[[], ss.Topology], count: int, tmp_path: Path
) -> None:
    for number in range(count):
        chance = random.Random(f"{SEED} {build.__name__} {number}")
        rig = TaskRig(build(), tmp_path / str(number))
        task = rig.start()
        rig.send("in", [(f"k{i}", "1") for i in range(5)])
        task.step(0)
        task.step_commit()
        real = list(rig.broker.records(stores.LOG.topic))
        assert real
        bad = [junk(chance, real) for _ in range(8)]
        for record in bad:
            rig.broker.produce(stores.LOG, record)
        rig.end()
        rig.root = tmp_path / f"{number} new volume"
        with foreseen(f"seed {SEED}, number {number}: {bad!r}"):
            try:
                rig.start()
                rig.send("in", [("k1", "2"), ("k9", "1")])
                rig.running[-1].step(0)
                rig.running[-1].step_commit()
            finally:
                for running in rig.running:
                    running.abandon()
                rig.running.clear()


def stamp(chance: random.Random) -> CommitStamp:
    """One with about everything in it."""
    channels = Channels(3)
    for channel in range(chance.randrange(4)):
        mark = TimeMark(channel, chance.choice((None, 5, 2**62)), 7, "run", idle=channel == 1)
        channels.take(mark)
    return CommitStamp(
        chance.choice((1, 7, 2**63 - 1)),
        chance.choice((None, -1, 5, 2**62)),
        Tally(serving="run-1-0_0", commits=3, records_in=5, left_out={"dropped/late/x": 1}),
        {topic_digest("in"): 5},
        9,
        {topic_digest("in"): channels.stamp(1000)},
        {topic_digest("out"): 4},
    )


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_a_stamp_of_a_commit_is_read_or_is_anothers(count: int) -> None:
    taken = 0
    for number in range(count):
        chance = random.Random(f"{SEED} stamp {number}")
        text = mangled(chance, stamp(chance).text().encode()).decode(errors="surrogateescape")
        committed = {IN: GroupOffset(5, text)}
        with foreseen(f"seed {SEED}, number {number}: {text[:300]!r}"):
            CommitStamp.number_in(text)
            check_metadata(committed)
            found = CommitStamp.latest(committed)
            partition_times_in(committed)
            watermarks = Watermarks({"in": 3}, channels_in(committed))
            watermarks.bound_of(["in"])
            watermarks.limit_ms(found.stream_time_ms)
            if found.number < 2**63 - 1:
                after = structs.replace(found, number=found.number + 1)
                assert CommitStamp.number_in(after.text()) == found.number + 1
            taken += 1
    assert 0 < taken < count


@pytest.mark.parametrize("text", ["[" * 4000, '{"x":' * 800, '{"number":1,"x":' + "[" * 4000])
def test_a_stamp_that_is_nested_without_end_is_anothers(text: str) -> None:
    with pytest.raises(StateStoreError, match="did not write"):
        check_metadata({IN: GroupOffset(5, text)})


@pytest.mark.parametrize(
    "channels",
    [
        [0, "~", "run", 1, -1],
        [0, "\\", "run", 1, 1],
        [0, "~", "run", -1, 1],
        [1 << 63, "~", "run", 1, 1],
    ],
)
def test_channels_that_no_commit_wrote_are_anothers(channels: list[object]) -> None:
    told = {"number": 1, "stream_time_ms": 5, "channels": {topic_digest("in"): channels}}
    with pytest.raises(StateStoreError, match="did not write"):
        check_metadata({IN: GroupOffset(5, json.dumps(told))})


def test_the_furthest_time_that_a_stamp_can_say_is_no_bound() -> None:
    kept = CommitStamp.read(
        GroupOffset(
            5,
            json.dumps(
                {
                    "number": 1,
                    "stream_time_ms": 5,
                    "channels": {topic_digest("in"): [(1 << 63) - 1, "y" * 3, "", 3, 1]},
                }
            ),
        )
    )
    assert kept is not None
    watermarks = Watermarks({"in": 3}, {"in": kept.channels[topic_digest("in")]})
    assert watermarks.bound_of(["in"]) == (1 << 63) - 1


@pytest.mark.parametrize("count", [200, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_a_time_mark_is_read_or_fails_its_record(count: int) -> None:
    real = time_marks.key_of(TimeMark(1, 5, 7, "run"))
    begins = real[:16]
    for number in range(count):
        chance = random.Random(f"{SEED} mark {number}")
        fields = [chance.choice(OTHERS) for _ in range(chance.choice((3, 4, 5, 6)))]
        if any(type(one) is int and abs(one) >= 2**63 for one in fields):
            continue
        key = chance.choice(
            (
                begins + msgspec.msgpack.encode(fields),
                mangled(chance, real),
                begins + b"\x91" * 5000,
            )
        )
        if not time_marks.is_mark(key):
            continue
        with foreseen(f"seed {SEED}, number {number}: {key[:300]!r}"):
            watermarks = Watermarks({"in": 3}, {})
            watermarks.take("in", time_marks.read(key, "in-0"))
            watermarks.bound_of(["in"])


@pytest.mark.parametrize("fields", [[-1, 5, 7, "run"], [0, 1 << 63, 7, "run"]])
def test_a_mark_of_no_task_or_of_no_time_is_refused(fields: list[object]) -> None:
    key = time_marks.key_of(TimeMark(1, 5, 7, "run"))[:16] + msgspec.msgpack.encode(fields)
    with pytest.raises(StateStoreError, match="cannot be read"):
        time_marks.read(key, "in-0")

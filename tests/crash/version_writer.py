"""A process that opens a versioned store, says what it found, and commits until it is killed.

`python -m tests.crash.version_writer FOLDER SEED COMMITS [key=value …]`

Commit n is a pure function of (seed, n): versions of some keys, half of them out of order, some too
late; stream time moves on, so that segments expire all the time. What commit n must have left is
worked out from all writes up to n. JSON lines on stdout, as of `store_writer`.
"""

import random
from pathlib import Path

from statestore.model.ids import Position
from statestore.runtime.public import open_store
from statestore.stores.specs import persistent_versioned_key_value_store
from statestore.stores.versioned.store import TransactionalVersionedStore
from tests.crash.store_writer import DOUBLE, LOG, from_command_line, position, say

Store = TransactionalVersionedStore[bytes, bytes]
Triple = tuple[bytes, bytes | None, int]
KEYS = [b"k%d" % i for i in range(12)]
STEP_MS, RETENTION_MS, SEGMENT_MS = 40, 1000, 150


def writes(seed: int, number: int) -> list[Triple]:
    """The versions of commit `number`, in the order of their puts."""
    chance = random.Random(f"{seed} {number}")
    now = number * STEP_MS
    return [
        (
            chance.choice(KEYS),
            None if chance.random() < 0.2 else b"%d:" % number + chance.randbytes(8),
            now + chance.randrange(-RETENTION_MS - 2 * STEP_MS, STEP_MS)
            if chance.random() < 0.5
            else now,
        )
        for _ in range(25)
    ]


def expected(seed: int, number: int) -> tuple[dict[bytes, list[tuple[object, ...]]], int | None]:
    """The visible history of each key after commit `number`, latest first, and the stream time."""
    now: int | None = None
    versions: dict[bytes, dict[int, bytes | None]] = {key: {} for key in KEYS}
    for commit in range(1, number + 1):
        for key, value, time in writes(seed, commit):
            if now is None or time >= now - RETENTION_MS:
                now = time if now is None else max(now, time)
                versions[key][time] = value
    shown: dict[bytes, list[tuple[object, ...]]] = {}
    for key, times in versions.items():
        begins = sorted(times)
        ends = [*begins[1:], None]
        shown[key] = [
            (times[begin], begin, end)
            for begin, end in reversed(list(zip(begins, ends, strict=False)))
            if times[begin] is not None and (end is None or end > (now or 0) - RETENTION_MS)
        ]
    return shown, now


def problems(store: Store, seed: int, number: int) -> list[str]:
    """What is not as commit `number` left it."""
    shown, now = expected(seed, number)
    found = [
        f"torn: {key!r} has {len(list(store.history(key)))} versions, not commit {number}'s"
        for key in KEYS
        if list(store.history(key)) != shown[key]
    ]
    if store.observed_stream_time() != now:
        found.append(f"torn: stream time {store.observed_stream_time()}, not {now}")
    if store.committed_offset(DOUBLE) != (2 * number or None):
        found.append(f"torn: offsets {number} and {store.committed_offset(DOUBLE)} / 2")
    if store.position() != position(number):
        found.append(f"torn: position {store.position().as_dict()}")
    return found


def commit(store: Store, seed: int, number: int) -> None:
    """Commit `number`, with writes around it that must never be seen, nor move stream time."""
    store.put_all([(key, b"never", 10**12) for key in KEYS])
    store.rollback()
    if number % 2:
        store.put_all(writes(seed, number))
    else:
        for triple in writes(seed, number):
            store.put(*triple)
    store.commit({LOG: number, DOUBLE: 2 * number}, position=Position.of({"in": {0: number}}))
    store.put(KEYS[0], b"never", 10**12)


def main(folder: Path, seed: int, commits: int, settings: dict[str, str]) -> None:
    """Check, commit so many times, close."""
    spec = persistent_versioned_key_value_store("rates", RETENTION_MS, SEGMENT_MS)
    with open_store(spec, folder, settings=settings) as store:
        found = store.committed_offset(LOG) or 0
        say(found=found, problems=problems(store, seed, found))
        for number in range(found + 1, found + commits + 1):
            commit(store, seed, number)
            say(commit=number, durable=store.durable_offset(LOG) or 0)
            store.rollback()
    say(closed=True)


if __name__ == "__main__":
    from_command_line(main)

"""A process that opens a store, says what it found, and goes on committing until somebody kills it.

`python -m tests.crash.store_writer FOLDER SEED COMMITS [key=value …]`

Commit n is a pure function of (seed, n): it rewrites the n-th group of keys, in turn, so that the
last GROUPS commits say what the whole store must hold. Offsets and position are n. JSON lines on
stdout: first what was found, then commit and durable offset, commit by commit.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from statestore.faults import arm_from_environment
from statestore.model.ids import Position, TopicPartition
from statestore.runtime.public import open_store
from statestore.stores.keyvalue import TransactionalKeyValueStore
from statestore.stores.specs import persistent_key_value_store

Store = TransactionalKeyValueStore[bytes, bytes]
LOG = TopicPartition("shop-prices-changelog", 0)
DOUBLE = TopicPartition("shop-prices-changelog", 1)
GROUPS = 40
KEYS = 30


def writes(seed: int, number: int) -> dict[bytes, bytes | None]:
    """All keys of the group, put or deleted."""
    chance = random.Random(f"{seed} {number}")
    group = number % GROUPS
    return {
        b"%02d-%02d" % (group, key): b"%d:" % number + chance.randbytes(chance.randrange(100))
        if chance.random() < 0.7
        else None
        for key in range(KEYS)
    }


def state(seed: int, number: int) -> dict[bytes, bytes]:
    """What the store holds after commit `number`."""
    rows: dict[bytes, bytes | None] = {}
    for commit in range(max(1, number - GROUPS + 1), number + 1):
        rows.update(writes(seed, commit))
    return {key: value for key, value in rows.items() if value is not None}


def position(number: int) -> Position:
    return Position.of({"in": {0: number}}) if number else Position()


def problems(store: Store, seed: int, number: int) -> list[str]:
    """What is not as commit `number` left it."""
    found = []
    expected, rows = state(seed, number), dict(store.all())
    if rows != expected:
        differ = {k for k in rows.keys() | expected.keys() if rows.get(k) != expected.get(k)}
        numbers = sorted({rows.get(key, b"none:").partition(b":")[0].decode() for key in differ})
        found.append(f"torn: {len(differ)} rows are not commit {number}'s but of {numbers}")
    if store.get_many(sorted(expected)) != [expected[key] for key in sorted(expected)]:
        found.append("get_many finds other rows")
    if store.committed_offset(DOUBLE) != (2 * number or None):
        found.append(f"torn: offsets {number} and {store.committed_offset(DOUBLE)} / 2")
    if store.position() != position(number):
        found.append(f"torn: position {store.position().as_dict()}")
    return found


def commit(store: Store, seed: int, number: int) -> None:
    """Commit `number`, with writes around it that must never be seen."""
    rows = writes(seed, number)
    if number % 3 == 0:
        store.put_all((key, b"never:") for key in rows)
        store.rollback()
    store.put_all(rows.items())
    store.commit({LOG: number, DOUBLE: 2 * number}, position=position(number))
    store.put_all((b"%02d-00" % group, b"never:") for group in range(GROUPS))
    store.discard(b"%02d-01" % (number % GROUPS))


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main(folder: Path, seed: int, commits: int, settings: dict[str, str]) -> None:
    """Check, commit so many times, close; with `maintain=true` idle until all is durable."""
    idle = settings.pop("maintain", None) == "true"
    store = open_store(persistent_key_value_store("prices"), folder, settings=settings)
    found = store.committed_offset(LOG) or 0
    say(found=found, problems=problems(store, seed, found))
    for number in range(found + 1, found + commits + 1):
        commit(store, seed, number)
        say(commit=number, durable=store.durable_offset(LOG) or 0)
        store.rollback()
    while idle and (store.durable_offset(LOG) or 0) < found + commits:
        store.staged.maintain()
    if idle:
        say(commit=found + commits, durable=store.durable_offset(LOG) or 0)
        sys.stdin.readline()
    store.close()
    say(closed=True)


def from_command_line(main: Callable[[Path, int, int, dict[str, str]], None]) -> None:
    """Call `main` with what stands on the command line."""
    arm_from_environment()
    folder, seed, commits, *settings = sys.argv[1:]
    main(Path(folder), int(seed), int(commits), dict(pair.split("=", 1) for pair in settings))


if __name__ == "__main__":
    from_command_line(main)

# ruff: noqa: T201 - what each kill met is part of the result
"""SIGKILL of runs of a pipeline of most operators: outputs, folds and stores against an oracle."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import statestore as ss
from statestore import serdes
from statestore.faults import CrashPoint
from statestore.serdes import composed
from statestore.stores.specs import SessionRows, WindowRows
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.crash.kill_harness import PARTITIONS, Rig
from tests.crash.operators_pipeline import (
    BURST,
    GROUPS,
    LATE_EVERY,
    LATE_RESTS,
    LATELY_MS,
    LIMIT_MS,
    MOST_HELD,
    USERS,
)

pytestmark = pytest.mark.kafka
POINTS = (
    CrashPoint.START_OFFSETS_KNOWN,
    CrashPoint.RESTORE_DONE,
    CrashPoint.COMMIT_RECORDS_SENT,
    CrashPoint.COMMIT_OFFSETS_SENT,
    CrashPoint.COMMIT_LOG_DONE,
    CrashPoint.COMMIT_STORE_WRITTEN,
    CrashPoint.STORE_FLUSH,
)
START_MS = 1_700_000_000_000
OUTPUTS = (
    "passed",
    "closed",
    "hops",
    "final",
    "fewer",
    "slides",
    "lasts",
    "sessions",
    "joined",
    "windows",
    "rich",
    "either",
    "groups",
    "peers",
    "both",
    "timed",
    "met",
    "turns",
    "again",
    "known",
)
SUBSCRIPTIONS = "peers-subscription-store"
RAW_STORES = (
    "met-this-join-store",
    "met-other-join-store",
    "met-shared-join-store",
    SUBSCRIPTIONS,
    "final-store",
    "fewer-store",
    "lasts-windows",
)
"""Compared as bytes with their changelogs."""
STORES = (
    "users",
    "counted",
    "closing",
    "hops",
    "sessions",
    "windows",
    "totals",
    "groups",
    "peers",
    "both",
    "seen",
    "by-hand",
    "turns",
    "lately",
)
OTHERS, NEAR_MS = 7, 5
"""Every how many numbers there is one in the other stream, and how near those that meet are."""
CLOSING_MS, OPEN_MS = 1000, 4000
HOP_MS, HOPPING_MS = 400, 1000


@dataclass
class OperatorsRig(Rig):
    """The pipeline's topics, and what must be in each."""

    pipeline: str = "tests.crash.operators_pipeline:topology"

    def create_topics(self) -> None:
        for name in ("in", "others", "users", *OUTPUTS):
            self.kafka.create_topic(
                f"{self.topic_prefix}-{name}",
                partitions=PARTITIONS,
                config={"retention.ms": "-1"},
            )
        producer = self._producer()
        for user in range(USERS):
            producer.produce(
                f"{self.topic_prefix}-users",
                key=f"user-{user}",
                value=json.dumps({"n": user}),
                timestamp=START_MS - 1,
            )
        assert producer.flush(DEADLINE_S) == 0

    def produce(self, count: int) -> None:
        producer = self._producer()
        for number in range(self.produced, self.produced + count):
            producer.produce(
                f"{self.topic_prefix}-in",
                key=f"k{number % 5}",
                value=str(number),
                timestamp=START_MS + number,
            )
            if number % OTHERS == 0:
                producer.produce(
                    f"{self.topic_prefix}-others",
                    key=f"k{number % 5}",
                    value=str(number),
                    timestamp=START_MS + number,
                )
        assert producer.flush(DEADLINE_S) == 0
        self.produced += count

    def written(self) -> list[str]:
        outputs = [f"{self.topic_prefix}-{name}" for name in OUTPUTS]
        stores = (*STORES, *RAW_STORES)
        logs = [f"{self.application_id}-{store}-changelog" for store in stores]
        topics = [f"{self.application_id}-{name}-repartition" for name in ("joined", "by-rest")]
        asked = [
            f"{self.application_id}-peers-subscription-{name}-repartition"
            for name in ("registration", "response")
        ]
        return [*outputs, *logs, *topics, *asked]

    def findings(self) -> list[str]:
        """Every duplicate, loss and disagreement."""
        totals = Counter(f"user-{number % USERS}" for number in range(self.produced))
        windows = Counter(
            (f"user-{number % USERS}", (START_MS + number) // OPEN_MS * OPEN_MS)
            for number in range(self.produced)
        )
        hops = Counter(
            (f"k{number % 5}", start)
            for number in range(self.produced)
            for start in _hops(START_MS + number)
        )
        turns = Counter(f"k{number % 5}" for number in range(self.produced))
        told, kept = self._sessions()
        closing, closed = self._closing()
        wanted: dict[str, Any] = {
            "passed": Counter(n for n in range(self.produced) if n % 3),
            "joined": Counter(range(self.produced)),
            "known": Counter((n, n % USERS) for n in range(self.produced)),
            "closed": Counter(closed.items()),
            "windows": {w: list(range(1, n + 1)) for w, n in windows.items()},
            "hops": {w: list(range(1, n + 1)) for w, n in hops.items()},
            "final": self._final(hops),
            "fewer": self._fewer(),
            "slides": self._slides(),
            "lasts": self._lasts(),
            "store counted": dict(Counter(f"k{number % 5}" for number in range(self.produced))),
            "rich": {user: _evens(n) for user, n in totals.items() if n > 1},
            "either": {user: [None, *range(1, n + 1)] for user, n in totals.items()},
            "groups": Counter(
                str(total % GROUPS)
                for n in totals.values()
                for total in [*range(1, n + 1), *range(1, n)]
            ),
            "store groups": {str(rest): 0 for rest in range(GROUPS)}
            | Counter(str(n % GROUPS) for n in totals.values()),
            "store totals": dict(totals),
            "store windows": dict(windows),
            "store closing": closing,
            "store hops": dict(hops),
            "turns": {key: list(range(1, n + 1)) for key, n in turns.items()},
            "partitions of turns": {(key, int(key[1:]) % PARTITIONS) for key in turns},
            "store turns": dict(turns),
            "sessions": told,
            "store sessions": kept,
            "store by-hand": kept,
            "store seen": {(f"k{n % 5}", START_MS + n): n for n in range(self.produced)},
        }
        wanted |= self._by_key()
        sizes = wanted["store groups"]
        wanted["store peers"] = {user: [n, sizes[str(n % GROUPS)]] for user, n in totals.items()}
        wanted["peers"] = wanted["store peers"]
        wanted["peers that went back"] = []
        wanted["subscriptions"] = Counter((str(n % GROUPS), user) for user, n in totals.items())
        wanted["met"] = self._met()
        wanted["again"], lately = self._again()
        wanted["store lately"] = self._as_logged("lately")
        wanted["lately as shown"] = lately
        wanted |= {f"store {store}": self._fold(store) for store in RAW_STORES}
        wanted |= {f"fold of {store}": wanted[f"store {store}"] for store in STORES[1:]}
        found = self._found()
        unlike = [what for what in wanted if found[what] != wanted[what]]
        return [
            _counted(what, found[what], wanted[what])
            if isinstance(wanted[what], Counter)
            else f"{what}: {_unlike(found[what], wanted[what])}"
            for what in unlike
        ]

    def _found(self) -> dict[str, Any]:
        rows = {name: self.read(f"{self.topic_prefix}-{name}") for name in OUTPUTS}
        found: dict[str, Any] = {
            "passed": Counter(json.loads(value or b"") for _, _, value in rows["passed"]),
            "joined": Counter(json.loads(value or b"")[0] for _, _, value in rows["joined"]),
            "known": Counter(tuple(json.loads(value or b"")) for _, _, value in rows["known"]),
            "met": Counter(tuple(json.loads(value or b"")) for _, _, value in rows["met"]),
            "groups": Counter((key or b"").decode() for _, key, _ in rows["groups"]),
            "again": Counter(tuple(json.loads(value or b"")) for _, _, value in rows["again"]),
            "lately as shown": self._shown("lately"),
            "both": Counter((key or b"").decode() for _, key, _ in rows["both"]),
            "timed": _sequences(((key or b"").decode(), _int(v)) for _, key, v in rows["timed"]),
            "history of timed": self._histories("timed"),
            "history of evens": self._histories("evens"),
            "closed": Counter((_window(key), _int(value)) for _, key, value in rows["closed"]),
            "windows": _sequences((_window(key), _int(value)) for _, key, value in rows["windows"]),
            "sessions": _sequences(
                (_session(key), value and _int(value)) for _, key, value in rows["sessions"]
            ),
            "hops": _sequences((_window(key), _int(value)) for _, key, value in rows["hops"]),
            "partitions of turns": {
                ((key or b"").decode(), partition) for partition, key, _ in rows["turns"]
            },
            "turns": _sequences(
                ((key or b"").decode(), _int(value)) for _, key, value in rows["turns"]
            ),
            "slides": _sequences((_window(key), _int(value)) for _, key, value in rows["slides"]),
            "lasts": _sequences(
                ((key or b"").decode(), tuple(json.loads(value or b"")))
                for _, key, value in rows["lasts"]
            ),
            "final": Counter((_window(key), _int(value)) for _, key, value in rows["final"]),
            "fewer": _sequences(
                ((key or b"").decode(), _int(value)) for _, key, value in rows["fewer"]
            ),
        }
        for name in ("rich", "either"):
            found[name] = _sequences(
                ((key or b"").decode(), value and json.loads(value)) for _, key, value in rows[name]
            )
        for store in RAW_STORES:
            found[f"store {store}"] = self._raw_rows(store)
        read_subscription = composed.subscription(serdes.STRING, serdes.STRING).deserialize
        found["subscriptions"] = Counter(map(read_subscription, found[f"store {SUBSCRIPTIONS}"]))
        found["peers"] = {}
        found["peers that went back"] = []
        for _, key, value in rows["peers"]:
            user, result = (key or b"").decode(), value and json.loads(value)
            # Results are of totals as they were, one after another.
            if result and found["peers"].get(user, result)[0] > result[0]:
                found["peers that went back"].append((user, result))
            found["peers"][user] = result or found["peers"][user]
        for store in STORES[1:]:
            read_key = bytes.decode if store in BY_KEY else _KEYS.get(store, _window)
            found[f"fold of {store}"] = {
                read_key(key): BY_KEY.get(store, _int)(value)
                for key, value in self._fold(store).items()
            }
            found[f"store {store}"] = self._rows(store)
        return found

    def _final(self, hops: Counter[tuple[str, int]]) -> Counter[tuple[tuple[str, int], int]]:
        """The last count of each window that its own partition has closed."""
        last: dict[int, int] = {}
        where: dict[str, int] = {}
        for partition, key, value in self.read(f"{self.topic_prefix}-in"):
            where[(key or b"").decode()] = partition
            last[partition] = max(START_MS + int(value or b""), last.get(partition, 0))
        return Counter(
            {(w, n): 1 for w, n in hops.items() if w[1] + HOPPING_MS <= last[where[w[0]]]}
        )

    def _slides(self) -> dict[tuple[str, int], list[int]]:
        """What is told of the windows that end with each number, and of those that begin after it.

        The latter have the next two numbers of the key.
        """
        told = {}
        for number in range(self.produced):
            key, time = f"k{number % 5}", START_MS + number
            told[key, time - 12] = [min(number // 5 + 1, 3)]
            after = sum(number + 5 * n < self.produced for n in (1, 2))
            if after:
                told[key, time + 1] = list(range(1, after + 1))
        return told

    def _lasts(self) -> dict[str, list[tuple[int, ...]]]:
        """Four numbers of a key each, from every other one on, as far as there are four."""
        numbers = {f"k{rest}": list(range(rest, self.produced, 5)) for rest in range(5)}
        return {
            key: [tuple(of[at : at + 4]) for at in range(0, len(of) - 3, 2)]
            for key, of in numbers.items()
        }

    def _fewer(self) -> dict[str, list[int]]:
        """What goes out of counts of which each waits for so long, and so many at most."""
        counts: Counter[str] = Counter()
        told: dict[str, list[int]] = defaultdict(list)
        waiting: dict[int, dict[str, int]] = defaultdict(dict)
        for partition, key, value in self.read(f"{self.topic_prefix}-in"):
            name, now, held = (key or b"").decode(), int(value or b""), waiting[partition]
            counts[name] += 1
            held.setdefault(name, now)
            for due in sorted(held, key=lambda one: (held[one], one)):
                if held[due] + LIMIT_MS <= now or len(held) > MOST_HELD:
                    del held[due]
                    told[due].append(counts[due])
        return dict(told)

    def _met(self) -> Counter[tuple[int, int | None]]:
        """Each with the others near it, or once with none, where that window has closed."""
        last: dict[int, int] = {}
        numbers: list[tuple[int, int]] = []
        for name in ("in", "others"):
            for partition, _, value in self.read(f"{self.topic_prefix}-{name}"):
                number = int(value or b"")
                last[partition] = max(number, last.get(partition, 0))
                if name == "in":
                    numbers.append((partition, number))
        met: Counter[tuple[int, int | None]] = Counter()
        for partition, number in numbers:
            near = range(max(number - NEAR_MS, 0), min(number + NEAR_MS, self.produced - 1) + 1)
            others = [n for n in near if n % OTHERS == 0 and n % 5 == number % 5]
            met.update((number, other) for other in others)
            if not others and number + NEAR_MS < last[partition]:
                met[number, None] += 1
        return met

    def _again(self) -> tuple[Counter[tuple[int, int]], dict[str, int]]:
        """Each with the last of its rest that had not expired, and what has not at the end."""
        last: dict[int, int] = {}
        kept: dict[str, tuple[int, int]] = {}
        again: Counter[tuple[int, int]] = Counter()
        partition_of = {
            key: partition for partition, key, _ in self.read(f"{self.topic_prefix}-in")
        }
        for number in range(self.produced):
            key = f"k{number % 5}"
            partition = partition_of[key.encode()]
            last[partition] = number
            rest = f"{key} {number % LATE_RESTS}"
            value, at = kept.get(rest, (0, -LATELY_MS))
            if number < at + LATELY_MS and rest in kept:
                again[number, value] += 1
            if number % LATE_EVERY == 0:
                kept[rest] = number, number
        ends = {key.decode(): last[partition] for key, partition in partition_of.items() if key}
        shown = {
            rest: value
            for rest, (value, at) in kept.items()
            if ends[rest.split()[0]] < at + LATELY_MS
        }
        return again, shown

    def _shown(self, store: str) -> dict[str, int]:
        """What a snapshot shows of a store."""
        with ss.open_snapshot(self.state_dir, self.application_id, store) as snapshot:
            return dict(snapshot.all())

    def _as_logged(self, store: str) -> dict[str, int]:
        return {key.decode(): _int(value) for key, value in self._fold(store).items()}

    def _closing(self) -> tuple[dict[Any, int], dict[Any, int]]:
        """Windows of `in` that must still be there, and those that must have been emitted."""
        counts: Counter[tuple[str, int]] = Counter()
        last: dict[int, int] = {}
        where: dict[tuple[str, int], int] = {}
        for partition, key, value in self.read(f"{self.topic_prefix}-in"):
            time = START_MS + int(value or b"")
            window = ((key or b"").decode(), time // CLOSING_MS * CLOSING_MS)
            counts[window] += 1
            where[window] = partition
            last[partition] = max(time, last.get(partition, 0))
        closed = {w: n for w, n in counts.items() if w[1] + CLOSING_MS <= last[where[w]]}
        return {w: n for w, n in counts.items() if w not in closed}, closed

    def _sessions(self) -> tuple[dict[Any, Any], dict[Any, int]]:
        """What each session told, a count and a tombstone as it grew, and what is left."""
        last: dict[tuple[str, int], tuple[int, int]] = {}
        counts: Counter[tuple[str, int]] = Counter()
        told: dict[Any, list[int | None]] = {}
        for number in range(self.produced):
            if number % 1000 < BURST:
                of = f"k{number % 5}", number // 1000
                counts[of] += 1
                if of in last:
                    told[of[0], *last[of]].append(None)
                first = last.get(of, (START_MS + number, 0))[0]
                last[of] = first, START_MS + number
                told[of[0], *last[of]] = [counts[of]]
        return told, {(of[0], *last[of]): count for of, count in counts.items()}

    def _fold(self, store: str) -> dict[bytes, bytes]:
        """A changelog, folded; the rows of stream time left out."""
        rows: dict[bytes, bytes] = {}
        for _, key, value in self.read(f"{self.application_id}-{store}-changelog"):
            assert key is not None
            if value is None:
                rows.pop(key, None)
            elif not _of_a_task(key):
                rows[key] = value
        return rows

    def _rows(self, store: str) -> dict[Any, Any]:
        """The rows on disk, read as bytes."""
        found: dict[Any, Any] = {}
        for folder in (self.state_dir / self.application_id).glob(f"*/rocksdb/{store}"):
            spec = ss.persistent_key_value_store(store)
            if store not in BY_KEY:
                kind = SessionRows if store in _KEYS else WindowRows
                spec = kind(store, serdes.BYTES, serdes.BYTES)
            with ss.open_store(spec, folder.parent) as opened, opened.all() as pairs:
                for row, value in pairs:
                    if store in BY_KEY:
                        found[row.decode()] = BY_KEY[store](value)
                    elif row == b"t" or row[0] == 0xFF:
                        continue
                    elif store in _KEYS:
                        found[_session(row[16:] + row[:16])] = _int(value)
                    else:
                        found[_window(row[8:] + row[:8])] = _int(value)
        return found

    def _by_key(self) -> dict[str, Any]:
        """What must come of both streams in one aggregate, and of one with its history."""
        ours = Counter(f"k{number % 5}" for number in range(self.produced))
        others = Counter(f"k{number % 5}" for number in range(0, self.produced, OTHERS))
        times = {key: range(START_MS + key, START_MS + self.produced, 5) for key in range(5)}
        return {
            "both": ours + others,
            "store both": {key: n + 1_000_000 * others[key] for key, n in ours.items()},
            "timed": {key: list(range(1, n + 1)) for key, n in ours.items()},
            "history of timed": {f"k{key}": list(enumerate(at, 1)) for key, at in times.items()},
            "history of evens": {
                f"k{key}": [one for one in enumerate(at, 1) if one[0] % 2 == 0]
                for key, at in times.items()
            },
        }

    def _histories(self, store: str) -> dict[str, list[tuple[int, int]]]:
        """The versions on disk, with their times."""
        found: dict[str, list[tuple[int, int]]] = {}
        spec = ss.persistent_versioned_key_value_store(
            store, 10**9, key_serde=serdes.STRING, value_serde=serdes.INT64
        )
        for folder in (self.state_dir / self.application_id).glob(f"*/rocksdb/{store}"):
            with ss.open_store(spec, folder.parent) as opened:
                for key in [f"k{number}" for number in range(5)]:
                    versions = [(v.value, v.timestamp_ms) for v in opened.history(key)]
                    found[key] = sorted([*found.get(key, []), *versions])
        return found

    def _raw_rows(self, store: str) -> dict[bytes, bytes]:
        """The rows on disk but those that each stream task has for itself."""
        found: dict[bytes, bytes] = {}
        for folder in (self.state_dir / self.application_id).glob(f"*/rocksdb/{store}"):
            spec = ss.persistent_key_value_store(store)
            with ss.open_store(spec, folder.parent) as opened, opened.all() as pairs:
                found |= {row: value for row, value in pairs if not _of_a_task(row)}
        return found

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "linger.ms": 5,
                # As our repartition topics are written: what is joined must lie alike.
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            }
        )


def _int(data: bytes | None) -> int:
    assert data is not None
    return int.from_bytes(data, "big")


BY_KEY: dict[str, Callable[[bytes], Any]] = {
    "totals": json.loads,
    "groups": _int,
    "peers": json.loads,
    "turns": _int,
    "lately": _int,
    "counted": _int,
    "both": json.loads,
}
"""The stores that have no windows, and how their values are read."""


def _of_a_task(row: bytes) -> bool:
    """Whether each stream task has such a row: of its stream time, or of what it swept."""
    return row == b"t" or (row[:1] == b"s" and len(row) == 2)


def _evens(total: int) -> list[Any]:
    """What an even count shows as it grows: a value, then its delete."""
    return [n if n % 2 == 0 else None for n in range(2, total + 1)]


def _sequences(pairs: Any) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value[0] if isinstance(value, list) else value)
    return dict(found)


def _window(key: bytes | None) -> tuple[str, int]:
    assert key is not None
    return key[:-8].decode(), _int(key[-8:])


def _session(key: bytes | None) -> tuple[str, int, int]:
    assert key is not None
    return key[:-16].decode(), _int(key[-8:]), _int(key[-16:-8])


_KEYS: dict[str, Any] = {"sessions": _session, "by-hand": _session}


def _hops(time_ms: int) -> range:
    """Where the hopping windows start that contain a time."""
    first = (time_ms - HOPPING_MS) // HOP_MS * HOP_MS + HOP_MS
    return range(first, time_ms + 1, HOP_MS)


def _unlike(found: Any, wanted: Any) -> list[Any]:
    keys = found.keys() | wanted.keys()
    return [(k, found.get(k), wanted.get(k)) for k in keys if found.get(k) != wanted.get(k)][:3]


def _counted(what: str, found: Counter[Any], wanted: Counter[Any]) -> str:
    more, less = found - wanted, wanted - found
    return f"{what}: {len(more)} more than once, {[*more][:3]}; {len(less)} lost, {[*less][:3]}"


def killed_again_and_again(rig: OperatorsRig, points: Sequence[CrashPoint]) -> list[str]:
    """What an audit finds after a death at each point, and a run to the end."""
    rig.create_topics()
    rig.produce(3000)
    rig.run()
    for point in points:
        rig.produce(3000)
        visit = 9 if point.value.startswith("commit.") else 2
        kill = rig.run_until_crash(f"{point}:{visit}")
        print(f"{point}: {kill}")
        assert kill.died, f"{point} was not reached: it proves nothing"
        assert kill.commits_before
    rig.run()
    return rig.findings()


@pytest.mark.parametrize(
    "points",
    [(CrashPoint.COMMIT_LOG_DONE,), pytest.param(POINTS, marks=pytest.mark.thorough)],
    ids=["before-the-store-is-written", "everywhere"],
)
def test_a_pipeline_of_most_operators_killed_again_and_again_is_exact(
    kafka: LocalKafka, tmp_path: Path, points: Sequence[CrashPoint]
) -> None:
    name = f"operators-{len(points)}"
    rig = OperatorsRig(kafka, tmp_path, application_id=name, topic_prefix=name)
    assert killed_again_and_again(rig, points) == []


@pytest.mark.slow
def test_the_same_kills_of_most_operators_without_transactions_are_found_out(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    name = "unsafe-operators"
    rig = OperatorsRig(
        kafka, tmp_path, guarantee="at_least_once", application_id=name, topic_prefix=name
    )
    findings = killed_again_and_again(rig, POINTS)
    print("\n".join(found[:200] for found in findings))
    doubled = [found for found in findings if found.startswith(("passed: ", "joined: "))]
    assert doubled
    assert all(" 0 more than once" not in found for found in doubled)
    assert all("; 0 lost" in found for found in doubled)
    assert any(found.startswith("store totals: ") for found in findings)

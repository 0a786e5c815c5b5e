"""The three jobs that peers do beside each other: their records, and what they have to give.

The jobs are `counting`, `enriching` and `per_record` of tests/bench/pipelines.py. Records are drawn
from a seed, so the model and every peer have the same ones. All of a key's records are in one
partition, in order, and each one makes the key's result larger: so a result that a key is told
names the record it follows, and what is lost, doubled or wrong can be told from the results alone.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

KEYS = 100_000
ROWS = 10_000
AMOUNT_LEAST = 100
MINUTE_MS = 60_000
_VALUE_BYTES = 86
_FAULTS_SHOWN = 5

Results = Mapping[bytes, Sequence[int]]


class Job(StrEnum):
    """What is measured, by its name on the command line."""

    COUNT = "count"
    JSON = "json"
    PROCESSOR = "processor"


class Telling(StrEnum):
    """Which results a key is told, beside the last one.

    EVERY: all, in order. SOME: some, in order: one may stand for a batch. SUMS: as many as there
    are, as sums of the records in another order, as records wait for the row of a table.
    """

    EVERY = "every"
    SOME = "some"
    SUMS = "sums"


class Given(NamedTuple):
    """A record as a peer finds it."""

    key: bytes
    value: bytes
    time_ms: int


class Order(NamedTuple):
    """What a record of the JSON job says."""

    key: bytes
    amount: int
    time_ms: int

    def given(self) -> Given:
        text = (
            b'{"amount":%d,"order":%d,"at":%d,"currency":"EUR","customer":"%b","note":"as agreed"}'
        )
        number = self.amount * 7919 % 1_000_000
        return Given(self.key, text % (self.amount, number, self.time_ms, self.key), self.time_ms)


def rows(begin_ms: int) -> list[Given]:
    """The table of the JSON job: a row for each key that its records have, older than they are."""
    return [
        Given(
            _key(number),
            b'{"country":"c%d","customer":"%b"}' % (number % 50, _key(number)),
            begin_ms - 1,
        )
        for number in range(ROWS)
    ]


def records(job: Job, count: int, *, seed: int, begin_ms: int) -> list[Given]:
    """The input of a job, about 100 bytes each, one each millisecond."""
    rng = random.Random(seed)
    times_ms = range(begin_ms, begin_ms + count)
    if job is Job.JSON:
        return [
            Order(_key(rng.randrange(ROWS)), rng.randrange(1000), time_ms).given()
            for time_ms in times_ms
        ]
    noise = rng.randbytes(1 << 16)
    places = rng.choices(range(len(noise) - 2 * _VALUE_BYTES), k=count)
    keys = rng.choices(range(KEYS), k=count)
    # Lengths differ, so that a record that changed places with another one of its key is seen.
    return [
        Given(_key(number), noise[at : at + _VALUE_BYTES - 8 + at % 16], time_ms)
        for number, at, time_ms in zip(keys, places, times_ms, strict=True)
    ]


def expected(job: Job, given: Iterable[Given]) -> Results:
    """All results of each key, one for each record, in order."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for record in given:
        key, step = record.key, 1
        if job is Job.PROCESSOR:
            step = len(record.value)
        elif job is Job.JSON:
            step = int(record.value.split(b":", 2)[1].split(b",")[0])
            if step < AMOUNT_LEAST:
                continue
            key = in_minute(key, record.time_ms - record.time_ms % MINUTE_MS)
        told = found[key]
        told.append((told[-1] if told else 0) + step)
    return found


def in_minute(key: bytes, start_ms: int) -> bytes:
    """A key and a minute, as one key."""
    return b"%b@%d" % (key, start_ms)


def faults(wanted: Results, told: Results, telling: Telling) -> list[str]:
    """What is wrong with results that were told, by key in the order of their coming; some of it.

    The last result of each key has to be told, and last. See `Telling` for the others.
    """
    found = [f"{key!r} is no key" for key in told.keys() - wanted.keys()]
    for key, results in wanted.items():
        if len(found) >= _FAULTS_SHOWN:
            break
        was = told.get(key, ())
        if not was or was[-1] != results[-1]:
            found.append(f"{key!r} ends at {was[-1] if was else 'nothing'}, not {results[-1]}")
        elif not _fits(was, results, telling):
            found.append(f"{key!r} is told {list(was)}, of {list(results)}")
    return found[:_FAULTS_SHOWN]


def _fits(told: Sequence[int], results: Sequence[int], telling: Telling) -> bool:
    match telling:
        case Telling.EVERY:
            return list(told) == list(results)
        case Telling.SOME:
            return _in_order(told, results)
        case Telling.SUMS:
            return len(told) == len(results) and list(told) == sorted(set(told))


def _in_order(part: Sequence[int], whole: Sequence[int]) -> bool:
    left = iter(whole)
    return all(each in left for each in part)


def _key(number: int) -> bytes:
    return b"key-%08d" % number

"""Random small pipelines, in random batches and with crashes, against a naive interpreter.

Every operator and join over tables of all kinds: plain, with history, in windows, told on close.

STATESTORE_PROGRAM_SEED=77 pytest tests/stateful/test_random_topologies.py     one of them
STATESTORE_PROGRAMS=9000 pytest tests/stateful/test_random_topologies.py       so many others
"""

import itertools
import os
import random
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from statestore.model.records import Record
from statestore.testing.driver import TopologyTestDriver
from tests.stateful.built_programs import topology, write_file
from tests.stateful.naive_streams import Naive
from tests.stateful.random_programs import (
    BY_KEY,
    BY_SESSION,
    BY_WINDOW,
    FILE,
    FOREIGN_JOINS,
    HISTORIES,
    JOINS,
    LOOKUP_JOINS,
    STREAM_JOIN_STEPS,
    Lot,
    Outcome,
    Program,
    Run,
    certain_in_batches,
    in_the_end,
    latest,
    lots_of,
    program_of,
    smaller,
    suppressing,
    without_suppress,
)
from tests.tiers import commit_seed

SEED = os.environ.get("STATESTORE_PROGRAM_SEED")
COUNT = int(os.environ.get("STATESTORE_PROGRAMS", "0"))
SEEDS = random.sample(range(10**9), COUNT) if COUNT else range(1200)
SHARE = 100
# A run of the first tier has programs of its own commit.
NEW_PROGRAMS = range(commit_seed(), commit_seed() + 150)


def shares(of_the_commit: int, every: int) -> list[Any]:
    """So many programs of the commit, and of the others each so-manieth hundred."""
    if SEED:
        return [[int(SEED)]]
    others = [SEEDS[i : i + SHARE] for i in range(0, len(SEEDS), SHARE * every)]
    if COUNT:
        return others
    return [
        NEW_PROGRAMS[:of_the_commit],
        *(pytest.param(share, marks=pytest.mark.thorough) for share in others),
    ]


def run_of(seed: int, values: str = "") -> Run:
    chance = random.Random(seed)
    program = program_of(chance, values=values)
    return suppressing(random.Random(-seed), program), lots_of(chance, program)


def wanted(program: Program, lots: tuple[Lot, ...]) -> list[Outcome]:
    naive = Naive(program)
    return [
        (made.key, made.value, made.time)
        for lot in lots
        for fact in lot.facts
        for made in naive.run(lot.topic, fact)
    ]


def found(
    program: Program, lots: Iterable[Lot], *, caching: bool = False, most: int | None = None
) -> list[Outcome]:
    """What comes out; `most`: the largest number of records that are polled at once."""
    made: list[Outcome] = []
    settings = {} if most is None else {"statestore.batch.max.records": most}
    with TemporaryDirectory() as name:
        folder = Path(name)
        built = topology(program, folder, caching=caching)
        with TopologyTestDriver(built, settings) as driver:
            for lot in lots:
                give(driver, folder, lot, [Record(f.key, f.value, f.time) for f in lot.facts])
                made += [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")]
    return made


def give(
    driver: TopologyTestDriver, folder: Path, lot: Lot, records: list[Record[Any, Any]]
) -> None:
    """The records of a lot."""
    if lot.crash:
        driver.crash()
    if lot.topic != FILE:
        driver.pipe_all(lot.topic, records)
        return
    for record in records:
        write_file(folder, "", record.value)


def marks_wanted(program: Program, lots: tuple[Lot, ...]) -> list[bytes]:
    """For each record that comes out, the number of the input record that brings it out."""
    naive, facts = Naive(program), [(lot.topic, fact) for lot in lots for fact in lot.facts]
    return [b"%d" % i for i, (topic, fact) in enumerate(facts) for _ in naive.run(topic, fact)]


def marks_found(program: Program, lots: tuple[Lot, ...]) -> list[bytes | None]:
    """For each record that comes out, the header that numbers the input records."""
    number = itertools.count()
    made: list[bytes | None] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        with TopologyTestDriver(topology(program, folder)) as driver:
            for lot in lots:
                records = [
                    Record(f.key, f.value, f.time, (("n", b"%d" % next(number)),))
                    for f in lot.facts
                ]
                give(driver, folder, lot, records)
                made += [dict(r.headers).get("n") for r in driver.read("out")]
    return made


def singles(lots: Iterable[Lot]) -> list[Lot]:
    """The same records, each in a batch of its own."""
    return [lot._replace(facts=(fact,)) for lot in lots for fact in lot.facts]


Judged = Callable[[Run], tuple[Any, Any]]


def _in_the_end(program: Program, *outcomes: list[Outcome]) -> tuple[Any, Any]:
    """All that came out, or what is there in the end, where rows race."""
    one, other = (in_the_end(program, made) for made in outcomes)
    return one, other


def by_the_naive(run: Run) -> tuple[Any, Any]:
    return _in_the_end(run[0], found(*run), wanted(*run))


def by_headers(run: Run) -> tuple[Any, Any]:
    """What waits for a table, in one or for a timer has headers that the interpreter cannot tell.

    Nor can it tell which results there are where rows race.
    """
    program, lots = run
    left_out = ("grace_", "foreign_", "remind")
    steps = tuple(step for step in program.steps if not step.name.startswith(left_out))
    program = without_suppress(program._replace(steps=steps))
    return marks_found(program, lots), marks_wanted(program, lots)


def by_singles(run: Run) -> tuple[Any, Any]:
    program, lots = run
    return _in_the_end(program, found(program, lots), found(program, singles(lots)))


def by_small_batches(run: Run) -> tuple[Any, Any]:
    program, lots = run
    return _in_the_end(program, found(program, lots, most=1 + len(lots) % 2), wanted(*run))


def with_caching(run: Run) -> tuple[Any, Any]:
    """Of one table of a stream, or none: what is made of updates depends on how many there are."""
    program, lots = run
    last = next((step for step in program.steps if step.table is not None), None)
    program = without_suppress(program._replace(steps=() if last is None else (last,)))
    program = certain_in_batches(program)
    return latest(found(program, lots, caching=True)), latest(wanted(program, lots))


def check(seeds: Iterable[int], judged: Judged, values: str = "") -> None:
    """Each of these runs gives what it should; the message has a small one that does not."""

    def differs(run: Run) -> bool:
        # Equal numbers of two types are two values.
        found, wanted = map(repr, judged(run))
        return found != wanted

    for seed in seeds:
        run = run_of(seed, values)
        if differs(run):
            while less := next((less for less in smaller(run) if differs(less)), None):
                run = less
            program, lots = run
            story = "\n".join(map(str, (program, *lots)))
            found, wanted = judged(run)
            pytest.fail(
                f"seed {seed}: repeat it with STATESTORE_PROGRAM_SEED={seed}\n{story}\n"
                f"found:  {found}\nwanted: {wanted}"
            )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(150, 1), ids=lambda seeds: f"{seeds[0]}-")
def test_a_pipeline_does_what_its_naive_interpreter_does(seeds: list[int]) -> None:
    check(seeds, by_the_naive)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(30, 4), ids=lambda seeds: f"{seeds[0]}-")
def test_a_pipeline_does_the_same_with_one_or_two_records_at_once(seeds: list[int]) -> None:
    check(seeds, by_small_batches)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(30, 4), ids=lambda seeds: f"{seeds[0]}-")
def test_what_a_table_of_last_updates_shows_in_the_end_is_the_same(seeds: list[int]) -> None:
    check(seeds, with_caching)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(30, 4), ids=lambda seeds: f"{seeds[0]}-")
def test_a_record_has_the_headers_of_the_input_record_that_brings_it_out(seeds: list[int]) -> None:
    check(seeds, by_headers)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", shares(30, 4), ids=lambda seeds: f"{seeds[0]}-")
def test_values_that_their_serde_changes_come_out_the_same_wherever_a_batch_ends(
    seeds: list[int],
) -> None:
    check(seeds, by_singles, "json")


def test_the_programs_join_tables_of_all_kinds_in_all_ways_and_something_comes_out() -> None:
    given = [run for run in map(run_of, range(1200)) if wanted(*run)]
    assert len(given) > 450
    kinds = {*BY_KEY, *BY_WINDOW}
    met = {(p.right.kind, step.name) for p, _ in given for step in p.steps if step.name in JOINS}
    graces = ("grace_join", "grace_left_join")
    plain = {*product(kinds, ("join", "left_join")), *product(HISTORIES, graces)}
    assert plain < met, "of views that keep their history, too"
    assert met <= {*plain, *product(kinds, graces)}
    names = {step.name for p, _ in given for step in p.steps}
    others = {"by_records", "regroup", "cogroup", "global_join", "global_left_join", "remind"}
    assert names.issuperset({*STREAM_JOIN_STEPS, *FOREIGN_JOINS, *LOOKUP_JOINS, *others})
    made = [step.table for p, _ in given for step in p.steps if step.table is not None]
    steps = {(table.kind, step.name) for table in made for step in table.steps}
    # Keys in sessions meet no others.
    steps = {(kind, step) for kind, step in steps if kind not in BY_SESSION or "join" not in step}
    assert steps == {
        *product(kinds, ("filter", "map_values", "join", "left_join", "outer_join", "suppress")),
        *product(BY_SESSION, ("filter", "map_values", "suppress")),
    }

"""`make bench-peers` compares outputs with a model, and reads its options."""

import subprocess
from collections.abc import Callable
from dataclasses import asdict

import pytest
from click.testing import CliRunner, Result

from tests.bench import bench_peers, pipelines
from tests.bench import pipelines_in_columns as in_columns
from tests.bench.peers.environments import why
from tests.bench.peers.jobs import Job, Telling, expected, faults, records
from tests.bench.peers.table import PEERS
from tests.test_tidy import OF_ONE_MACHINE

Told = dict[bytes, list[int]]
BEGIN_MS = 1_763_942_400_000


def told(job: Job) -> Told:
    """What a peer tells that does its job; keys have several results each."""
    given = records(job, 30_000, seed=7, begin_ms=BEGIN_MS)
    return {key: list(results) for key, results in expected(job, given).items()}


def busy(results: Told) -> list[int]:
    """Those of a key that has many."""
    return max(results.values(), key=len)


def lose_one(results: Told) -> None:
    """A record that never arrived: all later results lack it."""
    of_key = busy(results)
    step = of_key[1] - of_key[0]
    of_key[1:] = [it - step for it in of_key[2:]]


def double_one(results: Told) -> None:
    """A record that counted twice."""
    of_key = busy(results)
    step = of_key[1] - of_key[0]
    of_key[2:] = [it + step for it in of_key[1:]]


def tell_twice(results: Told) -> None:
    """A result that was written twice."""
    of_key = busy(results)
    of_key.insert(1, of_key[0])


def miscalculate(results: Told) -> None:
    """A result on the way that is wrong, while the last one is right."""
    of_key = busy(results)
    of_key[0] = of_key[1]


def forget_a_key(results: Told) -> None:
    del results[next(iter(results))]


def invent_a_key(results: Told) -> None:
    results[b"nobody"] = [1]


@pytest.mark.parametrize("job", list(Job))
@pytest.mark.parametrize("telling", list(Telling))
@pytest.mark.parametrize(
    "spoil", [lose_one, double_one, tell_twice, miscalculate, forget_a_key, invent_a_key]
)
def test_what_is_lost_doubled_or_wrong_is_a_fault(
    job: Job, telling: Telling, spoil: Callable[[Told], None]
) -> None:
    results = told(job)
    wanted = {key: list(of_key) for key, of_key in results.items()}
    assert faults(wanted, results, telling) == []
    spoil(results)
    assert faults(wanted, results, telling) != []


def test_results_of_a_batch_may_be_told_as_one_where_a_peer_does_so() -> None:
    wanted = told(Job.COUNT)
    last = {key: of_key[-1:] for key, of_key in wanted.items()}
    assert faults(wanted, last, Telling.SOME) == []
    assert faults(wanted, last, Telling.EVERY) != []


def test_sums_of_records_in_another_order_are_right_where_rows_may_come_late() -> None:
    wanted = {b"a": [100, 350, 500]}
    other = {b"a": [150, 250, 500]}
    assert faults(wanted, other, Telling.SUMS) == []
    assert faults(wanted, other, Telling.EVERY) != []


def test_the_json_job_leaves_small_orders_out_and_sums_by_minute() -> None:
    given = records(Job.JSON, 70_000, seed=3, begin_ms=BEGIN_MS)
    wanted = expected(Job.JSON, given)
    assert {int(key.partition(b"@")[2]) for key in wanted} == {BEGIN_MS, BEGIN_MS + 60_000}
    assert sum(map(len, wanted.values())) < len(given)
    assert all(of_key[0] >= 100 for of_key in wanted.values())


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("x No solution found:\n  because there is no version of a==9\n", "because there is no"),
        ("\x1b[0m\n\x1b[0m[ERROR] could not find artifact a:b:9\n[ERROR] see\n\x1b[0m", "could"),
        ("A.java:3: error: cannot find symbol\n1 error\n", "A.java:3: error: cannot find"),
        ("", "non-zero exit status 7"),
    ],
    ids=["uv", "Maven", "javac", "nothing said"],
)
def test_what_cannot_be_installed_is_told_by_the_line_that_says_why(output: str, line: str) -> None:
    told_of = why(subprocess.CalledProcessError(7, ["client"], output))
    assert line in told_of
    assert "\x1b" not in told_of


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bench_peers.main, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--peers", "quix,nobody"],
            "'nobody' is not one of statestore, statestore-typed, statestore-columns, kafka",
        ),
        (["--jobs", "sort"], "'sort' is not one of count, json, processor"),
        (["--records", "3"], "3 is not in the range x>=1000"),
        (["--rounds", "0"], "0 is not in the range x>=1"),
    ],
)
def test_options_that_name_nothing_are_refused(arguments: list[str], message: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2
    assert message in " ".join(found.output.split())


def test_names_are_read_in_the_order_of_the_table_and_none_means_all() -> None:
    names = bench_peers.Names(tuple(PEERS))
    assert names.convert("pathway, quix,quix", None, None) == ("quix", "pathway")
    assert names.convert("", None, None) == tuple(PEERS)


def test_every_peer_is_pinned_by_name_and_version() -> None:
    for name, peer in PEERS.items():
        ours = peer.version == PEERS[bench_peers.US].version
        assert ours or peer.packages or peer.jars, name
        for path in peer.pipelines.values():
            module, function = path.split(":")
            there = {"pipelines": pipelines, "pipelines_in_columns": in_columns}[module]
            assert hasattr(there, function), name
        assert all(package.count("==") == 1 for package in peer.packages), name
        assert all(jar.count(":") == 2 for jar in peer.jars), name
        told_of = str(asdict(peer))
        assert not any(wrong.search(told_of) for wrong in OF_ONE_MACHINE.values()), name

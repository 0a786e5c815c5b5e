"""A partitioner of a repartition topic on a real broker, and all that looks for its keys later."""

import json

import pytest
from click.testing import CliRunner, Result

from statestore.cli import cli
from statestore.client import StateClient
from statestore.kafka.partitioner import murmur2_partition
from statestore.runtime import Runtime
from tests.builders import eventually
from tests.kafka.run_rig import App, assert_refused
from tests.serving_rig import LONG_LEASE, serving

pytestmark = pytest.mark.kafka
NUMBERS = range(200)
"""Of the keys; the first 20 are in the input from the beginning."""
CHOSEN = range(0, 200, 20)
"""The numbers of the keys that the partitioner places, all in partition 1."""


def command(app: App, *words: str) -> Result:
    where = f"--application-id={app.name}", f"--state-dir={app.state_dir}"
    return CliRunner().invoke(cli, [*words, *where])


def test_its_keys_are_counted_audited_and_found_where_it_put_them(app: App) -> None:
    app.produce(NUMBERS[20:])
    assert app.drained(pipeline="placed_by_number")["caught_up"]
    app.produce(NUMBERS)
    assert app.drained(pipeline="placed_by_number")["caught_up"]
    assert app.stored("counts") == {f"k{number}": 2 for number in NUMBERS}
    elsewhere = [f"k{n}" for n in CHOSEN if murmur2_partition(f"k{n}".encode(), 2) == 0]
    assert elsewhere

    audited = command(app, "audit", f"--bootstrap-servers={app.kafka.bootstrap_servers}")
    assert audited.exit_code == 0, audited.output
    assert "verdict: right" in audited.output
    told = "placement not checked: counts: a partitioner of its own places its rows"
    assert told in audited.output

    for key in (elsewhere[0], "k1"):
        found = command(app, "stores", "get", "counts", key, "--json")
        assert (found.exit_code, json.loads(found.stdout)["value"]) == (0, 2), found.output
    runtime = Runtime(app.run_settings(**LONG_LEASE))
    with serving(runtime) as server, StateClient(server.url) as client:
        eventually(lambda: server.client.get("/ready").status_code == 200, "ready")
        assert client.get_many("counts", [*elsewhere, "k1"]) == [2] * (len(elsewhere) + 1)
        assert client.get("counts", elsewhere[0], partition=1) == 2
        assert client.get("counts", elsewhere[0], partition=0) is None
        assert client.get("counts", "nobody") is None
        # No hash is tried first, not even where it would be right.
        at_home = next(f"k{n}".encode() for n in CHOSEN if f"k{n}" not in elsewhere)
        asked = server.service.get("counts", [at_home]).freshness
        assert [one.stream_task for one in asked] == ["1_0", "1_1"]


def test_a_partitioner_that_comes_or_goes_is_refused_and_changes_nothing(app: App) -> None:
    app.produce(NUMBERS[20:])
    app.drained(pipeline="placed_by_number")
    with app.unchanged():
        refused = app.run(pipeline="placed_by_hash")
    assert_refused(refused, 3, "TopologyMismatch", "store counts: ", "take the partitioner back")
    app.produce(NUMBERS)
    assert app.drained(pipeline="placed_by_number")["caught_up"]
    assert app.stored("counts") == {f"k{number}": 2 for number in NUMBERS}

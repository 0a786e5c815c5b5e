"""Stores and topics of a join by a foreign key, under all that is done with state beside runs."""

import json
import shutil
from typing import Any

import pytest
from click.testing import CliRunner

import statestore as ss
from statestore.cli import cli
from statestore.model.records import Subscription
from statestore.spark.datasource import TransactionalStore
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import START_MS, App, user

pytestmark = pytest.mark.kafka
NUMBERS = range(20)
SUBSCRIPTIONS = "named-subscription-store"
NAMES = {f"u{i}": f"first {i}" for i in range(4)}
RENAMED = NAMES | {"u0": "second", "u6": "late"}


@pytest.fixture
def app_settings() -> dict[str, object]:
    """Keys lie where the rig's producers place them."""
    return {"partitioner": "consistent_random"}


@pytest.fixture
def named(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """An application that has joined 20 rows with four of their seven users, and stopped."""
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    for topic, partitions in (("users", 3), ("other", 2)):
        app.kafka.create_topic(f"{app.name}-{topic}", partitions, {"retention.ms": -1})
    name_users(app, NAMES)
    run(app)
    assert results(app) == expected(NAMES)
    return app


def name_users(app: App, names: dict[str, str]) -> None:
    rows = [(key, json.dumps(name).encode(), START_MS + 100) for key, name in names.items()]
    app.produce_raw(rows, topic="users")


def run(app: App, pipeline: str = "named_by_user") -> ss.RunSummary:
    return ss.run(getattr(run_pipelines, pipeline)(), app.run_settings())


def results(app: App) -> dict[str, Any]:
    """The last result of each row in the output topic."""
    return {row.key: row.value for row in app.read()}


def expected(names: dict[str, str]) -> dict[str, Any]:
    return {f"k{n}": {"number": n, "name": names.get(user(n))} for n in NUMBERS}


def command(app: App, *words: str) -> Any:
    """What a command says in JSON; it has to succeed, so that an audit has to pass."""
    flags = [f"--application-id={app.name}", f"--state-dir={app.state_dir}"]
    done = CliRunner().invoke(cli, [*words, *flags, "--json"])
    assert done.exit_code == 0, done.exception
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[0] if len(lines) == 1 else lines


def stored(app: App, store: str) -> dict[Any, Any]:
    topology = run_pipelines.named_by_user()
    with (
        ss.open_snapshot(app.state_dir, app.name, store, topology=topology) as found,
        found.all() as rows,
    ):
        return dict(rows)


def broker(app: App) -> str:
    return f"--bootstrap-servers={app.kafka.bootstrap_servers}"


def data_source(app: App, store: str) -> list[dict[str, Any]]:
    """What the Data Source reads, without Spark."""
    named = {"state_dir": str(app.state_dir), "application_id": app.name, "store": store}
    source = TransactionalStore(named)
    reader = source.reader(source.schema())
    lots = [lot for one in reader.partitions() for lot in reader.read(one)]
    return [row for lot in lots for row in lot.to_pylist()]  # type: ignore[union-attr]


def test_each_way_to_look_into_state_shows_who_subscribed_and_the_results(named: App) -> None:
    subscribed = {Subscription(user(n), f"k{n}") for n in NUMBERS}
    assert set(stored(named, SUBSCRIPTIONS)) == subscribed
    assert stored(named, "named-store") == expected(NAMES)
    shown = command(named, "stores", "range", SUBSCRIPTIONS, "--limit=100")
    assert len(shown) == len(NUMBERS)
    assert all("u" in str(row["key"]) and "k" in str(row["key"]) for row in shown)
    assert len(data_source(named, SUBSCRIPTIONS)) == len(NUMBERS)
    values = {row["key"]: json.loads(row["value"]) for row in data_source(named, "named-store")}
    assert values == expected(NAMES)


def test_a_moved_join_restores_nothing_and_its_rows_follow_their_users(named: App) -> None:
    name_users(named, RENAMED)
    done = run(named, "named_by_user_reordered")
    assert done.restored_records == 0
    assert results(named) == expected(RENAMED)
    command(named, "audit", broker(named))
    name_users(named, {"u0": "third"})
    assert run(named).restored_records == 0
    assert results(named) == expected(RENAMED | {"u0": "third"})


def test_an_export_is_audited_and_restored_and_goes_on(named: App) -> None:
    target = f"--target={named.state_dir.parent / 'exports'}"
    command(named, "export", target, broker(named))
    command(named, "audit", broker(named), target, "--export=latest")
    name_users(named, RENAMED)
    run(named)
    shutil.rmtree(named.state_dir)
    command(named, "restore", target, broker(named))
    done = run(named)
    assert done.records_in == 0
    assert done.restored_records > 0
    name_users(named, {"u6": "later"})
    run(named)
    assert results(named) == expected(RENAMED | {"u6": "later"})
    command(named, "audit", broker(named))


def test_after_a_reset_there_are_no_messages_between_tasks_and_all_is_joined_anew(
    named: App,
) -> None:
    internal = {name for name in named.topics() if name.startswith(f"{named.name}-named-sub")}
    assert len(internal) == 3, "two topics of messages, and a changelog"
    command(named, "reset", "--yes", broker(named))
    assert not internal & named.topics()
    name_users(named, RENAMED)
    before = len(named.read())
    run(named)
    rows = named.read()[before:]
    assert {row.key for row in rows} == set(expected(RENAMED))
    assert results(named) == expected(RENAMED)
    command(named, "audit", broker(named))

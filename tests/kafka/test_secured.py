"""Every command over TLS and SCRAM, before a broker that speaks both itself; and its refusals."""

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from statestore.errors import InvalidSetting
from statestore.kafka.admin import Admin
from statestore.kafka.epochs import abort_open_transactions
from statestore.kafka.wire.cluster import ClusterMap
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.run_rig import App, counted, end_of, running, updates_in_order
from tests.kafka.secured_rig import (
    CLIENTS,
    KEY_SECRET,
    SECRET,
    VARIABLES,
    WRONG,
    Secured,
    ended,
    secured_kafka,
    start,
    with_certificate,
    write_config,
)
from tests.processes import Process

pytestmark = pytest.mark.kafka

# What asks the brokers. The others, as `exports verify`, read files alone.
ASKING = (
    ("topics", "create"),
    ("topics", "check"),
    ("topology", "check"),
    ("run",),
    ("run", "--workers=2"),
    ("status", "--max-lag-seconds=600"),
    ("audit",),
    ("exports", "restore", "--dry-run"),
    ("reset", "--dry-run"),
    ("repartition", "--partitions=2", "--dry-run"),
)
AN_HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_kafka(tmp_path_factory.mktemp("certificates")) as made:
        yield made


@pytest.fixture(scope="module")
def kafka(secured: Secured) -> LocalKafka:
    return secured.kafka


def config_of(app: App, given: dict[str, str], name: str = "statestore", **how: str) -> Path:
    target = {"statestore.export.target": str(app.state_dir.parent / "exports")}
    return write_config(app, given | target, name=name, **how)


def refused(app: App, secured: Secured, client: str, *words: str) -> None:
    """It is refused with a wrong password, and before a broker of whom it knows nothing."""
    right = config_of(app, secured.settings(), client=client)
    mistaken = config_of(app, secured.mistaken(), name="mistaken", client=client)
    for told, way_out in (
        (ended(app, right, *words, BROKER_PASSWORD=WRONG), "sasl.password"),
        (ended(app, mistaken, *words), "ssl.ca.location"),
    ):
        assert told.code == 2, (words, told.err[-4000:])
        assert "statestore: InvalidSetting: " in told.message, words
        assert f"correct {way_out}" in told.message.replace("sasl.username, ", ""), told.message
        assert "127.0.0.1:" in told.message
        # It waited for no answer that could not come.
        assert "did not answer" not in told.message
        assert "Traceback" not in told.err
        assert not [secret for secret in (SECRET, WRONG) if secret in told.err + told.out]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_run_counts_each_record_once(app: App, secured: Secured, client: str) -> None:
    config = config_of(app, secured.settings(), client=client)
    told = ended(app, config, "run", "--json")
    assert told.code == 0, told.err[-4000:]
    assert "is not used" not in told.err
    assert updates_in_order(app.read()) == counted(range(20)) == app.stored()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refusal_is_a_mistake_with_its_way_out(app: App, secured: Secured, client: str) -> None:
    with app.unchanged():
        refused(app, secured, client, "run")


def test_no_client_waits_for_what_the_brokers_have_refused(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour would end the test."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    strange = secured.stranger.issue("client", KEY_SECRET.encode())
    mistakes = {
        "sasl.password": secured.settings(sasl_password=WRONG),
        "ssl.ca.location": secured.mistaken(),
        "ssl.certificate.location": secured.settings() | with_certificate(strange),
    }
    for way_out, given in mistakes.items():
        settings = Settings.from_mapping(
            {
                "application.id": "refused",
                "bootstrap.servers": secured.kafka.sasl_servers,
                "default.api.timeout.ms": AN_HOUR_MS,
                **given,
            }
        )
        asking: list[Callable[[], Any]] = [ClusterMap(settings, "producer").has_transactions]
        # librdkafka shows no certificate to a broker that names no authority of it.
        if way_out != "ssl.certificate.location":
            asking.append(Admin(settings).connect)
            asking.append(partial(abort_open_transactions, settings, ["refused"]))
        for ask in asking:
            with pytest.raises(InvalidSetting, match=f"correct .*{way_out}") as told:
                ask()
            assert not [it for it in (WRONG, KEY_SECRET) if it in str(told.value)]


@contextmanager
def served(app: App, config: Path, command: str, **variables: str) -> Iterator[tuple[str, Process]]:
    """A server and where it says that it listens."""
    server = start(app, config, command, "--port=0", **variables)
    try:
        says = server.stderr if command == "ui" else server.stdout
        assert says is not None
        address = next(word for word in says.readline().split() if word.startswith("http"))
        yield address.rstrip("/"), server
    finally:
        server.send_signal(signal.SIGTERM)


def asked(url: str, path: str, **parameters: str) -> Any:
    return httpx.get(f"{url}/v1/{path}", params=parameters, timeout=DEADLINE_S).json()


def test_a_server_knows_how_far_behind_a_run_is_or_says_why_not(app: App, secured: Secured) -> None:
    config = config_of(app, secured.settings())
    assert ended(app, config, "run").code == 0
    row = {"key": "u1", "value": counted(range(20))["u1"]}

    def answers(url: str) -> bool:
        return bool(asked(url, "stores/counts/get", key="u1").get("row") == row)

    with served(app, config, "serve") as (url, server):
        eventually(
            lambda: {task["lag_records"] for task in asked(url, "tasks")["tasks"]} == {0},
            "the lag is known",
        )
        eventually(lambda: answers(url), "it has a copy")
    assert end_of(server, 0).err == ""
    with served(app, config, "serve", BROKER_PASSWORD=WRONG) as (url, server):
        assert server.stderr is not None
        line = server.stderr.readline()
        assert "the lags are not known: " in line
        assert "correct sasl.username, sasl.password" in line
        eventually(lambda: answers(url), "copies need no broker")
    assert WRONG not in end_of(server, 0).err + line


@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_every_command_gets_through_and_each_refusal_is_a_mistake(
    app: App, secured: Secured, client: str
) -> None:
    config = config_of(app, secured.settings(), client=client)
    for words in (*ASKING[:4], ("export",), *ASKING[4:]):
        told = ended(app, config, *words)
        assert told.code == 0, (words, told.err[-4000:])
        assert not [secret for secret in VARIABLES.values() if secret in told.err + told.out]
    assert updates_in_order(app.read()) == counted(range(20)) == app.stored()
    for words in ASKING:
        refused(app, secured, client, *words)


@pytest.mark.thorough
@pytest.mark.parametrize("client", CLIENTS)
def test_workers_export_what_they_commit_and_a_new_machine_goes_on(
    app: App, secured: Secured, client: str
) -> None:
    often = {"statestore.export.interval.ms": "50", "commit.interval.ms": "50"}
    config = config_of(app, secured.settings() | often, client=client)
    run = start(app, config, "run", "--workers=2", "--run-for=forever")
    made = app.state_dir.parent / "exports"

    def exported() -> int:
        return len(ended(app, config, "exports", "ls", "--json").out.splitlines())

    running(app, run, lambda: len(app.read()) == 20 and exported() > 0)
    run.terminate()
    assert end_of(run, 0).code == 0
    assert made.is_dir()
    assert ended(app, config, "exports", "create").code == 0
    assert ended(app, config, "exports", "verify").code == 0
    shutil.rmtree(app.state_dir)
    app.produce(range(20, 40))
    assert ended(app, config, "exports", "restore").code == 0
    assert ended(app, config, "run").code == 0
    assert updates_in_order(app.read()) == counted(range(40)) == app.stored()


@pytest.mark.thorough
def test_the_page_shows_the_lag_or_why_it_is_not_known(app: App, secured: Secured) -> None:
    config = config_of(app, secured.settings())
    assert ended(app, config, "run").code == 0
    mistaken = config_of(app, secured.mistaken(), name="mistaken")
    for told, shown in ((config, "Am I behind? no "), (mistaken, "correct ssl.ca.location")):
        with served(app, told, "ui") as (url, _):

            def says(wanted: str = shown, address: str = f"{url}/applications/{app.name}") -> bool:
                answer = httpx.get(address, timeout=DEADLINE_S)
                text = " ".join(re.sub("<[^>]+>", " ", answer.text).split())
                assert not [secret for secret in VARIABLES.values() if secret in text]
                return wanted in text

            eventually(says, f"the page shows {shown}")

"""Real handshakes with `statestore serve`: who is let in by certificate, and what is refused."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.client import AsyncStateClient, StateClient
from statestore.errors import Misuse, NotAuthorized, Unavailable
from tests.builders import DEADLINE_S, eventually
from tests.certificates import Authority, Issued
from tests.contract.task_rig import TaskRig
from tests.contract.test_serve_http import filled, pipeline
from tests.serving_rig import LONG_LEASE


class Guarded(NamedTuple):
    """A server that asks its clients for certificates."""

    url: str
    folder: Path
    ours: Authority
    others: Authority
    client: Issued

    def options(self) -> dict[str, Any]:
        """What a client needs that is let in."""
        return {
            "tls_ca": self.ours.certificate,
            "tls_certificate": self.client.certificate,
            "tls_key": self.client.key,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    rig = TaskRig(pipeline(), tmp_path_factory.mktemp("state"), settings=LONG_LEASE)
    filled(rig)
    rig.end()
    folder = tmp_path_factory.mktemp("certificates")
    ours, others = Authority(folder, "ours"), Authority(folder, "others")
    server, client = ours.issue("server"), ours.issue("client")
    command = [
        *(sys.executable, "-m", "statestore", "serve", "--application-id=shop", "--port=0"),
        f"--state-dir={rig.layout.state_dir}",
        f"--tls-cert={server.certificate}",
        f"--tls-key={server.key}",
        f"--tls-client-ca={ours.certificate}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        made = Guarded(process.stdout.readline().split()[-1], folder, ours, others, client)
        assert made.url.startswith("https://127.0.0.1:")
        try:
            yield made
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_certificate_of_the_authority_is_let_in(guarded: Guarded) -> None:
    with StateClient(guarded.url, retry_s=DEADLINE_S, **guarded.options()) as client:
        eventually(lambda: client.tasks()[0].owner == "stopped", "a copy is there")
        assert client.get("counts", "k1") == 3

    async def ask() -> Any:
        async with AsyncStateClient(guarded.url, **guarded.options()) as client:
            return await client.get("counts", "k1")

    assert asyncio.run(ask()) == 3


def test_no_certificate_and_one_of_another_authority_are_refused(guarded: Guarded) -> None:
    stranger = guarded.others.issue("stranger")
    for shown in ({}, {"tls_certificate": stranger.certificate, "tls_key": stranger.key}):
        options: dict[str, Any] = {"tls_ca": guarded.ours.certificate, **shown}
        # A server that ends the handshake may be heard as its alert or as a broken connection.
        with (
            StateClient(guarded.url, retry_s=0, **options) as client,
            pytest.raises((NotAuthorized, Unavailable)),
        ):
            client.get("counts", "k1")


def test_even_health_is_told_to_nobody_without_a_certificate(guarded: Guarded) -> None:
    with StateClient(guarded.url, **guarded.options()) as client:
        assert client._http.get("/health").is_success
    context = ssl.create_default_context(cafile=guarded.ours.certificate)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{guarded.url}/health", verify=context, timeout=DEADLINE_S)


def test_a_server_that_the_client_does_not_trust_is_not_asked_again(guarded: Guarded) -> None:
    for ca in (None, guarded.others.certificate):
        options = {**guarded.options(), "tls_ca": ca}
        with (
            StateClient(guarded.url, retry_s=10 * DEADLINE_S, **options) as client,
            pytest.raises(NotAuthorized, match="pass the authority of the server's"),
        ):
            client.get("counts", "k1")


def test_files_that_a_client_cannot_use_are_named(guarded: Guarded) -> None:
    locked = guarded.ours.issue("locked", password=b"secret")
    ours, certificate, key = guarded.ours.certificate, *guarded.client
    for options, said in (
        ({"tls_ca": guarded.folder / "none"}, "tls_ca .*none: .*No such file"),
        ({"tls_ca": key}, "tls_ca .*client.key"),
        ({"tls_key": key}, "pass both"),
        ({"tls_certificate": certificate}, "tls_certificate .*client.crt"),
        ({"tls_certificate": certificate, "tls_key": locked.key}, "without a password"),
        ({"tls_ca": ours, "tls": ssl.create_default_context()}, "tls has"),
    ):
        made: dict[str, Any] = dict(options)
        with pytest.raises(Misuse, match=said):
            StateClient(guarded.url, **made)


def test_files_that_the_server_cannot_use_are_named(guarded: Guarded) -> None:
    state = TaskRig(pipeline(), guarded.folder / "state", settings=LONG_LEASE)
    filled(state)
    state.end()
    key = guarded.client.key
    for more in (
        [f"--tls-cert={key}", f"--tls-key={key}"],
        [f"--tls-cert={guarded.client.certificate}", f"--tls-key={key}", f"--tls-client-ca={key}"],
    ):
        where = [f"--state-dir={state.layout.state_dir}", "--port=0"]
        refused = CliRunner().invoke(cli, ["serve", "--application-id=shop", *where, *more])
        assert isinstance(refused.exception, Misuse)
        for flag in more:
            assert flag.replace("=", " ") in str(refused.exception)

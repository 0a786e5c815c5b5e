"""A broker as in production: clients come over TLS, name a password, and may show a certificate.

And applications whose file says so: the passwords are in the environment alone.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import ROOT
from tests.certificates import Authority, Issued
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import STATESTORE, USER, App, Ended, end_of

CLIENTS = ("wire", "librdkafka")
SECRET = "planted-0b5e4f37-horse"
KEY_SECRET = "planted-5d1c88a0-stable"
VARIABLES = {"BROKER_PASSWORD": SECRET, "KEY_PASSWORD": KEY_SECRET}
WRONG = "planted-93aa61f2-mule"
_LISTENER = "listener.name.sasl.ssl"


class Secured(NamedTuple):
    """A broker, the authority of its certificate, and another one that issued nothing to it."""

    kafka: LocalKafka
    authority: Authority
    stranger: Authority

    def settings(self, **changed: str) -> dict[str, str]:
        """What clients need, with `changed` for keys whose dots are underscores."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": "${BROKER_PASSWORD}",
        } | {key.replace("_", "."): value for key, value in changed.items()}

    def mistaken(self) -> dict[str, str]:
        """Settings that trust the other authority."""
        return self.settings(ssl_ca_location=str(self.stranger.certificate))


def with_certificate(issued: Issued) -> dict[str, str]:
    """What a client needs besides to show a certificate."""
    return {
        "ssl.certificate.location": str(issued.certificate),
        "ssl.key.location": str(issued.key),
        "ssl.key.password": "${KEY_PASSWORD}",
    }


@contextmanager
def secured_kafka(folder: Path) -> Iterator[Secured]:
    """Start it; the certificates are in `folder`."""
    authority, stranger = Authority(folder, "ours"), Authority(folder, "stranger")
    issued = authority.issue("broker")
    config = {
        f"{_LISTENER}.client.auth": "requested",
        f"{_LISTENER}.truststore.type": "PEM",
        f"{_LISTENER}.truststore.location": str(authority.certificate),
    }
    with LocalKafka(
        users={USER: SECRET},
        tls_certificate=issued.certificate,
        tls_key=issued.key,
        config=config,
    ) as kafka:
        yield Secured(kafka, authority, stranger)


def write_config(
    app: App, given: Mapping[str, object], *, name: str = "statestore", client: str = "wire"
) -> Path:
    """An applications file as users write it, in the folder of the app."""
    path = app.state_dir.parent / f"{name}.toml"
    said = {**given, "kafka.client": client}
    pairs = "".join(f'"{key}" = {value!r}\n' for key, value in said.items())
    path.write_text(
        f"[applications.{app.name}]\n"
        'pipeline = "tests.kafka.run_pipelines:counts"\n'
        f'bootstrap_servers = "{app.kafka.sasl_servers}"\n'
        f'state_dir = "{app.state_dir}"\n'
        'processing_guarantee = "exactly_once"\n'
        f"[applications.{app.name}.settings]\n{pairs}",
        encoding="utf-8",
    )
    return path


def environment(app: App, **changed: str) -> dict[str, str]:
    """The variables of its processes, passwords among them."""
    return {
        **os.environ,
        **VARIABLES,
        PREFIX_VARIABLE: app.name,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{app.state_dir.parent}",
        **changed,
    }


def start(app: App, config: Path, *words: str, **variables: str) -> processes.Process:
    """A command of the application on its way."""
    child = processes.start(
        [STATESTORE, *words, f"--config={config}", f"--application-id={app.name}"],
        env=environment(app, **variables),
        cwd=config.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    app.children.append(child)
    return child


def ended(app: App, config: Path, *words: str, **variables: str) -> Ended:
    """The same, at its end."""
    return end_of(start(app, config, *words, **variables), time.monotonic())

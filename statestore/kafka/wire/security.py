"""How a client of `kafka/wire` proves who it is, and to whom: TLS and SASL, from the settings.

The properties are librdkafka's, so both clients take the same settings.
"""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider

from statestore.errors import InvalidSetting
from statestore.kafka.error_codes import REFUSED_USER
from statestore.kafka.tokens import TAKEN, BearerTokens, not_taken, tokens_of
from statestore.settings import SECURITY_PREFIXES

_TAKEN = TAKEN | frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_TOKENS = "OAUTHBEARER"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", _TOKENS)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Login(NamedTuple):
    """A user, as the brokers know him, or where his tokens are; no repr shows the password."""

    mechanism: str
    username: str = ""
    password: str = ""
    tokens: BearerTokens | None = None

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username or self.tokens})"

    @property
    def way_out(self) -> str:
        """What to correct if brokers refuse the user."""
        if self.tokens is not None:
            return self.tokens.way_out
        return REFUSED_USER

    def begin(self, deadline_s: float) -> "LoginAttempt":
        """Return one login, from the first message on; NoToken if there is no token."""
        if self.tokens is None:
            given: dict[str, Any] = {
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
            token = ""
        else:
            token = self.tokens.token(deadline_s)
            given = {"sasl_oauth_token_provider": _Bearer(token, self.tokens.extensions)}
        kind = get_sasl_mechanism(self.mechanism)
        return LoginAttempt(kind(sasl_mechanism=self.mechanism, **given), token)


class LoginAttempt(NamedTuple):
    """The messages of one login (kafka-python's `SaslMechanism`), and the token it shows."""

    messages: Any
    token: str


class _Bearer(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """One token, for kafka-python."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions

    def token(self) -> str:
        """Return it."""
        return self._token

    def extensions(self) -> Mapping[str, str]:
        """Return what is told besides."""
        return self._extensions


class Security(NamedTuple):
    """What a connection does before its first request; None stands for nothing."""

    tls: ssl.SSLContext | None = None
    checks_host: bool = True
    login: Login | None = None

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "Security":
        """Read a client's properties; InvalidSetting says which one is wrong."""
        protocol = config.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise InvalidSetting(
                f"security.protocol {protocol!r}: use one of {', '.join(_PROTOCOLS)}"
            )
        tls, checks_host = None, True
        if protocol.endswith("SSL"):
            tls, checks_host = _tls(config)
        login = _login(config) if protocol.startswith("SASL") else None
        return cls(tls, checks_host, login)

    @staticmethod
    def not_taken(config: Mapping[str, str]) -> list[str]:
        """Return the properties of security that only librdkafka knows."""
        found = [key for key in config if key.startswith(SECURITY_PREFIXES) and key not in _TAKEN]
        protocol = config.get("security.protocol", "PLAINTEXT").upper()
        mechanism = _mechanism(config)
        if protocol.startswith("SASL") and mechanism not in _MECHANISMS:
            found.append(f"sasl.mechanism={mechanism}")
        if mechanism == _TOKENS:
            found += not_taken(config)
        return sorted(found)


def _mechanism(config: Mapping[str, str]) -> str:
    return config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))


def _login(config: Mapping[str, str]) -> Login:
    if _mechanism(config) == _TOKENS:
        return Login(_TOKENS, tokens=tokens_of(config))
    for key in ("sasl.username", "sasl.password"):
        if not config.get(key):
            raise InvalidSetting(f"{key} is not set: {_mechanism(config)} needs it")
    return Login(_mechanism(config), config["sasl.username"], config["sasl.password"])


def _tls(config: Mapping[str, str]) -> tuple[ssl.SSLContext, bool]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not config.get("ssl.ca.location") and not config.get("ssl.ca.pem"):
        context.load_default_certs()
    checks_host = config.get("ssl.endpoint.identification.algorithm", "https") != "none"
    context.check_hostname = checks_host
    if config.get("enable.ssl.certificate.verification", "true").lower() in {"false", "0", "f"}:
        context.check_hostname = checks_host = False
        context.verify_mode = ssl.CERT_NONE
    if place := config.get("ssl.ca.location"):
        folder = Path(place).is_dir()
        _read(
            "ssl.ca.location",
            place,
            lambda: context.load_verify_locations(
                cafile=None if folder else place, capath=place if folder else None
            ),
        )
    if text := config.get("ssl.ca.pem"):
        _read("ssl.ca.pem", "…", lambda: context.load_verify_locations(cadata=text))
    if place := config.get("ssl.certificate.location"):
        _read(
            "ssl.certificate.location and ssl.key.location",
            place,
            lambda: context.load_cert_chain(
                place, config.get("ssl.key.location"), config.get("ssl.key.password")
            ),
        )
    return context, checks_host


def _read(key: str, value: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except (OSError, ValueError) as failure:
        raise InvalidSetting(f"{key} = {value!r}: {failure}") from failure

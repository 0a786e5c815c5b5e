"""Where tokens are fetched, from the settings, and what is said of it; `token_request` asks there.

No message of this module has the secret.
"""

import base64
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from statestore.errors import InvalidSetting

METHOD = "sasl.oauthbearer.method"
URL = "sasl.oauthbearer.token.endpoint.url"
SCOPE = "sasl.oauthbearer.scope"
_EXTENSIONS = "sasl.oauthbearer.extensions"
AUTHORITY, _AUTHORITY_TEXT = "https.ca.location", "https.ca.pem"
# The second name of each is librdkafka's later one.
ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
PROPERTIES = frozenset({URL, SCOPE, _EXTENSIONS, AUTHORITY, _AUTHORITY_TEXT, *ID, *SECRET})
ANSWER_S = 10.0
"""How long an endpoint has for an answer."""
CREDENTIALS = f"correct {ID[0]} and {SECRET[0]}"
WAY_OUT = {
    "invalid_client": CREDENTIALS,
    "invalid_scope": f"correct {SCOPE}",
    "unauthorized_client": f"allow the grant client_credentials to {ID[0]}",
    "unsupported_grant_type": f"correct {URL}: it does not give the grant client_credentials",
}
ENDPOINT_REFUSALS = frozenset(WAY_OUT)
"""The codes of an endpoint (RFC 6749, 5.2) that another attempt would not change."""


class NoToken(Exception):
    """No token came in time, and why; another attempt may succeed."""


class TokenEndpoint(NamedTuple):
    """Where tokens are fetched, and by whom; the repr does not show the secret."""

    url: str
    client_id: str
    secret: str
    scope: str
    extensions: tuple[tuple[str, str], ...]
    authority: str
    authority_text: str

    def __repr__(self) -> str:
        return f"TokenEndpoint({self}, {self.client_id})"

    def __str__(self) -> str:
        # What follows the path may be a key.
        return f"{URL} = {self.url.partition('?')[0]}"

    @property
    def basic(self) -> str:
        """The client and its secret, as HTTP's Basic takes them."""
        return base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TokenEndpoint":
        """Read a client's properties; InvalidSetting says which one is wrong."""
        extensions = config.get(_EXTENSIONS, "")
        pairs = [pair.strip().partition("=") for pair in extensions.split(",") if pair.strip()]
        found = checked_extensions({name: value for name, _, value in pairs}, _EXTENSIONS)
        return cls(
            _url(_needed(config, URL)),
            _needed(config, *ID),
            _needed(config, *SECRET),
            _utf8(SCOPE, config.get(SCOPE, "")),
            tuple(sorted(found.items())),
            config.get(AUTHORITY, ""),
            config.get(_AUTHORITY_TEXT, ""),
        )

    def trusted(self) -> ssl.SSLContext:
        """Return whom to trust: the authorities of the machine, unless others are named."""
        place = "" if self.authority == "probe" else self.authority
        folder = Path(place).is_dir() if place else False
        try:
            return ssl.create_default_context(
                cafile=place if place and not folder else None,
                capath=place if folder else None,
                cadata=self.authority_text or None,
            )
        except (OSError, ValueError) as failure:
            key = AUTHORITY if place else _AUTHORITY_TEXT
            raise InvalidSetting(f"{key} = {place or '…'!r}: {failure}") from failure

    def refuse(self, why: str, way_out: str) -> NoReturn:
        """Raise the error for what another attempt would not change."""
        raise InvalidSetting(f"no token from {self}: {self.without(why)}: {way_out}")

    def fail(self, why: str, way_out: str = "is it up and reachable?") -> NoReturn:
        """Raise the signal for what may pass."""
        raise NoToken(f"no token from {self}: {self.without(why)}: {way_out}")

    def without(self, text: str) -> str:
        """Return what an endpoint said, without the secret if it repeated it, and not too long."""
        for hidden in (self.secret, urllib.parse.quote_plus(self.secret), self.basic):
            text = text.replace(hidden, "…")
        return " ".join(text.split())[:300]


def _needed(config: Mapping[str, str], *keys: str) -> str:
    for key in keys:
        if value := config.get(key):
            return _utf8(key, value)
    raise InvalidSetting(f"{keys[0]} is not set: {METHOD}=oidc needs it")


def _utf8(key: str, value: str) -> str:
    """Return a value that can be sent; InvalidSetting if a variable was no text."""
    try:
        value.encode()
    except UnicodeEncodeError as failure:
        raise InvalidSetting(f"{key}: its bytes are not UTF-8: write it in UTF-8") from failure
    return value


def _url(text: str) -> str:
    """Return the address of an endpoint, which may not have a user in it."""
    try:
        parts = urllib.parse.urlsplit(text)
        is_right = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        is_right = is_right and "@" not in parts.netloc
        (parts.hostname or "").encode("idna")  # as sockets do; it says which names there cannot be
    except ValueError:
        is_right = False
    if not is_right or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidSetting(f"{URL}: want http(s)://host/path, without a user or a password")
    return text


def checked_extensions(extensions: dict[str, str], key: str) -> dict[str, str]:
    """Return what is told to brokers besides a token (RFC 7628); InvalidSetting if it cannot be."""
    for name, value in extensions.items():
        is_value = value and all(char.isascii() and char.isprintable() for char in value)
        if not (name.isascii() and name.isalpha()) or name == "auth" or not is_value:
            raise InvalidSetting(
                f"{key}: {name}={value}: the name of an extension has letters only and is not "
                "auth, and its value is text"
            )
    return extensions

"""Asks a token endpoint for a token by OAuth 2's client credentials (RFC 6749, 4.4).

No message of this module has the secret, and no redirection takes it to somebody else.
"""

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any, NamedTuple, NoReturn

from statestore.errors import InvalidSetting

METHOD = "sasl.oauthbearer.method"
URL = "sasl.oauthbearer.token.endpoint.url"
SCOPE = "sasl.oauthbearer.scope"
_EXTENSIONS = "sasl.oauthbearer.extensions"
_AUTHORITY, _AUTHORITY_TEXT = "https.ca.location", "https.ca.pem"
# The second name of each is librdkafka's later one.
ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
PROPERTIES = frozenset({URL, SCOPE, _EXTENSIONS, _AUTHORITY, _AUTHORITY_TEXT, *ID, *SECRET})
ANSWER_S = 10.0
_ANSWER_MAX_BYTES = 1 << 20
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
CREDENTIALS = f"correct {ID[0]} and {SECRET[0]}"
_WAY_OUT = {
    "invalid_client": CREDENTIALS,
    "invalid_scope": f"correct {SCOPE}",
    "unauthorized_client": f"allow the grant client_credentials to {ID[0]}",
    "unsupported_grant_type": f"correct {URL}: it does not give the grant client_credentials",
}
ENDPOINT_REFUSALS = frozenset(_WAY_OUT)
"""The codes of an endpoint (RFC 6749, 5.2) that another attempt would not change."""


class NoToken(Exception):
    """No token came in time, and why; another attempt may succeed."""


class Token(NamedTuple):
    """A token, and until when it is good from the moment in which it came."""

    text: str
    left_s: float

    def __repr__(self) -> str:
        return f"Token({self.left_s:g} s left)"


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
            config.get(SCOPE, ""),
            tuple(sorted(found.items())),
            config.get(_AUTHORITY, ""),
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
            key = _AUTHORITY if place else _AUTHORITY_TEXT
            raise InvalidSetting(f"{key} = {place or '…'!r}: {failure}") from failure

    def refuse(self, why: str, way_out: str) -> NoReturn:
        """Raise the error for what another attempt would not change."""
        raise InvalidSetting(f"no token from {self}: {self.without(why)}: {way_out}")

    def fail(self, why: str, way_out: str = "is it up and reachable?") -> NoReturn:
        """Raise the signal for what may pass."""
        raise NoToken(f"no token from {self}: {self.without(why)}: {way_out}")

    def without(self, text: str) -> str:
        """Return what an endpoint said, without the secret if it repeated it, and not too long."""
        for hidden in (self.secret, urllib.parse.quote_plus(self.secret), _basic(self)):
            text = text.replace(hidden, "…")
        return " ".join(text.split())[:300]

    def fetch(self, trusted: ssl.SSLContext) -> Token:
        """Ask once; NoToken if another attempt may succeed, InvalidSetting if not."""
        deadline_s = monotonic() + ANSWER_S
        fields = {"grant_type": "client_credentials"}
        if self.scope:
            fields["scope"] = self.scope
        asked = urllib.request.Request(  # noqa: S310 - `_url` takes http and https alone
            self.url,
            data=urllib.parse.urlencode(fields).encode(),
            headers={
                "Authorization": f"Basic {_basic(self)}",
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=trusted), _NoRedirects()
        )
        try:
            with opener.open(asked, timeout=ANSWER_S) as answer:
                return _read(self, _body(answer, deadline_s))
        except urllib.error.HTTPError as refused:
            with refused:
                _refuse(self, refused.code, _told(refused, deadline_s))
        except (OSError, HTTPException) as failure:
            cause = failure.reason if isinstance(failure, urllib.error.URLError) else failure
            if isinstance(cause, ssl.SSLCertVerificationError):
                self.refuse(cause.verify_message, f"correct {_AUTHORITY}")
            self.fail(str(cause) or type(cause).__name__)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirection would send the secret to somebody whom no setting names."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error like others."""


def _body(answer: Any, deadline_s: float) -> bytes:
    """Read an answer that does not take for ever and has no end."""
    found = bytearray()
    while len(found) <= _ANSWER_MAX_BYTES and (piece := answer.read1(1 << 16)):
        found += piece
        if monotonic() > deadline_s:
            raise TimeoutError(f"the answer took longer than {ANSWER_S:g} s")
    return bytes(found)


def _told(refused: Any, deadline_s: float) -> dict[str, Any]:
    """Return the fields of an error (RFC 6749, 5.2), as far as there are any."""
    try:
        found = json.loads(_body(refused, deadline_s))
    except (OSError, HTTPException, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _refuse(endpoint: TokenEndpoint, code: int, told: Mapping[str, Any]) -> NoReturn:
    error, about = (str(told.get(key, "")) for key in ("error", "error_description"))
    said = ": ".join(filter(None, (f"HTTP {code}", error, about)))
    if code in _LATER:
        endpoint.fail(said)
    if 300 <= code < 400:
        endpoint.refuse(said, f"set {URL} to the address it has now, as no redirection is followed")
    if error in _WAY_OUT:
        endpoint.refuse(said, _WAY_OUT[error])
    endpoint.refuse(said, CREDENTIALS if code in {401, 403} else f"correct {URL}")


def _read(endpoint: TokenEndpoint, body: bytes) -> Token:
    """Return the token of an answer (RFC 6749, 5.1)."""
    wrong = f"correct {URL}, as this is no token endpoint"
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        endpoint.refuse("its answer is no JSON", wrong)
    text = found.get("access_token") if isinstance(found, dict) else None
    if not (
        isinstance(text, str) and text.isascii() and text.isprintable() and text.split() == [text]
    ):
        endpoint.refuse("its answer has no access_token", wrong)
    kind = found.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        endpoint.refuse(f"its token_type is {kind!r:.40}, not Bearer", f"correct {URL}")
    now_s = time()
    end_s, told_s = _seconds(_claims(text).get("exp")), _seconds(found.get("expires_in"))
    if end_s is None and told_s is None:
        endpoint.refuse(
            "its token does not tell when it expires", "have it give a JWT with exp, or expires_in"
        )
    left_s = min(inf if end_s is None else end_s - now_s, inf if told_s is None else told_s)
    if left_s <= 0:
        endpoint.fail(
            f"its token expired {abs(left_s):.0f} s ago",
            "compare the clocks of this machine and of the endpoint",
        )
    return Token(text, left_s)


def _claims(token: str) -> Mapping[str, Any]:
    """Return what a JWT says; nothing if it is none, as tokens may have any form."""
    parts = token.split(".")
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
    except (ValueError, IndexError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(value: object) -> float | None:
    try:
        found = float(value)  # type: ignore[arg-type]  # whatever JSON has
    except (TypeError, ValueError):
        return None
    return found if abs(found) < inf else None


def _needed(config: Mapping[str, str], *keys: str) -> str:
    for key in keys:
        if value := config.get(key):
            return value
    raise InvalidSetting(f"{keys[0]} is not set: {METHOD}=oidc needs it")


def _url(text: str) -> str:
    """Return the address of an endpoint, which may not have a user in it."""
    try:
        parts = urllib.parse.urlsplit(text)
        is_right = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        is_right = is_right and "@" not in parts.netloc
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


def _basic(endpoint: TokenEndpoint) -> str:
    return base64.b64encode(f"{endpoint.client_id}:{endpoint.secret}".encode()).decode()

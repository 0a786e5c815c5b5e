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
from time import monotonic, time
from typing import Any, NamedTuple, NoReturn

from statestore.kafka.token_endpoint import (
    ANSWER_S,
    AUTHORITY,
    CREDENTIALS,
    URL,
    WAY_OUT,
    TokenEndpoint,
)

_ANSWER_MAX_BYTES = 1 << 20
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class Token(NamedTuple):
    """A token, and until when it is good from the moment in which it came."""

    text: str
    left_s: float

    def __repr__(self) -> str:
        return f"Token({self.left_s:g} s left)"


def fetch(endpoint: TokenEndpoint, trusted: ssl.SSLContext) -> Token:
    """Ask once; NoToken if another attempt may succeed, InvalidSetting if not."""
    deadline_s = monotonic() + ANSWER_S
    fields = {"grant_type": "client_credentials"}
    if endpoint.scope:
        fields["scope"] = endpoint.scope
    asked = urllib.request.Request(  # noqa: S310 - `_url` takes http and https alone
        endpoint.url,
        data=urllib.parse.urlencode(fields).encode(),
        headers={
            "Authorization": f"Basic {endpoint.basic}",
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=trusted), _NoRedirects()
    )
    try:
        with opener.open(asked, timeout=ANSWER_S) as answer:
            return _read(endpoint, _body(answer, deadline_s))
    except urllib.error.HTTPError as refused:
        with refused:
            _refuse(endpoint, refused.code, _told(refused, deadline_s))
    except (OSError, HTTPException) as failure:
        cause = failure.reason if isinstance(failure, urllib.error.URLError) else failure
        if isinstance(cause, ssl.SSLCertVerificationError):
            endpoint.refuse(cause.verify_message, f"correct {AUTHORITY}")
        endpoint.fail(str(cause) or type(cause).__name__)


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
    if error in WAY_OUT:
        endpoint.refuse(said, WAY_OUT[error])
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
    except (TypeError, ValueError, OverflowError):
        return None
    return found if abs(found) < inf else None

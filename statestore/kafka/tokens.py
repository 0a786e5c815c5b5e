"""Tokens for SASL's OAUTHBEARER, as librdkafka's properties ask for them.

With `sasl.oauthbearer.method=oidc` a token endpoint gives them (OAuth 2's client credentials). All
clients of a process with the same settings have one token (librdkafka's have their own). Once
80 % of its lifetime are over it is fetched anew, beside those who use it, and what is still good is
used as long as no other comes. With `enable.sasl.oauthbearer.unsecure.jwt` they are made here and
nobody signs them: for development alone.

No message of this module has the secret.
"""

import base64
import json
import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from functools import cache
from math import inf
from time import monotonic, time
from typing import Any, NamedTuple, Protocol

from statestore.errors import InvalidSetting, StateStoreError, Unavailable
from statestore.kafka import token_endpoint
from statestore.kafka.token_endpoint import (
    ANSWER_S,
    ID,
    METHOD,
    SECRET,
    URL,
    NoToken,
    TokenEndpoint,
    checked_extensions,
)

_log = logging.getLogger(__name__)
_UNSECURED = "enable.sasl.oauthbearer.unsecure.jwt"
_CONFIG = "sasl.oauthbearer.config"
_GRANT = "sasl.oauthbearer.grant.type"
TAKEN = token_endpoint.PROPERTIES | {
    METHOD,
    _UNSECURED,
    _CONFIG,
    _GRANT,
    # Whom a token is for is the brokers' to say.
    "sasl.oauthbearer.sub.claim.name",
}
"""The properties that are known here; see also `not_taken`."""
REFUSED_BEARER = (
    "correct sasl.oauthbearer.scope or sasl.oauthbearer.client.id, or what the brokers expect of a "
    "token (sasl.oauthbearer.expected.audience and .expected.issuer)"
)
"""What to do about a token that brokers refuse."""
_LIFE = re.compile("[0-9]{1,15}")
_TRUE = frozenset({"true", "t", "1"})
_REFRESHED = 0.8
_BEHIND_S = 30  # the clock of a broker may be so far behind
# How long a failure is told to others who ask, without and with a token that is still good.
_AGAIN_S, _AGAIN_BESIDE_S = 0.5, 10.0
# How long a login waits for a new token while the last one is good.
_BESIDE_S = 1.0
_LOOK_S = 2.0


class BearerTokens(Protocol):
    """Where a client's tokens come from."""

    @property
    def extensions(self) -> Mapping[str, str]:
        """What is told to brokers besides the token."""
        ...

    @property
    def way_out(self) -> str:
        """What to correct if brokers refuse a token."""
        ...

    def token(self, deadline_s: float) -> str:
        """Return a token that is good for some time.

        NoToken if there is none by `deadline_s`; InvalidSetting if another attempt would not help.
        """
        ...

    def trouble(self) -> str:
        """Return why there is no token that is good, as the last attempt told; or nothing."""
        ...

    def refused(self, token: str) -> bool:
        """Forget a token that a broker refused; return whether another attempt may succeed."""
        ...

    def accepted(self, token: str) -> None:
        """Note that a broker took the token."""
        ...


def tokens_of(config: Mapping[str, str]) -> BearerTokens:
    """Return the tokens that a client's properties ask for; InvalidSetting if they ask for none."""
    is_unsecured = config.get(_UNSECURED, "false").lower() in _TRUE
    is_oidc = config.get(METHOD, "default").lower() == "oidc"
    if is_unsecured and is_oidc:
        raise InvalidSetting(f"{_UNSECURED} and {METHOD}=oidc exclude each other: leave one out")
    if is_unsecured:
        return UnsecuredTokens.of(config.get(_CONFIG, ""))
    if is_oidc:
        return _fetched(TokenEndpoint.of(config))
    raise InvalidSetting(
        f"sasl.mechanism=OAUTHBEARER needs tokens: set {METHOD}=oidc with {ID[0]}, {SECRET[0]} "
        f"and {URL}, or, for development, {_UNSECURED}=true with {_CONFIG}"
    )


def not_taken(config: Mapping[str, str]) -> list[str]:
    """Return the ways to a token that only librdkafka knows."""
    grant = config.get(_GRANT, "client_credentials")
    return [] if grant == "client_credentials" else [f"{_GRANT}={grant}"]


def no_token(config: Mapping[str, str], doing: str) -> StateStoreError | None:
    """Return the error for what a client could not do for want of a token; None if one comes.

    One is asked for now: clients of librdkafka fetch theirs themselves, and do not tell.
    InvalidSetting if another attempt would not help, else Unavailable.
    """
    if not _asks_for_tokens(config) or not_taken(config):
        return None
    try:
        tokens_of(config).token(monotonic() + _LOOK_S)
    except InvalidSetting as failure:
        return InvalidSetting(f"{doing}: {failure}")
    except NoToken as failure:
        return Unavailable(f"{doing}: {failure}")
    return None


def _asks_for_tokens(config: Mapping[str, str]) -> bool:
    mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", ""))
    protocol = config.get("security.protocol", "").upper()
    return mechanism == "OAUTHBEARER" and protocol.startswith("SASL")


class UnsecuredTokens(NamedTuple):
    """Tokens that nobody signed, from `sasl.oauthbearer.config`; each login has one of its own."""

    claims: Mapping[str, Any]
    life_s: int
    extensions: Mapping[str, str]
    way_out: str = f"correct {_CONFIG}, and see whether the brokers take tokens without a signature"

    @classmethod
    def of(cls, text: str) -> "UnsecuredTokens":
        """Read `principal=me scope=a,b lifeSeconds=60 extension_name=value`, as librdkafka does."""
        given = {
            "principalClaimName": "sub",
            "principal": "",
            "scopeClaimName": "scope",
            "scope": "",
            "lifeSeconds": "3600",
        }
        extensions: dict[str, str] = {}
        for word in text.split():
            name, _, value = word.partition("=")
            if name.startswith("extension_") and value:
                extensions[name.removeprefix("extension_")] = value
            elif name in given and value and '"' not in value:
                given[name] = value
            else:
                raise InvalidSetting(
                    f"{_CONFIG}: {word!r}: it has {', '.join(given)} and extension_NAME, each as "
                    "name=value, with blanks between them"
                )
        if not given["principal"]:
            raise InvalidSetting(f"{_CONFIG} = {text!r}: it needs principal=NAME")
        if not (_LIFE.fullmatch(given["lifeSeconds"]) and int(given["lifeSeconds"])):
            raise InvalidSetting(
                f"{_CONFIG}: lifeSeconds={given['lifeSeconds']:.99}: want a number of seconds, "
                "from 1 on and of 15 digits at most"
            )
        claims: dict[str, Any] = {given["principalClaimName"]: given["principal"]}
        if given["scope"]:
            claims[given["scopeClaimName"]] = given["scope"].split(",")
        checked_extensions(extensions, _CONFIG)
        return cls(claims, int(given["lifeSeconds"]), extensions)

    def token(self, deadline_s: float) -> str:  # noqa: ARG002 - others have to wait
        """Make one that has begun already; see the protocol."""
        now_s = time()
        # Brokers refuse what is issued after their own time, which is in whole milliseconds and by
        # a clock of their own.
        claims = {**self.claims, "iat": int(now_s) - _BEHIND_S, "exp": now_s + self.life_s}
        head, body = (_encoded(json.dumps(part)) for part in ({"alg": "none"}, claims))
        return f"{head}.{body}."

    def trouble(self) -> str:
        """See the protocol: nothing can go wrong."""
        return ""

    def refused(self, token: str) -> bool:  # noqa: ARG002 - all are alike
        """See the protocol: the next one would be refused as well."""
        return False

    def accepted(self, token: str) -> None:
        """See the protocol."""


class _Token(NamedTuple):
    text: str
    refresh_s: float
    end_s: float


class FetchedTokens:
    """The token of an endpoint; see the module. All threads of a process use the same one."""

    way_out = REFUSED_BEARER

    def __init__(self, endpoint: TokenEndpoint) -> None:
        """The first question fetches; InvalidSetting if an authority cannot be read."""
        self._endpoint = endpoint
        self._trusted = endpoint.trusted()
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._accepted = ""
        self._fetch: Future[_Token] | None = None
        self._fetch_end_s = 0.0
        self._failure: BaseException | None = None
        self._failed_s = -inf

    @property
    def extensions(self) -> Mapping[str, str]:
        """See the protocol."""
        return dict(self._endpoint.extensions)

    def token(self, deadline_s: float) -> str:
        """See the protocol: it waits for long only where there is no token that is good."""
        with self._lock:
            fetch = self._due()
            good = self._good()
        now_s = monotonic()
        left_s = max(deadline_s - now_s, 0.0)
        if good is not None:
            if fetch is None:
                return good.text
            left_s = min(left_s, _BESIDE_S, (good.end_s - now_s) / 2)
        assert fetch is not None, "one that is not good is due"
        try:
            # What comes later is there for the next who asks.
            return fetch.result(left_s).text
        except NotInTime:
            if good is None:
                self._endpoint.fail("no answer yet")
        except (NoToken, InvalidSetting) as failure:
            if good is None:
                raise type(failure)(str(failure)) from failure
        return good.text

    def trouble(self) -> str:
        """See the protocol."""
        with self._lock:
            self._settle()
            if self._good() is not None:
                return ""
            if self._fetch is not None and self._failure is None:
                return f"no token from {self._endpoint}: no answer yet: is it up and reachable?"
            return str(self._failure or "")

    def refused(self, token: str) -> bool:
        """See the protocol: one that was taken before is too old by now, or its key is no more."""
        with self._lock:
            self._settle()
            if self._token is not None and self._token.text == token:
                self._token = None
            return token == self._accepted

    def accepted(self, token: str) -> None:
        """See the protocol."""
        self._accepted = token

    def _good(self) -> _Token | None:
        return self._token if self._token is not None and monotonic() < self._token.end_s else None

    def _due(self) -> Future[_Token] | None:
        """Return the fetch that goes on, begun now if a token is due and nobody fetches it."""
        self._settle()
        now_s = monotonic()
        if self._fetch is not None and now_s < self._fetch_end_s:
            return self._fetch
        token = self._good()
        if token is not None and now_s < max(token.refresh_s, self._failed_s + _AGAIN_BESIDE_S):
            return None
        fetch: Future[_Token] = Future()
        if token is None and self._failure is not None and now_s < self._failed_s + _AGAIN_S:
            fetch.set_exception(self._failure)
            return fetch
        self._fetch, self._fetch_end_s = fetch, now_s + ANSWER_S
        threading.Thread(target=self._answer, args=(fetch,), daemon=True).start()
        return fetch

    def _answer(self, fetch: Future[_Token]) -> None:
        try:
            from statestore.kafka import token_request

            text, left_s = token_request.fetch(self._endpoint, self._trusted)
            now_s = monotonic()
            fetch.set_result(_Token(text, now_s + left_s * _REFRESHED, now_s + left_s))
        except Exception as failure:  # noqa: BLE001 - whoever waits for it raises it
            fetch.set_exception(failure)

    def _settle(self) -> None:
        """Take in how the last fetch ended."""
        fetch = self._fetch
        if fetch is None or not fetch.done():
            return
        self._fetch, self._failure = None, fetch.exception()
        if self._failure is None:
            self._token = fetch.result()
            return
        self._failed_s = monotonic()
        if self._good() is not None:
            _log.warning("%s; the last token is used until it expires", self._failure)


@cache
def _fetched(endpoint: TokenEndpoint) -> FetchedTokens:
    return FetchedTokens(endpoint)


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

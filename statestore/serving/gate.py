"""What every request passes first: who asks, under which name, how many at once, how long a body.

It is plain ASGI, so that it costs little and streams pass through it untouched.
"""

import re
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

from statestore.errors import (
    Action,
    Misuse,
    NotAuthorized,
    NotUpToBound,
    PageExpired,
    StateStoreError,
    Unavailable,
    UnknownStore,
)
from statestore.serving.access import Tokens
from statestore.serving.documents import Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PROBLEM = "application/problem+json"
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
OPEN = frozenset({"/health", "/ready"})
"""Paths that tell nothing of the state, for those who restart servers."""
_STATUSES: tuple[tuple[type[StateStoreError], HTTPStatus], ...] = (
    (NotAuthorized, HTTPStatus.UNAUTHORIZED),
    (UnknownStore, HTTPStatus.NOT_FOUND),
    (PageExpired, HTTPStatus.GONE),
    (Misuse, HTTPStatus.BAD_REQUEST),
    (NotUpToBound, HTTPStatus.GATEWAY_TIMEOUT),
    (StateStoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_RETRY_AFTER = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


def status_of(error: StateStoreError) -> HTTPStatus:
    """Return the status under which an error is answered."""
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def problem_of(error: BaseException, status: HTTPStatus | None = None) -> Problem:
    """Return an error as it is answered; one that nobody foresaw tells only that it happened."""
    if not isinstance(error, StateStoreError):
        status = status or HTTPStatus.INTERNAL_SERVER_ERROR
        return Problem(
            title=status.phrase,
            status=status.value,
            detail="an unforeseen error: the server's log has it",
            error="Exception",
            retry=False,
        )
    status = status or status_of(error)
    return Problem(
        title=status.phrase,
        status=status.value,
        detail=str(error),
        error=type(error).__name__,
        retry=error.action is not Action.FAIL,
    )


def headers_of(problem: Problem) -> dict[str, str]:
    """Return the headers that go with a problem."""
    if problem.status == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": "Bearer"}
    return {"retry-after": "1"} if problem.status in _RETRY_AFTER else {}


class ServingGate:
    """An ASGI app around another one; it answers what must not get further."""

    def __init__(
        self, app: App, *, tokens: Tokens, hosts: frozenset[str] | None, requests_max: int
    ) -> None:
        """`hosts`: the names under which the server may be asked; None: any."""
        self._app = app
        self._tokens = tokens
        self._hosts = hosts
        self._requests_max = requests_max
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            await _answer(send, refused)
            return
        self._requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests -= 1

    def _refused(self, scope: Scope) -> Problem | None:
        if self._hosts is not None:
            asked = [value for name, value in scope["headers"] if name == b"host"]
            # Of several names, or of what looks like one, others may believe another part.
            found = _HOST.fullmatch(asked[0]) if len(asked) == 1 else None
            if found is None or found[1].decode().lower() not in self._hosts:
                said = b", ".join(asked).decode("latin-1")
                return problem_of(
                    NotAuthorized(
                        f"host {said[:80]!r}: a server whose clients do not log in answers only "
                        "to its local names: ask it as 127.0.0.1"
                    ),
                    HTTPStatus.MISDIRECTED_REQUEST,
                )
        if scope["path"] in OPEN:
            return None
        if self._tokens and not self._tokens.admit(dict(scope["headers"]).get(b"authorization")):
            return problem_of(
                NotAuthorized("send a token that this server knows: Authorization: Bearer <token>")
            )
        if self._requests >= self._requests_max:
            return problem_of(
                Unavailable(
                    f"{self._requests} requests are being answered: try again, or ask for many "
                    "keys at once"
                )
            )
        return None


async def _answer(send: Send, problem: Problem) -> None:
    body = msgspec.json.encode(problem)
    headers = {
        "content-type": PROBLEM,
        "content-length": str(len(body)),
        **headers_of(problem),
    }
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})

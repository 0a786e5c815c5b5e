"""One connection to one broker: sends requests, and reads their answers in the same order.

Sockets block up to a deadline. A connection that has failed is closed, and another is made; what
was asked on it has no answer. A connection is used by one thread.

A broker may give a login a lifetime (`connections.max.reauth.ms`, or that of a token) and ends the
connection with the first request after it. Before that time is over the connection logs in anew,
between two requests (KIP-368); one that was idle for too long says so and is made anew.
"""

import random
import socket
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from kafka.errors import for_code
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from statestore.errors import BrokerTooOld, InvalidSetting
from statestore.kafka.error_codes import UNTRUSTED_BROKER, UNTRUSTED_CLIENT
from statestore.kafka.token_endpoint import NoToken
from statestore.kafka.wire.security import Login, Security
from statestore.model.broker_addresses import BrokerAddress

_RECEIVE_BYTES = 1 << 20
# Kafka's own limit of a request (socket.request.max.bytes) is 100 MiB, and no answer of ours has to
# be larger than what was asked for and one batch.
_ANSWER_MAX_BYTES = 1 << 30
_VERSIONS_VERSION = 3
_SIZE = struct.Struct(">i")
_TRANSACTIONS = "transaction.version"
# After which share of a session's lifetime it is renewed, not on all connections at once.
_RENEWED = (0.85, 0.93)
_RENEW_S = 10.0


class Disconnected(Exception):
    """A connection could not be made or has ended, and why; what it was asked has no answer."""


class Connection:
    """See the module."""

    def __init__(
        self, address: BrokerAddress, security: Security, *, client_id: str, deadline_s: float
    ) -> None:
        """Connect, agree on versions and log in; Disconnected if it is not done by `deadline_s`.

        InvalidSetting if the broker refuses the user or has a certificate that is not trusted.
        """
        self.address = address
        self._client_id = client_id
        self._number = 0
        self._pending: deque[tuple[int, Any, int]] = deque()
        self._unread: deque[Any] = deque()
        """Answers that came before a new login and that nobody has read yet."""
        self._login = security.login
        self._renew_s = self._end_s = inf
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._got = 0
        self._need = 0
        self._versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        try:
            self._socket = socket.create_connection(address, max(deadline_s - monotonic(), 0.001))
        except OSError as failure:
            raise Disconnected(f"{address}: {failure}") from failure
        try:
            self._begin(security, deadline_s)
        except BaseException:
            self.close()
            raise

    @property
    def has_transactions(self) -> bool:
        """Whether the cluster gives each transaction an epoch of its own (KIP-890)."""
        return self.features.get(_TRANSACTIONS, 0) >= 2

    @property
    def waiting(self) -> int:
        """How many requests have no answer yet, or one that was not read."""
        return len(self._pending) + len(self._unread)

    @property
    def is_expired(self) -> bool:
        """Whether the broker would end it with the next request, as its session is over."""
        return not self.waiting and monotonic() >= self._end_s

    @property
    def number(self) -> int:
        """The number of the last request."""
        return self._number

    def version(self, request: Any, at_most: int) -> int:
        """Return the newest version of a request that both sides know, up to `at_most`."""
        least, most = self._versions.get(request.API_KEY, (0, 0))
        if least > at_most:
            raise BrokerTooOld(
                f"{self.address} does not know {request.name} of version {at_most} "
                f"(it has {least} to {most}): use kafka.client=librdkafka"
            )
        return min(most, at_most)

    def send(self, request: Any, response: Any, *, deadline_s: float) -> int:
        """Send a request with its version; return its number. Answers come in this order.

        Disconnected if it cannot be sent, or if a session that is due cannot be renewed.
        """
        if monotonic() >= self._renew_s:
            self._renew(min(deadline_s, monotonic() + _RENEW_S))
        return self._send(request, response, deadline_s)

    def _send(self, request: Any, response: Any, deadline_s: float) -> int:
        self._number += 1
        request.with_header(correlation_id=self._number, client_id=self._client_id)
        data = request.encode(framed=True, header=True)
        try:
            self._wait_at_most(deadline_s)
            self._socket.sendall(data)
        except OSError as failure:
            self.close()
            raise self._broken(failure) from failure
        self._pending.append((self._number, response, request.API_VERSION))
        return self._number

    def read(self, *, deadline_s: float) -> Any:
        """Return the answer to the oldest request that has none; None if it has not come in time.

        The caller may ask again.
        """
        return self._unread.popleft() if self._unread else self._receive(deadline_s)

    def _receive(self, deadline_s: float) -> Any:
        frame = self._frame(deadline_s)
        if frame is None:
            return None
        number, response, version = self._pending.popleft()
        try:
            (found,) = _SIZE.unpack_from(frame)
            if found != number:
                raise ValueError(f"the answer to request {found}, not to {number}")
            flexible = response.flexible_version_q(version) and response is not ApiVersionsResponse
            return response.decode(frame[5 if flexible else 4 :], version=version)
        except (ValueError, IndexError, struct.error, UnicodeDecodeError) as failure:
            self.close()
            raise Disconnected(
                f"{self.address} sent what is no {response.name}: {failure}"
            ) from failure

    def ask(self, request: Any, response: Any, *, deadline_s: float) -> Any:
        """Send a request and return its answer; Disconnected if there is none in time."""
        assert not self.waiting, "answers come in order"
        self.send(request, response, deadline_s=deadline_s)
        return self._answer(request.name, deadline_s)

    def close(self) -> None:
        """Close it; what it was asked has no answer. Closing twice is harmless."""
        self._pending.clear()
        self._unread.clear()
        self._socket.close()

    def __del__(self) -> None:
        """Close it where its owner was dropped without being closed."""
        if hasattr(self, "_socket"):
            self._socket.close()

    def has_more(self) -> bool:
        """Return whether something was taken from the socket that `read` has not returned."""
        if self._unread:
            return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors; -1 if it is closed."""
        return self._socket.fileno()

    def _answer(self, name: str, deadline_s: float) -> Any:
        answer = self._receive(deadline_s)
        if answer is None:
            self.close()
            raise Disconnected(f"{self.address}: no answer to {name}")
        return answer

    def _begin(self, security: Security, deadline_s: float) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security.tls is not None:
            self._secure(security.tls, deadline_s)
        asked = ApiVersionsRequest(
            version=_VERSIONS_VERSION,
            client_software_name="statestore",
            client_software_version="1",
        )
        found = self.ask(asked, ApiVersionsResponse, deadline_s=deadline_s)
        if found.error_code:
            raise BrokerTooOld(f"{self.address} is older than Kafka 4.0")
        self._versions = {one.api_key: (one.min_version, one.max_version) for one in found.api_keys}
        self.features = {one.name: one.max_version_level for one in found.finalized_features or ()}
        if security.login is not None:
            self._log_in(security.login, deadline_s)

    def _secure(self, tls: ssl.SSLContext, deadline_s: float) -> None:
        self._wait_at_most(deadline_s)
        try:
            self._socket = tls.wrap_socket(self._socket, server_hostname=self.address.host)
        except ssl.SSLCertVerificationError as failure:
            raise InvalidSetting(
                f"{self.address} ({failure.verify_message}): {UNTRUSTED_BROKER}"
            ) from failure
        except OSError as failure:
            raise self._broken(failure) from failure

    def _renew(self, deadline_s: float) -> None:
        """Log in anew on this connection, once what was asked before is answered."""
        while self._pending:
            self._unread.append(self._answer("an earlier request", deadline_s))
        assert self._login is not None, "only a login has a lifetime"
        try:
            self._log_in(self._login, deadline_s)
        except (InvalidSetting, Disconnected) as failure:
            # A new connection tells whether the user is refused, or only a second login.
            self.close()
            raise Disconnected(f"the session could not be renewed: {failure}") from failure

    def _log_in(self, login: Login, deadline_s: float) -> None:
        self._renew_s = self._end_s = inf
        try:
            messages, token = login.begin(deadline_s)
        except NoToken as failure:
            self.close()
            raise Disconnected(str(failure)) from failure
        asked = SaslHandshakeRequest(version=1, mechanism=login.mechanism)
        found = self._exchange(asked, SaslHandshakeResponse, deadline_s)
        if found.error_code:
            raise InvalidSetting(
                f"{self.address} does not take sasl.mechanism {login.mechanism}: it has "
                f"{', '.join(found.mechanisms) or 'none'}"
            )
        lifetime_ms = 0
        while not messages.is_done():
            said = SaslAuthenticateRequest(version=1, auth_bytes=messages.auth_bytes())
            answer = self._exchange(said, SaslAuthenticateResponse, deadline_s)
            if answer.error_code:
                why = answer.error_message or for_code(answer.error_code).__name__
                raise self._refused(login, token, why)
            try:
                messages.receive(answer.auth_bytes)
            except (ValueError, KeyError) as failure:
                raise self._refused(login, token, str(failure)) from failure
            lifetime_ms = answer.session_lifetime_ms
        if not messages.is_authenticated():
            raise self._refused(login, token, "not authenticated")
        if login.tokens is not None:
            login.tokens.accepted(token)
        if lifetime_ms > 0:
            now_s, lifetime_s = monotonic(), lifetime_ms / 1000
            self._renew_s = now_s + lifetime_s * random.uniform(*_RENEWED)
            self._end_s = now_s + lifetime_s

    def _exchange(self, request: Any, response: Any, deadline_s: float) -> Any:
        self._send(request, response, deadline_s)
        return self._answer(request.name, deadline_s)

    def _refused(self, login: Login, token: str, why: str) -> Exception:
        if login.tokens is not None and login.tokens.refused(token):
            return Disconnected(f"{self.address} no longer takes the token ({why})")
        return InvalidSetting(f"{self.address} refuses this user ({why}): {login.way_out}")

    def _frame(self, deadline_s: float) -> memoryview | None:
        """Return the next answer without its size, valid until the next call; None if it is late.

        What has come of it is kept.
        """
        assert self._pending, "nothing was asked"
        if not self._fill(_SIZE.size, deadline_s):
            return None
        if not self._need:
            (size,) = _SIZE.unpack_from(self._buffer)
            if not 4 <= size <= _ANSWER_MAX_BYTES:
                self.close()
                raise Disconnected(f"{self.address} sent an answer of {size} bytes: is it Kafka?")
            self._need = _SIZE.size + size
            if self._need > len(self._buffer):
                larger = bytearray(self._need)
                larger[: self._got] = memoryview(self._buffer)[: self._got]
                self._buffer = larger
        if not self._fill(self._need, deadline_s):
            return None
        frame = memoryview(self._buffer)[_SIZE.size : self._need]
        self._got = self._need = 0
        return frame

    def _fill(self, count: int, deadline_s: float) -> bool:
        """Read until the buffer has so many bytes; False if they have not come in time."""
        while self._got < count:
            self._socket.settimeout(max(deadline_s - monotonic(), 0.0))
            try:
                # Never beyond this answer: then the next one begins at the buffer's begin.
                came = self._socket.recv_into(memoryview(self._buffer)[self._got : count])
            except (TimeoutError, BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as failure:
                self.close()
                raise self._broken(failure) from failure
            if not came:
                self.close()
                raise Disconnected(f"{self.address} closed the connection")
            self._got += came
        return True

    def _broken(self, failure: OSError) -> Exception:
        """Return the error for a connection that broke; brokers refuse certificates late."""
        reason = (failure.reason or "") if isinstance(failure, ssl.SSLError) else ""
        if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            return InvalidSetting(f"{self.address} ({_why(failure)}): {UNTRUSTED_CLIENT}")
        return Disconnected(f"{self.address}: {_why(failure)}")

    def _wait_at_most(self, deadline_s: float) -> None:
        self._socket.settimeout(max(deadline_s - monotonic(), 1e-6))


def _why(failure: OSError) -> str:
    return failure.strerror or str(failure) or type(failure).__name__

"""A TCP proxy between clients and a broker that cuts connections at the end of a transaction.

It reads Kafka's framing and of EndTxn the transactional id: before the broker has the request, so
the commit did not happen, or when the broker has answered it, so it did and nobody was told.
"""

import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_INIT_PRODUCER_ID, _END_TXN = 22, 26
_HEADER = struct.Struct(">hhih")  # api key, version, correlation id, length of the client id
_LENGTH = struct.Struct(">i")


class When(StrEnum):
    """On which side of the commit the connection is cut."""

    BEFORE = "before the broker has it"
    AFTER = "after the broker has done it"


class Proxy:
    """Listens once made; `lead_to` says where. One thread per direction of a connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._target: tuple[str, int] | None = None
        self._lock = threading.Lock()
        self._when: When | None = None
        self._victim = b""
        self._skip = 0
        self._until_reopened = False
        self._swallowed: frozenset[int] = frozenset()
        self._delays_s: Mapping[int, float] = {}
        self._sockets: list[socket.socket] = []
        self._closed = False

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def lead_to(self, target: tuple[str, int]) -> None:
        self._target = target

    def cut(
        self, when: When, transactional_id: str, *, skip: int = 2, until_reopened: bool = False
    ) -> None:
        """Cut at a commit of that id, after `skip` more.

        Once; with `until_reopened` whenever it is tried again, until the id is initialised anew.
        """
        with self._lock:
            self.cuts = 0
            self._when, self._victim, self._skip = when, transactional_id.encode(), skip
            self._until_reopened = until_reopened

    def swallow(self, *api_keys: int) -> None:
        """From now on these requests lead nowhere; without any, all pass again."""
        self._swallowed = frozenset(api_keys)

    def delay(self, delays_s: Mapping[int, float]) -> None:
        """From now on each request of these keys is held back for so long; the others are not."""
        self._delays_s = delays_s

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._closed = True
            _shut(self._listener, *self._sockets)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                assert self._target is not None
                try:
                    broker = socket.create_connection(self._target)
                except OSError:
                    _shut(client)
                    continue
                with self._lock:
                    self._sockets += [client, broker]
                    if self._closed:
                        _shut(client, broker)
                unanswered: set[int] = set()
                for target in (self._requests, self._answers):
                    arguments = (client, broker, unanswered)
                    threading.Thread(target=target, args=arguments, daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, unanswered: set[int]) -> None:
        with suppress(OSError, EOFError):
            while True:
                frame = _frame(client)
                api_key = _HEADER.unpack_from(frame)[0]
                if delay_s := self._delays_s.get(api_key):
                    threading.Event().wait(delay_s)
                if api_key in self._swallowed:
                    continue
                match self._judged(frame):
                    case When.BEFORE:
                        break
                    case When.AFTER:
                        unanswered.add(_HEADER.unpack_from(frame)[2])
                broker.sendall(_LENGTH.pack(len(frame)) + frame)
        _shut(client, broker)

    def _answers(self, client: socket.socket, broker: socket.socket, unanswered: set[int]) -> None:
        with suppress(OSError, EOFError):
            while True:
                frame = _frame(broker)
                if _LENGTH.unpack_from(frame)[0] in unanswered:
                    break
                client.sendall(_LENGTH.pack(len(frame)) + frame)
        _shut(client, broker)

    def _judged(self, frame: bytes) -> When | None:
        """Whether to cut at this request; counts it if so."""
        api_key, version, _, client_id_length = _HEADER.unpack_from(frame)
        if api_key not in {_INIT_PRODUCER_ID, _END_TXN}:
            return None
        with self._lock:
            if self._when is None or self._victim not in frame[_HEADER.size + client_id_length :]:
                return None
            if api_key == _INIT_PRODUCER_ID:
                if self.cuts:
                    self._when = None
                return None
            assert version < 3, "the last byte of older versions says whether it commits"
            if not frame[-1]:
                return None
            if self._skip:
                self._skip -= 1
                return None
            self.cuts += 1
            when = self._when
            if not self._until_reopened:
                self._when = None
            return when


def _frame(source: socket.socket) -> bytes:
    """One length-prefixed frame; EOFError at the end."""
    return _exactly(source, _LENGTH.unpack(_exactly(source, _LENGTH.size))[0])


def _exactly(source: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = source.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _shut(*sockets: socket.socket) -> None:
    """Wakes whoever waits in them."""
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

"""Requests to a server of state as both clients make them, and answers as they read them."""

import base64
import os
import ssl
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import httpx
import msgspec
import tenacity

from statestore import errors
from statestore.errors import UNREADABLE, Misuse, NotAuthorized, StateStoreError, Unavailable
from statestore.model.decoders import json_decoder
from statestore.model.ids import Position, TopicPartition
from statestore.model.modes import Time, to_ms
from statestore.model.served import Freshness, ServedRow

T = TypeVar("T")
TOKEN_VARIABLE = "STATESTORE_SERVE_TOKEN"  # noqa: S105  # the name of a variable
TIMEOUT_S = 35.0
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
Wanted = Position | Mapping[TopicPartition, int] | Mapping[str, Mapping[int, int]]
"""Of each input, the offset of a record that must have been processed."""


class ServedRows(msgspec.Struct, frozen=True):
    """Rows, one or None for each key where keys were asked for, and how new they are."""

    rows: list[ServedRow | None]
    freshness: list[Freshness]


class RowsRead(msgspec.Struct):
    """An answer with rows, not decoded yet."""

    key_serde: str = ""
    value_serde: str = ""
    rows: list[ServedRow | None] = []
    freshness: list[Freshness] = []
    next_page_token: str | None = None


class _Problem(msgspec.Struct):
    detail: str = ""
    error: str = ""


class ClientRequest(NamedTuple):
    """One request, not sent yet."""

    method: str
    path: str
    parameters: dict[str, Any]
    body: bytes | None = None


class _Store(msgspec.Struct):
    store: str
    key_serde: str


class _Stores(msgspec.Struct):
    stores: list[_Store]


class TasksRead(msgspec.Struct):
    """An answer about stream tasks."""

    tasks: list[Freshness]


class ClientBase:
    """What both clients share: requests made, answers read."""

    def __init__(self, url: str, token: str | None, *, retry_s: float) -> None:
        self._url = url
        given = os.environ.get(TOKEN_VARIABLE) if token is None else token
        self.headers = {"authorization": f"Bearer {given}"} if given else {}
        self.serdes: dict[str, str] = {}
        self.repeating: dict[str, Any] = {
            "retry": tenacity.retry_if_exception_type(Unavailable),
            "wait": tenacity.wait_random_exponential(multiplier=0.05, max=1),
            "stop": tenacity.stop_after_delay(retry_s),
            "reraise": True,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def many_request(
        self,
        store: str,
        keys: Sequence[Any],
        *,
        as_of: Time | None = None,
        raw: bool = False,
        partition: int | None = None,
        min_position: Wanted | None = None,
        wait_ms: int = 5000,
    ) -> ClientRequest:
        body = {
            "keys": [_plain(key) for key in keys],
            "as_of": None if as_of is None else str(to_ms(as_of)),
            "raw": raw,
            "partition": partition,
            "min_position": _position(min_position),
            "wait_ms": wait_ms,
        }
        try:
            data = msgspec.json.encode(body)
        except (TypeError, ValueError) as error:
            raise Misuse(f"a key cannot be JSON ({error}): pass raw=True and its bytes") from error
        return ClientRequest("POST", _path(store, "get-many"), {}, data)

    def scan_request(self, store: str, question: str, **asked: Any) -> ClientRequest:
        """Make a request with parameters; keys are written as the store's serde wants them."""
        raw = bool(asked.get("raw"))
        found: dict[str, Any] = {}
        for name, item in asked.items():
            if item is None or item is False:
                continue
            match name:
                case "key" | "lo" | "hi" | "from_key" | "to_key" | "prefix":
                    plain = {"lo": "from", "hi": "to"}.get(name, name)
                    found[plain] = self._key_text(store, item, raw=raw)
                case "from_time" | "to_time":
                    found[name.removesuffix("_time")] = to_ms(item)
                case "as_of":
                    found[name] = to_ms(item)
                case "min_position":
                    found[name] = _position(item)
                case _:
                    found[name] = item
        return ClientRequest("GET", _path(store, question), found)

    def _key_text(self, store: str, key: Any, *, raw: bool) -> str:
        serde = "BYTES" if raw else self.serdes.get(store, "")
        if isinstance(key, bytes):
            return base64.urlsafe_b64encode(key).decode()
        if isinstance(key, str) and serde in {"STRING", "BYTES", ""}:
            return key
        try:
            return msgspec.json.encode(_plain(key)).decode()
        except (TypeError, ValueError) as error:
            raise Misuse(f"a key cannot be JSON ({error}): pass raw=True and its bytes") from error

    def learn(self, data: bytes) -> None:
        found = read(data, _Stores).stores
        self.serdes = {one.store: _inner(one.key_serde) for one in found}

    def checked(self, response: httpx.Response) -> bytes:
        """Return the body of an answer; raise the error that it is."""
        if response.is_success:
            return response.content
        problem = _Problem()
        with suppress(*UNREADABLE):  # Something in between may have answered.
            problem = json_decoder(_Problem).decode(response.content)
        kind = getattr(errors, problem.error, None)
        if isinstance(kind, type) and issubclass(kind, StateStoreError):
            raise kind(problem.detail)
        said = problem.detail or response.reason_phrase
        message = f"{self._url} answered {response.status_code}: {said}"
        raise Unavailable(message) if response.is_server_error else Misuse(message)

    def unreachable(self, error: httpx.TransportError) -> StateStoreError:
        """Return why there is no answer; a certificate that is refused now is refused later too."""
        if _is_of_tls(error):
            return NotAuthorized(
                f"{self._url}: no connection with TLS: {error}: pass the authority of the server's "
                "certificate as tls_ca, and tls_certificate and tls_key if it asks clients for one"
            )
        return Unavailable(f"cannot reach {self._url}: {error}: is `statestore serve` running?")


class ClientTls(NamedTuple):
    """Files in PEM format: whom a client trusts, and what it shows of itself."""

    ca: str | os.PathLike[str] | None
    certificate: str | os.PathLike[str] | None
    key: str | os.PathLike[str] | None

    def context(self, given: ssl.SSLContext | None) -> ssl.SSLContext | bool:
        """Return what httpx takes; Misuse if a file cannot be used."""
        if given is not None:
            if any(self):
                raise Misuse("tls has certificates already: pass it, or tls_ca and the others")
            return given
        if not any(self):
            return True
        if self.key is not None and self.certificate is None:
            raise Misuse("tls_key is the key of tls_certificate: pass both")
        named = ", ".join(
            f"tls_{name} {item}" for name, item in self._asdict().items() if item is not None
        )
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                # Without a password, so that nothing asks for one at a terminal.
                context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise Misuse(
                f"{named}: {error}: name files in PEM format, and a key without a password"
            ) from error
        return context


def _is_of_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _path(store: str, question: str) -> str:
    return f"/v1/stores/{store}/{question}"


def _plain(key: Any) -> Any:
    return _FLOAT_TEXTS.get(str(key), key) if isinstance(key, float) else key


_FLOAT_TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _position(wanted: Wanted | None) -> list[str]:
    if wanted is None:
        return []
    position = wanted if isinstance(wanted, Position) else Position.of(wanted)
    return [f"{tp.topic}:{tp.partition}:{last}" for tp, last in position.as_dict().items()]


def _inner(serde: str) -> str:
    """Return the serde of the keys within windows, as those are what one asks for."""
    if serde.startswith("WINDOWED("):
        return serde.partition(",")[2].removesuffix(")")
    return (
        serde.removeprefix("SESSION(").removesuffix(")") if serde.startswith("SESSION(") else serde
    )


def read(data: bytes, kind: type[T]) -> T:
    """Read an answer; Unavailable if it is not one."""
    try:
        return json_decoder(kind).decode(data)
    except UNREADABLE as error:
        raise Unavailable(f"the answer is not that of a server of state: {error}") from error


def served(answer: RowsRead) -> ServedRows:
    """Return the rows as they were asked for, with their freshness."""
    return ServedRows([_decoded(row, answer) for row in answer.rows], answer.freshness)


def rows(answer: RowsRead) -> list[ServedRow]:
    """Return the rows that there are."""
    found = (_decoded(row, answer) for row in answer.rows)
    return [row for row in found if row is not None]


def values(served: ServedRows) -> list[Any]:
    """Return the values alone; None where there is no row."""
    return [None if row is None else row.value for row in served.rows]


def _decoded(row: ServedRow | None, answer: RowsRead) -> ServedRow | None:
    if row is None:
        return None
    key, value = _item(row.key, answer.key_serde), _item(row.value, answer.value_serde)
    return msgspec.structs.replace(row, key=key, value=value)


def _item(item: Any, serde: str) -> Any:
    if serde == "BYTES":
        return base64.b64decode(item)
    if serde == "UUID":
        return uuid.UUID(item)
    of_float = serde in {"FLOAT64", "FLOAT32"} and isinstance(item, str)
    return _FLOATS.get(item, item) if of_float else item

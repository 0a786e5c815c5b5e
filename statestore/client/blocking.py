"""`StateClient`: asks a server of state, and waits for the answer.

`python -m scripts.blocking_client` makes this of coroutines.py.
"""

import ssl
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, Self

import httpx
import tenacity

from statestore.client.requests import (
    TIMEOUT_S,
    ClientBase,
    ClientRequest,
    ClientTls,
    RowsRead,
    ServedRows,
    TasksRead,
    Wanted,
    read,
    rows,
    served,
    values,
)
from statestore.model.modes import Time
from statestore.model.served import Freshness, ServedRow


class StateClient(ClientBase):
    """Asks a server of state, for any thread or one event loop; close it, or use it in `with`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_certificate: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = 10,
    ) -> None:
        """`token`: None takes the one in STATESTORE_SERVE_TOKEN, if it is set.

        `tls_ca`: the certificate of the authority of the server, by default those that the machine
        trusts. `tls_certificate` and `tls_key`: one's own, for a server with --tls-client-ca. Files
        in PEM format; `tls` is for what they cannot say. `retry_s`: for how long a request is
        repeated that the server could not answer.
        """
        super().__init__(url, token, retry_s=retry_s)
        verify = ClientTls(tls_ca, tls_certificate, tls_key).context(tls)
        self._http = httpx.Client(
            base_url=url, headers=self.headers, verify=verify, timeout=timeout_s
        )

    def get(self, store: str, key: Any, **how: Any) -> Any:
        """Return the value of a key, or None; the keywords are those of `get_rows`."""
        (found,) = self.get_many(store, [key], **how)
        return found

    def get_many(self, store: str, keys: Sequence[Any], **how: Any) -> list[Any]:
        """Return one value or None per key, in order; the keywords are those of `get_rows`."""
        return values(self.get_rows(store, keys, **how))

    def get_rows(
        self,
        store: str,
        keys: Sequence[Any],
        *,
        as_of: Time | None = None,
        raw: bool = False,
        partition: int | None = None,
        min_position: Wanted | None = None,
        wait_ms: int = 5000,
    ) -> ServedRows:
        """Return one row or None per key, and how new they are.

        `as_of`: the rows at that time, of a store with history or windows. `raw`: keys and values
        are bytes. `min_position`: wait up to `wait_ms` until these records are processed, else
        NotUpToBound.
        """
        request = self.many_request(
            store,
            keys,
            as_of=as_of,
            raw=raw,
            partition=partition,
            min_position=min_position,
            wait_ms=wait_ms,
        )
        return served(self._send(request))

    def range(
        self,
        store: str,
        lo: Any = None,
        hi: Any = None,
        *,
        prefix: Any = None,
        reverse: bool = False,
        as_of: Time | None = None,
        raw: bool = False,
        partition: int | None = None,
        page_rows: int = 1000,
        min_position: Wanted | None = None,
        wait_ms: int = 5000,
    ) -> Iterator[ServedRow]:
        """Return the rows with lo <= key <= hi, or with a prefix, page by page, of one moment."""
        self._know(store, lo, hi, prefix)
        token: str | None = None
        while True:
            request = self.scan_request(
                store,
                "range",
                lo=lo,
                hi=hi,
                prefix=prefix,
                reverse=reverse,
                as_of=as_of,
                raw=raw,
                partition=partition,
                limit=page_rows,
                page_token=token,
                min_position=None if token else min_position,
                wait_ms=wait_ms,
            )
            answer = self._send(request)
            for row in rows(answer):
                yield row
            token = answer.next_page_token
            if token is None:
                return

    def range_history(
        self,
        store: str,
        lo: Any = None,
        hi: Any = None,
        *,
        prefix: Any = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        ascending: bool = False,
        reverse: bool = False,
        raw: bool = False,
        partition: int | None = None,
        page_rows: int = 1000,
        min_position: Wanted | None = None,
        wait_ms: int = 5000,
    ) -> Iterator[ServedRow]:
        """Return versions of keys that were valid in a span of time, page by page, of one moment.

        They come by key, those of each key the latest first, unless `reverse` or `ascending`.
        """
        self._know(store, lo, hi, prefix)
        token: str | None = None
        while True:
            request = self.scan_request(
                store,
                "range-history",
                from_key=lo,
                to_key=hi,
                prefix=prefix,
                from_time=from_time,
                to_time=to_time,
                ascending=ascending,
                reverse=reverse,
                raw=raw,
                partition=partition,
                limit=page_rows,
                page_token=token,
                min_position=None if token else min_position,
                wait_ms=wait_ms,
            )
            answer = self._send(request)
            for row in rows(answer):
                yield row
            token = answer.next_page_token
            if token is None:
                return

    def history(
        self,
        store: str,
        key: Any,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        ascending: bool = False,
        raw: bool = False,
        partition: int | None = None,
    ) -> list[ServedRow]:
        """Return versions of a key that were valid in a span of time, the latest first."""
        self._know(store, key)
        request = self.scan_request(
            store,
            "history",
            key=key,
            from_time=from_time,
            to_time=to_time,
            ascending=ascending,
            raw=raw,
            partition=partition,
        )
        return rows(self._send(request))

    def windows(
        self,
        store: str,
        key: Any,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        raw: bool = False,
        partition: int | None = None,
    ) -> list[ServedRow]:
        """Return windows of a key that start in a span of time, or sessions that overlap it."""
        self._know(store, key)
        request = self.scan_request(
            store,
            "windows",
            key=key,
            from_time=from_time,
            to_time=to_time,
            raw=raw,
            partition=partition,
        )
        return rows(self._send(request))

    def wait_for(self, store: str, position: Wanted, *, wait_ms: int = 30_000) -> None:
        """Wait until the store has these records; NotUpToBound if that takes longer."""
        request = self.many_request(store, [], min_position=position, wait_ms=wait_ms)
        self._send(request)

    def tasks(self) -> list[Freshness]:
        """Return how new the copy of each stream task is."""
        return read(self._sent(ClientRequest("GET", "/v1/tasks", {})), TasksRead).tasks

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _know(self, store: str, *keys: Any) -> None:
        if store not in self.serdes and any(isinstance(key, str) for key in keys):
            self.learn(self._sent(ClientRequest("GET", "/v1/stores", {})))

    def _send(self, request: ClientRequest) -> RowsRead:
        return read(self._sent(request), RowsRead)

    def _sent(self, request: ClientRequest) -> bytes:
        found: bytes = tenacity.Retrying(**self.repeating)(self._send_once, request)
        return found

    def _send_once(self, request: ClientRequest) -> bytes:
        try:
            response = self._http.request(
                request.method, request.path, params=request.parameters, content=request.body
            )
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        return self.checked(response)

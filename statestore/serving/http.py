"""The HTTP face of the reading service: `statestore serve`.

GET  /v1/stores                    what there is
GET  /v1/tasks                     how new it is
GET  /v1/stores/{store}/get        the row of a key, now or as of a time
POST /v1/stores/{store}/get-many   the rows of many keys
GET  /v1/stores/{store}/range      rows by key or with a prefix, in pages or as Arrow
GET  /v1/stores/{store}/history    versions of a key
GET  /v1/stores/{store}/range-history    versions of many keys, in pages or as Arrow
GET  /v1/stores/{store}/windows    windows or sessions of a key
GET  /health, /ready, /metrics     for those who look after the server

Errors are problem documents (RFC 9457). Reading is done in a few threads; a request that gets none
in time is answered with 503, one whose `min_position` is not reached with 504.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
import msgspec
from fastapi import Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from statestore import __version__
from statestore.errors import Misuse, NotUpToBound, StateStoreError, Unavailable
from statestore.model.ids import TopicPartition
from statestore.model.modes import parse_time, to_ms
from statestore.reading.questions import Range, VersionSpan
from statestore.serving import openapi
from statestore.serving.access import ServeLimits, Tokens
from statestore.serving.answers import (
    ARROW,
    StoresAnswer,
    TasksAnswer,
    arrow_chunks,
    row_answer,
    rows_answer,
)
from statestore.serving.encoding import Encoding, to_json
from statestore.serving.gate import PROBLEM, App, ServingGate, headers_of, problem_of
from statestore.serving.prometheus import ServeMetrics
from statestore.serving.service import StateService
from statestore.serving.values import RowsFound, RowStream

T = TypeVar("T")
_log = logging.getLogger(__name__)
_BODY_MAX = 8 << 20
_BODIES_MAX = 128 << 20
"""How many bytes of large bodies may be here at once."""
_SMALL_BODY = 64 << 10
"""A body up to this size is always taken."""
_KEYS_MAX = 10_000
_LIMIT_MAX = 10_000
_WAIT_MAX_MS = 60_000
_DIGITS_MAX = 19
"""Those of the largest offset; Python itself refuses to read some thousands."""
_SWEEP_S = 5
_LOOK_S = 0.002
_LOOK_MAX_S = 0.05


class ManyKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The body of get-many."""

    keys: list[Any]
    as_of: str | int | None = None
    raw: bool = False
    partition: int | None = None
    min_position: list[str] = []
    wait_ms: int = 5000


_Store = Annotated[str, Path(description="The name of the store.")]
_Key = Annotated[
    str,
    Query(description="The key: text under STRING, base64 under BYTES and raw, else JSON."),
]
_AsOf = Annotated[
    str | None,
    Query(description="ISO-8601 with a zone, or ms since the epoch."),
]
_Raw = Annotated[bool, Query(description="Keys and values as base64 of their bytes.")]
_Partition = Annotated[int | None, Query(ge=0, description="Look only at this partition.")]
_MinPosition = Annotated[
    list[str] | None,
    Query(
        description="topic:partition:offset of a record of an input that must have been processed; "
        "may be repeated."
    ),
]
_WaitMs = Annotated[int, Query(ge=0, le=_WAIT_MAX_MS, description="How long to wait for that.")]
_Limit = Annotated[int, Query(ge=1, le=_LIMIT_MAX, description="Rows at most.")]
_Prefix = Annotated[
    str | None, Query(description="Only keys whose bytes begin with those of this key.")
]
_PageToken = Annotated[str | None, Query(description="next_page_token of the page before.")]
_From = Annotated[str | None, Query(alias="from", description="From this time on, inclusive.")]
_To = Annotated[str | None, Query(alias="to", description="Up to this time, inclusive.")]


async def _no_unknown_parameters(request: Request) -> None:
    """Misuse if a parameter is misspelt, because the answer would be to another question."""
    known = {
        field.alias
        for dependant in (request.scope["route"].dependant,)
        for field in dependant.query_params
    }
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise Misuse(f"there is no parameter {unknown[0]!r} here: use {', '.join(sorted(known))}")


class _Face:
    """The endpoints; each asks the service in a thread."""

    def __init__(self, service: StateService, application_id: str, limits: ServeLimits) -> None:
        self._service = service
        self._application_id = application_id
        self._limits = limits
        self._threads: anyio.CapacityLimiter | None = None
        self._bodies = 0
        self.metrics = ServeMetrics(service, application_id)

    async def asked(self, action: Callable[[], T]) -> T:
        """Do it in a thread. Unavailable if there is no thread, or no answer, in time."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._limits.readers)
        timeout_s = self._limits.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await anyio.to_thread.run_sync(
                    action, limiter=self._threads, abandon_on_cancel=True
                )
        except TimeoutError as error:
            raise Unavailable(
                f"no answer within {timeout_s:g} s: ask for less, or later"
            ) from error

    async def wait(self, store: str, min_position: list[str] | None, wait_ms: int) -> None:
        """Wait until records are processed; NotUpToBound if that takes too long."""
        if not min_position:
            return
        bound = self._service.bound(store, _position(min_position))
        clock = asyncio.get_running_loop().time
        deadline_s, pause_s = clock() + wait_ms / 1000, _LOOK_S
        while (behind := await self.asked(partial(self._service.behind, store, bound))) is not None:
            if clock() >= deadline_s:
                raise NotUpToBound(
                    f"{behind}, and did not get there within {wait_ms} ms: ask again, or raise "
                    "wait_ms"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LOOK_MAX_S)

    async def stores(self) -> Response:
        """Return all stores, how to decode them, and whether they are served."""
        found = await self.asked(self._service.stores)
        return _json(to_json(StoresAnswer(application_id=self._application_id, stores=found)))

    async def tasks(self) -> Response:
        """Return how new the copy of each stream task is."""
        found = await self.asked(self._service.tasks)
        return _json(to_json(TasksAnswer(application_id=self._application_id, tasks=found)))

    async def get(
        self,
        *,
        store: _Store,
        key: _Key,
        as_of: _AsOf = None,
        raw: _Raw = False,
        partition: _Partition = None,
        min_position: _MinPosition = None,
        wait_ms: _WaitMs = 5000,
    ) -> Response:
        """Return the row of a key, now or as of a time; null if there is none."""
        await self.wait(store, min_position, wait_ms)

        def ask() -> bytes:
            encoding = self._service.encoding(store, raw=raw)
            keys = [encoding.key_of_text(key)]
            found = self._service.get(store, keys, as_of_ms=_time_ms(as_of), partition=partition)
            return row_answer(found, encoding)

        return _json(await self.asked(ask))

    async def get_many(self, store: _Store, request: Request) -> Response:
        """Return one row or null per key, in order."""
        with ExitStack() as held:
            body = await self._body(request, held)
            return await self._get_many(store, body)

    async def _get_many(self, store: str, body: ManyKeys) -> Response:
        if len(body.keys) > _KEYS_MAX:
            raise Misuse(f"{len(body.keys)} keys: ask for at most {_KEYS_MAX} at once")
        await self.wait(store, body.min_position, min(max(body.wait_ms, 0), _WAIT_MAX_MS))
        as_of_ms = None if body.as_of is None else _time_ms(str(body.as_of))

        def ask() -> bytes:
            encoding = self._service.encoding(store, raw=body.raw)
            keys = [encoding.key(key) for key in body.keys]
            found = self._service.get(store, keys, as_of_ms=as_of_ms, partition=body.partition)
            return rows_answer(found, encoding)

        return _json(await self.asked(ask))

    async def range(
        self,
        *,
        request: Request,
        store: _Store,
        first: Annotated[str | None, Query(alias="from", description="The lowest key.")] = None,
        last: Annotated[str | None, Query(alias="to", description="The highest key.")] = None,
        prefix: _Prefix = None,
        reverse: Annotated[bool, Query(description="Begin with the largest key.")] = False,
        as_of: _AsOf = None,
        raw: _Raw = False,
        partition: _Partition = None,
        limit: _Limit = 1000,
        page_token: _PageToken = None,
        min_position: _MinPosition = None,
        wait_ms: _WaitMs = 5000,
    ) -> Response:
        """Return rows by key, or by time in a store with windows; all pages are of one moment.

        With `Accept: application/vnd.apache.arrow.stream` all rows come as one stream.
        """
        await self.wait(store, min_position, wait_ms)
        encoding = self._service.encoding(store, raw=raw)
        ends = [
            None if text is None else encoding.key_of_text(text) for text in (first, last, prefix)
        ]
        wanted = Range(
            lo=ends[0],
            hi=ends[1],
            prefix=ends[2],
            reverse=reverse,
            as_of_ms=_time_ms(as_of),
            partition=partition,
        )
        return await self._range(request, store, wanted, encoding, limit, page_token)

    async def range_history(
        self,
        *,
        request: Request,
        store: _Store,
        from_key: Annotated[str | None, Query(description="The lowest key.")] = None,
        to_key: Annotated[str | None, Query(description="The highest key.")] = None,
        prefix: _Prefix = None,
        first: _From = None,
        last: _To = None,
        ascending: Annotated[bool, Query(description="Of each key the oldest first.")] = False,
        reverse: Annotated[bool, Query(description="Begin with the largest key.")] = False,
        raw: _Raw = False,
        partition: _Partition = None,
        limit: _Limit = 1000,
        page_token: _PageToken = None,
        min_position: _MinPosition = None,
        wait_ms: _WaitMs = 5000,
    ) -> Response:
        """Return the versions of keys that were valid in a span of time; pages are of one moment.

        With `Accept: application/vnd.apache.arrow.stream` all of them come as one stream.
        """
        await self.wait(store, min_position, wait_ms)
        encoding = self._service.encoding(store, raw=raw)
        ends = [
            None if text is None else encoding.key_of_text(text)
            for text in (from_key, to_key, prefix)
        ]
        wanted = Range(
            lo=ends[0],
            hi=ends[1],
            prefix=ends[2],
            reverse=reverse,
            times=VersionSpan(
                first_ms=_time_ms(first), last_ms=_time_ms(last), ascending=ascending
            ),
            partition=partition,
        )
        return await self._range(request, store, wanted, encoding, limit, page_token)

    async def _range(
        self,
        request: Request,
        store: str,
        wanted: Range,
        encoding: Encoding,
        limit: int,
        page_token: str | None,
    ) -> Response:
        """Return a page, or all rows as a stream of Arrow if the request takes that."""
        if ARROW in request.headers.get("accept", ""):
            if page_token is not None:
                raise Misuse("page_token: an Arrow stream has no pages: leave it out")
            stream = await self._opened(partial(self._service.scan, store, wanted))
            return StreamingResponse(self._streamed(stream, encoding), media_type=ARROW)

        def ask() -> bytes:
            found = self._service.range(store, wanted, limit=limit, page_token=page_token)
            return rows_answer(found, encoding)

        return _json(await self.asked(ask))

    async def history(
        self,
        *,
        store: _Store,
        key: _Key,
        first: _From = None,
        last: _To = None,
        ascending: Annotated[bool, Query(description="Begin with the oldest.")] = False,
        raw: _Raw = False,
        partition: _Partition = None,
        limit: _Limit = _LIMIT_MAX,
        min_position: _MinPosition = None,
        wait_ms: _WaitMs = 5000,
    ) -> Response:
        """Return the versions of a key that were valid in a span of time."""
        await self.wait(store, min_position, wait_ms)
        ask = partial(
            self._service.history,
            store,
            from_ms=_time_ms(first),
            to_ms=_time_ms(last),
            ascending=ascending,
            partition=partition,
            limit=limit,
        )
        return await self._of_key(store, key, ask, raw=raw)

    async def windows(
        self,
        *,
        store: _Store,
        key: _Key,
        first: _From = None,
        last: _To = None,
        raw: _Raw = False,
        partition: _Partition = None,
        limit: _Limit = _LIMIT_MAX,
        min_position: _MinPosition = None,
        wait_ms: _WaitMs = 5000,
    ) -> Response:
        """Return windows of a key that start in a span of time, or sessions that overlap it."""
        await self.wait(store, min_position, wait_ms)
        ask = partial(
            self._service.windows,
            store,
            from_ms=_time_ms(first),
            to_ms=_time_ms(last),
            partition=partition,
            limit=limit,
        )
        return await self._of_key(store, key, ask, raw=raw)

    async def health(self) -> Response:
        """Return 200 while the server answers at all."""
        return _json(b'{"healthy":true}')

    async def ready(self) -> Response:
        """Return 200 once every stream task with files has a copy, stale or not."""
        missing = await self.asked(self._service.unready)
        if missing:
            # Anybody may ask: why they are missing is for those who may ask /v1/tasks.
            raise Unavailable(f"{len(missing)} stream tasks have no copy yet: see /v1/tasks")
        return _json(b'{"ready":true}')

    async def scrape(self) -> Response:
        """Return metrics for Prometheus."""
        text, kind = await self.asked(self.metrics.scrape)
        return Response(text, media_type=kind)

    def _hold(self, size: int, held: ExitStack) -> None:
        """Count bytes of a large body until `held` ends; Unavailable if others have too many."""
        if self._bodies + size > _BODIES_MAX:
            raise Unavailable("many large bodies are here at once: send it again")
        self._bodies += size
        held.callback(self._let_go, size)

    def _let_go(self, size: int) -> None:
        self._bodies -= size

    async def _body(self, request: Request, held: ExitStack) -> ManyKeys:
        """Read a body. Unavailable if it is not here in time."""
        data, timeout_s = bytearray(), self._limits.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > _SMALL_BODY:
                        self._hold(len(chunk), held)
                    if len(data) > _BODY_MAX:
                        raise Misuse(
                            f"the body has more than {_BODY_MAX} bytes: ask for fewer keys at once"
                        )
        except TimeoutError as error:
            raise Unavailable(
                f"the body was not here within {timeout_s:g} s: send it again"
            ) from error
        try:
            return msgspec.json.decode(data, type=ManyKeys)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Misuse(f'body: {error}: send JSON such as {{"keys": ["a", "b"]}}') from error

    async def _of_key(
        self, store: str, key: str, ask: Callable[..., RowsFound], *, raw: bool
    ) -> Response:
        def answer() -> bytes:
            encoding = self._service.encoding(store, raw=raw)
            return rows_answer(ask(key=encoding.key_of_text(key)), encoding)

        return _json(await self.asked(answer))

    async def _opened(self, scan: Callable[[], RowStream]) -> RowStream:
        """Begin a stream; one that begins after its request was given up is closed at once."""
        begun: Future[RowStream] = Future()

        def begin() -> RowStream:
            stream = scan()
            begun.set_result(stream)
            return stream

        try:
            return await self.asked(begin)
        except BaseException:
            begun.add_done_callback(lambda done: done.result().close())
            raise

    async def _streamed(self, stream: RowStream, encoding: Encoding) -> AsyncIterator[bytes]:
        """Encode batches in a thread; whatever ends the request closes the stream."""
        chunks: Iterator[bytes] = arrow_chunks(stream, encoding)
        try:
            async with asyncio.timeout(self._limits.stream_timeout_s):
                while (chunk := await self.asked(partial(next, chunks, None))) is not None:
                    yield chunk
        finally:
            stream.close()


def make_app(
    service: StateService,
    application_id: str,
    *,
    tokens: Tokens,
    hosts: frozenset[str] | None,
    limits: ServeLimits,
) -> App:
    """Return the server of a service that is started and closed by the caller."""
    face = _Face(service, application_id, limits)

    @asynccontextmanager
    async def sweeping(_app: FastAPI) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(_SWEEP_S)
                await face.asked(service.sweep)

        task = asyncio.create_task(sweep())
        yield
        task.cancel()

    app = FastAPI(
        title="statestore serve",
        version=__version__,
        description=f"The state of the application {application_id}, read-only.",
        docs_url=None,  # Their pages load scripts from elsewhere.
        redoc_url=None,
        lifespan=sweeping,
        dependencies=[Depends(_no_unknown_parameters)],
    )
    add: Any = app.add_api_route
    one = "/v1/stores/{store}"
    for path, method, about in (
        ("/v1/stores", face.stores, "StoresAnswer"),
        ("/v1/tasks", face.tasks, "TasksAnswer"),
        (f"{one}/get", face.get, "RowAnswer"),
        (f"{one}/range", face.range, "RowsAnswer"),
        (f"{one}/history", face.history, "RowsAnswer"),
        (f"{one}/range-history", face.range_history, "RowsAnswer"),
        (f"{one}/windows", face.windows, "RowsAnswer"),
    ):
        add(path, method, methods=["GET"], responses=openapi.responses(about))
    add(
        f"{one}/get-many",
        face.get_many,
        methods=["POST"],
        responses=openapi.responses("RowsAnswer"),
        openapi_extra=openapi.body(ManyKeys),
    )
    for path, method in (("/health", face.health), ("/ready", face.ready)):
        add(path, method, methods=["GET"])
    add("/metrics", face.scrape, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(StateStoreError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_parameters)
    app.add_exception_handler(HTTPException, _refuse_path)
    app.add_exception_handler(ClientDisconnect, _leave)
    app.add_exception_handler(Exception, _fail)
    openapi.complete(app, ManyKeys, secured=bool(tokens))
    return ServingGate(
        face.metrics.counting(app), tokens=tokens, hosts=hosts, requests_max=limits.requests_max
    )


async def _refuse(_request: Request, error: Exception) -> Response:
    return _problem(error)


async def _refuse_parameters(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = first["loc"][-1]
    return _problem(Misuse(f"parameter {name!r}: {first['msg']}: see /openapi.json"))


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    found = Misuse(f"{request.method} {request.url.path}: {error.detail}: see /openapi.json")
    problem = msgspec.structs.replace(
        problem_of(found), status=error.status_code, title=str(error.detail)
    )
    return Response(
        msgspec.json.encode(problem),
        error.status_code,
        headers=dict(error.headers or {}),
        media_type=PROBLEM,
    )


async def _leave(_request: Request, _error: Exception) -> Response:
    """Count a request whose client has gone; nobody gets the answer."""
    return Response(status_code=400)


async def _fail(_request: Request, error: Exception) -> Response:
    _log.error("an unforeseen error", exc_info=error)
    return _problem(error)


def _problem(error: Exception) -> Response:
    problem = problem_of(error)
    body, headers = msgspec.json.encode(problem), headers_of(problem)
    return Response(body, problem.status, headers=headers, media_type=PROBLEM)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json", headers={"cache-control": "no-store"})


def _time_ms(text: str | None) -> int | None:
    return None if text is None else to_ms(parse_time(text))


def _position(texts: list[str]) -> dict[TopicPartition, int]:
    found = {}
    for text in texts:
        topic, _, rest = text.partition(":")
        partition, _, offset = rest.partition(":")
        if not topic or not all(
            each.isascii() and each.isdecimal() and len(each) <= _DIGITS_MAX
            for each in (partition, offset)
        ):
            raise Misuse(f"min_position {text[:80]!r}: pass topic:partition:offset")
        found[TopicPartition(topic, int(partition))] = int(offset)
    return found

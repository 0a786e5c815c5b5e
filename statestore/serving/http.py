"""The HTTP face of the reading service: `statestore serve`; `_Face.endpoints` lists its paths.

Errors are problem documents (RFC 9457). Reading is done in a few threads; a request that gets none
in time is answered with 503, one whose `min_position` is not reached with 504.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from statestore.errors import UNREADABLE, Misuse, NotUpToBound, StateStoreError, Unavailable
from statestore.model.decoders import json_decoder
from statestore.model.ids import TopicPartition
from statestore.serving import requests
from statestore.serving.access import ServeLimits, Tokens
from statestore.serving.documents import ARROW, RowAnswer, StoresAnswer, TasksAnswer, arrow_chunks
from statestore.serving.encoding import Encoding, to_json
from statestore.serving.endpoints import Endpoint, document
from statestore.serving.gate import PROBLEM, App, ServingGate, headers_of, problem_of
from statestore.serving.prometheus import ServeMetrics
from statestore.serving.service import StateService
from statestore.serving.values import RowStream

T = TypeVar("T")
_log = logging.getLogger(__name__)
_BODY_MAX = 8 << 20
_BODIES_MAX = 128 << 20
"""How many bytes of large bodies may be here at once."""
_SMALL_BODY = 64 << 10
"""A body up to this size is always taken."""
# As many digits as the largest offset has; Python itself refuses to read some thousands.
_POSITION = re.compile(r"([^:]+):([0-9]{1,19}):([0-9]{1,19})")
_KEYS_MAX = 10_000
_SWEEP_S = 5
_LOOK_S = 0.002
_LOOK_MAX_S = 0.05


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

    async def wait(self, store: str, asked: requests.Question) -> None:
        """Wait until records are processed; NotUpToBound if that takes too long."""
        if not asked.min_position:
            return
        wait_ms = min(max(asked.wait_ms, 0), requests.WAIT_MAX_MS)
        bound = self._service.bound(store, _position(asked.min_position))
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

    async def stores(self, _query: object, _request: Request) -> Response:
        """Return all stores, how to decode them, and whether they are served."""
        found = await self.asked(self._service.stores)
        return _json(to_json(StoresAnswer(application_id=self._application_id, stores=found)))

    async def tasks(self, _query: object, _request: Request) -> Response:
        """Return how new the copy of each stream task is."""
        found = await self.asked(self._service.tasks)
        return _json(to_json(TasksAnswer(application_id=self._application_id, tasks=found)))

    async def rows(self, question: requests.Question, request: Request, store: str) -> Response:
        """Wait for `min_position`, and then answer in a thread, or with a stream of Arrow."""
        await self.wait(store, question)
        if isinstance(question, requests.KeysQuery) and ARROW in request.headers.get("accept", ""):
            return await self._stream(question, store)
        return _json(await self.asked(partial(question.answer, self._service, store)))

    async def _stream(self, question: requests.KeysQuery, store: str) -> Response:
        encoding = self._service.encoding(store, raw=question.raw)
        scan = partial(self._service.scan, store, question.wanted(encoding))
        if question.page_token is not None:
            raise Misuse("page_token: an Arrow stream has no pages: leave it out")
        stream = await self._opened(scan)
        return StreamingResponse(self._streamed(stream, encoding), media_type=ARROW)

    async def get_many(self, _query: object, request: Request, store: str) -> Response:
        """Return one row or null per key, in order."""
        with ExitStack() as held:
            body = await self._body(request, held)
            if len(body.keys) > _KEYS_MAX:
                raise Misuse(f"{len(body.keys)} keys: ask for at most {_KEYS_MAX} at once")
            return await self.rows(body, request, store)

    async def health(self, _query: object, _request: Request) -> Response:
        """Return 200 while the server answers at all."""
        return _json(b'{"healthy":true}')

    async def ready(self, _query: object, _request: Request) -> Response:
        """Return 200 once every stream task with files has a copy, stale or not."""
        missing = await self.asked(self._service.unready)
        if missing:
            # Anybody may ask: why they are missing is for those who may ask /v1/tasks.
            raise Unavailable(f"{len(missing)} stream tasks have no copy yet: see /v1/tasks")
        return _json(b'{"ready":true}')

    async def scrape(self, _query: object, _request: Request) -> Response:
        """Return metrics for Prometheus."""
        text, kind = await self.asked(self.metrics.scrape)
        return Response(text, media_type=kind)

    def endpoints(self) -> list[Endpoint]:
        """Return what the document describes."""
        one = "/v1/stores/{store}"
        return [
            Endpoint("/v1/stores", self.stores, answer=StoresAnswer),
            Endpoint("/v1/tasks", self.tasks, answer=TasksAnswer),
            Endpoint(f"{one}/get", self.rows, requests.GetQuery, RowAnswer),
            Endpoint(f"{one}/range", self.rows, requests.RangeQuery, streams=True),
            Endpoint(f"{one}/history", self.rows, requests.HistoryQuery),
            Endpoint(f"{one}/range-history", self.rows, requests.RangeHistoryQuery, streams=True),
            Endpoint(f"{one}/windows", self.rows, requests.WindowsQuery),
            Endpoint(f"{one}/get-many", self.get_many, method="POST", body=requests.ManyKeys),
            Endpoint("/health", self.health, answer=None),
            Endpoint("/ready", self.ready, answer=None),
        ]

    def _hold(self, size: int, held: ExitStack) -> None:
        """Count bytes of a large body until `held` ends; Unavailable if others have too many."""
        if self._bodies + size > _BODIES_MAX:
            raise Unavailable("many large bodies are here at once: send it again")
        self._bodies += size
        held.callback(self._let_go, size)

    def _let_go(self, size: int) -> None:
        self._bodies -= size

    async def _body(self, request: Request, held: ExitStack) -> requests.ManyKeys:
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
            return json_decoder(requests.ManyKeys).decode(data)
        except UNREADABLE as error:
            raise Misuse(f'body: {error}: send JSON such as {{"keys": ["a", "b"]}}') from error

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
    async def sweeping(_app: Starlette) -> AsyncIterator[None]:
        async def sweep() -> None:
            while True:
                await asyncio.sleep(_SWEEP_S)
                await face.asked(service.sweep)

        task = asyncio.create_task(sweep())
        yield
        task.cancel()

    told = document(face.endpoints(), application_id, secured=bool(tokens))
    openapi = Response(to_json(told), media_type="application/json")
    app = Starlette(
        routes=[
            *(each.route() for each in (*face.endpoints(), Endpoint("/metrics", face.scrape))),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        lifespan=sweeping,
        exception_handlers={
            StateStoreError: _refuse,
            HTTPException: _refuse_path,
            ClientDisconnect: _leave,
            Exception: _fail,
        },
    )
    return ServingGate(
        face.metrics.counting(app), tokens=tokens, hosts=hosts, requests_max=limits.requests_max
    )


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title, status, headers = str(error.detail), error.status_code, dict(error.headers or {})
    found = problem_of(Misuse(f"{request.method} {request.url.path}: {title}: see /openapi.json"))
    problem = msgspec.structs.replace(found, status=status, title=title)
    return Response(msgspec.json.encode(problem), status, headers, PROBLEM)


async def _leave(_request: Request, _error: Exception) -> Response:
    """Count a request whose client has gone; nobody gets the answer."""
    return Response(status_code=400)


async def _fail(request: Request, error: Exception) -> Response:
    _log.error("an unforeseen error", exc_info=error)
    return await _refuse(request, error)


async def _refuse(_request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    return Response(msgspec.json.encode(problem), problem.status, headers_of(problem), PROBLEM)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json", headers={"cache-control": "no-store"})


def _position(texts: list[str]) -> dict[TopicPartition, int]:
    found = {}
    for text in texts:
        parts = _POSITION.fullmatch(text)
        if parts is None:
            raise Misuse(f"min_position {text[:80]!r}: pass topic:partition:offset")
        found[TopicPartition(parts[1], int(parts[2]))] = int(parts[3])
    return found

"""A TCP proxy between Kafka clients and one broker that makes the network misbehave by plan.

It reads Kafka's framing. Every request is shown to the plan of its client, told by its client id,
which may name a fault of the request or of its answer: late, lost, cut off or repeated. A late
request reaches the broker over a connection of the proxy's own, however long the client's is gone.

Everything happens in one thread with an event loop of its own; plans are called there.
"""

import asyncio
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from time import monotonic
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from tests.builders import DEADLINE_S
from tests.kafka.wire import HOST, LENGTH, Api, Request, error_of, parse_request

_GONE = (OSError, EOFError, asyncio.IncompleteReadError)


class Of(Enum):
    """What a fault befalls: the request on its way to the broker, or the answer on its way back."""

    REQUEST = "request"
    ANSWER = "answer"


class Action(StrEnum):
    """What happens to it."""

    DELAY = "delayed, with all that follows on its connection"
    CUT = "lost, and the connection with it"
    SWALLOW = "lost, and the connection stays"
    LATE = "late, and the connection is cut"
    LATE_IN_SILENCE = "late, and the connection stays"
    REPEAT = "in time, and once more late"


_OF_REQUESTS_ONLY = {Action.LATE, Action.LATE_IN_SILENCE, Action.REPEAT}


@dataclass(frozen=True, slots=True)
class Moment:
    """When a late request arrives: just before the `nth` following request of that kind.

    `same_id`: only requests of the same transactional id count.
    """

    api: Api
    nth: int = 1
    same_id: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do with one request or its answer.

    `until`: when a late one arrives; None: not before `release`. DELAY takes `delay_s`, or lasts
    until the monotonic clock shows `end_s`, however many are held up meanwhile.
    """

    action: Action
    of: Of = Of.REQUEST
    until: Moment | None = None
    delay_s: float = 0.0
    end_s: float | None = None

    def __post_init__(self) -> None:
        assert self.of is Of.REQUEST or self.action not in _OF_REQUESTS_ONLY, "answers are not late"

    def left_s(self) -> float:
        """How long DELAY holds it up from now on."""
        return self.delay_s if self.end_s is None else max(0.0, self.end_s - monotonic())


Plan = Callable[[Request], Fault | None]


class FaultProxy:
    """Listens once made; `lead_to` says where. Without a plan everything passes."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._target: tuple[str, int] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._plans: dict[str, Plan] = {}
        self._held: dict[str, list[_Held]] = defaultdict(list)
        self._traces: dict[str, list[str]] = defaultdict(list)
        self._failures: list[Exception] = []
        self._serving: set[asyncio.Task[Any]] = set()
        self._opened: WeakSet[asyncio.WriteTransport] = WeakSet()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def lead_to(self, target: tuple[str, int]) -> None:
        self._target = target

    def follow(self, client_id: str, plan: Plan | None) -> None:
        """Show this client's requests to the plan from now on; None: all pass again."""
        if plan is None:
            self._plans.pop(client_id, None)
        else:
            self._plans[client_id] = plan

    def release(self, client_id: str) -> None:
        """Let all that is held of this client reach the broker now; returns when it has."""
        self._call(self._release(client_id))

    def trace(self, client_id: str) -> list[str]:
        """Every fault that befell this client so far, in words."""
        return list(self._traces[client_id])

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        if self._failures and error is None:
            raise ExceptionGroup("the proxy itself failed", self._failures)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    # In the loop's thread.

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def _end(self) -> None:
        # A connection being accepted is not ours to cancel yet, and the server may not close before
        # it is taken: the loop would lose its socket.
        self._loop.remove_reader(self._listener)
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._serving:
                task.cancel()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        self._server.close()
        # One that is closed stays open until its peer has read the rest, which it may never do.
        for transport in self._opened:
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._target is not None, "lead_to comes first"
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._opened.add(writer.transport)
        task.add_done_callback(self._serving.discard)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        except asyncio.CancelledError:
            writer.close()
            raise
        self._opened.add(broker_writer.transport)
        connection = _Connection(writer, broker_writer)
        ways = [
            asyncio.ensure_future(self._requests(reader, connection)),
            asyncio.ensure_future(self._answers(broker_reader, connection)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            connection.close()
            ended = await asyncio.gather(*ways, return_exceptions=True)
            self._failures += [error for error in ended if isinstance(error, Exception)]

    async def _requests(self, reader: asyncio.StreamReader, connection: "_Connection") -> None:
        with suppress(*_GONE):
            while True:
                request = parse_request(await _frame(reader))
                await self._let_late_ones_pass(request, connection)
                fault = self._judged(request)
                if fault is not None and fault.of is Of.REQUEST:
                    if fault.action is Action.DELAY:
                        await asyncio.sleep(fault.left_s())
                    elif fault.action in _OF_REQUESTS_ONLY:
                        self._held[request.client_id].append(_Held(request, fault.until))
                    if fault.action in {Action.CUT, Action.LATE}:
                        return
                    if fault.action in {Action.SWALLOW, Action.LATE_IN_SILENCE}:
                        continue
                connection.await_answer(request, fault)
                connection.broker.write(_framed(request.frame))

    async def _answers(self, reader: asyncio.StreamReader, connection: "_Connection") -> None:
        with suppress(*_GONE):
            while True:
                frame = await _frame(reader)
                fault = connection.answered(LENGTH.unpack_from(frame)[0])
                if fault is not None and fault.of is Of.ANSWER:
                    if fault.action is Action.CUT:
                        return
                    if fault.action is Action.SWALLOW:
                        continue
                    await asyncio.sleep(fault.left_s())
                connection.client.write(_framed(frame))

    def _judged(self, request: Request) -> Fault | None:
        plan = self._plans.get(request.client_id)
        fault = None if plan is None else plan(request)
        if fault is not None:
            text = f"{request}: its {fault.of.value} is {fault.action}"
            if fault.until is not None:
                whose = "of its id" if fault.until.same_id else "of anybody"
                text += f", until request {fault.until.nth} of {fault.until.api.name} {whose}"
            self._traces[request.client_id].append(text)
        return fault

    async def _let_late_ones_pass(self, request: Request, connection: "_Connection") -> None:
        """Deliver what was held until this request; all that came before it is answered first."""
        held = self._held.get(request.client_id)
        due = [late for late in held or () if late.is_due(request)]
        if not held or not due:
            return
        for late in due:
            held.remove(late)
        await connection.all_answered()
        for late in due:
            await self._deliver(late.request, f"before {request}")

    async def _release(self, client_id: str) -> None:
        for late in self._held.pop(client_id, []):
            await self._deliver(late.request, "at the end")

    async def _deliver(self, request: Request, when: str) -> None:
        assert self._target is not None
        said = "no answer"
        with suppress(*_GONE, TimeoutError):
            async with asyncio.timeout(DEADLINE_S / 2):
                reader, writer = await asyncio.open_connection(*self._target)
                self._opened.add(writer.transport)
                try:
                    writer.write(_framed(request.frame))
                    error = error_of(request, await _frame(reader))
                    said = "answered" if error is None else f"answered with code {error}"
                finally:
                    writer.close()
        self._traces[request.client_id].append(f"late {request} arrives {when}: {said}")


@dataclass(slots=True)
class _Connection:
    """Both halves of a client's connection, and which requests are not answered yet."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    unanswered: dict[int, Fault | None] = field(default_factory=dict)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)

    def await_answer(self, request: Request, fault: Fault | None) -> None:
        self.unanswered[request.correlation_id] = fault
        self.quiet.clear()

    def answered(self, correlation_id: int) -> Fault | None:
        fault = self.unanswered.pop(correlation_id, None)
        if not self.unanswered:
            self.quiet.set()
        return fault

    async def all_answered(self) -> None:
        if self.unanswered:
            await self.quiet.wait()

    def close(self) -> None:
        self.client.close()
        self.broker.close()


@dataclass(slots=True)
class _Held:
    """A request on its way, until its moment."""

    request: Request
    until: Moment | None
    seen: int = 0

    def is_due(self, request: Request) -> bool:
        until = self.until
        if until is None or request.api != until.api:
            return False
        if until.same_id and request.transactional_id != self.request.transactional_id:
            return False
        self.seen += 1
        return self.seen >= until.nth


def _framed(frame: bytes) -> bytes:
    return LENGTH.pack(len(frame)) + frame


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """One length-prefixed frame."""
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(size)

"""A server of state over HTTP on a free port, beside stream tasks that a test steps itself."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from statestore.operations.environment import Environment
from statestore.runtime import Runtime
from statestore.serving.access import Listening, ServeLimits, Tokens
from statestore.serving.connections import (
    ConnectionLimits,
    LimitedServer,
    bound_to,
    server_config,
)
from statestore.serving.followers import OwnerState
from statestore.serving.http import make_app
from statestore.serving.service import StateService
from statestore.tasks.task import StreamTask
from tests.builders import DEADLINE_S, eventually
from tests.contract.task_rig import TASK, TaskRig

LONG_LEASE = {"statestore.snapshot.lease.ms": 1_000_000_000, "commit.interval.ms": 100}
"""The clock of a rig's tasks is not that of the server."""


@dataclass
class Server:
    """What runs, and a client of it."""

    service: StateService
    url: str
    client: httpx.Client

    def get(self, path: str, **parameters: Any) -> Any:
        """The answer as JSON, whatever its status."""
        return self.client.get(f"/v1/stores/{path}", params=parameters).json()


def service_of(rig: TaskRig) -> StateService:
    """A service with the clock of this machine, as the server's is not that of a run."""
    return StateService(Runtime(rig.known(), brokers=rig.broker.clients))


@contextmanager
def listening(app: Any, limits: ConnectionLimits | None = None, **options: Any) -> Iterator[int]:
    """Serve an ASGI app in a thread of this process, as the commands do; its port."""
    with bound_to(Listening(port=0)) as bound:
        server = LimitedServer(
            server_config(app, **options), bound, limits or ConnectionLimits.of_this_process()
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            eventually(lambda: server.started, "the server listens")
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(DEADLINE_S)


@contextmanager
def serving(
    environment: Environment,
    *,
    tokens: tuple[str, ...] = (),
    hosts: frozenset[str] | None = None,
    limits: ServeLimits | None = None,
    pages_kept_s: float = 60,
) -> Iterator[Server]:
    """A server in a thread of this process."""
    service = StateService(environment, pages_kept_s=pages_kept_s)
    app = make_app(
        service,
        environment.settings.application_id,
        tokens=Tokens(tokens),
        hosts=hosts,
        limits=limits or ServeLimits(),
    )
    with service, listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {tokens[0]}"} if tokens else {}
        with httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_S) as client:
            yield Server(service, url, client)


def stepping(task: StreamTask, rig: TaskRig, holds: Callable[[], bool], what: str) -> None:
    """Let the task work until it holds."""

    def step() -> bool:
        task.step(0)
        rig.clock.advance(100)
        return holds()

    eventually(step, what)


def copied(service: StateService, task: StreamTask, rig: TaskRig) -> None:
    """Let the task work until a copy follows it."""

    def follows() -> bool:
        state = service._followers.state(TASK)
        return state is not None and state.owner is OwnerState.RUNNING and not state.stale

    stepping(task, rig, follows, "a copy follows the owner")


def caught_up(service: StateService, task: StreamTask) -> None:
    """Wait until the copy has the last commit of the task."""

    def has_it() -> bool:
        (found,) = service.tasks()
        return found.commit_number == task._committer.stamp.number and not found.stale

    eventually(has_it, "the copy has the last commit")

"""Runs the HTTP face of a reading service until it is told to end."""

from collections.abc import Callable

from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.serving.access import Listening, ServeLimits, Tokens
from statestore.serving.connections import bound_to, run_server
from statestore.serving.http import make_app
from statestore.serving.lag_watch import LagWatch
from statestore.serving.service import StateService
from statestore.topology.graph import Topology


def serve_state(
    environment: Environment,
    listening: Listening,
    tokens: Tokens,
    limits: ServeLimits,
    tell: Callable[[str], object],
    topology: Topology | None = None,
) -> None:
    """Serve the state of an application until SIGTERM or Ctrl-C; `tell` gets the address.

    `topology`: of the pipeline, for serdes that are not the library's.

    Misuse if anybody could read it or there is no such application; HostFailure if the port is
    taken. Requests that are being answered at the end have a few seconds.
    """
    listening.check(tokens)
    watch: LagWatch | None = None

    def lag(task: TaskId) -> tuple[int | None, float | None]:
        return (None, None) if watch is None else watch.lag(task)

    service = StateService(environment, lags=lag, topology=topology)
    watch = LagWatch(environment, lambda: service.deployed)
    with bound_to(listening) as socket_, service:
        watch.start()
        try:
            app = make_app(
                service,
                environment.settings.application_id,
                tokens=tokens,
                hosts=listening.hosts(tokens),
                limits=limits,
            )
            run_server(app, socket_, listening, tell)
        finally:
            watch.close()

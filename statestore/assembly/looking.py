"""Status: an application looked at from outside, in nobody's way."""

from collections.abc import Iterator
from contextlib import contextmanager

from statestore.assembly.pipelines import load_pipeline
from statestore.assembly.surroundings import SystemClock, exports_of, layout_of
from statestore.errors import StateStoreError
from statestore.kafka.monitoring import KafkaMonitoringClient
from statestore.operations.deployed import Deployed, deployed
from statestore.operations.exports.catalog import Exports
from statestore.operations.status import Onlooking, Status
from statestore.settings import Settings


def status(settings: Settings, *, pipeline: str | None = None) -> Status:
    """How the application is now; `pipeline` tells of what is to run, where it can be imported."""
    with onlooking(settings, pipeline=pipeline) as look:
        return look.now()


@contextmanager
def onlooking(settings: Settings, *, pipeline: str | None = None) -> Iterator[Onlooking]:
    """The same again and again, over one connection."""
    settings.require("application.id", "state.dir")
    problems: list[str] = []
    monitoring = KafkaMonitoringClient(settings) if settings.bootstrap_servers else None
    try:
        yield Onlooking(
            layout_of(settings),
            monitoring,
            SystemClock(),
            wanted=_wanted(settings, pipeline, problems),
            flush_lag_max_records=settings.flush_lag_max_records,
            exports=_exports(settings, problems),
            problems=problems,
        )
    finally:
        if monitoring is not None:
            monitoring.close()


def _wanted(settings: Settings, pipeline: str | None, problems: list[str]) -> Deployed | None:
    if pipeline is None:
        return None
    try:
        return deployed(load_pipeline(pipeline), settings.processing_guarantee)
    except StateStoreError as error:
        problems.append(f"{error}; this goes by what was deployed last")
        return None


def _exports(settings: Settings, problems: list[str]) -> Exports | None:
    if not settings.export_target:
        return None
    try:
        return exports_of(settings)
    except StateStoreError as error:
        problems.append(f"the last export is not known: {error}")
        return None

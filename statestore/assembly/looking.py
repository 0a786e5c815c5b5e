"""Status: an application looked at from outside, in nobody's way."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from statestore.assembly.pipelines import load_pipeline
from statestore.assembly.surroundings import SystemClock, exports_of, layout_of
from statestore.errors import PipelineNotFound
from statestore.kafka.onlooker import KafkaOnlooker
from statestore.operations.deployed import Deployed, deployed
from statestore.operations.status import Onlooking, Status
from statestore.settings import Settings

_log = logging.getLogger(__name__)


def status(settings: Settings, *, pipeline: str | None = None) -> Status:
    """How the application is now; `pipeline` tells of what is to run, where it can be imported."""
    with onlooking(settings, pipeline=pipeline) as look:
        return look.now()


@contextmanager
def onlooking(settings: Settings, *, pipeline: str | None = None) -> Iterator[Onlooking]:
    """The same again and again, over one connection."""
    settings.require("application.id", "state.dir")
    onlooker = KafkaOnlooker(settings) if settings.bootstrap_servers else None
    try:
        yield Onlooking(
            layout_of(settings),
            onlooker,
            SystemClock(),
            wanted=_wanted(settings, pipeline),
            flush_lag_max_records=settings.flush_lag_max_records,
            exports=exports_of(settings) if settings.export_target else None,
        )
    finally:
        if onlooker is not None:
            onlooker.close()


def _wanted(settings: Settings, pipeline: str | None) -> Deployed | None:
    if pipeline is None:
        return None
    try:
        return deployed(load_pipeline(pipeline), settings.processing_guarantee)
    except PipelineNotFound as error:
        _log.warning("%s; going by what was deployed last", error)
        return None

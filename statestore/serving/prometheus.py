"""Metrics in Prometheus' format: those of `statestore serve`, and those of a run.

The figures of a store have Kafka Streams' names, with underscores: `statestore_put_rate` is its
`put-rate`. Those whose names end in `-total` are counters, the others gauges. Further counters are
those of OpenTelemetry (metrics.py), as its own exporter names them. A server has the same of what
all runs have left out, for runs that end before anybody scrapes them.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from statestore.errors import HostFailure
from statestore.metrics import (
    LeftOutTotals,
    StoreFigures,
    TaskFigures,
    export_figures,
    figures,
    left_out_totals,
    task_figures,
)
from statestore.model.left_out import Cause, Fate
from statestore.serving.service import StateService

_log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
_STORE_LABELS = ("application_id", "store", "task")
_TASK_LABELS = ("application_id", "task")
_INPUT_LABELS = (*_TASK_LABELS, "topic", "partition")
_LEFT_OUT_LABELS = (*_TASK_LABELS, "node", "reason")


_LEFT_OUT: Final = {
    Fate.DROPPED: ("records_dropped", "Records dropped, dead letters included"),
    Fate.DEAD_LETTER: ("records_dead_letters", "Records dropped into the dead letter topic"),
    Fate.UNMATCHED: ("records_unmatched", "Records that met no row in an inner join"),
}


class RunFigures(Protocol):
    """Tells the metrics of a run; `GatheredFigures` tells those of its workers."""

    def figures(self) -> Iterable[StoreFigures]: ...
    def left_out(self) -> LeftOutTotals: ...
    def tasks(self) -> Iterable[TaskFigures]: ...


class OwnFigures:
    """The metrics of this process."""

    def figures(self) -> Iterable[StoreFigures]:
        return figures()

    def left_out(self) -> LeftOutTotals:
        return left_out_totals()

    def tasks(self) -> Iterable[TaskFigures]:
        return task_figures()


class RunCollector(Collector):
    """What a run does, in this process or in those that it has started."""

    def __init__(self, application_id: str, told: RunFigures) -> None:
        self._application_id = application_id
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """Return what the open stores tell, and what stream tasks have done and left out."""
        yield from self._of_stores()
        yield from _of_tasks(self._application_id, self._told.tasks())
        yield from left_out_counters("statestore", self._application_id, self._told.left_out())
        yield from _of_exports()

    def _of_stores(self) -> Iterator[Metric]:
        """Return Kafka Streams' figures by their names, and the totals below them as counters."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        totals = {
            "commits": ("Store commits", "commits"),
            "records_written": ("Rows committed, deletes included", "rows_written"),
            "records_deleted": ("Deletes committed", "rows_deleted"),
            "records_read": ("Keys looked up", "gets"),
            "ranges": ("Iterators opened", "ranges"),
            "records_restored": ("Rows restored", "rows_restored"),
            "records_late": ("Records too late to be kept", "late"),
        }
        counters = {
            name: CounterMetricFamily(f"statestore_{name}", about, labels=_STORE_LABELS)
            for name, (about, _) in totals.items()
        }
        durations = SummaryMetricFamily(
            "statestore_commit_duration_seconds",
            "Time of a store's part of commits",
            labels=_STORE_LABELS,
        )
        seen: set[tuple[str, str]] = set()
        for store in self._told.figures():
            place = store.store, store.task or ""
            if place in seen:
                continue  # Several workers have the store of a global table, with the same rows.
            seen.add(place)
            labels = (self._application_id, *place)
            for name, figure in store.gauges.items():
                if name not in families:
                    kind = CounterMetricFamily if name.endswith("-total") else GaugeMetricFamily
                    plain = f"statestore_{name.replace('-', '_')}"
                    about = f"Kafka Streams' {name} of a store"
                    families[name] = kind(plain, about, labels=_STORE_LABELS)
                families[name].add_metric(labels, figure)
            for name, (_, field) in totals.items():
                counters[name].add_metric(labels, store.totals[field])
            commits, seconds = store.totals["commits"], store.totals["commit_seconds"]
            durations.add_metric(labels, int(commits), seconds)
        yield from families.values()
        yield from counters.values()
        yield durations


def _of_tasks(application_id: str, tasks: Iterable[TaskFigures]) -> Iterator[Metric]:
    """Return what stream tasks have done: sums and counts, of which a scraper makes averages."""
    commits = SummaryMetricFamily(
        "statestore_task_commit_duration_seconds",
        "Time of a stream task's whole commits, with the brokers' part",
        labels=_TASK_LABELS,
    )
    waits = SummaryMetricFamily(
        "statestore_task_commit_wait_duration_seconds",
        "Time for which a stream task's commits waited for brokers, by part",
        labels=(*_TASK_LABELS, "part"),
    )
    came = CounterMetricFamily(
        "statestore_task_records_in", "Records processed and committed", labels=_INPUT_LABELS
    )
    lags = GaugeMetricFamily(
        "statestore_task_lag_records",
        "Offsets of an input up to the end of its log that are not committed",
        labels=_INPUT_LABELS,
    )
    for one in tasks:
        labels = (application_id, one.task)
        commits.add_metric(labels, one.commits, one.commit_seconds)
        for part, seconds in one.waits._asdict().items():
            waits.add_metric((*labels, part), one.commits, seconds)
        for (topic, partition), count in one.records_in.items():
            came.add_metric((*labels, topic, str(partition)), count)
        for (topic, partition), lag in one.lags.items():
            lags.add_metric((*labels, topic, str(partition)), lag)
    yield from (commits, waits, came, lags)


def _of_exports() -> Iterator[Metric]:
    """Return what the exports of a run have done, and when the newest one was made."""
    labels = ("application_id",)
    took = SummaryMetricFamily(
        "statestore_export_duration_seconds", "Time of the exports of a run", labels=labels
    )
    uploaded = CounterMetricFamily(
        "statestore_export_uploaded_bytes", "Bytes that they uploaded", labels=labels
    )
    failures = CounterMetricFamily(
        "statestore_export_failures", "Exports of a run that were not made", labels=labels
    )
    made = GaugeMetricFamily(
        "statestore_export_timestamp_seconds",
        "When a run made its newest export, in seconds since 1970",
        labels=labels,
    )
    for one in export_figures():
        place = (one.application_id,)
        took.add_metric(place, one.made, one.seconds)
        uploaded.add_metric(place, one.uploaded_bytes)
        failures.add_metric(place, one.failures)
        if one.last_ms is not None:
            made.add_metric(place, one.last_ms / 1000)
    yield from (took, uploaded, failures, made)


def left_out_counters(
    prefix: str, application_id: str, totals: LeftOutTotals
) -> Iterator[CounterMetricFamily]:
    """Return counters of what stream tasks have left out, by node and reason."""
    counters = {
        fate: CounterMetricFamily(f"{prefix}_{name}", about, labels=_LEFT_OUT_LABELS)
        for fate, (name, about) in _LEFT_OUT.items()
    }
    for task, counts in sorted(totals.items()):
        for name, count in counts.items():
            cause = Cause.parse(name)
            if cause is not None:
                labels = (application_id, task, cause.node, cause.reason)
                counters[cause.fate].add_metric(labels, count)
    yield from counters.values()


class _CopyCollector(Collector):
    """The copies that a server reads, and what the files say of the runs beside it."""

    def __init__(self, service: StateService, application_id: str) -> None:
        self._service = service
        self._application_id = application_id

    def collect(self) -> Iterator[Metric]:
        """Return how new each copy is, and what runs have counted."""
        age = GaugeMetricFamily(
            "statestore_serve_commit_age_seconds",
            "How long ago the commit was made that the copy of a task is as of",
            labels=_TASK_LABELS,
        )
        stale = GaugeMetricFamily(
            "statestore_serve_stale",
            "1 if commits may exist that the copy is not about to get",
            labels=_TASK_LABELS,
        )
        lag = GaugeMetricFamily(
            "statestore_serve_lag_records",
            "Records of its inputs that the task has not committed",
            labels=_TASK_LABELS,
        )
        for task in self._service.tasks():
            labels = (self._application_id, task.stream_task)
            stale.add_metric(labels, float(task.stale))
            if task.age_ms is not None:
                age.add_metric(labels, task.age_ms / 1000)
            if task.lag_records is not None:
                lag.add_metric(labels, task.lag_records)
        yield from (age, stale, lag)
        sums = self._service.sums_of_runs()
        came = CounterMetricFamily(
            "statestore_serve_records_in", "Records that all runs took in", labels=_TASK_LABELS
        )
        commits = SummaryMetricFamily(
            "statestore_serve_commit_duration_seconds",
            "Time of the whole commits of all runs, with the brokers' part",
            labels=_TASK_LABELS,
        )
        for name, each in sums.items():
            came.add_metric((self._application_id, name), each.records_in)
            commits.add_metric((self._application_id, name), each.commits, each.commit_seconds)
        yield from (came, commits)
        totals = {name: each.left_out for name, each in sums.items()}
        yield from left_out_counters("statestore_serve", self._application_id, totals)


class ServeMetrics:
    """What a server counts of its requests, and the copies."""

    def __init__(self, service: StateService, application_id: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_CopyCollector(service, application_id))
        self._requests = Counter(
            "statestore_serve_requests",
            "Requests answered",
            ["route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "statestore_serve_request_duration_seconds",
            "Time until a request was answered",
            ["route"],
            registry=self._registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )

    def scrape(self) -> tuple[bytes, str]:
        """Return all metrics, and the type of that text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def counting(self, app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """Return an ASGI app that counts the requests of another one."""

        async def counted(scope: Scope, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            began_s, status = time.monotonic(), 499  # nginx's number of a client that went away

            async def noting(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, noting)
            finally:
                # Older versions of Starlette name only the endpoint.
                found = scope.get("route") or scope.get("endpoint")
                route = getattr(found, "path", "other")
                self._requests.labels(route, str(status)).inc()
                self._seconds.labels(route).observe(time.monotonic() - began_s)

        return counted


@contextmanager
def metrics_port(
    application_id: str,
    host: str,
    port: int,
    told: RunFigures | None = None,
) -> Iterator[int]:
    """Serve the metrics of a run at /metrics, by default those of this process; yields the port.

    HostFailure if the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(RunCollector(application_id, told or OwnFigures()))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise HostFailure(
            f"--metrics-port {port}: {error.strerror}: free the port or name another one"
        ) from error
    _log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Looks at applications in the background, so that a page never waits for a broker or a target.

Only applications that somebody asked for lately are looked at, a few at a time. Each look opens
what it needs and closes it again. An answer says how old it is.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from statestore.applications import ConfiguredApplication
from statestore.errors import HostFailure, StateStoreError
from statestore.layout import documents
from statestore.layout.audits import AuditRecord, Audits
from statestore.layout.documents import Amount, Count, Text, TimeMs
from statestore.operations.at_rest import StoreFiles, StoresAtRest
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, Listed
from statestore.operations.status import Status, StatusReader
from statestore.ports import Clock
from statestore.runtime import Runtime
from statestore.settings import Settings, expand
from statestore.tasks.history import read_history
from statestore.ui.timeline import Timeline, timeline_of

_log = logging.getLogger(__name__)
_EVERY_MS: Final = 5_000
"""How old an answer may be before it is looked for again."""
_AT_ONCE: Final = 4
_EXPORTS_MAX: Final = 20
_DRILLS_MAX: Final = 10
_DRILL_REPORTS: Final = "drill-reports"


class ShownDrill(msgspec.Struct, frozen=True):
    """One drill of a report, as the page shows it."""

    kind: Text
    name: Text
    seed: Count
    outcome: Text
    recovery_seconds: Amount | None = None


class DrillRun(msgspec.Struct, frozen=True):
    """A report of drills in the state dir."""

    workload: Text
    seed: Count
    started_ms: TimeMs
    seconds: Amount
    drills: list[ShownDrill]

    def count(self, outcome: str) -> int:
        """How many drills ended so."""
        return sum(drill.outcome == outcome for drill in self.drills)


@dataclass(frozen=True)
class Look:
    """What the overview shows of an application."""

    status: Status
    work: Timeline


@dataclass(frozen=True)
class Details:
    """What the page of an application shows besides; `problems`: what could not be read."""

    deployed: Deployed = field(default_factory=Deployed)
    stores: list[StoreFiles] = field(default_factory=list)
    rates: dict[int, float] = field(default_factory=dict)
    """The records per second of each sub-topology when its tasks last worked, by ordinal."""
    exports: list[Listed] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    drills: list[DrillRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LastLook:
    """The last look at an application, and when it was; `problem`: why there is none."""

    look: Look | None = None
    details: Details | None = None
    problem: str | None = None
    at_ms: int = 0


Open = Callable[[], Runtime]
"""Opens the edges of one application; StateStoreError if its settings cannot be used."""


def applications_of(config: Path, folder: Path) -> Callable[[], Mapping[str, Open]]:
    """Return what lists the applications of a file; relative paths in it start at `folder`."""
    return lambda: {
        name: partial(_open, config, folder, name) for name in ConfiguredApplication.ids(config)
    }


class Lookout:
    """Keeps the last look at each application."""

    def __init__(self, applications: Callable[[], Mapping[str, Open]], clock: Clock) -> None:
        """`applications` is asked again for every page, because its file may change."""
        self._applications = applications
        self._clock = clock
        self._lock = threading.Condition()
        self._seen: dict[str, LastLook] = {}
        self._underway: set[tuple[str, bool]] = set()
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="statestore-ui")

    def close(self) -> None:
        """End the looks under way."""
        self._workers.shutdown(cancel_futures=True)

    def names(self) -> list[str]:
        """Return the ids of all applications."""
        return sorted(self._applications())

    def open(self, application_id: str) -> Runtime | None:
        """Open the edges of an application, for the caller to close; None if there is no such."""
        opener = self._applications().get(application_id)
        return None if opener is None else opener()

    def seen(
        self, names: Iterable[str], *, details: bool = False, wait_s: float = 0.0
    ) -> dict[str, LastLook]:
        """Return the last look at each application, and look again where it is old.

        Wait up to `wait_s` for those that nobody has looked at yet.
        """
        known, wanted = self._applications(), list(names)
        with self._lock:
            for name in wanted:
                self._look_if_old(name, known, details=details)
            self._lock.wait_for(
                lambda: all(self._is_there(name, details=details) for name in wanted), wait_s
            )
            return {name: self._seen.get(name, LastLook()) for name in wanted}

    def _is_there(self, name: str, *, details: bool) -> bool:
        seen = self._seen.get(name, LastLook())
        found = seen.details if details else seen.look
        return found is not None or seen.problem is not None

    def _look_if_old(self, name: str, known: Mapping[str, Open], *, details: bool) -> None:
        seen, opener = self._seen.get(name, LastLook()), known.get(name)
        is_new = seen.at_ms + _EVERY_MS > self._clock.now_ms()
        if opener is None or (is_new and self._is_there(name, details=details)):
            return
        if (name, details) not in self._underway:
            self._underway.add((name, details))
            future = self._workers.submit(self._look, name, opener, details=details)
            future.add_done_callback(_log_failure)

    def _look(self, name: str, opener: Open, *, details: bool) -> None:
        before = self._seen.get(name, LastLook())
        seen = replace(before, problem="it could not be looked at: see the log of the page")
        try:
            with opener() as runtime:
                found = look_at(runtime)
                more = details_of(runtime) if details else before.details
            seen = LastLook(found, more)
        except (StateStoreError, OSError) as error:
            seen = replace(before, look=None, problem=str(error))
        finally:
            with self._lock:
                self._seen[name] = replace(seen, at_ms=self._clock.now_ms())
                self._underway.discard((name, details))
                self._lock.notify_all()


def _open(config: Path, folder: Path, name: str) -> Runtime:
    settings = Settings.from_mapping(ConfiguredApplication.load(config, name).mapping())
    state_dir = folder / expand(settings.state_dir, "state.dir")
    target = expand(settings.export_target, "statestore.export.target")
    if target and "://" not in target:
        target = str(folder / target)
    return Runtime(replace(settings, state_dir=str(state_dir), export_target=target))


def _log_failure(looked: "Future[None]") -> None:
    if not looked.cancelled() and (error := looked.exception()) is not None:
        _log.error("a look at an application failed", exc_info=error)


def look_at(environment: Environment) -> Look:
    """Look at an application; it notices nothing of it."""
    layout, clock = environment.layout, environment.clock
    status = StatusReader(environment).now()
    samples = [read_history(layout.task_dir(task)) for task in layout.tasks()]
    return Look(status, timeline_of(samples, clock.now_ms()))


def details_of(environment: Environment) -> Details:
    """Read what else there is to tell about an application; each part may fail by itself."""
    layout, problems = environment.layout, list[str]()
    found: dict[str, object] = {}
    readers: dict[str, Callable[[], object]] = {
        "deployed": lambda: read_deployed(layout),
        "stores": lambda: _stores(environment),
        "rates": lambda: _rates(environment),
        "exports": lambda: _exports(environment),
        "audits": lambda: list(Audits(layout).newest()),
        "drills": lambda: _drills(environment),
    }
    for name, read in readers.items():
        try:
            found[name] = read()
        except (StateStoreError, OSError) as error:
            problems.append(f"{name}: {error}")
    return Details(**found, problems=problems)  # type: ignore[arg-type]  # by the table above


def _stores(environment: Environment) -> list[StoreFiles]:
    if not environment.layout.application_dir.is_dir():
        return []
    at_rest = StoresAtRest(environment)
    try:
        return at_rest.files()
    finally:
        at_rest.close()


def _rates(environment: Environment) -> dict[int, float]:
    rates: dict[int, float] = {}
    for task in environment.layout.tasks():
        samples = read_history(environment.layout.task_dir(task))
        if samples:
            last = samples[-1]
            rate = 1000 * last.records_in / max(1, last.until_ms - last.since_ms)
            rates[task.sub_topology] = rates.get(task.sub_topology, 0.0) + rate
    return rates


def _exports(environment: Environment) -> list[Listed]:
    if not environment.settings.export_target:
        return []
    return list(Exports.of(environment).listed())[: -_EXPORTS_MAX - 1 : -1]


def _drills(environment: Environment) -> list[DrillRun]:
    """The newest reports of drills in this state dir."""
    folder = environment.layout.state_dir / _DRILL_REPORTS
    found = []
    for path in folder.glob("*/report.json") if folder.is_dir() else ():
        try:
            report = documents.read(path, DrillRun, way_out="remove it")
        except HostFailure:
            continue
        if report is not None:
            found.append(report)
    return sorted(found, key=lambda report: -report.started_ms)[:_DRILLS_MAX]

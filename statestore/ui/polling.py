"""Looks at applications in the background, so that a page never waits for a broker or a target.

Only applications that somebody asked for lately are looked at, a few at a time. Each look opens
what it needs and closes it again. An answer says how old it is.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from statestore.applications import ConfiguredApplication, page_imports
from statestore.errors import HostFailure, Sparing, StateStoreError, UnknownApplication
from statestore.layout import documents
from statestore.layout.audits import AuditRecord, Audits
from statestore.layout.documents import Amount, Count, Text, TimeMs
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, Listed
from statestore.operations.looking.at_rest import GlobalFiles, StoreFiles, StoresAtRest
from statestore.operations.status.status import Status, StatusReader
from statestore.ports import Clock
from statestore.runtime import Runtime
from statestore.settings import Settings, expand
from statestore.tasks.history import read_history
from statestore.ui.timeline import Day, day_of
from statestore.ui.topic_records import Role, topics_of

_log = logging.getLogger(__name__)
_EVERY_MS: Final = 5_000
"""How old an answer may be before it is looked for again."""
_OLD_S: Final = 15.0
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
class PollResult:
    """What the overview shows of an application.

    The others: records per second of each sub-topology when its tasks last worked, by ordinal. Of
    all it took, by topic that they came from, and by topic that they went to; topics of which
    nothing is known are not there.
    """

    status: Status
    day: Day
    rates: dict[int, float] = field(default_factory=dict)
    taken: dict[tuple[int, str], float] = field(default_factory=dict)
    sent: dict[tuple[int, str], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Details:
    """What the page of an application shows besides; `problems`: what could not be read.

    `topics`: those that can be looked into; empty if the page does not know the brokers.
    """

    deployed: Deployed = field(default_factory=Deployed)
    topics: dict[str, Role] = field(default_factory=dict)
    stores: list[StoreFiles] = field(default_factory=list)
    global_stores: list[GlobalFiles] = field(default_factory=list)
    exports: list[Listed] = field(default_factory=list)
    audits: list[AuditRecord] = field(default_factory=list)
    drills: list[DrillRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LastPoll:
    """The last look at an application; `problem`: why there is none; `age_s`: of the look."""

    look: PollResult | None = None
    details: Details | None = None
    problem: str | None = None
    age_s: float = 0.0

    @property
    def is_old(self) -> bool:
        """Whether it is so old that people should know."""
        return self.age_s > _OLD_S


Open = Callable[[], Runtime]
"""Opens the edges of one application; StateStoreError if its settings cannot be used."""


def applications_of(config: Path, folder: Path) -> Callable[[], Mapping[str, Open]]:
    """Return what lists the applications of a file; relative paths in it start at `folder`."""
    return lambda: {
        name: partial(_open, config, folder, name) for name in ConfiguredApplication.ids(config)
    }


PipelineOf = Callable[[str], str | None]
"""Names the pipeline of an application that the page may import; None: there is none."""


def pipelines_of(config: Path, folder: Path) -> PipelineOf:
    """Return what names the pipelines of a file, if it lets the page import them.

    Their modules may lie in `folder`.
    """

    def pipeline(name: str) -> str | None:
        if not page_imports(config):
            return None
        if (beside := str(folder.resolve())) not in sys.path:
            sys.path.append(beside)
        try:
            return ConfiguredApplication.load(config, name).pipeline
        except UnknownApplication:  # it was named on the command line
            return None

    return pipeline


def _no_pipeline(_name: str) -> None:
    """No application has a pipeline that may be imported."""


class _Kept(NamedTuple):
    """What a look found.

    It tells of the moment at which it began. The next look is due some time after the end of this
    one, so that long looks do not follow one upon the other.
    """

    found: Any = None
    problem: str | None = None
    begun_ms: int = -_EVERY_MS
    ended_ms: int = -_EVERY_MS


_Kind = Callable[[Environment, str | None], Any]
"""What is looked for: `look_at` or `details_of`, each in its own time. The text is the pipeline."""
_NOTHING: Final = _Kept()


class Poller:
    """Keeps the last look at each application."""

    def __init__(
        self,
        applications: Callable[[], Mapping[str, Open]],
        clock: Clock,
        pipeline_of: PipelineOf = _no_pipeline,
    ) -> None:
        """Both functions are asked again for every page, because their file may change."""
        self._applications = applications
        self.pipeline_of = pipeline_of
        self._clock = clock
        self._lock = threading.Condition()
        self._kept: dict[tuple[str, _Kind], _Kept] = {}
        self._underway: set[tuple[str, _Kind]] = set()
        self._sparing = Sparing()
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
    ) -> dict[str, LastPoll]:
        """Return the last look at each of these applications, and look again where it is old.

        Wait up to `wait_s` for new looks; after that, the old ones have to do. A name that no
        application has is left out.
        """
        known = self._applications()
        openers = {name: known[name] for name in names if name in known}
        kinds = (look_at, details_of) if details else (look_at,)
        with self._lock:
            for name, opener in openers.items():
                for kind in kinds:
                    self._look_if_old(name, opener, kind)
            wanted = {(name, kind) for name in openers for kind in kinds}
            self._lock.wait_for(lambda: not wanted & self._underway, wait_s)
            return {name: self._last(name) for name in openers}

    def _last(self, name: str) -> LastPoll:
        look = self._kept.get((name, look_at), _NOTHING)
        details = self._kept.get((name, details_of), _NOTHING)
        age_s = (self._clock.now_ms() - look.begun_ms) / 1000
        return LastPoll(look.found, details.found, look.problem or details.problem, age_s)

    def _look_if_old(self, name: str, opener: Open, kind: _Kind) -> None:
        kept, now_ms = self._kept.get((name, kind), _NOTHING), self._clock.now_ms()
        if kept.ended_ms + _EVERY_MS > now_ms or (name, kind) in self._underway:
            return
        self._underway.add((name, kind))
        self._workers.submit(self._look, name, opener, kind)

    def _look(self, name: str, opener: Open, kind: _Kind) -> None:
        found: Any = None
        problem: str | None = None
        begun_ms = self._clock.now_ms()
        try:
            with opener() as runtime:
                found = kind(runtime, self.pipeline_of(name))
        except (StateStoreError, OSError) as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # a defect of ours must not end the page
            problem = "it could not be looked at: see the log of the page"
            failure = f"{name} {kind.__name__} {type(error).__name__}: {error}"
            if self._sparing.is_new(failure, begun_ms / 1000):
                _log.error("a look at application %s failed", name, exc_info=error)
        finally:
            with self._lock:
                self._kept[name, kind] = _Kept(found, problem, begun_ms, self._clock.now_ms())
                self._underway.discard((name, kind))
                self._lock.notify_all()


def _open(config: Path, folder: Path, name: str) -> Runtime:
    settings = Settings.from_mapping(ConfiguredApplication.load(config, name).mapping())
    state_dir = folder / expand(settings.state_dir, "state.dir")
    target = expand(settings.export_target, "statestore.export.target")
    if target and "://" not in target:
        target = str(folder / target)
    return Runtime(replace(settings, state_dir=str(state_dir), export_target=target))


def look_at(environment: Environment, pipeline: str | None = None) -> PollResult:
    """Look at an application; it notices nothing of it. `pipeline`: what is to run, to import."""
    layout, clock = environment.layout, environment.clock
    status = StatusReader(environment, pipeline=pipeline).now()
    samples = {task: read_history(layout.task_dir(task)) for task in layout.tasks()}
    found = PollResult(status, day_of(samples.values(), clock.now_ms()))
    for task, kept in samples.items():
        if kept:
            part, rates = task.sub_topology, kept[-1].rates()
            found.rates[part] = found.rates.get(part, 0.0) + rates.records_in
            for known, by_topic in ((found.taken, rates.taken), (found.sent, rates.sent)):
                for topic, rate in by_topic.items():
                    known[part, topic] = known.get((part, topic), 0.0) + rate
    return found


def details_of(environment: Environment, _pipeline: str | None = None) -> Details:
    """Read what else there is to tell about an application; each part may fail by itself."""
    layout, problems = environment.layout, list[str]()
    found: dict[str, object] = {}
    readers: dict[str, Callable[[], object]] = {
        "deployed": lambda: read_deployed(layout),
        "topics": lambda: _topics(environment),
        "stores": lambda: _stores(environment),
        "global_stores": lambda: _global_stores(environment),
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


def _topics(environment: Environment) -> dict[str, Role]:
    if not environment.settings.bootstrap_servers:
        return {}
    return topics_of(environment, read_deployed(environment.layout))


def _stores(environment: Environment) -> list[StoreFiles]:
    if not environment.layout.application_dir.is_dir():
        return []
    with closing(StoresAtRest(environment)) as at_rest:
        return at_rest.files()


def _global_stores(environment: Environment) -> list[GlobalFiles]:
    if not environment.layout.application_dir.is_dir():
        return []
    with closing(StoresAtRest(environment)) as at_rest:
        return at_rest.global_files()


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

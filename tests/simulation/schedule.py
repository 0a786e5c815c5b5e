"""One schedule, drawn from one seed: runs, stream tasks that die and come back, and what meddles.

The tasks are the real StreamTask over the real StagedEngine, planned by the real Run; each lives in
a process of the simulated world. At the end everything calms down, the rest is processed, and the
audit judges what is left behind.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from statestore import faults
from statestore.errors import Unavailable
from statestore.operations.running.run import PlannedTask, Run, RunRequest
from tests.simulation.audit import Watch, audit
from tests.simulation.crew import Crew
from tests.simulation.feeders import Feeders
from tests.simulation.stage import APPLICATION, TOPOLOGY, Stage
from tests.simulation.world import Died, Odds, Process, Protocol, Step

_DRAIN_MOVES = 3000


class Simulation:
    """A schedule: `run()` returns what was found wrong, `trace` tells how it came about."""

    def __init__(self, seed: int, folder: Path, *, exactly_once: bool = True) -> None:
        rng = self._rng = Random(seed)
        self._stage = Stage(rng, folder, self._interrupt, exactly_once=exactly_once)
        self.broker = self._stage.broker
        self.trace = self._stage.fate.trace
        self.protocol = self._stage.fate.protocol
        self._findings = self._stage.findings
        self._crew = Crew(self._stage)
        self._feeders = Feeders(self.broker, self._stage.clock, rng, self._stage.partitions)
        self._watch = Watch(self.broker)
        self._actions = self._drawn_actions()
        # Without transactions nobody fences a zombie.
        self._takeovers = rng.random() < 0.5 and exactly_once
        self._driver = self._stage.process("driver")
        self._run: Run | None = None
        self._waves: Iterator[list[PlannedTask]] = iter(())

    def run(self) -> list[str]:
        """Live through the schedule; stop at the first finding."""
        faults.on_reach(self._stage.reached)
        try:
            for _ in range(self._rng.choice((20, 60, 120))):
                actions, weights = zip(*self._actions, strict=True)
                self._rng.choices(actions, weights)[0]()
                self._findings += self._watch.look()
                if self._findings:
                    return self._findings
            self._come_to_rest()
            return self._findings or audit(
                self.broker,
                self._stage.volume,
                self._stage.layout,
                self._feeders.fed,
                self._stage.partitions,
            )
        finally:
            faults.on_reach(None)
            for member in list(self._crew.members):
                self._crew.forget(member)
            self._abandon_run()

    # What happens.

    def _drawn_actions(self) -> list[tuple[Callable[[], None], float]]:
        """What may happen and how often; each seed leaves some of it out."""
        often: list[tuple[Callable[[], None], float]] = [
            (self._work, 30.0),
            (self._drive, 6.0),
            (self._feed, 10.0),
            (self._pass_time, 4.0),
        ]
        rare = [
            self._kill,
            self._kill,
            self._lose_lock,
            self._start_twice,
            self._stop_broker,
            self._expire,
            self._driver_dies,
            self._compact,
        ]
        return often + [(action, self._rng.choice((0, 0.5, 3))) for action in rare]

    def _interrupt(self, process: Process) -> None:
        """While one process waits for an answer, somebody else acts."""
        if len(self._stage.running) != 1:
            return
        crew = self._crew
        current = next((m for m in crew.members if m.process is process), None)
        choices: list[Callable[[], None]] = [self._feed, self._expire]
        if crew.ready():
            choices += [lambda: crew.step(self._rng.choice(crew.ready()))] * 3
        if current is not None and self._takeovers and current.task._ownership.claim is not None:
            choices.append(lambda: crew.take_over(current))
        self._rng.choice(choices)()

    def _work(self) -> None:
        if self._rng.random() < 0.2:
            self._resume_broker()
        crew, ready = self._crew, self._crew.ready()
        if crew.waiting and (not ready or self._rng.random() < 0.5):
            crew.hire()
        elif ready:
            crew.step(self._rng.choice(ready))
        else:
            self._drive()

    def _feed(self) -> None:
        if self.broker.state.is_up:
            self._note(self._feeders.feed())

    def _pass_time(self) -> None:
        self._stage.clock.advance(self._rng.choice((1, 60, 1000)))

    def _stop_broker(self) -> None:
        if self.broker.state.is_up:
            self._note("the broker stops")
            self.broker.stop()
        else:
            self._resume_broker()

    def _resume_broker(self) -> None:
        if not self.broker.state.is_up:
            self._note("the broker answers again")
            self.broker.resume()

    def _expire(self) -> None:
        if self._crew.members and self.broker.state.is_up:
            task = self._rng.choice(self._crew.members).planned.task
            self._note(f"the transaction of {task} expires")
            self._expires(task)

    def _expires(self, task: str) -> None:
        self.broker.expire(f"{APPLICATION}-{task}")
        self._stage.fate.protocol.append(Protocol(task, "", Step.EXPIRES))

    def _compact(self) -> None:
        for store in TOPOLOGY.stores:
            self.broker.compact(f"{APPLICATION}-{store}-changelog")
        self._note("the changelogs are compacted")

    def _kill(self) -> None:
        processes = [self._driver, *(m.process for m in self._crew.members)]
        doomed = self._rng.choice(processes)
        if doomed.visits_left is None:
            doomed.visits_left = self._rng.randint(1, 25)

    def _lose_lock(self) -> None:
        if self._takeovers and (owners := self._crew.owners()):
            self._crew.become_zombie(self._rng.choice(owners))

    def _start_twice(self) -> None:
        """A second owner while the first lives: refused by name."""
        if owners := self._crew.owners():
            self._crew.start(self._rng.choice(owners).planned)

    def _note(self, what: str) -> None:
        self._stage.fate.note("world", what)

    # The driver.

    def _drive(self) -> None:
        """Begin a run, plan its next wave, or end it."""
        crew, run = self._crew, self._run
        if run is None:
            bounded = crew.calm or self._rng.random() < 0.4
            request = RunRequest(run_for_ms=None if bounded else 1)
            run = Run(self._stage.runtime(self._driver), TOPOLOGY, request)
            if self._act_as_driver("begins a run", run.__enter__):
                self._run, self._waves = run, run.waves()
        elif not crew.waiting and not crew.of_run:
            planned: list[list[PlannedTask]] = []
            if not self._act_as_driver("plans", lambda: planned.extend(islice(self._waves, 1))):
                return
            if planned:
                crew.waiting = list(planned[0])
            elif self._act_as_driver("ends the run", lambda: run.__exit__(None, None, None)):
                self._run = None

    def _act_as_driver(self, what: str, action: Callable[[], object]) -> bool:
        self._stage.fate.note(self._driver.name, what.upper())
        try:
            with self._stage.acting(self._driver):
                action()
        except Died:
            self._bury_driver()
        except Exception as error:  # noqa: BLE001 - judged by its class
            self._stage.fate.note(self._driver.name, f"{type(error).__name__}: {error}")
            if self._crew.calm or not isinstance(error, Unavailable):
                self._findings.append(f"the driver {what}: {error!r}")
            self._bury_driver()
        else:
            return True
        return False

    def _driver_dies(self) -> None:
        if self._run is not None:
            self._stage.fate.note(self._driver.name, "DIES")
            self._bury_driver()

    def _bury_driver(self) -> None:
        self._abandon_run()
        self._crew.desert()
        self._driver.dead = True
        self._driver = self._stage.process("driver")

    def _abandon_run(self) -> None:
        if self._run is not None and self._run._claim is not None:
            self._run._claim.abandon()
        self._run = None

    # The end.

    def _come_to_rest(self) -> None:
        """Nothing goes wrong any more: close everything, then run to the end."""
        self._note("calms down")
        fate = self._stage.fate
        fate.odds = Odds()
        fate.late.clear()
        self._crew.calm = True
        self._driver.visits_left = None
        self.broker.resume()
        self._feeders.stop()
        self._crew.disband()
        for ordinal in range(len(TOPOLOGY.sub_topologies)):
            for partition in range(self._stage.partitions):
                self._expires(f"{ordinal}_{partition}")
        self._abandon_run()
        for _ in range(1 if self._rng.random() < 0.8 else 2):
            self._drive()
            for _ in range(_DRAIN_MOVES):
                if self._run is None or self._findings:
                    break
                self._work()
            else:
                self._findings.append(f"not at the end after {_DRAIN_MOVES} moves")
        self._findings += self._watch.look()

"""The stream tasks of a schedule, one process each: they work, die, come back, lose their locks."""

from collections.abc import Callable
from dataclasses import dataclass

from statestore.errors import CommitUnknown, Fenced, Locked, Unavailable
from statestore.layout.owners import read_owner
from statestore.operations.running.run import PlannedTask
from statestore.tasks.task import StreamTask
from tests.simulation.stage import Stage
from tests.simulation.world import Died, Process, Step


@dataclass(eq=False)
class Member:
    """One incarnation of a stream task. A zombie lost its lock and does not know it.

    `haunted`: a zombie lived beside it, which may have committed what this one never heard of.
    """

    planned: PlannedTask
    process: Process
    task: StreamTask
    started: bool = False
    zombie: bool = False
    haunted: bool = False
    busy: bool = False


class Crew:
    """All members alive; `waiting` are the tasks of the present run that want one."""

    def __init__(self, stage: Stage) -> None:
        self.members: list[Member] = []
        self.waiting: list[PlannedTask] = []
        self.of_run: list[Member] = []
        self.calm = False
        self._closed: set[str] = set()
        self._stage = stage
        self._rng = stage.rng

    def ready(self) -> list[Member]:
        """Who may step now."""
        return [m for m in self.members if m.started and not m.busy]

    def owners(self) -> list[Member]:
        """Who holds a lock, at work."""
        return [m for m in self.members if m.started and not m.zombie]

    def hire(self) -> None:
        """Start one of those waiting."""
        self.start(self.waiting.pop(self._rng.randrange(len(self.waiting))))

    def start(self, planned: PlannedTask) -> Member:
        """A new incarnation, which may be refused."""
        process = self._stage.process(planned.task)
        member = Member(planned, process, self._stage.task(planned, process))
        self.members.append(member)
        self.of_run.append(member)
        closed = planned.task in self._closed
        self._closed.discard(planned.task)
        if self.act(member, "starts", member.task.start):
            self._started(member, after_clean_end=closed and not member.zombie)
        return member

    def step(self, member: Member) -> None:
        """One step, and the clean end if it was the last."""
        if not self.act(member, "steps", lambda: member.task.step(0)):
            return
        ended = member.task.finished() if member.planned.bounded else self._rng.random() < 0.03
        if ended and self.act(member, "finishes", member.task.finish):
            self.close(member)

    def close(self, member: Member) -> None:
        """A clean end: unless something was left to do, the task is not waiting any more."""
        if self.act(member, "closes", member.task.close):
            if not member.zombie and not member.haunted and not self._rivals(member):
                self._closed.add(member.planned.task)
            self.forget(member, comes_back=not member.task.report.caught_up)

    def become_zombie(self, member: Member) -> None:
        """The lock is gone, as on a volume that forgets locks; the process goes on."""
        claim = member.task._ownership.claim
        if claim is None or member.zombie:
            return
        self._stage.fate.note(member.process.name, "loses its lock without knowing")
        claim.lose()
        member.zombie = True
        if member in self.of_run:
            self.of_run.remove(member)
            self.waiting.append(member.planned)

    def take_over(self, current: Member) -> None:
        """The lock is lost in the middle of something, and another owner gets to work."""
        self.become_zombie(current)
        if current.planned in self.waiting:
            self.waiting.remove(current.planned)
            member = self.start(current.planned)
            for _ in range(self._rng.randint(0, 4)):
                if member in self.members:
                    self.step(member)

    def act(self, member: Member, what: str, action: Callable[[], object]) -> bool:
        """Let a member do something; whether it lived and succeeded."""
        fate, name = self._stage.fate, member.process.name
        fate.note(name, what.upper())
        outer, member.busy = member.busy, True
        try:
            with self._stage.acting(member.process):
                action()
        except Died:
            self.forget(member)
            return False
        except Exception as error:  # noqa: BLE001 - judged by its class
            told = str(error).split(" (", 1)[0]  # no folder, no pid: a seed tells the same anywhere
            fate.note(name, f"{type(error).__name__}: {told}")
            self._judge(member, what, error)
        else:
            return True
        finally:
            member.busy = outer
        if what == "closes" or self.act(member, "closes", member.task.close):
            self.forget(member)
        return False

    def forget(self, member: Member, *, comes_back: bool = True) -> None:
        """The process is gone; unless its work is done, its run starts it again."""
        member.process.tell(Step.IS_GONE)
        member.process.dead = True
        self._stage.volume.crash(member.process)
        member.task.abandon()
        if member in self.members:
            self.members.remove(member)
        if member in self.of_run:
            self.of_run.remove(member)
            elsewhere = [*self.waiting, *(m.planned for m in self.of_run)]
            if comes_back and member.planned not in elsewhere:
                self.waiting.append(member.planned)

    def desert(self) -> None:
        """Their run is gone: some die with it, others go on as orphans."""
        self.waiting = []
        of_run, self.of_run = self.of_run, []
        for member in of_run:
            if not member.busy and self._rng.random() < 0.5:
                self.forget(member)

    def disband(self) -> None:
        """Close all, zombies first: they must not get anything through."""
        for member in sorted(self.members, key=lambda m: not m.zombie):
            member.process.visits_left = None
            if member.zombie and member.started:
                self.act(member, "steps", member.task.finish)
            if member in self.members:
                self.close(member)
        self.of_run, self.waiting = [], []

    def _judge(self, member: Member, what: str, error: Exception) -> None:
        """Some errors are in order, as long as something goes wrong at all."""
        match error:
            case Fenced() if member.zombie:
                return
            case Unavailable() | CommitUnknown() if what != "closes" and (
                member.zombie or not self.calm
            ):
                return
            case Unavailable() if "in a row" in str(error):
                return  # most of the row came before it calmed down
            case Locked() if what == "starts" and any(not m.zombie for m in self._rivals(member)):
                return
        owner = read_owner(self._stage.layout.task_dir(member.planned.task_id))
        self._stage.findings.append(
            f"{member.process.name} {what}: {error!r}; the owner is {owner}"
        )

    def _started(self, member: Member, *, after_clean_end: bool) -> None:
        member.started = True
        member.haunted = bool(self._rivals(member))
        name, findings = member.process.name, self._stage.findings
        if not member.zombie and any(m.started and not m.zombie for m in self._rivals(member)):
            findings.append(f"{name} started while another owner lives")
        if member.task.report.quarantined:
            findings.append(f"{name} put {member.task.report.quarantined} into quarantine")
        restored = member.task.report.restored_records
        if after_clean_end and restored:
            findings.append(f"{name} restored {restored} records after a clean end")

    def _rivals(self, member: Member) -> list[Member]:
        task = member.planned.task
        return [m for m in self.members if m is not member and m.planned.task == task]

"""Keeps a copy of every stream task of an application, and each of them up to date.

    a task without a copy, with a new owner     take a snapshot, asking for the commits after it
    a task whose owner sends commits            apply them, some hundred times a second
    a task whose owner has ended or died        keep the copy; after a death it counts as stale

One thread applies. Snapshots, for which owners may keep us waiting while they restore, are taken by
a few others; until a new copy is there, the old one is read, and counts as stale.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from statestore.errors import Sparing, StateStoreError, one_line
from statestore.layout.commit_feeds import FeedEnd
from statestore.layout.owners import Owner, read_owner
from statestore.model.ids import TaskId
from statestore.operations.deployed import (
    Deployed,
    deployed_identity,
    made_anew,
    read_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.looking.task_snapshots import Snapshots
from statestore.serving.replicas import Replica
from statestore.tasks.progress_file import read_progress

_log = logging.getLogger(__name__)
_LOOK_S = 0.002
_LOOK_AT_OWNERS_S = 0.25
_LOOK_AT_TASKS_S = 1.0
_TRY_AGAIN_S = 0.5
_SHARE = 20
"""Looking for commits takes at most one part in so many of the thread's time."""
_PAUSE_MAX_S = 0.5
"""However long a look took: a slow disk or a busy machine must not stop it for much longer."""
_AT_A_TIME = 8
"""How many commits of one task are applied before it is the next one's turn."""
_OPENERS = 4


class OwnerState(StrEnum):
    """What is known of the owner of a stream task."""

    RUNNING = "running"
    RESTORING = "restoring"
    STOPPED = "stopped"
    DEAD = "dead"


class TaskState(NamedTuple):
    """The copy of a stream task, and what is known of it.

    `stale`: the owner may have committed what the copy does not have and is not about to get.
    """

    replica: Replica | None
    owner: OwnerState
    stale: bool
    problem: str | None


class _Opened(NamedTuple):
    replica: Replica
    epoch: int | None
    deployed: object
    """The identity of the deployed topology's file, as it was once the copy was there."""


class Follower:
    """The copy of one stream task. All methods but `state` are for one thread."""

    def __init__(
        self,
        task: TaskId,
        environment: Environment,
        openers: "_Openers",
        is_known: Callable[[object], bool],
    ) -> None:
        """`is_known`: whether that is the identity of the topology that questions go by."""
        self.task = task
        self._environment = environment
        self._is_known = is_known
        self._folder = environment.layout.task_dir(task)
        self._openers = openers
        self._opening: Future[_Opened] | None = None
        self._replica: Replica | None = None
        self._epoch: int | None = None
        self._complete = False
        self._is_broken = True
        self._owner: Owner | None = None
        self._owner_seen_s = self._next_try_s = float("-inf")
        self._problem: str | None = None
        self._sparing = Sparing()
        self._state = TaskState(None, OwnerState.RESTORING, stale=True, problem=None)

    def state(self) -> TaskState:
        """Return the copy and what is known of it, for any thread."""
        return self._state

    def step(self, now_s: float) -> bool:
        """Do what is due; return whether a commit was applied."""
        applied = False
        if self._opening is not None:
            self._take_over(now_s)
        if self._replica is not None and not self._is_broken:
            try:
                applied = self._apply(self._replica)
            except StateStoreError as error:
                self._problem, self._is_broken = str(error), True
        if now_s >= self._owner_seen_s + _LOOK_AT_OWNERS_S:
            self._owner_seen_s = now_s
            self._look_at_owner()
        if self._is_broken and self._opening is None and now_s >= self._next_try_s:
            self._opening = self._openers.submit(self._open)
        return applied

    def close(self) -> None:
        """Let the copy go."""
        if self._opening is not None and not self._opening.cancel():
            self._opening.add_done_callback(_discard)
        if self._replica is not None:
            self._replica.retire()
        self._state = TaskState(None, self._state.owner, stale=True, problem="it is closed")

    def _apply(self, replica: Replica) -> bool:
        feed, applied = replica.feed, 0
        if feed is None:
            return False
        while applied < _AT_A_TIME and (commit := feed.next()) is not None:
            replica.apply(commit)
            applied += 1
        if not applied:
            match feed.end():
                case FeedEnd.COMPLETE:
                    replica.feed, self._complete = None, True
                case FeedEnd.BROKEN:
                    self._is_broken = True
                case None:
                    pass
        return applied > 0

    def _look_at_owner(self) -> None:
        with suppress(StateStoreError):  # An unreadable file is what the next owner repairs.
            self._owner = read_owner(self._folder)
        owner, replica = self._owner, self._replica
        if replica is not None:
            try:
                replica.renew()
            except StateStoreError as error:
                self._problem, self._is_broken = str(error), True
        epoch = None if owner is None else owner.epoch
        is_gone = owner is None or owner.provably_dead()
        if replica is not None and epoch != self._epoch:
            self._is_broken = True
        if owner is None or owner.released:
            state = OwnerState.STOPPED
        elif is_gone:
            state = OwnerState.DEAD
        else:
            state = OwnerState.RESTORING if self._is_broken else OwnerState.RUNNING
        current = not self._is_broken and (state is not OwnerState.DEAD or self._complete)
        self._state = TaskState(replica, state, stale=not current, problem=self._problem)

    def _take_over(self, now_s: float) -> None:
        """Use the copy that was opened meanwhile, if it is there."""
        opening = self._opening
        if opening is None or not opening.done():
            return
        if opening.exception() is None and not self._is_known(opening.result().deployed):
            # With other partitions, rows would seem not to exist.
            if opening.result().deployed != deployed_identity(self._environment.layout):
                # Another one was deployed since: nobody will ever know this one.
                self._opening = None
                _discard(opening)
            return
        self._opening = None
        try:
            made = opening.result()
        except Exception as error:  # noqa: BLE001  # whatever it is, the next try may succeed
            if self._sparing.is_new(error, now_s):
                _log.warning("task %s: no copy yet: %s", self.task, one_line(error))
            self._problem, self._next_try_s = str(error), now_s + _TRY_AGAIN_S
            return
        self._look_at_owner()  # It may have died since the last look.
        before, self._replica = self._replica, made.replica
        if (
            before is not None
            and made.replica.feed is None
            and self._state.owner is OwnerState.DEAD
        ):
            # What a dead owner left on disk lacks its last commits, which the copy has.
            self._replica, before = before, made.replica
        self._epoch, self._is_broken, self._problem = made.epoch, False, None
        self._complete = False
        self._look_at_owner()
        if before is not None:
            before.retire()

    def _open(self) -> _Opened:
        # The owner is read first: if there is another one meanwhile, its epoch tells.
        owner = read_owner(self._folder)
        snapshots, ending = Snapshots(self._environment), self._openers.ending
        snapshot = snapshots.take(self.task, follow=True, ending=ending)
        replica = Replica(self.task, snapshot, self._environment.databases)
        if replica.committed_ms is None:
            replica.committed_ms = read_progress(self._folder).last_commit_ms
        deployed = deployed_identity(self._environment.layout)
        return _Opened(replica, None if owner is None else owner.epoch, deployed)


class Followers:
    """The copies of all stream tasks of an application; use `with`, or start() and close()."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._openers = _Openers()
        self._followers: dict[TaskId, Follower] = {}
        self._deployed = read_deployed(environment.layout)
        self._deployed_seen: object = None
        self._widths: dict[str, int] = {}
        self._sparing = Sparing()
        self._looked_s = float("-inf")
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statestore-follow", daemon=True)

    @property
    def deployed(self) -> Deployed:
        """What the topology deployed last says of the stores."""
        return self._deployed

    def width(self, store: str) -> int:
        """Return how many partitions of a store were seen on disk; they never become fewer."""
        return self._widths.get(store, 0)

    def states(self) -> Mapping[TaskId, TaskState]:
        """Return the copies as they are now, for any thread."""
        return {task: one.state() for task, one in list(self._followers.items())}

    def state(self, task: TaskId) -> TaskState | None:
        """Return the copy of one stream task; None if it has no files."""
        follower = self._followers.get(task)
        return None if follower is None else follower.state()

    def start(self) -> None:
        """Begin to follow; the copies come one after the other."""
        self._look_at_tasks()
        self._thread.start()

    def close(self) -> None:
        """Stop, and let all copies go: those that are being made, too."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()
        for follower in self._followers.values():
            follower.close()
        self._openers.close()

    def _run(self) -> None:
        clock = self._environment.clock
        while not self._ending.is_set():
            began_s = clock.monotonic()
            applied = False
            try:
                if began_s >= self._looked_s + _LOOK_AT_TASKS_S:
                    self._look_at_tasks()
                for follower in list(self._followers.values()):
                    applied = follower.step(began_s) or applied
            except Exception as error:  # noqa: BLE001  # the thread outlives whatever it is
                if self._sparing.is_new(repr(error), clock.monotonic()):
                    _log.exception("the copies could not be brought up to date: trying again")
                self._ending.wait(_TRY_AGAIN_S)
            if not applied:
                pause_s = _SHARE * (clock.monotonic() - began_s)
                self._ending.wait(min(max(_LOOK_S, pause_s), _PAUSE_MAX_S))

    def _look_at_tasks(self) -> None:
        layout = self._environment.layout
        self._looked_s = self._environment.clock.monotonic()
        try:
            seen = deployed_identity(layout)
            deployed = self._deployed if self._deployed_seen == seen else read_deployed(layout)
            stores = {task: layout.stores(task) for task in layout.tasks()}
        except (OSError, StateStoreError) as error:
            if self._sparing.is_new(error, self._looked_s):
                _log.warning("cannot look at %s: %s", layout.application_dir, one_line(error))
            return
        there = {task for task, found in stores.items() if found}
        anew = made_anew(self._deployed, deployed)
        gone = {task for task in self._followers if not anew.isdisjoint(stores.get(task, ()))}
        for task in gone | (self._followers.keys() - there):
            self._followers.pop(task).close()
        # Only then: with fewer partitions than before, copies of before would seem to be all.
        self._deployed, self._deployed_seen = deployed, seen
        for task in there:
            for store in stores[task]:
                self._widths[store] = max(self.width(store), task.partition + 1)
        for task in there - self._followers.keys():
            self._followers[task] = Follower(task, self._environment, self._openers, self._is_known)

    def _is_known(self, deployed: object) -> bool:
        """Return whether that is the topology seen last; if not, have it looked at next."""
        if deployed == self._deployed_seen:
            return True
        self._looked_s = float("-inf")
        return False


class _Openers:
    """Threads that take snapshots. They may wait long for an owner, unless `ending` is set."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self._free = threading.Semaphore(_OPENERS)
        self._threads: list[threading.Thread] = []

    def submit(self, action: Callable[[], _Opened]) -> Future[_Opened]:
        """Do it in a thread, as soon as one is free."""
        future: Future[_Opened] = Future()

        def work() -> None:
            with self._free:
                if not future.set_running_or_notify_cancel():
                    return
                try:
                    future.set_result(action())
                except BaseException as error:  # noqa: BLE001  # who asks for the result gets it
                    future.set_exception(error)

        thread = threading.Thread(target=work, name="statestore-copy", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()
        return future

    def close(self) -> None:
        """Let nobody wait for an owner any more; return when what was begun is done."""
        self.ending.set()
        for thread in self._threads:
            thread.join()


def _discard(opening: Future[_Opened]) -> None:
    if opening.exception() is None:
        opening.result().replica.retire()

"""Random lives of a versioned store whose owner is killed, against lists of versions.

The owner is a process of its own, forked from a server that has everything imported. SIGKILL meets
it idle, with writes pending, or while it commits; what is found next is one past commit, whole, and
with the rest of the log it is the last one (SEMANTICS V9).
"""

import copy
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from statestore import serdes
from statestore.runtime.public import open_store
from statestore.stores.logged import read_versions
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned.store import TransactionalVersionedStore
from tests.builders import DEADLINE_S, LogRow, log_batch, log_rows
from tests.stateful.test_versioned_machine import (
    EVER,
    LOG,
    MACHINE_SETTINGS,
    SETTINGS,
    WRITES,
    Oracle,
)

pytestmark = pytest.mark.timeout(1800)

Store = TransactionalVersionedStore[bytes, bytes]
Row = tuple[bytes, bytes | None, int]
Spec = VersionedSpec[bytes, bytes]
FLUSHED_OFTEN = SETTINGS | {"statestore.flush.lag.max.records": 9}
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


# What runs in the owner.


def own(calls: Connection, directory: Path, spec: Spec) -> None:
    """Open the store, then do as told."""
    store: Store = open_store(spec, directory, settings=FLUSHED_OFTEN)
    store.table.is_logged = True
    while True:
        name, arguments = calls.recv()
        calls.send(_ACTIONS[name](store, *arguments))


def _changes(store: Store) -> list[LogRow]:
    return log_rows(store.table.changes())


def _seen(store: Store, keys: list[bytes]) -> tuple[int | None, int | None, dict[bytes, Any]]:
    shown = {key: (store.get(key), list(store.history(key))) for key in keys}
    return store.committed_offset(LOG), store.observed_stream_time(), shown


def _restore(store: Store, rows: list[LogRow], end: int) -> None:
    found = read_versions(log_batch(rows), is_whole=store.table.log.is_whole)
    store.table.restore(found, {LOG: end})


_ACTIONS: dict[str, Callable[..., Any]] = {
    "put_all": lambda store, rows: store.put_all(rows),
    "put": lambda store, row: store.put(*row),
    "changes": _changes,
    "commit": lambda store, end: store.commit({LOG: end}),
    "rollback": lambda store: store.rollback(),
    "durable": lambda store: store.durable_offset(LOG) or 0,
    "seen": _seen,
    "restore": _restore,
}


class Owner:
    """A living owner."""

    def __init__(self, directory: Path, spec: Spec) -> None:
        self.calls, theirs = _FORKS.Pipe()
        self.process = _FORKS.Process(target=own, args=(theirs, directory, spec), daemon=True)
        self.process.start()
        theirs.close()

    def __call__(self, name: str, *arguments: object) -> Any:
        self.tell(name, *arguments)
        assert self.calls.poll(DEADLINE_S), f"the owner does not answer to {name}"
        return self.calls.recv()

    def tell(self, name: str, *arguments: object) -> None:
        """Without waiting for the answer."""
        self.calls.send((name, arguments))

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(DEADLINE_S)
        assert self.process.exitcode == -signal.SIGKILL
        self.calls.close()


class KilledOwners(RuleBasedStateMachine):
    """Owner after owner of one store; `commits`: the oracle after each, by the log's end."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="statestore-kills-"))
        self.log: list[LogRow] = []
        self.owner: Owner | None = None

    @initialize(
        retention=st.sampled_from([0, 7, 30, 100]), interval=st.sampled_from([1, 4, 10, 60])
    )
    def begin(self, retention: int, interval: int) -> None:
        self.spec = VersionedSpec("rates", retention, serdes.BYTES, serdes.BYTES, interval)
        self.pending = Oracle(retention)
        self.commits = {0: copy.deepcopy(self.pending)}
        self.owner = Owner(self.directory, self.spec)

    def teardown(self) -> None:
        if self.owner is not None:
            self.owner.kill()
        shutil.rmtree(self.directory)

    @property
    def ask(self) -> Owner:
        assert self.owner is not None
        return self.owner

    @rule(writes=WRITES, at_once=st.booleans())
    def write(self, writes: list[Row], at_once: bool) -> None:
        rows = [(key, value, (self.pending.now or 0) + ahead) for key, value, ahead in writes]
        if at_once:
            self.ask("put_all", rows)
        for row in rows:
            expected = self.pending.put(*row)
            if not at_once:
                assert self.ask("put", row) == expected

    @rule(several=st.lists(WRITES.filter(bool), min_size=1, max_size=6))
    def commit(self, several: list[list[Row]]) -> None:
        for writes in several:
            self.write(writes, at_once=True)
            self.ask("commit", self._logged())

    @rule()
    def rollback(self) -> None:
        self.ask("rollback")
        self.pending = copy.deepcopy(self.commits[len(self.log)])

    @precondition(lambda self: self.log)
    @rule(committing=st.booleans())
    def kill(self, committing: bool) -> None:
        durable = self.ask("durable")
        if committing:
            self.ask.tell("commit", self._logged())
        self.ask.kill()
        self.owner = Owner(self.directory, self.spec)
        found = self._compared(None)
        assert found >= durable, "what was durable is gone"
        self.ask("restore", self.log[found:], len(self.log))
        assert self._compared(len(self.log)) == len(self.log)
        self.pending = copy.deepcopy(self.commits[len(self.log)])

    def _logged(self) -> int:
        """What is pending goes to the log; its end."""
        self.log += self.ask("changes")
        self.commits[len(self.log)] = copy.deepcopy(self.pending)
        return len(self.log)

    def _compared(self, end: int | None) -> int:
        """Where the log was when what is found was committed; it is all of that commit's."""
        keys = sorted(self.commits[len(self.log)].versions)
        offset, now, shown = self.ask("seen", keys)
        oracle = self.commits[(offset or 0) if end is None else end]
        assert now == oracle.now
        for key in keys:
            latest, history = shown[key]
            assert latest == oracle.as_of(key, EVER)
            assert history == oracle.history(key, -EVER, EVER)
        return offset or 0


TestKilledOwners = KilledOwners.TestCase
# Each life has several processes.
TestKilledOwners.settings = settings(
    MACHINE_SETTINGS, max_examples=max(8, MACHINE_SETTINGS.max_examples // 8)
)

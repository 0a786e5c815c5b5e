"""Exports that a run makes by itself, so that what is left to replay after a lost volume is short.

    continuous run    a thread exports whenever the newest export is older than the interval
    bounded run       exports at its end, once everything is processed, if the newest is that old
    afterwards        exports older than the retention are pruned, but for the newest few

The thread asks the owners of the stream tasks for snapshots, as any export does, and uploads only
files that the target lacks. No error of an export ends a run: it is logged, and the next one is due
after the interval. The end of a run waits for the file that is being uploaded, and gives that
export up.
"""

import logging
import threading
from typing import Final, Self

from statestore.errors import StateStoreError, Unavailable, log_left
from statestore.metrics import count_export
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, Retention
from statestore.operations.exports.create import Export
from statestore.operations.exports.manifest import made_after

_log = logging.getLogger(__name__)
_FIRST_S: Final = 10.0
"""A run that begins does something else first."""
KEPT: Final = 3
"""So many of the newest exports stay, however old they are."""


class ContinuousExports:
    """The exports of one run, in the process that drives it; use `with`."""

    def __init__(self, environment: Environment, *, continuous: bool) -> None:
        """Nothing happens if the settings name no target, or no interval."""
        settings = environment.settings
        self._environment = environment
        self._every_s = settings.export_interval_ms / 1000
        self._wanted = bool(settings.export_target and settings.export_interval_ms)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        if self._wanted and continuous:
            self._thread = threading.Thread(target=self._work, name="exports", daemon=True)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the thread, after the file that is being uploaded."""
        if self._thread is not None:
            self._ending.set()
            self._thread.join()

    def at_end(self) -> None:
        """Export what a bounded run has left, if that is due."""
        if self._wanted and self._thread is None and self._due_s() <= 0:
            self._export()

    def _work(self) -> None:
        wait_s = max(min(_FIRST_S, self._every_s), self._due_s())
        while not self._ending.wait(wait_s):
            if self._has_stores():
                self._export()
            wait_s = self._every_s

    def _has_stores(self) -> bool:
        """Return whether there is a store to export; a first run has none at its beginning."""
        layout = self._environment.layout
        try:
            found = any(layout.stores(task) for task in layout.tasks())
        except StateStoreError:
            return True  # The export says what is wrong.
        if not found:
            _log.info("not exported: there is no store on disk yet")
        return found

    def _due_s(self) -> float:
        """In how many seconds the newest export is as old as the interval."""
        try:
            ids = Exports.of(self._environment).ids()
        except StateStoreError:
            return 0.0  # The export says what is wrong.
        age_ms = self._environment.clock.now_ms() - made_after(ids[-1]) if ids else None
        # One that is dated ahead does not put off the next for longer than the interval.
        return 0.0 if age_ms is None else self._every_s - max(0, age_ms) / 1000

    def _export(self) -> None:
        clock = self._environment.clock
        began_s, application_id = clock.monotonic(), self._environment.settings.application_id
        try:
            report = Export(
                self._environment, _UntilEnd(self._ending), ending=self._ending
            ).create()
        except Exception as error:  # noqa: BLE001 - the run goes on whatever happens to its exports
            if not self._ending.is_set():
                count_export(application_id, clock.monotonic() - began_s, None, clock.now_ms())
                log_left(_log, error, "not exported; tried again after the interval")
            return
        count_export(application_id, report.seconds, report.bytes_uploaded, clock.now_ms())
        _log.info(
            "exported as %s: %d new files of %d, %.1f MB, in %.3f s",
            report.export_id,
            report.files_uploaded,
            report.files,
            report.bytes_uploaded / 1e6,
            report.seconds,
        )
        try:
            self._prune()
        except StateStoreError as error:
            _log.warning("exports are not pruned now: %s", error)

    def _prune(self) -> None:
        """Remove exports that are older than `statestore.export.retention.ms`."""
        keep_for_ms = self._environment.settings.export_retention_ms
        if keep_for_ms < 0:
            return
        exports = Exports.of(self._environment)
        ids, before_ms = exports.ids(), self._environment.clock.now_ms() - keep_for_ms
        if any(made_after(export_id) <= before_ms for export_id in ids[:-KEPT]):
            pruned = exports.prune(Retention(KEPT, keep_for_ms))
            _log.info("pruned %d exports, %d files", len(pruned.removed), pruned.files_removed)


class _UntilEnd:
    """The Progress of an export that ends between two files."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending = ending

    def expect(self, amount: int) -> None:
        """Nobody watches."""

    def done(self, amount: int) -> None:
        """Unavailable once the run ends."""
        del amount
        if self._ending.is_set():
            raise Unavailable("the run ends: its export is given up")

"""Named crash points, at which a drill or a crash test may kill the process.

`CrashPoint` lists all points; the code calls `reach(point)` at each, which costs nothing unless a
point is armed. `arm` (or the variable `STATESTORE_CRASH_AT=<point>[:<nth>[:<token file>]]`) makes
the nth visit kill the process by SIGKILL, never by an exception. With a token file this happens
only once: the process that creates the file dies, and later visits do nothing. A simulation, which
ends processes in another way, receives all visits through `on_reach`.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from statestore.errors import Misuse

VARIABLE = "STATESTORE_CRASH_AT"


class CrashPoint(StrEnum):
    """The points between two steps at which a process may die (SEMANTICS E2, E3, R2, S3, S16)."""

    OFFSETS_BEGUN = "offsets.begun"
    CLAIM_LOCKED = "claim.locked"
    CLAIM_OWNED = "claim.owned"
    TAKEOVER_LINKED = "takeover.linked"
    TAKEOVER_PUBLISHED = "takeover.published"
    START_STORES_OPEN = "start.stores-open"
    START_PRODUCER_READY = "start.producer-ready"
    START_OFFSETS_KNOWN = "start.offsets-known"
    RESTORE_BATCH_WRITTEN = "restore.batch-written"
    RESTORE_DONE = "restore.done"
    COMMIT_MARKED = "commit.marked"
    COMMIT_BEGIN = "commit.begin"
    COMMIT_RECORDS_SENT = "commit.records-sent"
    COMMIT_OFFSETS_SENT = "commit.offsets-sent"
    COMMIT_LOG_ASKED = "commit.log-asked"
    COMMIT_LOG_DONE = "commit.log-done"
    COMMIT_STORE_WRITTEN = "commit.store-written"
    COMMIT_DONE = "commit.done"
    INPUTS_MARKED = "inputs.marked"
    PROGRESS_WRITTEN = "progress.written"
    HISTORY_WRITTEN = "history.written"
    STORE_FLUSH = "store.flush"
    STORE_CLOSE = "store.close"
    SNAPSHOT_REQUESTED = "snapshot.requested"
    SNAPSHOT_LINKED = "snapshot.linked"
    SNAPSHOT_PUBLISHED = "snapshot.published"
    QUARANTINE_RENAMED = "quarantine.renamed"
    RELOCATE_SETTLED = "relocate.settled"
    RELOCATE_JOURNALLED = "relocate.journalled"
    RELOCATE_OWNERS_RAISED = "relocate.owners-raised"
    RELOCATE_RENAMING = "relocate.renaming"
    RELOCATE_RENAMED = "relocate.renamed"
    RELOCATE_ENTRIES_WRITTEN = "relocate.entries-written"
    RELOCATE_DEPLOYED = "relocate.deployed"
    RELOCATE_DONE = "relocate.done"
    UPGRADE_LAG_RAISED = "upgrade.lag-raised"
    REPARTITION_INPUTS_GROWN = "repartition.inputs-grown"
    REPARTITION_COPIED = "repartition.copied"
    REPARTITION_JOURNALLED = "repartition.journalled"
    REPARTITION_TOPIC_MADE = "repartition.topic-made"
    REPARTITION_COMMITTED = "repartition.committed"
    REPARTITION_FOLDERS_REMOVED = "repartition.folders-removed"
    REPARTITION_DEPLOYED = "repartition.deployed"
    REPARTITION_DONE = "repartition.done"
    RESET_BEGUN = "reset.begun"
    RESET_TOPICS_REMOVED = "reset.topics-removed"
    RESET_OFFSETS_COMMITTED = "reset.offsets-committed"
    RESET_FOLDERS_REMOVED = "reset.folders-removed"
    AUDIT_JUDGED = "audit.judged"
    AUDIT_KEPT = "audit.kept"
    EXPORT_LEASED = "export.leased"
    EXPORT_FILE_STORED = "export.file-stored"
    EXPORT_STORED = "export.stored"
    EXPORT_PUBLISHED = "export.published"
    EXPORT_PRUNE_LEASED = "export.prune-leased"
    EXPORT_MANIFEST_REMOVED = "export.manifest-removed"
    EXPORT_FILES_REMOVED = "export.files-removed"
    VERIFY_RECORDED = "verify.recorded"
    VERIFY_SET_ASIDE = "verify.set-aside"
    IMPORT_FETCHED = "import.fetched"
    IMPORT_PLACED = "import.placed"
    IMPORT_DEPLOYED = "import.deployed"
    LINKS_LEASED = "links.leased"
    LINKS_COPIED = "links.copied"
    LINKS_REPLACED = "links.replaced"
    LINKS_RELEASED = "links.released"
    CLONE_BEGUN = "clone.begun"
    CLONE_TOPICS_CREATED = "clone.topics-created"
    CLONE_COPIED = "clone.copied"
    CLONE_SEEDED = "clone.seeded"
    CLONE_PLACED = "clone.placed"
    CLONE_COMMITTED = "clone.committed"
    CLONE_FINISHED = "clone.finished"
    MOVE_BEGUN = "move.begun"
    MOVE_TOPICS_CREATED = "move.topics-created"
    MOVE_SEEDED = "move.seeded"
    MOVE_PLACED = "move.placed"
    MOVE_COMMITTED = "move.committed"
    MOVE_DEPLOYED = "move.deployed"
    MOVE_FINISHED = "move.finished"
    GLOBAL_LINKED = "global.linked"
    GLOBAL_ROWS_WRITTEN = "global.rows-written"
    GLOBAL_PUBLISHED = "global.published"
    WRITE_BEGUN = "write.begun"
    WRITE_CLAIMED = "write.claimed"
    WRITE_ROWS_SENT = "write.rows-sent"
    WRITE_MARKED = "write.marked"
    WRITE_COMMITTED = "write.committed"
    WRITE_COMPARED = "write.compared"
    WRITE_FINISHED = "write.finished"
    CLOSE_STORES_CLOSED = "close.stores-closed"
    CLOSE_RELEASED = "close.released"


_action: Callable[[CrashPoint], None] | None = None


def arm(text: str | None) -> None:
    """Arm one point, `<point>[:<nth>[:<token file>]]`, or disarm with None.

    Misuse if the point is unknown.
    """
    global _action
    if not text:
        _action = None
        return
    name, _, rest = text.partition(":")
    nth, _, token = rest.partition(":")
    if name not in set(CrashPoint):
        known = ", ".join(CrashPoint)
        raise Misuse(f"{VARIABLE}: there is no crash point {name!r}; known: {known}")
    if not re.fullmatch(r"[1-9]\d*|", nth):
        raise Misuse(f"{VARIABLE}: visit {nth!r} of {name}: use a number from 1")
    _action = _Armed(CrashPoint(name), int(nth or "1"), Path(token) if token else None).visit


def arm_from_environment() -> None:
    """Arm the point that `STATESTORE_CRASH_AT` names, if it is set."""
    arm(os.environ.get(VARIABLE))


def on_reach(action: Callable[[CrashPoint], None] | None) -> None:
    """Call `action` at every visit of every point, instead of what was armed; None disarms."""
    global _action
    _action = action


def reach(point: CrashPoint) -> None:
    """Kill the process if `point` is armed and this is the armed visit."""
    if _action is not None:
        _action(point)


@dataclass(slots=True)
class _Armed:
    point: CrashPoint
    visits_left: int
    token: Path | None

    def visit(self, point: CrashPoint) -> None:
        if point is not self.point:
            return
        self.visits_left -= 1
        if self.visits_left == 0 and _claim(self):
            os.kill(os.getpid(), signal.SIGKILL)


def _claim(armed: _Armed) -> bool:
    if armed.token is None:
        return True
    try:
        with armed.token.open("x", encoding="utf-8") as file:
            json.dump({"point": armed.point, "pid": os.getpid()}, file)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True

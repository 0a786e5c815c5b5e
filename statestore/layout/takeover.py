"""Takeover of a task's stores into a new folder, because the last owner may be alive (E10).

    <task id>/rocksdb/              the folder of the first owner
              rocksdb.<epoch>/      a copy made by the owner of that epoch; the highest is current
              rocksdb.<epoch>/taken-over.json
              .rocksdb.<epoch>-<pid>/     an unfinished copy

A zombie then writes to a folder that nobody reads. That folder is removed once its last owner is
known to be dead, or once the retention time of quarantine has passed. A store that was not copied
is moved to quarantine.

Keeps I13.
"""

import errno
import logging
import os
import shutil
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import msgspec

from statestore.errors import HostFailure, Locked
from statestore.faults import CrashPoint, reach
from statestore.layout import documents, linked_files
from statestore.layout.documents import TimeMs
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.layout.folders import StateLayout
from statestore.layout.owners import STORES, Claim, Owner, stores_name
from statestore.model.ids import TaskId
from statestore.ports import Clock, LinkStore

_log = logging.getLogger(__name__)
_RECORD = "taken-over.json"


class TakenOver(msgspec.Struct, frozen=True):
    """The last owner, None if it is not known, and the time of the takeover."""

    last: Owner | None
    since_ms: TimeMs


def take_over(
    layout: StateLayout,
    task: TaskId,
    claim: Claim,
    link_store: LinkStore,
    *,
    own: Collection[str],
    clock: Clock,
) -> Path:
    """Create the folder of this claim's epoch with the stores as they were last durable.

    `own` names stores of a user's own classes, which only these classes can read. They are copied
    if the last owner is known to be dead; otherwise they are left behind and restored from their
    changelogs. Locked if another process claimed the same epoch, which only happens on a volume
    without locks. Crash points takeover.linked, takeover.published.
    """
    source = layout.stores_dir(task)
    folder = layout.task_dir(task)
    name = stores_name(claim.owner.epoch)
    temporary = folder / f".{name}-{os.getpid()}"
    dead = claim.previous is None or claim.previous.provably_dead()
    try:
        _sweep_unfinished(folder, claim.owner.epoch)
        temporary.mkdir()
        for store in folders_in(source):
            if store not in own:
                link_store(source / store, temporary / store, dead)
                linked_files.hold_anew(temporary / store, clock.now_ms())
            elif dead:
                shutil.copytree(source / store, temporary / store)
        record = TakenOver(claim.previous, clock.now_ms())
        publish(temporary / _RECORD, msgspec.json.encode(record))
        sync_folder(temporary)
        reach(CrashPoint.TAKEOVER_LINKED)
        temporary.rename(folder / name)
        sync_folder(folder)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY}:
            raise Locked(
                f"task {task} ({folder}) was claimed by another process at the same moment: "
                "let it finish or stop it, then start again"
            ) from error
        raise HostFailure(
            f"task {task}: cannot take over {source} as {folder / name}: {error.strerror}; "
            "free space or fix the volume"
        ) from error
    reach(CrashPoint.TAKEOVER_PUBLISHED)
    _log.warning(
        "task %s: %s is not known to be gone; continuing in %s",
        task,
        "the last owner" if claim.previous is None else claim.previous.describe(),
        name,
    )
    return folder / name


def sweep_left_behind(layout: StateLayout, task: TaskId, retention_ms: int, clock: Clock) -> None:
    """Remove the folders of former owners that are dead or whose retention time has passed.

    Only the owner calls this, once its stores have reached the end of their changelogs.
    """
    folders = layout.stores_folders(task)
    for left, following in pairwise(folders):
        over = _record(following / _RECORD)
        dead = over.last is None or over.last.provably_dead()
        if not dead and over.since_ms + retention_ms > clock.now_ms():
            return
        for store in set(folders_in(left)) - set(folders_in(folders[-1])):
            layout.quarantine(left / store, store, "left-behind", clock)
        shutil.rmtree(left, ignore_errors=True)
        _log.info("task %s: removed %s, left behind by a former owner", task, left.name)


def _record(path: Path) -> TakenOver:
    way_out = "remove the older folder beside it if its owner is gone for sure"
    found = documents.read(path, TakenOver, way_out=way_out)
    if found is None:
        raise HostFailure(f"{path} does not exist: {way_out}")
    return found


def _sweep_unfinished(folder: Path, epoch: int) -> None:
    for path in folder.glob(f".{STORES}.*-*"):
        if int(path.name.rpartition("-")[0].rpartition(".")[2]) < epoch:
            shutil.rmtree(path, ignore_errors=True)

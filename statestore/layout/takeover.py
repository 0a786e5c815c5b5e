"""A task's stores in a new folder, where the last owner may live and must be left behind (E10).

    <task id>/rocksdb/              what the first owner works in
              rocksdb.<epoch>/      what the owner of that epoch made of it; the highest counts
              rocksdb.<epoch>/taken-over.json
              .rocksdb.<epoch>-<pid>/     in the making

A zombie then writes where nobody reads. The folder left is removed when its last owner is dead for
sure, or when quarantine's days have passed; a store that was not taken along goes to quarantine.
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
from statestore.layout import documents
from statestore.layout.documents import TimeMs
from statestore.layout.files import folders_in, publish, sync_folder
from statestore.layout.folders import StateLayout
from statestore.layout.owners import STORES, Claim, Owner, stores_name
from statestore.model.ids import TaskId
from statestore.ports import Clock, LinkStore

_log = logging.getLogger(__name__)
_RECORD = "taken-over.json"


class TakenOver(msgspec.Struct, frozen=True):
    """From whom, None if nobody was known, and when."""

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
    """The folder of this claim's epoch, with the stores as they were last durable.

    `own`: stores of classes of the user's, which only their own class can read: copied if the last
    owner is dead for sure, else left behind and restored from their changelogs. Locked if another
    process claimed the same epoch, which takes a volume without locks. Crash points
    takeover.linked, takeover.published.
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
        "task %s: %s is not known to be gone; going on in %s",
        task,
        "the last owner" if claim.previous is None else claim.previous.describe(),
        name,
    )
    return folder / name


def sweep_left_behind(layout: StateLayout, task: TaskId, retention_ms: int, clock: Clock) -> None:
    """Remove the folders of former owners that cannot write any more, or have had their days.

    For the owner alone, once its stores stand at the end of their changelogs.
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
        raise HostFailure(f"{path} is not there: {way_out}")
    return found


def _sweep_unfinished(folder: Path, epoch: int) -> None:
    for path in folder.glob(f".{STORES}.*-*"):
        if int(path.name.rpartition("-")[0].rpartition(".")[2]) < epoch:
            shutil.rmtree(path, ignore_errors=True)

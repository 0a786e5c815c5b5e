"""Brings stores back that a start does not find, from the newest exports that fit.

An export fits a store if it can only lead to what the changelog says: it is of this application and
of the topology that starts (kind, serdes, windows, partitions), of the changelog that the cluster
has now, as its id tells, and of no later commit than the group's. The changelog has to have every
record since, deletes included (I18). A store that no export fits is restored from its changelog, as
if there were none, and one line in the log says why. So is a store that was set aside and has not
been restored since: somebody, or a run, has decided that its files are not to be trusted.

Keeps I18.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from statestore.errors import ExportDamaged, FormatTooNew, StateStoreError
from statestore.layout import owners
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ExportRestore
from statestore.operations.deployed import (
    Deployed,
    DeployedStore,
    describe_deployment,
    read_deployed,
)
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.manifest import ExportManifest
from statestore.operations.exports.restore_export import (
    Choice,
    Place,
    Restore,
    RunRestore,
    log_of_cluster,
)
from statestore.operations.start.kept_serdes import keys_unlike, values_unread
from statestore.ports import GroupOffset
from statestore.tasks.commit import CommitStamp
from statestore.topology.graph import Topology
from statestore.topology.logs import log_of, logs
from statestore.topology.nodes import TopicName

_log = logging.getLogger(__name__)
_EXPORTS_MAX: Final = 3
"""How many of the newest exports are looked at."""
_SHOWN_MAX: Final = 3


class Start(NamedTuple):
    """A start of an application that does not find the stores of `places`.

    `wanted`: what it would deploy over the changelogs that are there. `known`: what was deployed
    last, as far as that was not lost as well. `commits`: how often the group has committed for each
    stream task.
    """

    topology: Topology
    wanted: Deployed
    known: Deployed
    commits: Mapping[TaskId, int]
    places: set[Place]


def restore_lost(
    environment: Environment, topology: Topology, counts: Mapping[TopicName, int]
) -> bool:
    """Restore what is missing from exports; return whether anything was looked for.

    The caller holds the application's lock and has made all its checks. No error of an export or of
    the target ends the start.
    """
    settings = environment.settings
    if not settings.export_target or settings.export_restore is ExportRestore.OFF:
        return False
    done = RunRestore([], {})
    try:
        lost = _lost(environment, topology, counts)
        if not lost:
            return False
        _restore(environment, _start(environment, topology, counts, lost), done)
    except StateStoreError as error:
        done.refused[f"exports at {settings.export_target}"] = str(error)
    if done.refused:
        _log.warning(
            "%s: lost stores are restored from %s: %s",
            settings.application_id,
            "older exports or their changelogs" if done.placed else "their changelogs",
            _reasons(list(done.refused.items())),
        )
    return True


def _restore(environment: Environment, start: Start, done: RunRestore) -> None:
    """Restore from the newest exports that fit; `done` gets what was, and why not the rest."""
    exports, left = Exports.of(environment), set(start.places)
    ids = exports.ids()[: -_EXPORTS_MAX - 1 : -1]
    if not ids:
        done.refused[environment.settings.export_target] = "it has no exports: is it mounted?"
    for export_id in ids:
        try:
            manifest = exports.read(export_id)
        except (ExportDamaged, FormatTooNew) as error:
            done.refused[export_id] = str(error)
            continue
        has = left & {(at.name, at.task.partition) for at in manifest.stores()}
        reasons = {place: why_not(start, manifest, place) for place in has}
        fits = {place for place, reason in reasons.items() if reason is None}
        if reason := next(filter(None, (reasons[place] for place in sorted(has))), None):
            done.refused[export_id] = reason
        if fits:
            left -= _from_export(environment, start, manifest, fits, done)
        if not left:
            return


def _from_export(
    environment: Environment,
    start: Start,
    manifest: ExportManifest,
    places: set[Place],
    done: RunRestore,
) -> set[Place]:
    """Restore these stores from an export; return those that were."""
    mounted = environment.settings.export_restore is ExportRestore.MOUNTED
    ask = partial(log_of_cluster, environment.cluster)
    restore = Restore(environment, manifest, ask, Choice(mounted=mounted, places=places))
    before, began_s = len(done.placed), environment.clock.monotonic()
    try:
        restore.apply_in_a_run(_deployed_with(start, manifest, places), done)
    finally:
        placed = done.placed[before:]
        if placed:
            _log.info(
                "%s: restored %d lost stores, %.1f MB, from export %s in %.3f s; their changelogs "
                "have %d offsets since",
                environment.settings.application_id,
                len(placed),
                sum(one.bytes for one in placed) / 1e6,
                manifest.export_id,
                environment.clock.monotonic() - began_s,
                sum(one.replay for one in placed),
            )
    return {(one.store, TaskId.parse(one.stream_task).partition) for one in placed}


def why_not(start: Start, manifest: ExportManifest, place: Place) -> str | None:
    """Return why a store of an export must not be used; None: as far as its manifest says it may.

    Whether its changelog has all that came since is asked later.
    """
    store, partition = place
    was, now = manifest.deployed.stores.get(store), start.wanted.stores[store]
    if was is None:
        return f"it does not say what store {store!r} is"
    if (difference := _difference(start, manifest, store)) is not None:
        return f"store {store!r} {difference}"
    if was.changelog_id is None or was.changelog_id != now.changelog_id:
        return f"it is of another history: the changelog of store {store!r} was created again since"
    for task in manifest.tasks:
        made, number = task.commit_number, start.commits.get(task.task_id, 0)
        if task.task_id.partition == partition and store in task.stores and (made or 0) > number:
            return (
                f"it is of another history: it was made after commit {made} of task "
                f"{task.stream_task}, and the group has {number}"
            )
    return None


def _difference(start: Start, manifest: ExportManifest, store: str) -> str | None:
    """Return how a store differs from the exported one; None if a start may go on with it."""
    exported, wanted = manifest.deployed, start.wanted
    was, now, spec = exported.stores[store], wanted.stores[store], start.topology.stores[store]
    for what, of_then, of_now in (
        ("kind", was.kind, now.kind),
        ("windows or retention", was.terms, now.terms),
        ("place in the topology", was.sub_topology, now.sub_topology),
        ("number of partitions", exported.partitions(store), wanted.partitions(store)),
        ("log", was.source_topic, now.source_topic),
        ("processing guarantee", exported.processing_guarantee, wanted.processing_guarantee),
    ):
        if of_then != of_now:
            return f"had another {what}: {of_then}, now {of_now}"
    if (unlike := keys_unlike(was, spec) or values_unread(was, spec)) is not None:
        return f"cannot go on with its serdes: {unlike.what}"
    if was.placed_apart not in (None, now.placed_apart):
        return "had another partitioner"
    if (known := start.known.stores.get(store)) is not None and known.row_times != was.row_times:
        return "was made anew since"
    return None


def _deployed_with(start: Start, manifest: ExportManifest, places: set[Place]) -> Deployed:
    """What may be told of the application once these stores are in their places."""
    exported = manifest.deployed.stores
    stores: dict[str, DeployedStore] = {name: exported[name] for name, _ in places}
    return msgspec.structs.replace(start.wanted, stores={**start.wanted.stores, **stores})


def _start(
    environment: Environment, topology: Topology, counts: Mapping[TopicName, int], lost: set[Place]
) -> Start:
    settings = environment.settings
    topics = {log_of(settings.application_id, store, {}): store for store in topology.stores}
    ids = environment.cluster.topic_ids(sorted(topics))
    wanted = describe_deployment(
        topology,
        settings.processing_guarantee,
        counts,
        logs(topology, settings).topics(),
        {topics[topic]: made for topic, made in ids.items()},
    )
    known = read_deployed(environment.layout)
    return Start(topology, wanted, known, _commits(environment, topology, counts), lost)


def _lost(
    environment: Environment, topology: Topology, counts: Mapping[TopicName, int]
) -> set[Place]:
    """The persistent stores without a row on disk whose changelogs have records.

    A table whose log is its source topic is none of them: it is restored to where the group stands.
    """
    settings, cluster = environment.settings, environment.cluster
    sources, tasks = logs(topology, settings).topics(), topology.tasks(counts)
    wanted = {
        (store, task.partition)
        for part in topology.sub_topologies
        for store in part.stores
        if topology.stores[store].persistent and store not in sources
        for task in tasks[part.ordinal]
    }
    logged = {
        (store, p): TopicPartition(log_of(settings.application_id, store, {}), p)
        for store, p in wanted - _there(environment)
    }
    existing = cluster.partitions(sorted({tp.topic for tp in logged.values()})) if logged else {}
    asked = [tp for tp in logged.values() if tp.partition < existing.get(tp.topic, 0)]
    bounds = cluster.bounds(asked) if asked else {}
    return {
        place for place, tp in logged.items() if tp in bounds and bounds[tp].end > bounds[tp].start
    }


def _there(environment: Environment) -> set[Place]:
    """The stores that are on disk, or that were set aside and have not been restored since."""
    layout = environment.layout
    set_aside = {
        (record.store, record.partition)
        for _, record in layout.quarantined()
        if record.restored_ms is None
    }
    return set_aside | {
        (store, task.partition)
        for task in layout.tasks()
        for store in layout.stores(task)
        if not _is_empty(environment, task, layout.store_dir(task, store))
    }


def _is_empty(environment: Environment, task: TaskId, folder: Path) -> bool:
    """Whether a store has no row and no offset, as one that a start made before it died."""
    if next(folder.glob("*.sst"), None) is not None:
        return False
    locks = environment.settings.volume_locks
    with (
        suppress(StateStoreError),
        owners.at_rest(folder.parents[1], what=f"task {task}", wait_ms=0, locks=locks),
    ):
        return environment.databases.is_empty(folder)
    return False


def _commits(
    environment: Environment, topology: Topology, counts: Mapping[TopicName, int]
) -> dict[TaskId, int]:
    """How often the group has committed for each stream task."""
    application_id, tasks = environment.settings.application_id, topology.tasks(counts)
    inputs: dict[TaskId, list[TopicPartition]] = defaultdict(list)
    for part in topology.sub_topologies:
        for task in tasks[part.ordinal]:
            inputs[task] += [
                TopicPartition(topic.full(application_id), task.partition)
                for topic in part.source_topics
                if task.partition < counts[topic]
            ]
    asked = [tp for found in inputs.values() for tp in found]
    group: Mapping[TopicPartition, GroupOffset] = environment.cluster.group_offsets(
        asked, stable=False
    )
    return {
        task: CommitStamp.latest({tp: group[tp] for tp in found if tp in group}).number
        for task, found in inputs.items()
    }


def _reasons(why: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{what}: {reason}" for what, reason in why[:_SHOWN_MAX])
    more = len(why) - _SHOWN_MAX
    return f"{shown}; and {more} more" if more > 0 else shown

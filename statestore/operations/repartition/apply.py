"""Changes the partition count of a stopped application, and keeps its state (docs/adr/0052).

    look         what cannot be is refused: nothing has been written yet
    lock         the application and every stream task; Locked names an owner
    settle       the transactional ids of all tasks, old and new; then look again
    inputs       grow, if the caller says so                          repartition.inputs-grown
    copy         the records of each changelog, divided anew, go into
                 a topic of their own                                 repartition.copied
    journal      repartition.json: from here on it is finished        repartition.journalled
    topics       each topic is deleted and created again, and filled
                 from its copy                                        repartition.topic-made
    group        offsets with the latest stamps                       repartition.committed
    folders      stores to quarantine; folders of tasks are removed   repartition.folders-removed
    deploy       topology.json has the new counts; the journal says
                 that all is done                                     repartition.deployed
    close        the copies are deleted; the journal is removed       repartition.done

Until the journal is written the application is what it was, apart from inputs that have grown: the
command may be repeated, or the application started if they have not. From then on a start refuses,
and names the command, which does all steps again from the copies. So of every record there is one
copy in Kafka at any time that nobody deletes. The next start restores all stores.

Keeps I46.
"""

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from statestore.errors import HostFailure, Misuse, TaskCorrupted, Unavailable
from statestore.faults import CrashPoint, reach
from statestore.layout import documents, files
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.operations.activities import activities_in
from statestore.operations.clone_record import as_deployed
from statestore.operations.deployed import publish_deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import existing_application
from statestore.operations.relocation.disk import journal_file as relocation_file
from statestore.operations.repartition.logs_of_stores import Division
from statestore.operations.repartition.own_partitioners import placed_by
from statestore.operations.repartition.partition_plan import (
    MOST,
    VERSION,
    RepartitionPlan,
    RepartitionReport,
    StoreChange,
    TopicChange,
    deployed_after,
)
from statestore.operations.repartition.planner import PartitionsAsked, Planner, logged_store
from statestore.operations.start.matching import with_inputs
from statestore.operations.start.topics import ANY_TIME
from statestore.operations.unfinished import repartition_file, require_no_reset
from statestore.ports import Bounds, Outbox, Records
from statestore.tasks.plan import transactional_ids
from statestore.topology.graph import Topology

_log = logging.getLogger(__name__)
_AGAIN = "repeat `statestore repartition`"
_COPY = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **ANY_TIME}
_AS_CHANGELOG = frozenset({"max.message.bytes", "min.insync.replicas"})
_TRIES = 3


def repartition(
    environment: Environment,
    topology: Topology,
    asked: PartitionsAsked,
    *,
    dry_run: bool,
    progress: Progress | None = None,
) -> RepartitionReport:
    """Give the inputs of a stopped application another number of partitions, and keep its state.

    `dry_run`: everything is read, and nothing is written. Locked while the application runs.
    """
    environment.settings.require("application.id", "state.dir", "bootstrap.servers")
    if not 1 <= asked.partitions <= MOST:
        raise Misuse(f"--partitions {asked.partitions}: pass a number from 1 to {MOST}")
    layout = existing_application(environment.layout)
    require_no_reset(layout)
    if relocation_file(layout).exists():
        raise Misuse(
            f"{relocation_file(layout)}: stores are being moved: finish that with `statestore "
            "relocate`, or a start"
        )
    environment, topology = as_deployed(environment, topology)
    if read_begun(layout) is None:
        topology = with_inputs(environment, topology)  # One that was begun names its topics.
    began_s = environment.clock.monotonic()
    with activities_in(environment).underway("repartition", Unit.RECORDS, progress) as told:
        made = PartitionChanger(environment, topology, asked, told)
        report = made.look() if dry_run else made.apply()
    seconds = round(environment.clock.monotonic() - began_s, 3)
    return msgspec.structs.replace(report, seconds=seconds)


class PartitionChanger:
    """The change of one application."""

    def __init__(
        self, environment: Environment, topology: Topology, asked: PartitionsAsked, told: Progress
    ) -> None:
        self._environment = environment
        self._topology = topology
        self._asked = asked
        self._told = told
        self._planner = Planner(environment, topology, asked, told)
        self._layout = environment.layout
        self._cluster = environment.cluster
        self._changelog = environment.changelog

    def look(self) -> RepartitionReport:
        """Plan it, or read the plan of a change that was begun; Misuse says what cannot be."""
        begun = read_begun(self._layout)
        if begun is None:
            return RepartitionReport(self._planner.plan())
        if begun.input_partitions != self._asked.partitions:
            raise Misuse(
                f"a change to {begun.input_partitions} partitions was begun and not finished: "
                f"finish it with `statestore repartition --partitions {begun.input_partitions}`, "
                f"then change to {self._asked.partitions}"
            )
        return RepartitionReport(begun, begun=True)

    def apply(self) -> RepartitionReport:
        """Take the steps above, or the rest of them."""
        report = self.look()  # A refusal leaves nothing behind, not even a raised epoch.
        if not report.plan.anything:
            return report
        clock, locks = self._environment.clock, self._environment.settings.volume_locks
        with (
            self._layout.alone(wait_ms=0, clock=clock, locks=locks),
            closing(self._environment.outbox) as outbox,
        ):
            report = self.look()
            self._settle(report.plan)
            outbox.open()
            if not report.begun:
                report = self._prepared(outbox)
            self._finish(report.plan, outbox)
        return msgspec.structs.replace(report, applied=True)

    def _settle(self, plan: RepartitionPlan) -> None:
        """Abort what any task left open, and refuse what a dead owner sends later."""
        tasks = sorted({*plan.tasks(), *(read_deployed(self._layout).tasks() or ())})
        application = self._layout.application_id
        ids = [name for task in tasks for name in transactional_ids(application, task)]
        self._cluster.abort_open_transactions(ids)

    # Until the journal.

    def _prepared(self, outbox: Outbox) -> RepartitionReport:
        """Grow the inputs, copy all records, and write the journal."""
        report = self.look()  # What was open is committed or aborted now, and offsets are final.
        grown = {
            topic.topic: topic.after
            for topic in report.plan.topics
            if topic.after > topic.before and not topic.begins_anew
        }
        if grown:
            self._cluster.grow(grown)
            reach(CrashPoint.REPARTITION_INPUTS_GROWN)
            report = self.look()  # A producer may have written meanwhile.
        self._cluster.remove([store.copied_by for store in report.plan.stores], None)
        for store in report.plan.stores:
            self._copy(report.plan, store, outbox)
            reach(CrashPoint.REPARTITION_COPIED)
        self._write(report.plan)
        reach(CrashPoint.REPARTITION_JOURNALLED)
        return report

    def _copy(self, plan: RepartitionPlan, change: StoreChange, outbox: Outbox) -> None:
        store = logged_store(self._topology, plan, change)
        log = next(one for one in plan.topics if one.topic == change.changelog)
        config = dict(_COPY)
        # A copy that brokers cannot keep as safely as the changelog ends all while it is whole.
        config |= {key: value for key, value in log.config.items() if key in _AS_CHANGELOG}
        self._cluster.create([log.spec()._replace(name=change.copied_by, config=config)])
        tps = [TopicPartition(store.topic, p) for p in range(store.before)]
        place = placed_by(self._environment, self._topology, store.spec, change.placed_by)
        division = Division(self._changelog, store, place, change.copied_by)
        self._told.expect(change.records)
        sent = [0] * store.after
        outbox.begin()
        for records in division.records(self._cluster.bounds(tps)):
            outbox.send(records)
            assert records.partition is not None
            sent[records.partition] += len(records.keys)
            self._told.done(len(records.keys))
        outbox.flush()
        self._check_copied(change.copied_by, sent)

    def _check_copied(self, topic: str, sent: list[int]) -> None:
        tps = [TopicPartition(topic, p) for p in range(len(sent))]
        for tp, bounds in self._cluster.bounds(tps).items():
            there = bounds.end - bounds.start
            if there < sent[tp.partition]:
                raise Unavailable(
                    f"{tp} has {there} records, {sent[tp.partition]} were acknowledged: look after "
                    "the brokers, then repeat the command; nothing has changed"
                )

    # From the journal on: each step may be done again.

    def _finish(self, plan: RepartitionPlan, outbox: Outbox) -> None:
        copies = {store.changelog: store.copied_by for store in plan.stores}
        if not plan.finished:
            self._take_steps(plan, copies, outbox)
        self._cluster.remove(sorted(copies.values()), None)
        files.remove(repartition_file(self._layout), _AGAIN)
        reach(CrashPoint.REPARTITION_DONE)

    def _take_steps(self, plan: RepartitionPlan, copies: Mapping[str, str], outbox: Outbox) -> None:
        for topic in plan.topics:
            if topic.begins_anew:
                self._make(topic, copies.get(topic.topic), outbox)
                reach(CrashPoint.REPARTITION_TOPIC_MADE)
        self._commit(plan, outbox)
        reach(CrashPoint.REPARTITION_COMMITTED)
        self._remove_folders(plan)
        reach(CrashPoint.REPARTITION_FOLDERS_REMOVED)
        ids = self._cluster.topic_ids(sorted(copies))
        after = deployed_after(read_deployed(self._layout), plan, ids)
        publish_deployed(self._layout, after)
        self._write(msgspec.structs.replace(plan, finished=True))
        reach(CrashPoint.REPARTITION_DEPLOYED)

    def _write(self, plan: RepartitionPlan) -> None:
        files.publish(repartition_file(self._layout), msgspec.json.encode(plan))

    def _make(self, topic: TopicChange, copied: str | None, outbox: Outbox) -> None:
        """Delete a topic, create it again, and fill it from its copy."""
        self._cluster.remove([topic.topic], None)
        self._cluster.create([topic.spec()])
        if copied is None:
            return
        tps = [TopicPartition(copied, p) for p in range(topic.after)]
        bounds = self._cluster.bounds(tps)
        self._told.expect(sum(one.end - one.start for one in bounds.values()))
        outbox.begin()
        for tp in tps:
            self._fill(topic.topic, tp, bounds[tp], outbox)
        outbox.flush()

    def _fill(self, topic: str, copied: TopicPartition, bounds: Bounds, outbox: Outbox) -> None:
        try:
            for stretch in self._changelog.replay(copied, bounds.start, bounds.end):
                batch = stretch.batch
                keys, values = batch.keys.objects, batch.values.objects
                outbox.send(
                    Records(topic, keys, values, batch.timestamps, copied.partition, batch.headers)
                )
                self._told.done(len(batch))
        except TaskCorrupted as error:
            raise HostFailure(
                f"{copied} has lost records while the partition count was changed: bring them "
                f"back from a replica or a backup; {error}"
            ) from error

    def _commit(self, plan: RepartitionPlan, outbox: Outbox) -> None:
        """Commit the offsets until the group has them.

        A broker forgets the offsets of a deleted topic a moment later, and with them perhaps those
        of the topic that was created in its place.
        """
        wanted = {TopicPartition(at.topic, at.partition): at for at in plan.offsets}
        for _ in range(_TRIES):
            there = self._cluster.group_offsets(list(wanted))
            left = {
                tp: at.offset
                for tp, at in wanted.items()
                if tp not in there or tuple(there[tp]) != (at.offset, at.metadata)
            }
            if not left:
                return
            by_text: dict[str, dict[TopicPartition, int]] = {}
            for tp, offset in left.items():
                by_text.setdefault(wanted[tp].metadata, {})[tp] = offset
            outbox.begin()
            for text, offsets in by_text.items():
                outbox.send_offsets(offsets, text)
        raise Unavailable(f"the group does not keep the offsets committed to it: {_AGAIN}")

    def _remove_folders(self, plan: RepartitionPlan) -> None:
        """Remove the folders of all tasks concerned, which have nothing that still holds."""
        tasks = plan.tasks()
        for task in [task for task in self._layout.tasks() if task in tasks]:
            for store in self._layout.stores(task):
                path = self._layout.store_dir(task, store)
                self._layout.quarantine(path, store, "repartitioned", self._environment.clock)
            self._layout.remove_task(task, _AGAIN)


def read_begun(layout: StateLayout) -> RepartitionPlan | None:
    """The change that was begun and not finished; HostFailure if the journal is not readable."""
    path: Path = repartition_file(layout)
    way_out = "bring it back from a backup: it says how the topics are to be"
    found = documents.read(path, RepartitionPlan, way_out=way_out, version=VERSION)
    if found is not None and found.application_id != layout.application_id:
        raise HostFailure(
            f"{path} is of application {found.application_id}, not {layout.application_id}: the "
            "folder was copied while its partitions were changed: copy it again"
        )
    return found

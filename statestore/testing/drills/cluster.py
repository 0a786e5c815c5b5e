"""Drills on a cluster: settings in, a report out."""

import dataclasses
import logging
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from statestore.errors import Misuse
from statestore.kafka.testing import delete, truncate
from statestore.model.ids import TopicPartition
from statestore.operations.audits.audit import failure_line
from statestore.operations.audits.perform import audit
from statestore.operations.clones.clone import clone_export, drop_clone
from statestore.operations.exports.catalog import LATEST
from statestore.operations.exports.create import create_export_for_clones
from statestore.operations.looking.task_snapshots import Snapshots
from statestore.operations.pipelines import load_pipeline
from statestore.operations.start.topics import ANY_TIME
from statestore.ports import Bounds, Records, TopicSpec
from statestore.reading.desk import Desk
from statestore.runtime import Runtime
from statestore.settings import Settings, is_secret
from statestore.stores import keyvalue
from statestore.testing.drills.drill_plan import PREFIX, DrillReport, plan
from statestore.testing.drills.execution import Drills
from statestore.testing.drills.scratch import Scratch
from statestore.testing.drills.specials import OwnBroker
from statestore.testing.drills.workload import Row

_log = logging.getLogger(__name__)
_STATESTORE = str(Path(sys.executable).with_name("statestore"))
RUN = (_STATESTORE, "run", "--json")
# There are many small commits and flushes, so that a kill interrupts something. Records are sent at
# once, so that they are in the log and not in the client.
EAGER: Mapping[str, object] = {
    "commit.interval.ms": 1,
    "statestore.batch.max.records": 250,
    "statestore.flush.lag.max.records": 40,
    "statestore.lock.wait.ms": 30_000,
    "statestore.snapshot.lease.ms": 5_000,
    "producer.linger.ms": 0,
    "processing.guarantee": "exactly_once",
}


class CloneFrom(NamedTuple):
    """What to clone: a pipeline and an export made for clones; without one, a new one is made."""

    pipeline: str
    export: str | None = None


def drill(
    settings: Settings,
    *,
    folder: Path,
    points: str,
    moments: int,
    specials: str,
    seed: int,
    broker: OwnBroker | None = None,
    launch: Sequence[str] = RUN,
    keep: bool = False,
    clone: CloneFrom | None = None,
) -> DrillReport:
    """Drill on the generated workload, or on clones of an application; `folder` gets the evidence.

    `settings` say how to reach the brokers and, for clones, all of the application. `launch` is the
    command that starts a run: `statestore run`, or spark-submit with the job that processes.
    """
    settings.require("bootstrap.servers")
    planned = plan(points, moments, specials, seed)
    with Runtime(settings) as runtime:
        runtime.cluster.check()
        if clone is not None and clone.export is None:
            exported = create_export_for_clones(runtime, load_pipeline(clone.pipeline))
            clone = clone._replace(export=exported.export_id)
        made = Drills(
            lambda: (
                _scratch(settings, folder, launch)
                if clone is None
                else _cloned(runtime, folder, launch, clone)
            ),
            runtime.clock,
            broker,
            keep=keep,
            killable=tuple(launch) == RUN,
        )
        workload = "generated" if clone is None else f"clones of {clone.export}"
        return made.run(planned, workload=workload, seed=seed)


def _scratch(settings: Settings, folder: Path, launch: Sequence[str]) -> Scratch:
    application_id = f"{PREFIX}{secrets.token_hex(4)}"
    reached: dict[str, object] = {
        "bootstrap.servers": settings.bootstrap_servers,
        **settings.clients,
    }
    flags, variables = _flags({**reached, **EAGER})
    home = folder / application_id
    mapping = {"application.id": application_id, "state.dir": str(home / "state")}
    own = Settings.from_mapping({**reached, **mapping, "processing.guarantee": "exactly_once"})
    tools = KafkaTools(own)
    program = (_STATESTORE,)
    return Scratch(application_id, home, launch, program, flags, variables, tools, home / "state")


def _cloned(runtime: Runtime, folder: Path, launch: Sequence[str], clone: CloneFrom) -> Scratch:
    settings = runtime.settings
    clone_id = f"{PREFIX}{secrets.token_hex(4)}"
    own = dataclasses.replace(settings, application_id=clone_id)
    guarantee = {"processing.guarantee": settings.processing_guarantee}
    carried = {
        key: value
        for key, value in {**EAGER, **guarantee, **settings.to_mapping()}.items()
        if key not in {"application.id", "state.dir"}
    }
    flags, variables = _flags(carried)
    state_dir = runtime.layout.state_dir
    made = _Clone(settings, own, clone)
    program = (_STATESTORE,)
    return Scratch(
        clone_id,
        folder / clone_id,
        launch,
        program,
        flags,
        variables,
        KafkaTools(own),
        state_dir,
        clone.pipeline,
        made,
    )


class _Clone(NamedTuple):
    """`CloneOf` for an application."""

    original: Settings
    own: Settings
    source: CloneFrom

    def make(self) -> None:
        """Open the export under the scratch id."""
        topology = load_pipeline(self.source.pipeline)
        clone_id = self.own.application_id
        with Runtime(self.original) as runtime:
            clone_export(runtime, topology, clone_id, export=self.source.export or LATEST)

    def drop(self) -> None:
        """Remove the clone's topics, group and folder."""
        with Runtime(self.own) as runtime:
            drop_clone(runtime)


def _flags(settings: Mapping[str, object]) -> tuple[list[str], dict[str, str]]:
    """Settings as flags for a child; secrets go into its environment."""
    flags, variables = [], {}
    for number, (key, value) in enumerate(settings.items()):
        shown = str(value)
        if is_secret(key) and not shown.startswith("${"):
            name = f"STATESTORE_DRILL_SECRET_{number}"
            variables[name], shown = shown, f"${{{name}}}"
        flags.append(f"--set={key}={shown}")
    return flags, variables


class KafkaTools:
    """`Tools` on a real cluster, for the topics of one scratch application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.application_id

    def create(self, topics: Mapping[str, int]) -> None:
        """Create topics in which no record is ever too old."""
        config = {"retention.ms": "-1", **ANY_TIME}
        with Runtime(self._settings) as runtime:
            runtime.cluster.create([TopicSpec(self._own(t), n, config) for t, n in topics.items()])

    def delete(self, prefix: str) -> None:
        """Delete every topic whose name begins with `prefix`, and the group."""
        delete(self._settings, f"{self._own(prefix)}-")

    def produce(self, topic: str, records: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Produce records of key, value and time, and wait until they are acknowledged."""
        with Runtime(self._settings) as runtime:
            outbox = runtime.outbox
            outbox.open()
            outbox.begin()
            keys, values, times = zip(*records, strict=True)
            outbox.send(Records(self._own(topic), keys, values, times))
            outbox.commit()

    def ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition; {} if there is no such topic."""
        return {tp.partition: bound.end for tp, bound in self._bounds(topic).items()}

    def read(self, topic: str) -> Iterable[Row]:
        """Every committed record, in order per partition."""
        for tp, (start, end) in self._bounds(topic).items():
            for key, value in self._replayed(tp, start, end):
                yield Row(tp.partition, key, value)

    def truncate(self, topic: str, share: float) -> None:
        """Purge that share of the records of every partition, oldest first."""
        bounds = self._bounds(self._own(topic))
        below = {tp.partition: s + int((e - s) * share) for tp, (s, e) in bounds.items()}
        truncate(self._settings, topic, below)

    def rows(self, store: str) -> dict[bytes, bytes]:
        """The rows of a store in all partitions, as of a snapshot."""
        found: dict[bytes, bytes] = {}
        with Runtime(self._settings) as runtime, Desk(runtime) as desk:
            for row in desk.look(store).rows(lambda reader: reader.entries()):
                found[row.entry.key] = row.entry.value
        return found

    def snapshot_findings(self, store: str) -> list[str]:
        """Take a snapshot of each task and compare it with its log up to the same offset."""
        return list(self._snapshot_findings(store))

    def audit(self) -> list[str]:
        """What an audit finds wrong, or why the audit proves nothing."""
        with Runtime(self._settings) as runtime:
            found = audit(runtime)
        if found.passed:
            return []
        return [f"audit: {found.verdict}", *(failure_line(one) for one in found.failures)]

    def _snapshot_findings(self, store: str) -> Iterator[str]:
        runtime = Runtime(self._settings)  # only its folders and files, which need no closing
        layout, snapshots = runtime.layout, Snapshots(runtime)
        for task in [task for task in layout.tasks() if store in layout.stores(task)]:
            with snapshots.take(task) as taken:
                ((tp, at),) = taken.manifest.stores[store].offsets().items()
                with closing(runtime.databases.read(taken.store_dir(store))) as engine:
                    found = dict(engine.table(keyvalue.TABLE).scan())
            folded: dict[bytes, bytes] = {}
            for key, value in self._replayed(tp, self._bounds(tp.topic)[tp].start, at):
                if value is None:
                    folded.pop(key, None)
                else:
                    folded[key] = value
            if found != folded:
                unlike = {k for k in found | folded if found.get(k) != folded.get(k)}
                yield f"snapshot of {task} differs from its log up to {at} in {len(unlike)} keys"

    def _replayed(
        self, tp: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[Any, bytes | None]]:
        with Runtime(self._settings) as runtime:
            for stretch in runtime.changelog.replay(tp, start, end):
                batch = stretch.batch
                yield from zip(batch.keys.objects, batch.values.objects, strict=True)

    def _bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        with Runtime(self._settings) as runtime:
            count = runtime.cluster.partitions([topic]).get(topic, 0)
            tps = [TopicPartition(topic, partition) for partition in range(count)]
            return runtime.changelog.bounds(tps) if tps else {}

    def _own(self, topic: str) -> str:
        if not topic.startswith(self._name) or not self._name.startswith(PREFIX):
            raise Misuse(f"topic {topic} is not of the drill {self._name}: it is left alone")
        return topic

"""Drills put together: settings in, a report out."""

import logging
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from statestore.assembly.auditing import audit
from statestore.assembly.opening import open_files, read_offsets
from statestore.assembly.reading import stores_at_rest
from statestore.assembly.surroundings import SystemClock, checked_cluster, layout_of
from statestore.engines.rocks_files import link_store
from statestore.errors import Misuse
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.outbox import PlainOutbox
from statestore.kafka.scratch import delete, truncate
from statestore.model import TopicPartition
from statestore.operations.audit import failure_line
from statestore.operations.drill import PREFIX, DrillReport, plan
from statestore.operations.drill_run import Drills
from statestore.operations.drill_scratch import Scratch
from statestore.operations.drill_specials import OwnBroker
from statestore.operations.drill_workload import Row
from statestore.operations.snapshots import Snapshots
from statestore.ports import Bounds, Records, TopicSpec
from statestore.settings import Settings, is_secret
from statestore.stores import keyvalue

_log = logging.getLogger(__name__)
_STATESTORE = str(Path(sys.executable).with_name("statestore"))
RUN = (_STATESTORE, "run", "--json")
# Many small commits and flushes, so that a kill meets something; records leave at once, so that
# they are in the log and not in the client.
EAGER: Mapping[str, object] = {
    "commit.interval.ms": 1,
    "statestore.batch.max.records": 250,
    "statestore.flush.lag.max.records": 40,
    "statestore.lock.wait.ms": 30_000,
    "statestore.snapshot.lease.ms": 5_000,
    "producer.linger.ms": 0,
    "processing.guarantee": "exactly_once",
}


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
) -> DrillReport:
    """Drill on the generated workload; everything made for it lies in `folder`.

    `settings`: how to reach the brokers, and nothing else of the application they are of. `launch`:
    what starts a run, `statestore run` or jobs/process.py on Spark.
    """
    settings.require("bootstrap.servers")
    planned = plan(points, moments, specials, seed)
    checked_cluster(settings).close()
    made = Drills(
        lambda: _scratch(settings, folder, launch),
        SystemClock(),
        broker,
        keep=keep,
        killable=tuple(launch) == RUN,
    )
    return made.run(planned, workload="generated", seed=seed)


def _scratch(settings: Settings, folder: Path, launch: Sequence[str]) -> Scratch:
    application_id = f"{PREFIX}{secrets.token_hex(4)}"
    flags, variables = [], {}
    reached: dict[str, object] = {
        "bootstrap.servers": settings.bootstrap_servers,
        **settings.clients,
    }
    for number, (key, value) in enumerate({**reached, **EAGER}.items()):
        shown = str(value)
        if is_secret(key) and not shown.startswith("${"):
            name = f"STATESTORE_DRILL_SECRET_{number}"
            variables[name], shown = shown, f"${{{name}}}"
        flags.append(f"--set={key}={shown}")
    home = folder / application_id
    mapping = {"application.id": application_id, "state.dir": str(home / "state")}
    own = Settings.from_mapping({**reached, **mapping, "processing.guarantee": "exactly_once"})
    return Scratch(application_id, home, launch, (_STATESTORE,), flags, variables, KafkaTools(own))


class KafkaTools:
    """`Tools` on a real cluster, for topics of one scratch application."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.application_id

    def create(self, topics: Mapping[str, int]) -> None:
        """New topics, whose records are never too old."""
        config = {"retention.ms": "-1"}
        with closing(checked_cluster(self._settings)) as cluster:
            cluster.create([TopicSpec(self._own(t), n, config) for t, n in topics.items()])

    def delete(self, prefix: str) -> None:
        """Every topic whose name begins so, and the group."""
        delete(self._settings, f"{self._own(prefix)}-")

    def produce(self, topic: str, records: Sequence[tuple[bytes, bytes, int]]) -> None:
        """Key, value and time of each, acknowledged."""
        with closing(PlainOutbox(self._settings, group_id=self._name)) as outbox:
            outbox.open()
            outbox.begin()
            keys, values, times = zip(*records, strict=True)
            outbox.send(Records(self._own(topic), keys, values, times))
            outbox.commit()

    def ends(self, topic: str) -> dict[int, int]:
        """The last stable offset of each partition; {}: no such topic."""
        return {tp.partition: bound.end for tp, bound in self._bounds(topic).items()}

    def read(self, topic: str) -> Iterable[Row]:
        """Every committed record, in order per partition."""
        log = KafkaChangelog(self._settings)
        for tp, (start, end) in self._bounds(topic).items():
            for stretch in log.replay(tp, start, end):
                columns = (stretch.batch.keys.objects, stretch.batch.values.objects)
                for key, value in zip(*columns, strict=True):
                    yield Row(tp.partition, key, value)

    def truncate(self, topic: str, share: float) -> None:
        """Purge that share of every partition, oldest first."""
        bounds = self._bounds(self._own(topic))
        below = {tp.partition: s + int((e - s) * share) for tp, (s, e) in bounds.items()}
        truncate(self._settings, topic, below)

    def rows(self, store: str) -> dict[bytes, bytes]:
        """What a store holds, all partitions, as of a snapshot."""
        with closing(stores_at_rest(self._settings)) as at_rest:
            return {row.key: row.value for row in at_rest.range(store)}

    def snapshot_findings(self, store: str) -> list[str]:
        """Take a snapshot of each task and compare it with its log up to the same offset."""
        return list(self._snapshot_findings(store))

    def audit(self) -> list[str]:
        """What an audit finds wrong, or why it proves nothing."""
        found = audit(self._settings)
        if found.passed:
            return []
        return [f"audit: {found.verdict}", *(failure_line(one) for one in found.failures)]

    def _snapshot_findings(self, store: str) -> Iterator[str]:
        layout, log = layout_of(self._settings), KafkaChangelog(self._settings)
        snapshots = Snapshots(layout, self._settings, SystemClock(), link_store, read_offsets)
        for task in [task for task in layout.tasks() if store in layout.stores(task)]:
            with snapshots.take(task) as taken:
                ((tp, at),) = taken.manifest.stores[store].offsets().items()
                with closing(open_files(taken.store_dir(store))) as engine:
                    found = dict(engine.table(keyvalue.TABLE).scan())
            folded: dict[bytes, bytes] = {}
            for stretch in log.replay(tp, self._bounds(tp.topic)[tp].start, at):
                columns = (stretch.batch.keys.objects, stretch.batch.values.objects)
                for key, value in zip(*columns, strict=True):
                    if value is None:
                        folded.pop(key, None)
                    else:
                        folded[key] = value
            if found != folded:
                unlike = {k for k in found | folded if found.get(k) != folded.get(k)}
                yield f"snapshot of {task} differs from its log up to {at} in {len(unlike)} keys"

    def _bounds(self, topic: str) -> dict[TopicPartition, Bounds]:
        log = KafkaChangelog(self._settings)
        with closing(checked_cluster(self._settings)) as cluster:
            count = cluster.partitions([topic]).get(topic, 0)
        tps = [TopicPartition(topic, partition) for partition in range(count)]
        return log.bounds(tps) if tps else {}

    def _own(self, topic: str) -> str:
        if not topic.startswith(self._name) or not self._name.startswith(PREFIX):
            raise Misuse(f"topic {topic} is not of the drill {self._name}: it is left alone")
        return topic

"""Runs of one kind of operator that are killed, and what an audit finds in the end.

Nothing of the library judges it: topics are read by plain consumers, rows of stores as bytes.
"""

import json
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import msgspec
from confluent_kafka import IsolationLevel, Producer

import statestore as ss
from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.stores.specs import SessionRows, WindowRows
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S
from tests.crash.kill_harness import Rig
from tests.prove import defects, kinds
from tests.prove.kinds import KINDS, OTHERS, PARTITIONS, START_MS, Form, Kind, key_of
from tests.prove.section import Harm
from tests.shared_kafka import CONFIG

SETTINGS: Mapping[str, object] = {
    "statestore.batch.max.records": 60,
    "commit.interval.ms": 1,
    "statestore.flush.lag.max.records": 100,
}
_SPECS: Mapping[Form, Callable[[str], Any]] = {
    Form.KEYS: ss.persistent_key_value_store,
    Form.WINDOWS: lambda store: WindowRows(store, serdes.BYTES, serdes.BYTES),
    Form.SESSIONS: lambda store: SessionRows(store, serdes.BYTES, serdes.BYTES),
}
Row = tuple[bytes, bytes]
Found = tuple[str, str, Harm]
"""A rule, what breaks it, and what that is for the user."""


class Refused(Exception):
    """A run ended by an error of its own."""


@dataclass
class KindRig(Rig):
    """An application of one kind. `defect`: planted into its runs (tests/prove/defects.py)."""

    kind: str = "aggregate"
    defect: str = ""
    settings: Mapping[str, object] = field(default_factory=lambda: SETTINGS)

    def __post_init__(self) -> None:
        self.pipeline = f"tests.prove.defects:{self.defect or 'none'}"
        self.variables = {
            kinds.PREFIX: self.topic_prefix,
            defects.KIND: self.kind,
            defects.SERVERS: self.kafka.bootstrap_servers,
            **self.variables,
        }

    @property
    def of(self) -> Kind:
        return KINDS[self.kind]

    def create_topics(self) -> None:
        for name in ("in", "others", "users", "out"):
            self.kafka.create_topic(
                f"{self.topic_prefix}-{name}", partitions=PARTITIONS, config={"retention.ms": "-1"}
            )
        producer = self._producer()
        for at in range(kinds.KEYS):
            self._say(producer, "users", at, f"user of {key_of(at)}", -1)
        assert producer.flush(DEADLINE_S) == 0

    def produce(self, count: int) -> None:
        producer = self._producer()
        for number in range(self.produced, self.produced + count):
            self._say(producer, "in", number, number, number)
            if number % OTHERS == 0:
                self._say(producer, "others", number, number, number)
        assert producer.flush(DEADLINE_S) == 0
        self.produced += count

    def killed_at(self, crash_at: str) -> bool:
        """Whether a run died there; one that does not come there ends well, or raises Refused."""
        process = self.start(crash_at)
        _, err = processes.outputs_of(process)
        if process.returncode not in {0, -signal.SIGKILL}:
            raise Refused(err[-2000:] or f"code {process.returncode}")
        return bool(process.returncode)

    def ended(self) -> None:
        """Run to the end; Refused if that fails."""
        process = self.start()
        _, err = processes.outputs_of(process)
        if process.returncode:
            raise Refused(err[-2000:] or f"code {process.returncode}")

    def anomalies(self) -> list[Found]:
        """What breaks which rule, once all input was processed."""
        wanted = list(self.of.out(self.produced))
        out = [(key.decode(), json.loads(value)) for key, value in self._rows("out")]
        found = _compared(_as_text(out), _as_text(wanted))
        if not found and self.of.ordered and _by_key(out) != _by_key(wanted):
            found.append(("write cycle", "the updates of a key are out of order", Harm.ANOMALY))
        return [*found, *self._stores(), *self._group()]

    def _stores(self) -> list[Found]:
        """Each store is its changelog, folded."""
        found: list[Found] = []
        for store, form in self.of.stores.items():
            folded: dict[tuple[int, bytes], bytes] = {}
            for partition, key, value in self.read(f"{self.application_id}-{store}-changelog"):
                assert key is not None
                folded.pop((partition, key), None)
                if value is not None and not is_of_a_task(key):
                    folded[partition, key] = value
            # Each partition by itself, as all of them may have rows of the same key.
            rows = {
                (partition, key): row
                for partition, (stored, _) in self.stored(store, form).items()
                for key, row in stored
            }
            apart = {key for key in rows.keys() | folded.keys() if rows.get(key) != folded.get(key)}
            if apart:
                said = f"{store} has {len(rows)} rows, its log {len(folded)}; {len(apart)} differ"
                text = f"{said}, of them {sorted(apart)[:3]}"
                found.append(("store unlike its changelog", text, Harm.ANOMALY))
        return found

    def stored(self, store: str, form: Form) -> dict[int, tuple[list[Row], int | None]]:
        """By partition, the rows on disk, and the offset of the changelog that they stand for."""
        found = {}
        layout = StateLayout(self.state_dir, self.application_id)
        # An owner on a volume without locks works in a folder of its own.
        at = (self.state_dir / self.application_id).glob(f"*/rocksdb*/{store}")
        for task in sorted({TaskId.parse(folder.parts[-3]) for folder in at}):
            folder, partition = layout.stores_dir(task), task.partition
            log = TopicPartition(f"{self.application_id}-{store}-changelog", partition)
            with ss.open_store(_SPECS[form](store), folder) as opened, opened.all() as pairs:
                rows = [
                    (row[form.value :] + row[: form.value], value)
                    for row, value in pairs
                    if not is_of_a_task(row)
                ]
                found[partition] = rows, opened.committed_offset(log)
        return found

    def _group(self) -> list[Found]:
        """The group stands at the end of the input."""
        stood, ends = self.committed(), self.input_ends()
        return [
            ("offsets and outputs apart", f"{at} is committed up to {stood.get(at)} of {end}", it)
            for at, end in ends.items()
            if stood.get(at, 0) != end
            for it in [Harm.ANOMALY]
        ]

    def input_ends(self) -> dict[tuple[str, int], int]:
        """Of each input partition, as it was produced."""
        counts = Counter(number % PARTITIONS for number in range(self.produced))
        return {(f"{self.topic_prefix}-in", partition): n for partition, n in counts.items()}

    def output_ends(self) -> dict[tuple[str, int], int]:
        """Of each partition of the output, behind what open transactions wrote too."""
        topic = f"{self.topic_prefix}-out"
        tps = [confluent_kafka.TopicPartition(topic, p) for p in range(PARTITIONS)]
        return self._ends(tps, IsolationLevel.READ_UNCOMMITTED)

    def _rows(self, name: str) -> list[tuple[bytes, bytes]]:
        rows = self.read(f"{self.topic_prefix}-{name}")
        return [(key or b"", value or b"null") for _, key, value in rows]

    def _say(self, producer: Producer, topic: str, at: int, value: Any, time: int) -> None:
        producer.produce(
            f"{self.topic_prefix}-{topic}",
            key=key_of(at),
            value=json.dumps(value),
            partition=at % PARTITIONS,
            timestamp=START_MS + time,
        )

    def _producer(self) -> Producer:
        # In this order, once each, even while the broker is restarted.
        return Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "linger.ms": 5,
                "enable.idempotence": True,
                # A night's round has more records at once than librdkafka lets wait.
                "queue.buffering.max.messages": 0,
                "log_level": 0,
            }
        )


@contextmanager
def broker_of(section: str) -> Iterator[tuple[LocalKafka, Path]]:
    """A broker of a section's own, and a folder for its files."""
    with (
        LocalKafka(config=CONFIG) as kafka,
        tempfile.TemporaryDirectory(prefix=f"prove-{section}-") as scratch,
    ):
        yield kafka, Path(scratch)


def rig_on(kafka: LocalKafka, folder: Path, kind: str, name: str, **fields: Any) -> KindRig:
    """A rig whose topics are there."""
    rig = KindRig(kafka, folder / name, kind=kind, application_id=name, topic_prefix=name, **fields)
    rig.create_topics()
    return rig


def _compared(found: Counter[str], wanted: Counter[str]) -> list[Found]:
    more, less = found - wanted, wanted - found
    doubled = [text for text in more if text in wanted]
    invented = [text for text in more if text not in wanted]
    told: list[Found] = []
    if doubled:
        told.append(("duplicate", f"{len(doubled)} results twice: {doubled[:3]}", Harm.DOUBLED))
    if less:
        told.append(("lost write", f"{less.total()} results lost: {[*less][:3]}", Harm.LOST))
    if invented:
        told.append(
            ("aborted read", f"{len(invented)} results of nothing: {invented[:3]}", Harm.ANOMALY)
        )
    return told


def _as_text(pairs: list[tuple[str, Any]]) -> Counter[str]:
    return Counter(msgspec.json.encode(pair).decode() for pair in pairs)


def _by_key(pairs: list[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def is_of_a_task(row: bytes) -> bool:
    """Whether each stream task has such a row: of its stream time, or of what it swept."""
    return row == b"t" or row[:1] == b"\xff" or (row[:1] == b"s" and len(row) == 2)

"""An application to audit, and faults planted in it with plain clients: rocksdict, confluent_kafka.

Nothing here uses the library to write what an audit is to find.
"""

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from confluent_kafka import Producer
from rocksdict import Options, Rdict

import statestore as ss
from statestore.kafka.partitioner import murmur2_partition
from statestore.operations.audits.checks import AuditCheck
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka import audit_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import START_MS, App

PIPELINE = "tests.kafka.audit_pipelines:every_kind"
PARTITIONS = 2
COUNTS, RATES = "counts", "rates"
BIAS = 1 << 63
Rows = dict[bytes, bytes]


@dataclass(frozen=True)
class Audited:
    """The application's state, to be spoilt; `first_ends`: of the counts' log after one run."""

    app: App
    first_ends: Mapping[int, int]

    def copy(self, folder: Path) -> "Audited":
        """The same application, its state in a folder of its own."""
        shutil.copytree(self.app.state_dir, folder)
        return replace(self, app=replace(self.app, state_dir=folder))

    def settings(self, **more: object) -> dict[str, object]:
        return self.app.run_settings(**more)

    def log(self, store: str) -> str:
        return f"{self.app.name}-{store}-changelog"

    def folder(self, store: str, partition: int) -> Path:
        pattern = f"*_{partition}/rocksdb/{store}"
        (found,) = (self.app.state_dir / self.app.name).glob(pattern)
        return found

    @contextmanager
    def database(self, store: str, partition: int) -> Iterator[Rdict]:
        """A store's files, behind everybody's back."""
        path, options = str(self.folder(store, partition)), Options(raw_mode=True)
        names = Rdict.list_cf(path, options)
        db = Rdict(path, options, {name: Options(raw_mode=True) for name in names})
        yield db
        db.close()

    def rows(self, store: str, partition: int, table: str = "data") -> Rows:
        with self.database(store, partition) as db:
            return dict(cast("Any", db.get_column_family(table).items()))

    def write(
        self, store: str, partition: int, rows: Mapping[bytes, bytes | None], table: str = "data"
    ) -> None:
        with self.database(store, partition) as db:
            family = db.get_column_family(table)
            for key, value in rows.items():
                if value is None:
                    family.delete(key)
                else:
                    family.put(key, value)
            family.flush()
            del family

    def stand(self, store: str, partition: int, offset: int) -> None:
        """Let the store say that it stands there in its log."""
        at = b"o" + self.log(store).encode() + b"\0" + struct.pack(">i", partition)
        self.write(store, partition, {at: struct.pack(">q", offset)}, "offsets")

    def log_end(self, store: str, partition: int) -> int:
        return self.app.bounds(self.log(store))[partition][1]

    def append(self, store: str, partition: int, key: bytes, value: bytes) -> int:
        """A record in the store's log; the log's new end."""
        producer = Producer({"bootstrap.servers": self.app.kafka.bootstrap_servers})
        producer.produce(self.log(store), key=key, value=value, partition=partition)
        assert producer.flush(DEADLINE_S) == 0
        return self.log_end(store, partition)


def audited(kafka: LocalKafka, name: str, state_dir: Path, *, records: int = 400) -> Audited:
    """Two runs of the application, in this process."""
    app = App(kafka, name, state_dir, PIPELINE).create_topics(partitions=PARTITIONS, rates=2)
    rates = [(f"r{n % 40}", b"rate-%d" % n, START_MS + n) for n in range(200)]
    app.produce_raw(rates, topic="rates", partitioner="murmur2_random")
    with mock.patch.dict(os.environ, {PREFIX_VARIABLE: name}):
        topology = audit_pipelines.every_kind()
    ends = []
    for begin, end in ((0, records // 2), (records // 2, records)):
        app.produce(range(begin, end))
        ss.run(topology, app.run_settings())
        ends.append({p: end for p, (_, end) in app.bounds(f"{name}-counts-changelog").items()})
    return Audited(app, ends[0])


# What can be wrong, and the checks that must say so.

Plant = Callable[[Audited], tuple[str, set[AuditCheck]]]
"""Spoils something; the key to be named, as text ("" if none is), and what must fail."""


def wrong_value(one: Audited) -> tuple[str, set[AuditCheck]]:
    key = min(one.rows(COUNTS, 0))
    one.write(COUNTS, 0, {key: struct.pack(">q", 999)})
    return key.decode(), {AuditCheck.EQUAL_VALUES}


def missing_key(one: Audited) -> tuple[str, set[AuditCheck]]:
    key = min(one.rows(COUNTS, 1))
    one.write(COUNTS, 1, {key: None})
    return key.decode(), {AuditCheck.NONE_MISSING, AuditCheck.ROW_COUNTS}


def extra_key(one: Audited) -> tuple[str, set[AuditCheck]]:
    key = next(f"x{n}" for n in range(99) if murmur2_partition(b"x%d" % n, PARTITIONS) == 0)
    one.write(COUNTS, 0, {key.encode(): struct.pack(">q", 1)})
    return key, {AuditCheck.NONE_EXTRA, AuditCheck.ROW_COUNTS}


def offset_too_far(one: Audited) -> tuple[str, set[AuditCheck]]:
    one.stand(COUNTS, 0, one.log_end(COUNTS, 0) + 1)
    return "", {AuditCheck.STABLE_OFFSETS}


def too_early(one: Audited) -> tuple[str, set[AuditCheck]]:
    """What the second run wrote, with the offset of the first."""
    one.stand(COUNTS, 0, one.first_ends[0])
    return min(one.rows(COUNTS, 0)).decode(), {AuditCheck.NOTHING_PENDING}


def wrong_partition(one: Audited) -> tuple[str, set[AuditCheck]]:
    """In the store and in its log alike."""
    key = next(f"y{n}" for n in range(99) if murmur2_partition(b"y%d" % n, PARTITIONS) == 1)
    value = struct.pack(">q", 1)
    one.stand(COUNTS, 0, one.append(COUNTS, 0, key.encode(), value))
    one.write(COUNTS, 0, {key.encode(): value})
    return key, {AuditCheck.RIGHT_PARTITION}


def overlapping_versions(one: Audited) -> tuple[str, set[AuditCheck]]:
    """A version that ends after the next has begun."""
    history = {k: v for k, v in one.rows(RATES, 0, "history").items() if k[:1] == b"v"}
    at, row = min(history.items())
    segment, ends = at[1:9], int.from_bytes(at[-8:], "big")
    moved = b"v" + segment + at[9:-8] + (ends + 1).to_bytes(8, "big")
    one.write(RATES, 0, {at: None, moved: row}, "history")
    return at[13:-8].decode(), {AuditCheck.VERSIONS_APART, AuditCheck.EQUAL_VALUES}


def version_twice(one: Audited) -> tuple[str, set[AuditCheck]]:
    """Two versions of a key that begin at once."""
    history = {k: v for k, v in one.rows(RATES, 1, "history").items() if k[:1] == b"v"}
    at, row = min(history.items())
    twin = at[:-8] + (int.from_bytes(at[-8:], "big") + 1).to_bytes(8, "big")
    one.write(RATES, 1, {twin: row}, "history")
    return at[13:-8].decode(), {AuditCheck.UNIQUE_KEYS}


def two_latest(one: Audited) -> tuple[str, set[AuditCheck]]:
    key, row = min(one.rows(RATES, 0).items())
    one.write(RATES, 1, {key: row})
    return key.decode(), {AuditCheck.ONE_LATEST, AuditCheck.NONE_EXTRA}


def wrong_window(one: Audited) -> tuple[str, set[AuditCheck]]:
    row = min(row for row in one.rows("windows", 0) if row != b"t")
    one.write("windows", 0, {row: struct.pack(">q", 77)})
    return row[8:].decode(), {AuditCheck.EQUAL_VALUES}


PLANTS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        wrong_value,
        missing_key,
        extra_key,
        offset_too_far,
        too_early,
        wrong_partition,
        overlapping_versions,
        version_twice,
        two_latest,
        wrong_window,
    )
}
# The last of them moves the offset that another one sets.
TOGETHER = [name for name in PLANTS if name not in {"too_early", "offset_too_far"}]
TOGETHER.append("offset_too_far")


def holds_row(path: Path, key: bytes) -> bool:
    """Whether the row of this key is there, and not that of its time, which no audit reads."""
    data = path.read_bytes()
    return key in data and b"t" + key not in data

"""Both sides of an audit as DataFrames, which the format `transactional_store` reads for audit.py.

The driver holds the snapshots and says where each store stands (`Subject`), so that every Spark
task, and every repetition of one, sees the same commit. The options are only for audits:
audit = store | log, subjects, arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from statestore.commands.arguments import StateArguments
from statestore.errors import ExportDamaged, TaskCorrupted
from statestore.layout.activity_files import Unit
from statestore.model.batch import in_lots
from statestore.model.decoders import json_decoder
from statestore.operations.activities import activities_in
from statestore.operations.audits.audit import KeyTexts
from statestore.operations.audits.both_sides import AuditRows, Subject, placing_keys
from statestore.operations.audits.checks import Fault
from statestore.operations.audits.perform import log_side, store_side
from statestore.operations.audits.writers import Writers
from statestore.runtime import PARTITIONERS, Runtime

STORE, LOG = "store", "log"
_ROW = [
    ("subject", pa.int32()),
    ("row_key", pa.binary()),
    ("begins", pa.int64()),
    ("ends", pa.int64()),
    ("value", pa.binary()),
]
_PLACES = [(name, pa.int32()) for name in PARTITIONERS]
_STORED = pa.schema(
    [
        *_ROW,
        *_PLACES,
        ("written_by", pa.string()),
        ("key", pa.string()),
        ("unreadable", pa.string()),
        ("fault", pa.string()),
    ]
)
_LOGGED = pa.schema(
    [
        *_ROW,
        ("key", pa.string()),
        ("is_later", pa.bool_()),
        ("known", pa.bool_()),
        ("fault", pa.string()),
    ]
)


def audit_schema(side: str) -> pa.Schema:
    """The columns of a side. Rows of the log with `is_later` come after the snapshot's offset.

    If the files of a store cannot be read, its last row says why in `unreadable`. Rows that
    contradict others of the store come last, with the check that they fail in `fault`; those that
    contradict the log as a whole do so on the side of the log.
    """
    return _STORED if side == STORE else _LOGGED


def audit_frame(
    spark: SparkSession, side: str, subjects: list[Subject], arguments: StateArguments
) -> DataFrame:
    """One side of all subjects, with a Spark partition for each."""
    options = {
        "audit": side,
        "subjects": msgspec.json.encode(subjects).decode(),
        "arguments": msgspec.json.encode(arguments.for_workers()).decode(),
    }
    return spark.read.format("transactional_store").options(**options).load()


class SubjectPartition(InputPartition):
    """A store of one stream task, by its index among the subjects."""

    def __init__(self, number: int) -> None:
        self.number = number


class AuditReader(DataSourceReader):
    """Reads one side of every subject."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._side = options["audit"]
        self._subjects = json_decoder(list[Subject]).decode(options["subjects"])
        self._arguments = json_decoder(StateArguments).decode(options["arguments"])

    def partitions(self) -> list[InputPartition]:
        """One per subject."""
        return [SubjectPartition(number) for number in range(len(self._subjects))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a subject, in chunks."""
        assert isinstance(partition, SubjectPartition)
        with Runtime(self._arguments.settings()) as runtime:
            yield from self._batches(runtime, partition.number)

    def _batches(self, runtime: Runtime, number: int) -> Iterator[pa.RecordBatch]:
        subject = self._subjects[number]
        texts = KeyTexts(subject.key_serde)
        if self._side == STORE:
            writers = Writers(subject.writers)
            try:
                for rows in store_side(runtime, subject):
                    if isinstance(rows, Fault):
                        yield _fault(_STORED, number, rows, texts)
                        continue
                    more = [
                        *_hashed_partitions(subject, rows),
                        writers.of_rows(rows.keys, rows.values),
                    ]
                    yield _batch(_STORED, number, rows, texts, more)
            except (TaskCorrupted, ExportDamaged) as error:
                # That is a verdict: another attempt of this Spark task would find the same.
                said = {"subject": number, "unreadable": str(error)}
                yield pa.RecordBatch.from_pylist([said], schema=_STORED)
            return
        activities, task = activities_in(runtime), subject.stream_task
        with activities.underway("audit", Unit.OFFSETS, stream_task=task, after_s=1.0) as told:
            told.expect(subject.log_end)
            replayed = log_side(runtime, subject, told)
        for rows in replayed.chunks():
            count = len(rows.keys)
            yield _batch(_LOGGED, number, rows, texts, [[False] * count, [True] * count])
        for fault in replayed.faults:
            yield _fault(_LOGGED, number, fault, texts)
        known = replayed.known
        after = ((*at, value, at in known) for at, value in replayed.later.items())
        for lot in in_lots(after, lambda row: len(row[0] or b"") + len(row[2] or b"")):
            keys, begins, values, were_known = map(list, zip(*lot, strict=True))
            count = len(keys)
            later = AuditRows(keys, begins, [None] * count, values)
            yield _batch(_LOGGED, number, later, texts, [[True] * count, were_known])


def _fault(schema: pa.Schema, number: int, fault: Fault, texts: KeyTexts) -> pa.RecordBatch:
    row: dict[str, Any] = {"subject": number, "fault": fault.check.value}
    row |= {"row_key": fault.key, "key": texts.text(fault.key)}
    return pa.RecordBatch.from_pylist([row], schema=schema)


def _hashed_partitions(subject: Subject, rows: AuditRows) -> list[list[Any]]:
    """For each hash, the partition of each key; None for rows that no key places."""
    placed = [bool(placing_keys([key], subject.kind, subject.key_serde)) for key in rows.keys]
    keys = placing_keys(rows.keys, subject.kind, subject.key_serde)
    columns = []
    for partitioner in PARTITIONERS.values():
        found = iter(partitioner(keys, subject.partitions))
        columns.append([next(found) if one else None for one in placed])
    return columns


def _batch(
    schema: pa.Schema, number: int, rows: AuditRows, texts: KeyTexts, more: list[list[Any]]
) -> pa.RecordBatch:
    names = list(map(texts.text, rows.keys))
    columns = [[number] * len(rows.keys), rows.keys, rows.begins, rows.ends, rows.values]
    if schema is _STORED:
        columns += [*more, names, [None] * len(names), [None] * len(names)]
    else:
        columns += [names, *more, [None] * len(names)]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

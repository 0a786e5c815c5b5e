"""Records of audits in the state dir, which status and the next audit read.

    <state.dir>/<application id>/audits/<time, ms>.json
                                        <time, ms>.html      the same as a page
                                        <time, ms>/          its Data Docs, if it has any

Each audit has one record, which appears atomically; the newest `KEPT` are kept. Unreadable records
are skipped.
"""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from statestore.errors import HostFailure
from statestore.faults import CrashPoint, reach
from statestore.layout import documents
from statestore.layout.documents import (
    ApplicationName,
    Count,
    Ordinal,
    StoreName,
    TaskName,
    Text,
    TimeMs,
    Topic,
    Word,
)
from statestore.layout.files import folders_in, publish
from statestore.layout.folders import StateLayout

KEPT = 20
LIVE = "live"


class AuditVerdict(StrEnum):
    """The verdict of an audit; only `right` is a pass."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_ENOUGH_CHECKED = "not enough checked"
    NOTHING_CHECKED = "nothing checked"


class AuditedWriter(msgspec.Struct, frozen=True):
    """How many rows of a store a serde wrote, with one schema of a registry if it has one.

    `generation` counts the migrations before it (docs/adr/0022).
    """

    serde: Word
    generation: Count
    rows: Count
    schema_id: Count | None = None

    def __str__(self) -> str:
        """Return how many rows which serde wrote."""
        of_schema = "" if self.schema_id is None else f", schema {self.schema_id}"
        return f"{self.rows:,} by {self.serde}, generation {self.generation}{of_schema}"


class AuditedStore(msgspec.Struct, frozen=True):
    """The counts of one store over all its partitions.

    A row is a key, or a version in a store with history. `equal` rows are the same on both sides.
    `superseded` rows differ, but prove nothing, because compaction may have removed the records
    that would explain the difference. `unseen` are versions that the log does not show, because it
    does not have a record for each version. `placement` is the hash that places the keys, None if
    neither murmur2 nor crc32 does. `placed_apart`: a partitioner of the user's places the rows, so
    no hash was tried. `writers`: which serdes wrote its rows, the newest first, as far as that was
    recorded.
    """

    store: StoreName
    kind: Word
    rows: Count
    rows_of_log: Count
    equal: Count
    superseded: Count
    placement: Word | None = None
    placed_apart: bool = False
    writers: list[AuditedWriter] = []
    unseen: Count = 0

    def placement_text(self) -> str:
        """Return what places the rows, "" if that is not known."""
        return "its own partitioner" if self.placed_apart else self.placement or ""


class AuditedPlace(msgspec.Struct, frozen=True):
    """The offset that the store of one stream task had in its changelog, NEXT to read."""

    store: StoreName
    stream_task: TaskName
    topic: Topic
    partition: Ordinal
    offset_next: Count
    log_end: Count


class AuditFailure(msgspec.Struct, frozen=True):
    """A check that failed: where, for how many rows, and some of their keys as text."""

    check: Text
    store: StoreName
    stream_task: TaskName | None
    count: Count
    keys: list[Text]
    detail: Text


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one audit.

    `source` is "live" or the id of the audited export. `link` is the audit's page; records from
    before there were pages have the link of the Data Docs instead. `data_docs` is the first page
    of the Data Docs, if there are any. `not_checked` has the stores that no snapshot contains, and
    why.
    """

    application_id: ApplicationName
    time_ms: TimeMs
    verdict: AuditVerdict
    source: Word = LIVE
    stores: list[AuditedStore] = []
    places: list[AuditedPlace] = []
    failures: list[AuditFailure] = []
    not_checked: dict[StoreName, Text] = {}
    link: Text | None = None
    data_docs: Text | None = None

    def placement_not_checked(self) -> list[str]:
        """Return the stores whose rows no hash can be expected to place."""
        return [store.store for store in self.stores if store.placed_apart]

    @property
    def passed(self) -> bool:
        """True if the audit showed that the stores are right."""
        return self.verdict is AuditVerdict.RIGHT


class Audits:
    """The audit records of one application on disk."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._folder = layout.application_dir / "audits"

    def keep(self, record: AuditRecord, page: str | None = None) -> Path:
        """Publish a record, and its page if given; remove all but the newest `KEPT` records.

        Returns the path of the record.
        """
        self._layout.create(self._folder)
        reach(CrashPoint.AUDIT_JUDGED)
        path = self._path(record.time_ms)
        if page is not None:
            publish(self.page(record.time_ms), page.encode())
        publish(path, msgspec.json.encode(record))
        reach(CrashPoint.AUDIT_KEPT)
        times = self._times()
        for old in times[KEPT:]:
            self._path(old).unlink(missing_ok=True)
        # Remove pages and Data Docs without a record: it was removed, or the audit died before it.
        oldest = times[:KEPT][-1]
        for docs in folders_in(self._folder):
            if docs.isdecimal() and int(docs) < oldest:
                shutil.rmtree(self._folder / docs, ignore_errors=True)
        for left in self._folder.glob("[0-9]*.html"):
            if left.stem.isdecimal() and int(left.stem) < oldest:
                left.unlink(missing_ok=True)
        return path

    def page(self, time_ms: int) -> Path:
        """Return the path of the page of the audit of that time."""
        return self._folder / f"{time_ms}.html"

    def docs_folder(self, time_ms: int) -> Path:
        """Return the folder for the Data Docs of the audit of that time."""
        return self._folder / str(time_ms)

    def newest(self) -> Iterator[AuditRecord]:
        """Yield all records that can be read, newest first."""
        for time_ms in self._times():
            with suppress(HostFailure):
                found = documents.read(self._path(time_ms), AuditRecord, way_out="audit again")
                if found is not None:
                    yield found

    def last(self, source: str | None = None) -> AuditRecord | None:
        """Return the newest record, of one source if given; None if there is none."""
        return next((one for one in self.newest() if source in {None, one.source}), None)

    def _path(self, time_ms: int) -> Path:
        return self._folder / f"{time_ms}.json"

    def _times(self) -> list[int]:
        """Return the times of all records, newest first."""
        try:
            names = [path.stem for path in self._folder.glob("[0-9]*.json")]
        except OSError as error:
            raise HostFailure(f"cannot list {self._folder}: {error.strerror}") from error
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

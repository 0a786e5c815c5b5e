"""What audits found, kept where status and the next audit read it.

    <state.dir>/<application id>/audits/<time, ms>.json
                                        <time, ms>.html      the same for people
                                        <time, ms>/          its Data Docs, where it has any

One file per audit, published whole; the newest `KEPT` stay. A file nobody can read is passed over.
"""

import shutil
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


class Verdict(StrEnum):
    """What an audit says; only `right` is a pass."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_ENOUGH_CHECKED = "not enough checked"
    NOTHING_CHECKED = "nothing checked"


class AuditedStore(msgspec.Struct, frozen=True):
    """One store over all its partitions.

    Rows are keys, of stores with history versions. `equal`: the same on both sides; `superseded`:
    they differ, but compaction may have removed what would prove it; so they prove nothing.
    `placement`: the hash that places its keys, None if neither murmur2 nor crc32 does.
    """

    store: StoreName
    kind: Word
    rows: Count
    rows_of_log: Count
    equal: Count
    superseded: Count
    placement: Word | None = None


class AuditedPlace(msgspec.Struct, frozen=True):
    """Where a store of one stream task stood: `offset_next` of its log, NEXT to read."""

    store: StoreName
    stream_task: TaskName
    topic: Topic
    partition: Ordinal
    offset_next: Count
    log_end: Count


class AuditFailure(msgspec.Struct, frozen=True):
    """A check that did not hold: where, how often, and some of the keys, as text."""

    check: Text
    store: StoreName
    stream_task: TaskName | None
    count: Count
    keys: list[Text]
    detail: Text


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One audit. `source`: "live", or the export it looked at.

    `link`: its page; `data_docs`: where Data Docs begin, if it has any. Audits of before the page
    have a link to these. `not_checked`: stores no snapshot holds, and why.
    """

    application_id: ApplicationName
    time_ms: TimeMs
    verdict: Verdict
    source: Word = LIVE
    stores: list[AuditedStore] = []
    places: list[AuditedPlace] = []
    failures: list[AuditFailure] = []
    not_checked: dict[StoreName, Text] = {}
    link: Text | None = None
    data_docs: Text | None = None

    @property
    def passed(self) -> bool:
        """Whether the stores were shown to be right."""
        return self.verdict is Verdict.RIGHT


class Audits:
    """The audits of one application, on disk."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout
        self._folder = layout.application_dir / "audits"

    def keep(self, record: AuditRecord, page: str | None = None) -> Path:
        """Publish a record, and its page if it has one; those beyond the newest `KEPT` go.

        Returns the record's file.
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
        # Of an audit whose record has gone, or that died before it had one.
        oldest = times[:KEPT][-1]
        for docs in folders_in(self._folder):
            if docs.isdecimal() and int(docs) < oldest:
                shutil.rmtree(self._folder / docs, ignore_errors=True)
        for left in self._folder.glob("[0-9]*.html"):
            if left.stem.isdecimal() and int(left.stem) < oldest:
                left.unlink(missing_ok=True)
        return path

    def page(self, time_ms: int) -> Path:
        """Where the page of an audit of that time is."""
        return self._folder / f"{time_ms}.html"

    def docs_folder(self, time_ms: int) -> Path:
        """Where the Data Docs of an audit of that time go."""
        return self._folder / str(time_ms)

    def last(self, source: str | None = None) -> AuditRecord | None:
        """The newest, of one source if given; None if there is none."""
        for time_ms in self._times():
            found = None
            with suppress(HostFailure):
                found = documents.read(self._path(time_ms), AuditRecord, way_out="audit again")
            if found is not None and source in {None, found.source}:
                return found
        return None

    def _path(self, time_ms: int) -> Path:
        return self._folder / f"{time_ms}.json"

    def _times(self) -> list[int]:
        """Newest first."""
        try:
            names = [path.stem for path in self._folder.glob("[0-9]*.json")]
        except OSError as error:
            raise HostFailure(f"cannot look into {self._folder}: {error.strerror}") from error
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

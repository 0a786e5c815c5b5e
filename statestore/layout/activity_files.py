"""Activities under way, as everybody who sees the state dir is told: `works/<random>.json`.

What takes long, such as an export or the restore of a stream task, writes there about once a
second how far it is, and removes the file when it ends. Nothing depends on these files. They are
not synced to disk, and a work goes on if they cannot be written. Terminals, logs, `statestore
status` and the page all show what is counted here.

A process that dies leaves its file. It names the process, so that a reader on the same host knows;
on other hosts, a work that has told nothing for a minute counts as silent. A later work of the same
kind removes what dead processes left, and after a day nobody shows it any more.
"""

import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from statestore.errors import HostFailure
from statestore.layout import documents
from statestore.layout.documents import Count, TaskName, TimeMs, Word
from statestore.layout.owners import Owner
from statestore.model.texts import span_text
from statestore.ports import Clock

FOLDER: Final = "works"
RESTORE: Final = "restore"
"""The kind of the work that brings stores up to their changelogs, or back from an export."""
FILES_MAX: Final = 1000
"""The largest number of files that a reader opens."""
SILENT_MS: Final = 60_000
_FORGOTTEN_MS: Final = 86_400_000
_EVERY_S: Final = 1.0


class Progress(Protocol):
    """Hears how long work proceeds; it may be called from any thread."""

    def expect(self, amount: int) -> None:
        """Add to what is to be done."""

    def done(self, amount: int) -> None:
        """Add to what is done."""


class NoProgress:
    """Progress that nobody watches."""

    def expect(self, amount: int) -> None:
        pass

    def done(self, amount: int) -> None:
        pass


class Unit(StrEnum):
    """What a work counts."""

    BYTES = "bytes"
    OFFSETS = "offsets"
    RECORDS = "records"
    STORES = "stores"


class ActivityNote(msgspec.Struct, frozen=True):
    """The content of a file. `stream_task` None: the work is not of one stream task."""

    kind: Word
    unit: Unit
    by: Owner
    written_ms: TimeMs
    done: Count = 0
    expected: Count = 0
    stream_task: TaskName | None = None

    @property
    def rate(self) -> float | None:
        """What is done in a second, on the average since it began; None: not known."""
        spent_ms = self.written_ms - self.by.since_ms
        return 1000 * self.done / spent_ms if self.done and spent_ms > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at that rate; None: not known."""
        left = self.expected - self.done
        return None if self.rate is None or left < 0 else left / self.rate

    def text(self) -> str:
        """How far it is, for people."""
        return activity_text(self.unit, self.done, self.expected, self.rate, self.seconds_left)


class ActivityState(StrEnum):
    """Whether a work still goes on, as far as one can tell."""

    WORKING = "working"
    SILENT = "silent"  # its process is on another host and has told nothing for a minute
    DIED = "died"  # its process is gone and did not end it


class SeenActivity(NamedTuple):
    """A work, and whether it goes on."""

    note: ActivityNote
    state: ActivityState


@dataclass(frozen=True)
class Together:
    """Works of one kind and unit that go on, `count` of them."""

    kind: str
    unit: Unit
    count: int
    done: int
    expected: int
    rate: float | None
    seconds_left: float | None

    def text(self) -> str:
        """How far they are, for people."""
        return activity_text(self.unit, self.done, self.expected, self.rate, self.seconds_left)


def together(found: Iterable[SeenActivity]) -> list[Together]:
    """Add up the activities that go on, by kind and unit; the time left is that of the slowest."""
    by_kind: dict[tuple[str, Unit], list[ActivityNote]] = {}
    for note, state in found:
        if state is ActivityState.WORKING:
            by_kind.setdefault((note.kind, note.unit), []).append(note)
    return [
        Together(
            kind,
            unit,
            len(notes),
            sum(note.done for note in notes),
            sum(note.expected for note in notes),
            sum(rates) if (rates := [note.rate for note in notes if note.rate]) else None,
            max((note.seconds_left or 0.0 for note in notes), default=None) if rates else None,
        )
        for (kind, unit), notes in by_kind.items()
    ]


class Activities:
    """The activities of one application, in its folder of the state dir."""

    def __init__(self, application_dir: Path, clock: Clock) -> None:
        self._folder = application_dir / FOLDER
        self._clock = clock

    @contextmanager
    def underway(
        self,
        kind: str,
        unit: Unit,
        watcher: Progress | None = None,
        *,
        stream_task: str | None = None,
        after_s: float = 0.0,
    ) -> Iterator[Progress]:
        """Tell of a work until the `with` block ends; whatever it counts, `watcher` hears as well.

        Nothing is written within the first `after_s` seconds, as most of them are short.
        """
        began = ActivityNote(
            kind,
            unit,
            Owner.of_this_process(0, self._clock.now_ms()),
            self._clock.now_ms(),
            stream_task=stream_task,
        )
        told = _Underway(self, began, watcher or NoProgress(), self._clock, after_s)
        try:
            yield told
        finally:
            told.end()

    def seen(self) -> list[SeenActivity]:
        """Return the activities that go on, or did so lately; those that began first come first."""
        now_ms = self._clock.now_ms()
        found = [
            SeenActivity(note, _state_of(note, now_ms))
            for note in self._notes().values()
            if note is not None and note.written_ms + _FORGOTTEN_MS > now_ms
        ]
        return sorted(found, key=lambda seen: (seen.note.by.since_ms, seen.note.stream_task or ""))

    def file(self) -> Path:
        """Return a path for a new file."""
        return self._folder / f"{secrets.token_hex(8)}.json"

    def sweep(self, kind: str) -> None:
        """Remove the files of dead processes, if they are of that kind or from long ago."""
        now_ms = self._clock.now_ms()
        for path, note in self._notes().items():
            if note is not None:
                old = note.written_ms + _FORGOTTEN_MS <= now_ms
                if not old and (note.kind != kind or not note.by.provably_dead()):
                    continue
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            for path in self._folder.glob("*.tmp"):
                if path.stat().st_mtime * 1000 + _FORGOTTEN_MS <= now_ms:
                    path.unlink()

    def _notes(self) -> dict[Path, ActivityNote | None]:
        """What each file says; None: it cannot be read."""
        found: dict[Path, ActivityNote | None] = {}
        with suppress(OSError):
            for path in sorted(self._folder.iterdir())[:FILES_MAX]:
                if path.suffix == ".json":
                    found[path] = None
                    with suppress(HostFailure):
                        note = documents.read(path, ActivityNote, way_out="remove it")
                        if note is None:  # it has just ended
                            del found[path]
                        else:
                            found[path] = note
        return found


class _Underway:
    """An activity of this process: counts, and writes the file now and then."""

    def __init__(
        self,
        activities: Activities,
        began: ActivityNote,
        watcher: Progress,
        clock: Clock,
        after_s: float,
    ) -> None:
        self._activities = activities
        self._began = began
        self._watcher = watcher
        self._clock = clock
        self._lock = threading.Lock()
        self._expected = self._done = 0
        self._path: Path | None = None
        """The file; None: it was not written yet."""
        self._next_s = clock.monotonic() + after_s
        self._write_if_due()

    def expect(self, amount: int) -> None:
        with self._lock:
            self._expected += amount
            self._write_if_due()
        self._watcher.expect(amount)

    def done(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            self._write_if_due()
        self._watcher.done(amount)

    def end(self) -> None:
        with self._lock:
            self._next_s = float("inf")
            if self._path is not None:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
                    self._path.parent.rmdir()  # refused unless it is empty

    def _write_if_due(self) -> None:
        now_s = self._clock.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        if self._path is None:
            self._activities.sweep(self._began.kind)
            self._path = self._activities.file()
        note = msgspec.structs.replace(
            self._began,
            written_ms=max(self._began.by.since_ms, self._clock.now_ms()),
            done=self._done,
            expected=self._expected,
        )
        # A folder that cannot be written is no reason to end the work.
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            temporary.write_bytes(msgspec.json.encode(note))
            temporary.replace(self._path)


def _state_of(note: ActivityNote, now_ms: int) -> ActivityState:
    if note.by.provably_dead():
        return ActivityState.DIED
    if not note.by.is_here() and note.written_ms + SILENT_MS < now_ms:
        return ActivityState.SILENT
    return ActivityState.WORKING


def activity_text(
    unit: Unit, done: int, expected: int, rate: float | None, seconds_left: float | None
) -> str:
    """Return how far a work is: what is done of how much, how fast, and the time left."""
    if not expected:
        return "begun"
    if unit is Unit.BYTES:
        counts = f"{done / 1e6:,.1f} of {expected / 1e6:,.1f} MB"
        speed = None if rate is None else f"{rate / 1e6:,.1f} MB/s"
    else:
        counts = f"{done:,} of {expected:,} {unit}"
        speed = None if rate is None else f"{rate:,.0f}/s"
    left = None if seconds_left is None else f"{span_text(seconds_left)} left"
    return ", ".join(part for part in (counts, speed, left) if part is not None)

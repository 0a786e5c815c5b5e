"""Every error of statestore; its class tells the caller what to do next.

    StateStoreError                      exit  Airflow      meaning
    ├── Misuse (also ValueError)            2  fail         a flag, setting or pipeline is wrong
    │   ├── InvalidSetting                                  a key or value of the settings
    │   │   └── UnknownApplication                          an applications file does not name it
    │   ├── InvalidTopology                                 the graph cannot run
    │   ├── NotCopartitioned                                joined inputs differ in partitions
    │   ├── PipelineNotFound                                "module:function" cannot be imported
    │   ├── TopicMissing                                    a topic that is needed does not exist
    │   ├── BrokerTooOld                                    Kafka before 4.0
    │   ├── SerdeMismatch                                   a value does not fit its serde
    │   ├── StoreClosed                                     use after close
    │   ├── UncommittedWrites                               `with` ended with uncommitted writes
    │   ├── UnknownStore (also LookupError)                 no store of that name
    │   ├── CommitInsideProcessor                           a processor called store.commit
    │   ├── NotAuthorized                                   a server got no token, or a wrong one
    │   ├── PageExpired                                     a server forgot the pages of an answer
    │   ├── FormatTooNew                                    written by a newer statestore
    │   ├── ExportTooOld                                    deleted keys would come back
    │   ├── ExportDamaged                                   a file is missing or has other content
    │   └── BufferFull                                      a bounded suppress has no room left
    ├── TopologyMismatch                    3  fail         state on disk is of another topology
    ├── Fenced                              4  fail         a newer owner took over
    ├── RecordFailed                        5  fail         a record cannot be processed
    │   ├── InputLost                                       an input was purged or created again
    │   └── MalformedRecords                                a broker's bytes are no record batches
    ├── Locked                              6  retry later  another process owns it
    ├── Unavailable                         7  retry        a broker or peer did not answer in time
    ├── HostFailure                         8  retry        this machine: disk, program missing
    │   ├── StateDirNotShared                               workers lack the driver's state dir
    │   └── TargetNotShared                                 workers see another export target
    ├── NotUpToBound                        9  retry        a copy is behind its PositionBound
    ├── TaskCorrupted                      10  retry        handled inside: the store is restored
    ├── CommitUnknown                      11  retry        resolved inside by asking the log (E4)
    ├── AuditFailed                        12  fail         a store differs from its changelog
    ├── NotChecked                         13  retry later  an audit compared too little or nothing
    ├── Behind                             14  fail         the lag is larger than allowed
    ├── AuditTooOld                        15  fail         there is no audit, or no recent one
    ├── DrillFailed                        16  fail         a drill lost or duplicated something
    └── NotDrilled                         17  fail         a drill did not kill: it proves nothing

Messages say what happened, where, and what to do. An unexpected error exits with 1 and is retried.

Some exceptions are signals between two modules and never reach users. They are defined where they
are raised: `NodeFailed` (an operator failed; topology/), `Rehearsed` (a trial of suspected records
ended; tasks/), `Overdue` and `Cancelled` (a client's call took too long, or its result is no longer
needed; kafka/), `Disconnected`, `Moving` and `NoToken` (a broker is not there, or not yet
responsible, or no token came; kafka/), `NotAFile` (a FIFO or a device is where a file should be;
layout/), `TypeNotKept` (a serde would not give back the type of a value; stores/), and `JobFailed`
(Airflow's operator passes on a job's exit code).
"""

import logging
import re
import sysconfig
import traceback
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

import msgspec

__all__ = [
    "Action",
    "AuditFailed",
    "AuditTooOld",
    "Behind",
    "BrokerTooOld",
    "BufferFull",
    "CommitInsideProcessor",
    "CommitUnknown",
    "DrillFailed",
    "ExportDamaged",
    "ExportTooOld",
    "Fenced",
    "FormatTooNew",
    "HostFailure",
    "InputLost",
    "InvalidSetting",
    "InvalidTopology",
    "Locked",
    "MalformedRecords",
    "Misuse",
    "NotAuthorized",
    "NotChecked",
    "NotCopartitioned",
    "NotDrilled",
    "NotUpToBound",
    "PageExpired",
    "PipelineNotFound",
    "RecordFailed",
    "SerdeMismatch",
    "StateDirNotShared",
    "StateStoreError",
    "StoreClosed",
    "TargetNotShared",
    "TaskCorrupted",
    "TopicMissing",
    "TopologyMismatch",
    "Unavailable",
    "UncommittedWrites",
    "UnknownApplication",
    "UnknownStore",
]

_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_THE_USERS = ("<frozen ", str(Path(__file__).resolve().parent), *sorted(_LIBRARIES))
_ID = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")


class Action(StrEnum):
    """What a scheduler does with a failed run."""

    FAIL = "fail"
    RETRY = "retry"
    RETRY_LATER = "retry_later"


class StateStoreError(Exception):
    """The base class of all errors; `jobs/` and `dags/` act on `exit_code` and `action`."""

    exit_code: ClassVar[int] = 1
    action: ClassVar[Action] = Action.RETRY


class Misuse(StateStoreError, ValueError):
    """The caller made a mistake: the same call fails again."""

    exit_code = 2
    action = Action.FAIL


class InvalidSetting(Misuse):
    """A settings key is unknown, or its value is not allowed."""


class UnknownApplication(InvalidSetting):
    """The applications file does not name the application."""


class InvalidTopology(Misuse):
    """The graph of a topology cannot run."""


class NotCopartitioned(Misuse):
    """The inputs of one sub-topology differ in their partition counts."""


class PipelineNotFound(Misuse):
    """The pipeline path does not name a function that returns a Topology."""


class TopicMissing(Misuse):
    """A topic that the pipeline reads or writes, or that an audit compares with, does not exist."""


class BrokerTooOld(Misuse):
    """The broker lacks the transaction protocol that exactly-once needs."""


class SerdeMismatch(Misuse):
    """A value does not fit the serde of its node and side."""


class StoreClosed(Misuse):
    """A store, reader, iterator or transaction was used after it was closed."""


class UncommittedWrites(Misuse):
    """A `with` block ended without an error while writes were pending; they were rolled back."""


class UnknownStore(Misuse, LookupError):
    """There is no store of that name."""


class CommitInsideProcessor(Misuse):
    """A processor called `store.commit`; `context.commit()` requests a task commit (KIP-892)."""


class NotAuthorized(Misuse):
    """A server of state and its client do not know each other: no token or certificate fits."""


class PageExpired(Misuse):
    """A server of state has closed the scan from which a page was asked for: begin anew."""


class FormatTooNew(Misuse):
    """A file was written by a newer statestore."""


class ExportTooOld(Misuse):
    """The changelog may have dropped tombstones written after the export."""


class ExportDamaged(Misuse):
    """A file of an export is missing or differs from its manifest: use another export."""


class BufferFull(Misuse):
    """More updates wait in a suppress than its bounds allow, and it must not emit them early."""


class TopologyMismatch(StateStoreError):
    """The state on disk does not belong to the topology that is about to run."""

    exit_code = 3
    action = Action.FAIL


class Fenced(StateStoreError):
    """A newer owner holds the transactional id; this owner must not write again."""

    exit_code = 4
    action = Action.FAIL


class RecordFailed(StateStoreError):
    """One record could not be decoded, processed or produced; the same record would fail again."""

    exit_code = 5
    action = Action.FAIL
    at: int | None = None
    """The index of the failed record among those sent together; None if it is not known."""


class InputLost(RecordFailed):
    """An input no longer has the offset that comes next: purged, cut off or created again."""


class MalformedRecords(RecordFailed):
    """What a broker sent is no record batch: it is damaged, or of a format that is not known."""


ABOUT_A_RECORD = (SerdeMismatch, RecordFailed)
"""The errors that are about a record.

All others are about the pipeline or its environment: a missing topic takes no record at all.
"""


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoders raise for bytes that they cannot read, whatever is wrong with these."""


class Locked(StateStoreError):
    """Another process owns the task folder or the application."""

    exit_code = 6
    action = Action.RETRY_LATER


class Unavailable(StateStoreError):
    """A broker or peer did not answer in time; nothing was lost."""

    exit_code = 7


class HostFailure(StateStoreError):
    """This machine failed: a full disk, a read-only volume, a missing program. Files are kept."""

    exit_code = 8


class StateDirNotShared(HostFailure):
    """A worker does not see the driver's state dir (SEMANTICS T5)."""


class TargetNotShared(HostFailure):
    """This machine sees another export target than the driver, or the target lost files."""


class NotUpToBound(StateStoreError):
    """A reader's copy has not reached the PositionBound it was given (SEMANTICS S14)."""

    exit_code = 9


class TaskCorrupted(StateStoreError):
    """A store cannot be trusted: unreadable files, or offsets beyond the log (SEMANTICS E5)."""

    exit_code = 10
    store: str | None = None
    """The store's name; None if it was not known where the error was raised."""


class CommitUnknown(StateStoreError):
    """The log did not say whether a commit went through (SEMANTICS E4)."""

    exit_code = 11


class AuditFailed(StateStoreError):
    """An audit found stores that differ from their changelogs."""

    exit_code = 12
    action = Action.FAIL


class NotChecked(StateStoreError):
    """An audit compared nothing or too little, so it did not pass."""

    exit_code = 13
    action = Action.RETRY_LATER


class Behind(StateStoreError):
    """The application's lag behind its inputs is larger than the caller allows."""

    exit_code = 14
    action = Action.FAIL


class AuditTooOld(StateStoreError):
    """There is no audit, or the last one is older than the caller allows."""

    exit_code = 15
    action = Action.FAIL


class DrillFailed(StateStoreError):
    """A crash drill found lost, duplicated or different results; its evidence is kept."""

    exit_code = 16
    action = Action.FAIL


class NotDrilled(StateStoreError):
    """No drill, or not every requested one, took place: nothing was proved, so it did not pass."""

    exit_code = 17
    action = Action.FAIL


def failure_fields(error: BaseException) -> dict[str, object]:
    """An error as a JSON line and a summary file carry it."""
    foreseen = isinstance(error, StateStoreError)
    return {
        "class": type(error).__name__,
        "message": str(error),
        "exit_code": error.exit_code if isinstance(error, StateStoreError) else 1,
        "action": str(error.action if isinstance(error, StateStoreError) else Action.RETRY),
        "foreseen": foreseen,
    }


def raised_at(error: BaseException) -> str:
    """Where the error was raised, if it has been; an explanation points at what it explains.

    That is the innermost line of the user's own code, unless there is none.
    """
    return user_line(error) or _place(_lines(error)[-1:])


def user_line(error: BaseException) -> str:
    """The innermost line of the user's own code that led to the error; empty if there is none."""
    return _place([line for line in _lines(error) if not line[0].startswith(_NOT_THE_USERS)][-1:])


def _lines(error: BaseException) -> list[tuple[str, int]]:
    """The files and lines of its traceback; extract_tb would read the files."""
    walked = traceback.walk_tb((error.__cause__ or error).__traceback__)
    return [(frame.f_code.co_filename, line) for frame, line in walked]


def _place(lines: list[tuple[str, int]]) -> str:
    return "".join(f" ({file}:{line})" for file, line in lines)


def one_line(text: object) -> str:
    """Return a text as one line of printable characters, for a log: users' keys may be in it."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in str(text)
    )


class Sparing:
    """Says which failures a log has not told lately: one line for each kind.

    A kind is a text without its numbers and ids, as each attempt may name other ones.
    """

    def __init__(self, again_s: float = 600) -> None:
        self._again_s = again_s
        self._told_s: dict[str, float] = {}

    def is_new(self, failure: object, now_s: float) -> bool:
        """Return whether to tell it now; then this kind is not new for a while."""
        kind = _ID.sub("#", str(failure))
        recent = {one: at_s for one, at_s in self._told_s.items() if now_s < at_s + self._again_s}
        self._told_s = recent | ({} if kind in recent else {kind: now_s})
        return kind not in recent


def log_left(log: logging.Logger, error: Exception, where: str) -> None:
    """Log an error that nobody raises further as one line; the debug log has its traceback."""
    place = "" if isinstance(error, StateStoreError) else raised_at(error)
    told = one_line(" ".join(str(error).split()))
    log.warning("%s: %s: %s%s", where, type(error).__name__, told, place)
    log.debug("%s", where, exc_info=error)

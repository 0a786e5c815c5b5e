"""Every error of statestore: a class says what the caller does next.

    StateStoreError                      exit  Airflow      meaning
    ├── Misuse (also ValueError)            2  fail         a flag, setting or pipeline is wrong
    │   ├── InvalidSetting                                  a key or value of the settings
    │   ├── InvalidTopology                                 the graph cannot run
    │   ├── NotCopartitioned                                joined inputs differ in partitions
    │   ├── PipelineNotFound                                "module:function" cannot be imported
    │   ├── TopicMissing                                    a source or sink topic does not exist
    │   ├── BrokerTooOld                                    Kafka before 4.0
    │   ├── SerdeMismatch                                   a value does not fit its serde
    │   ├── StoreClosed                                     use after close
    │   ├── UncommittedWrites                               `with` left cleanly with pending writes
    │   ├── UnknownStore (also LookupError)                 no store of that name
    │   ├── CommitInsideProcessor                           a processor called store.commit
    │   ├── FormatTooNew                                    written by a newer statestore
    │   ├── ExportTooOld                                    deleted keys would come back
    │   └── ExportDamaged                                   a file of it is missing or not its own
    ├── TopologyMismatch                    3  fail         state on disk is of another topology
    ├── Fenced                              4  fail         a newer owner took over
    ├── RecordFailed                        5  fail         a record cannot be processed
    ├── Locked                              6  retry later  another process owns it
    ├── Unavailable                         7  retry        a broker or peer did not answer in time
    ├── HostFailure                         8  retry        this machine: disk, program missing
    │   ├── StateDirNotShared                               workers lack the driver's state dir
    │   └── TargetNotShared                                 an export's target is several places
    ├── NotUpToBound                        9  retry        a copy is behind its PositionBound
    ├── TaskCorrupted                      10  retry        handled inside: restore that store
    ├── CommitUnknown                      11  retry        resolved inside: ask the log (E4)
    ├── AuditFailed                        12  fail         stores are not what their logs say
    ├── NotChecked                         13  retry later  an audit proved too little, or nothing
    ├── Behind                             14  fail         lags more than was allowed
    ├── AuditTooOld                        15  fail         no audit, or none of late
    ├── DrillFailed                        16  fail         a crash drill lost or doubled something
    └── NotDrilled                         17  fail         a drill missed: it shows nothing

Messages say what, where and the way out. An error nobody foresaw exits with 1 and is retried.

Some exceptions are signals between two modules and reach nobody else. They live where they are
raised: `NodeFailed` (an operator failed; topology/), `Rehearsed` (a trial of suspected records
ended; tasks/), `Overdue` and `Cancelled` (a client's call outlived its time, or nobody waits for
it; kafka/), and `JobFailed` (Airflow's operator passes on a job's exit code).
"""

from enum import StrEnum
from typing import ClassVar


class Action(StrEnum):
    """What a scheduler does with a failed run."""

    FAIL = "fail"
    RETRY = "retry"
    RETRY_LATER = "retry_later"


class StateStoreError(Exception):
    """The root: `exit_code` and `action` are what `jobs/` and `dags/` act on."""

    exit_code: ClassVar[int] = 1
    action: ClassVar[Action] = Action.RETRY


class Misuse(StateStoreError, ValueError):
    """The caller's mistake: repeating it unchanged fails again."""

    exit_code = 2
    action = Action.FAIL


class InvalidSetting(Misuse):
    """A settings key is unknown or its value is out of limits."""


class InvalidTopology(Misuse):
    """The graph cannot run."""


class NotCopartitioned(Misuse):
    """Inputs read by one sub-topology differ in partition count."""


class PipelineNotFound(Misuse):
    """The pipeline path names nothing that returns a Topology."""


class TopicMissing(Misuse):
    """A topic the pipeline reads or writes does not exist."""


class BrokerTooOld(Misuse):
    """The broker lacks the transaction protocol exactly-once needs."""


class SerdeMismatch(Misuse):
    """A value does not fit the serde of its node and side."""


class StoreClosed(Misuse):
    """A store, reader, iterator or transaction was used after it was closed."""


class UncommittedWrites(Misuse):
    """A `with` block was left cleanly while writes were pending; they were rolled back."""


class UnknownStore(Misuse, LookupError):
    """No store of that name is known here."""


class CommitInsideProcessor(Misuse):
    """A processor called `store.commit`; `context.commit()` requests a task commit (KIP-892)."""


class FormatTooNew(Misuse):
    """The store on disk was written by a newer statestore."""


class ExportTooOld(Misuse):
    """The changelog may have forgotten deletes that came after the export."""


class ExportDamaged(Misuse):
    """A file of an export is missing, or is not what its manifest says: use another export."""


class TopologyMismatch(StateStoreError):
    """State on disk does not belong to the topology about to run."""

    exit_code = 3
    action = Action.FAIL


class Fenced(StateStoreError):
    """A newer owner holds the transactional id; this one must not write again."""

    exit_code = 4
    action = Action.FAIL


class RecordFailed(StateStoreError):
    """One record could not be decoded, processed or produced; the same record would fail again."""

    exit_code = 5
    action = Action.FAIL
    at: int | None = None
    """Which of the records sent at once it was, where that is known."""


class Locked(StateStoreError):
    """Another process owns the task folder or the application."""

    exit_code = 6
    action = Action.RETRY_LATER


class Unavailable(StateStoreError):
    """A broker or peer did not answer in time; nothing was lost."""

    exit_code = 7


class HostFailure(StateStoreError):
    """This machine failed: disk full, read-only volume, missing program. Files are kept."""

    exit_code = 8


class StateDirNotShared(HostFailure):
    """A worker does not see the state dir the driver sees (SEMANTICS T5)."""


class TargetNotShared(HostFailure):
    """The target of an export is another place on this machine, or lost what was stored there."""


class NotUpToBound(StateStoreError):
    """A reader's copy is behind the PositionBound it was given (SEMANTICS S14)."""

    exit_code = 9


class TaskCorrupted(StateStoreError):
    """A store cannot be trusted: unreadable files, or offsets beyond the log (SEMANTICS E5)."""

    exit_code = 10
    store: str | None = None
    """Its name, as far as known where the error was met."""


class CommitUnknown(StateStoreError):
    """The log did not say whether a commit went through (SEMANTICS E4)."""

    exit_code = 11


class AuditFailed(StateStoreError):
    """An audit found stores that are not what their changelogs make of them."""

    exit_code = 12
    action = Action.FAIL


class NotChecked(StateStoreError):
    """An audit compared nothing, or too little: no verdict, which is not a pass."""

    exit_code = 13
    action = Action.RETRY_LATER


class Behind(StateStoreError):
    """The application lags behind its inputs by more than whoever asked allows."""

    exit_code = 14
    action = Action.FAIL


class AuditTooOld(StateStoreError):
    """The last audit is older than whoever asked allows, or there is none."""

    exit_code = 15
    action = Action.FAIL


class DrillFailed(StateStoreError):
    """A crash drill found something lost, doubled or unlike; its evidence is kept."""

    exit_code = 16
    action = Action.FAIL


class NotDrilled(StateStoreError):
    """No drill came about, or not one that was asked for: nothing is shown, which is no pass."""

    exit_code = 17
    action = Action.FAIL

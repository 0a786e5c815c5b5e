"""All ports on one page: Protocols for what the library needs from the outside world.

`engines/` implements Engine; `kafka/` implements Source, Outbox, Changelog, Cluster,
AuditLogReader and MonitoringClient; `targets` implements Target and ReadFile. `testing/` implements
the ports of Kafka in memory. One contract suite per port runs on every implementation.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from statestore.errors import StateStoreError
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.records import Header, Record

KeyValue = tuple[bytes, bytes]
Writes = Mapping[bytes, bytes | None]
LinkStore = Callable[[Path, Path, bool], None]
"""Create the second folder with the contents that the store in the first last made durable.

The owner of the first store may be alive and writing. The third argument is True if that owner is
dead: the copy then includes writes that are only in the write-ahead log.
"""


class Cursor(Protocol):
    """An ordered iterator over a snapshot of one table.

    It raises StoreClosed once it or the engine has been closed.
    """

    def __iter__(self) -> "Cursor": ...
    def __next__(self) -> KeyValue: ...
    def close(self) -> None: ...


class Seeker(Protocol):
    """Looks up rows in a snapshot of one table.

    It raises StoreClosed once it or the engine has been closed.
    """

    def seek_many(self, keys: list[bytes], /) -> list[KeyValue | None]:
        """Return for each key the first row at or after it in byte order, or None."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`."""

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[KeyValue]:
        """Yield the pairs with lo <= key <= hi in descending order.

        The caller may use the other methods between two pairs.
        """

    def close(self) -> None: ...


class Table(Protocol):
    """One column family; reads see every completed `Engine.write`, from any thread."""

    def get(self, key: bytes, /) -> bytes | None:
        """Return the value, or None. It may raise the engine's own errors: see `Engine.failure`."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """Return one value per key, in the order of `keys`; errors are those of `get`.

        The values come from one point in time only if no write runs meanwhile, so this method is
        for the thread that writes.
        """

    def get_many_at_once(self, keys: list[bytes], /) -> list[bytes | None]:
        """Do the same as `get_many`, with all values from one point in time; somewhat slower."""

    def get_many_to_write(self, keys: list[bytes], /) -> tuple[list[bytes], list[bytes | None]]:
        """Return the same keys, in the order that suits the table, and their values.

        The next write of these keys, in the order of `keys`, is faster. Errors are those of `get`.
        """

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Cursor:
        """Iterate over the pairs with lo <= key <= hi in byte order, as of now.

        None means unbounded.
        """

    def seeker(self) -> Seeker:
        """Take a snapshot, as of now, and return a Seeker for it."""

    def seek_many(self, keys: list[bytes], /) -> list[KeyValue | None]:
        """Do the same as `Seeker.seek_many`, with all rows from one point in time."""

    def scan_many(self, ranges: list[tuple[bytes, bytes]], /) -> list[list[KeyValue]]:
        """Return for each range the pairs with lo <= key <= hi, all from one point in time.

        The starts of the ranges are in order.
        """

    def approximate_count(self) -> int:
        """Return an inexpensive estimate of the number of keys."""


class Engine(Protocol):
    """An ordered key-value database with several tables and one atomic write over all of them."""

    def table(self, name: str) -> Table:
        """Return the table of that name; the names were fixed when the engine was opened."""

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Apply range deletes [from, to), then puts and deletes (None), in one atomic write.

        The write is atomic for readers and across a crash. It is durable at the next flush, or
        immediately if the write-ahead log is on.
        """

    def flush(self) -> None:
        """Make every completed write durable, all tables atomically."""

    def checkpoint(self, target: Path) -> None:
        """Create a consistent copy of all completed writes in the new folder `target`.

        The copy consists of hard links.
        """

    def persistent(self) -> bool:
        """Return whether data survives `close`."""

    def failure(self, error: Exception) -> StateStoreError | None:
        """Translate an error of the engine into a StateStoreError; None for any other error."""

    def close(self) -> None:
        """Flush all tables, close all cursors, release the folder. Closing twice is harmless."""


class Arrival(NamedTuple):
    """When a poll may have something to return: one of these sockets can be read, or in some time.

    `within_s` counts from now; it is 0 if a poll need not wait at all.
    """

    sockets: Sequence[int]
    within_s: float


class Source(Protocol):
    """Reads input partitions, committed records only, in the background."""

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start reading from these offsets; a poll that finds one deleted raises RecordFailed."""

    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        """Return what has arrived: one batch per partition with new records.

        The batches hold about `max_records` records at most, all together. The call returns early
        once every partition that is not paused has reached the end of its log; with `soon`, already
        when there are records, unless a partition is far behind the end.
        """

    def arrival(self) -> Arrival | None:
        """Return when the next poll may have something; None: this source can only be polled.

        With it, one thread waits for many sources at once, and then polls without waiting.
        """

    def position(self, tp: TopicPartition) -> int:
        """Return the offset after the last record returned for `tp` and any control records."""

    def at_end(self, tp: TopicPartition) -> bool:
        """Return whether the position was at the last stable offset of `tp` when last reported."""

    def log_end(self, tp: TopicPartition) -> int | None:
        """Return the last reported stable offset of `tp`, None if none was reported.

        It is for display only.
        """

    def pause(self, tps: Sequence[TopicPartition]) -> None: ...
    def resume(self, tps: Sequence[TopicPartition]) -> None: ...
    def close(self) -> None: ...


class Records(NamedTuple):
    """Columns of records to append to a topic.

    If `partition` is None, the partitioner chooses a partition for each record by its key, or by
    its `placing` bytes if given: for windowed keys these are the key without the window (T1a).
    `choose`, if given, comes before the partitioner. It takes the number of the topic's partitions
    and returns the partition of each record, None for those that it leaves to the partitioner.
    """

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    partition: int | None = None
    headers: Sequence[tuple[Header, ...]] | None = None
    placing: Sequence[bytes | None] | None = None
    choose: Callable[[int], Sequence[int | None]] | None = None


class CommitWaits(NamedTuple):
    """For how many seconds an outbox has waited for brokers since it was made, by part of a commit.

    `flush`: until the records were acknowledged. `offsets`: until the input offsets were added.
    `end`: until the transaction was ended.
    """

    flush: float = 0.0
    offsets: float = 0.0
    end: float = 0.0

    def since(self, before: "CommitWaits") -> "CommitWaits":
        """Return what has been added."""
        return CommitWaits(*(now - then for now, then in zip(self, before, strict=True)))


class Outbox(Protocol):
    """Writes outputs, changelog records and input offsets, one transaction at a time.

    Call begin, send (any number of times), send_offsets and commit, in this order; or abort.
    Methods raise Fenced, CommitUnknown or Unavailable. Fenced means that another owner opened the
    same transactional id or that the transaction expired: only the lock and the epoch tell which
    (SEMANTICS E5).
    """

    def open(self) -> None:
        """Fence the last owner and settle its open transaction; discard this outbox's own state."""

    def begin(self, number: int | None = None) -> None:
        """Begin a transaction; a stream task passes the number that the commit will have.

        No late message of another transaction can affect it (SEMANTICS E2a). If two owners commit
        the same number, only one of them can succeed, even if neither knows of the other.
        """

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records in order. If `tracked`, `ends` reports the offset after the last one."""

    def push(self) -> None:
        """Send what waits here for more, and leave the acknowledgement to whatever comes next.

        Clients that send in the background do nothing.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Add the group's input offsets (next to read), each with `metadata`."""

    def flush(self) -> None:
        """Wait until every record sent is acknowledged."""

    def ask_commit(self) -> None:
        """Ask the log to commit, and leave the answer to `commit`, which has to come next.

        So commits of several outboxes overlap. It waits until all that was sent is acknowledged,
        and raises what `commit` would until then. Clients that cannot ask without waiting do
        nothing.
        """

    def commit(self) -> None:
        """Commit everything or nothing. CommitUnknown if the log did not answer: call again."""

    def abort(self) -> None: ...

    def ends(self) -> dict[TopicPartition, int]:
        """Return, after a commit, the offset after the last record of each tracked partition."""

    def waited(self) -> CommitWaits:
        """Return how long it has waited for brokers so far."""

    def close(self) -> None: ...


class Bounds(NamedTuple):
    """The range of a log partition: from `start` to `end`, the last stable offset, exclusive."""

    start: int
    end: int


class Replayed(NamedTuple):
    """A chunk of a changelog: its records and the next offset to read (past control records)."""

    batch: Batch
    offset_next: int


class Changelog(Protocol):
    """Reads changelog partitions back, committed records only."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        """Yield all records in [start, end); the last chunk may go beyond `end`.

        TaskCorrupted if the log no longer has these offsets.
        """


class LogEntryBytes(NamedTuple):
    """A record for a partition of an output log."""

    partition: int
    key: bytes
    value: bytes | None


class OutputLog(Protocol):
    """The topic that tells what an output has written: partition 0 without transactions, and 1."""

    def create(self) -> None:
        """Create the topic if it is missing; Misuse if it is not fit."""

    def append(self, entries: Sequence[LogEntryBytes]) -> dict[int, int]:
        """Append outside of transactions; return the offset after the last of each partition."""

    def read(self, partition: int, start: int, end: int) -> list[bytes | None]:
        """Return the values of committed records from `start` to `end`, exclusive.

        Waits until no transaction is open before `end`; Unavailable if that takes too long.
        """

    def fence(self, transactional_ids: Sequence[str]) -> None:
        """Abort what these ids have open, and refuse whatever their owners send later."""

    def partitions(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the partition counts of the topics that exist."""


class LogRecords(NamedTuple):
    """A chunk of committed records by column, in log order; a value of None is a tombstone.

    `headers` is None if no record has any.
    """

    keys: list[bytes | None]
    values: list[bytes | None]
    times: list[int]
    headers: list[tuple[Header, ...]] | None = None


class AuditLogReader(Protocol):
    """Reads changelogs for an audit; it shares no code with Changelog, whose work it checks."""

    def bounds(self, tp: TopicPartition) -> Bounds:
        """Return the log start and the last stable offset."""

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[LogRecords]:
        """Yield the records in [start, end); `end` is at most the last stable offset."""

    def close(self) -> None: ...


class GroupOffset(NamedTuple):
    """A committed input offset (next to read) and the metadata committed with it."""

    offset: int
    metadata: str


class TopicSpec(NamedTuple):
    """A topic to create; `replicas`: of each partition, None: as `replication.factor` has it."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replicas: int | None = None


class KeyHashes(NamedTuple):
    """Whether murmur2 or crc32 maps all of a topic's first `keys` keys to their partitions."""

    keys: int
    murmur2: bool
    crc32: bool


class Cluster(Protocol):
    """What the driver of a run asks a Kafka cluster to do and to report."""

    def topics(self) -> list[str]:
        """Return the names of all topics that the application may describe."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist; missing topics are absent."""

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create the topics that are missing; never alter existing ones."""

    def topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Return the effective settings, explicit or default, of the topics that exist."""

    def specs(self, topics: Sequence[str]) -> dict[str, TopicSpec]:
        """Return how the topics that exist would be created again.

        Their settings are those that were set on them, without the brokers' defaults.
        """

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the cluster's ids of the topics that exist; a topic created again gets another."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""

    def undecided(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in which a transaction is open: what is behind it is not read yet.

        One that has just ended may still look open for a moment, which is waited out.
        """

    def offsets_at(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Return per partition the first offset at or after that time.

        If there is none, it is the last stable offset.
        """

    def group_offsets(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's committed offsets; partitions without one are absent.

        The call waits until no transaction is pending on them. With `stable` False it does not
        wait, and a transaction that is still open may be about to change them.
        """

    def key_hashes(
        self, topics: Mapping[str, int], windowed: Mapping[str, int] | None = None
    ) -> dict[str, KeyHashes]:
        """Check which hash places the first 100 keys of each topic.

        `topics` maps names to partition counts. `windowed` maps the topics with windowed keys,
        which are placed by the key alone, to how many bytes of a key its window takes.
        """

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Purge records below these offsets."""

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        """Fence every producer with one of these ids and abort its open transaction."""

    def raise_compaction_lag(self, topic: str, lag_ms: int) -> int | None:
        """Raise the topic's `min.compaction.lag.ms` to at least `lag_ms` and return its old value.

        None if the topic does not exist.
        """

    def remove(self, topics: Sequence[str], group_id: str | None) -> None:
        """Remove these topics and the group's offsets; those that are already gone are ignored.

        With `group_id` None, the group stays, without its offsets in these topics.
        """

    def grow(self, partitions: Mapping[str, int]) -> None:
        """Give these topics so many partitions, if they have fewer; records stay where they are."""

    def check(self) -> None:
        """Raise Unavailable if the cluster does not answer.

        BrokerTooOld if the broker's version does not protect transactions against late messages.
        """

    def close(self) -> None: ...


class InputFacts(NamedTuple):
    """An input partition as monitoring sees it; times are record timestamps.

    `next_ms` is the timestamp of the first committed record that the group has not processed;
    None if it has processed them all. `newest_ms` is the largest timestamp among the last
    committed records; None if there are none or it is not known.
    """

    bounds: Bounds
    committed: GroupOffset | None
    next_ms: int | None
    newest_ms: int | None


class FoundRecords(NamedTuple):
    """Records of some spans, in the order of each partition, and the spans not read to their end.

    `unread` has the partitions in which the brokers took too long, or the bytes were enough.
    """

    records: list[Record[bytes | None, bytes | None]]
    unread: list[TopicPartition]


class MonitoringClient(Protocol):
    """Queries a cluster without disturbing the application; quick to raise Unavailable."""

    def topics(self) -> list[str]:
        """Return the names of all topics that the application may describe."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Return the partition counts of the topics that exist."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the log start and the last stable offset of each partition."""

    def inputs(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, InputFacts]:
        """Return the facts of each input partition; those not read in time are absent."""

    def records(
        self, spans: Mapping[TopicPartition, Bounds], *, each_max: int, bytes_max: int
    ) -> FoundRecords:
        """Return the first committed records of each span, for people to look at.

        They are `each_max` of a partition at most, and about `bytes_max` bytes in all. Time marks
        are left out.
        """

    def close(self) -> None: ...


class FileRead(NamedTuple):
    """A file as it was read, of one moment.

    `tag`: the ETag that its file system gives it, or else the time of its last change.
    """

    content: bytes
    tag: str


ReadFile = Callable[[str, int], FileRead]
"""Read the file at a URL or path, which has at most so many bytes.

Misuse if there is no such file or it is larger, Unavailable if it changes while it is read.
"""


class Target(Protocol):
    """A local or remote folder that holds exports; each file appears whole or not at all.

    Names are relative and use slashes. Methods raise Unavailable, HostFailure or Misuse.
    """

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Path | None:
        """The target as a folder of this machine, to which links may lead; None if it is none."""

    def names(self, folder: str) -> dict[str, int]:
        """Return every file below `folder`, at any depth, with its size in bytes."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; it is durable when this returns."""

    def put(self, source: Path, *, temporary: str, name_of: Callable[[str], str]) -> str:
        """Upload `source`, read once, and return its SHA-256.

        `name_of` gives the name of the stored file for that SHA-256. A process that dies meanwhile
        leaves at most the file `temporary` behind.
        """

    def fetch(self, name: str, into: Path | None, *, bytes_max: int) -> str | None:
        """Copy a file to the new file `into`, or only read it if None, and return its SHA-256.

        None if the file does not exist. Of a file with more than `bytes_max` only the first
        `bytes_max + 1` count.
        """

    def move(self, source: str, name: str) -> bool:
        """Move a file, and replace what has the new name; False if there is no such file.

        A process that dies meanwhile leaves the file under one name or under both.
        """

    def remove(self, names: Sequence[str]) -> None:
        """Remove these files; files that are already gone are ignored."""


class Clock(Protocol):
    """A source of time that is passed in, so that tests control it."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""

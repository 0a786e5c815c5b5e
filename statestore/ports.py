"""All seams to the world on one page: what the inside needs, as Protocols; edges implement them.

`engines/` implements Engine; `kafka/` implements Source, Outbox, Changelog and Cluster, `targets`
Target; `testing/` implements the four of Kafka in memory. One contract suite per port runs on every
implementation.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from statestore.errors import StateStoreError
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.records import Header

Writes = Mapping[bytes, bytes | None]
LinkStore = Callable[[Path, Path, bool], None]
"""Makes the second folder what the store in the first was when it was last durable.

Its owner may be alive and writing; True: it is dead, so that what it only logged counts too.
"""


class Cursor(Protocol):
    """An ordered walk over a snapshot of one table; after its or the engine's close StoreClosed."""

    def __iter__(self) -> "Cursor": ...
    def __next__(self) -> tuple[bytes, bytes]: ...
    def close(self) -> None: ...


class Seeker(Protocol):
    """Answers questions to a snapshot of one table; after its or the engine's close StoreClosed."""

    def seek_many(self, keys: list[bytes], /) -> "list[tuple[bytes, bytes] | None]":
        """Per key the first row at or after it, in byte order; None: there is none."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in the order of `keys`."""

    def scan_back(self, lo: bytes, hi: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with lo <= key <= hi, last first; other questions may come between two pairs."""

    def close(self) -> None: ...


class Table(Protocol):
    """One column family; reads see every completed `Engine.write`, from any thread."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value, or None. Its errors may be the engine's own: see `Engine.failure`."""

    def get_many(self, keys: list[bytes], /) -> list[bytes | None]:
        """One value per key, in the order of `keys`. Errors as `get`.

        Of one moment only if no write comes between: it is for the thread that writes.
        """

    def get_many_at_once(self, keys: list[bytes], /) -> list[bytes | None]:
        """As `get_many`, all of one moment however many they are; takes somewhat longer."""

    def get_many_to_write(self, keys: list[bytes], /) -> tuple[list[bytes], list[bytes | None]]:
        """The same keys, in the order that suits the table, and their values.

        The next write of these keys, in the order of `keys`, goes faster. Errors as `get`.
        """

    def scan(
        self, lo: bytes | None = None, hi: bytes | None = None, *, reverse: bool = False
    ) -> Cursor:
        """Pairs with lo <= key <= hi in byte order, as of now; None is unbounded."""

    def seeker(self) -> Seeker:
        """A snapshot to look for rows in, as of now."""

    def seek_many(self, keys: list[bytes], /) -> list[tuple[bytes, bytes] | None]:
        """As `Seeker.seek_many`, all of one moment."""

    def approximate_count(self) -> int:
        """About how many keys there are, cheaply."""


class Engine(Protocol):
    """An ordered key-value database with several tables and one atomic write over all of them."""

    def table(self, name: str) -> Table:
        """The table of that name; the names were fixed when the engine was opened."""

    def write(
        self,
        writes: Mapping[str, Writes],
        *,
        ranges: Mapping[str, Sequence[tuple[bytes, bytes]]] | None = None,
    ) -> None:
        """Range deletes [from, to), then puts and deletes (None): all at once or not at all.

        Atomic for readers and over a crash; durable at the next flush (at once where the WAL is
        on).
        """

    def flush(self) -> None:
        """Make every completed write durable, all tables atomically."""

    def checkpoint(self, target: Path) -> None:
        """A consistent copy of all completed writes in the new folder `target`: hard links."""

    def persistent(self) -> bool:
        """Whether data outlives close."""

    def failure(self, error: Exception) -> StateStoreError | None:
        """The engine's error as one of ours; None if it is not the engine's."""

    def close(self) -> None:
        """Flush all tables, close all cursors, release the folder. Closing twice is harmless."""


class Source(Protocol):
    """Reads input partitions, committed records only, in the background."""

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these offsets on; the poll that finds one gone raises RecordFailed."""

    def poll(self, max_records: int, timeout_ms: int) -> list[Batch]:
        """What has arrived, one batch per partition with news, at most about `max_records` in all.

        Returns early once every partition not paused stands at the end of its log.
        """

    def position(self, tp: TopicPartition) -> int:
        """The next offset to be returned for `tp`, control records passed over."""

    def at_end(self, tp: TopicPartition) -> bool:
        """Whether it stood at the end of `tp`'s log (its last stable offset) when last heard of."""

    def log_end(self, tp: TopicPartition) -> int | None:
        """The last stable offset of `tp` as last heard of, for people; None: nothing was heard."""

    def pause(self, tps: Sequence[TopicPartition]) -> None: ...
    def resume(self, tps: Sequence[TopicPartition]) -> None: ...
    def close(self) -> None: ...


class Records(NamedTuple):
    """Columns to append to a topic; `partition` None: each goes where its key says.

    Or where its `placing` bytes say: of keys in windows, the key without the window (T1a).
    """

    topic: str
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    partition: int | None = None
    headers: Sequence[tuple[Header, ...]] | None = None
    placing: Sequence[bytes | None] | None = None


class Outbox(Protocol):
    """Writes outputs, changelog records and input offsets, one transaction at a time.

    Order of use: begin, send…, send_offsets, commit; or abort. Errors: Fenced (another owner opened
    the same id, or the transaction expired: only lock and epoch tell, SEMANTICS E5), CommitUnknown,
    Unavailable.
    """

    def open(self) -> None:
        """Fence the last owner and settle what it left open; what follows begins anew."""

    def begin(self, number: int | None = None) -> None:
        """Begin a transaction; a stream task says the number of the commit it is to be.

        No other transaction's late messages can touch it (SEMANTICS E2a). Of two owners that
        commit the same number only one can succeed, whatever either of them knows of the other.
        """

    def send(self, records: Records, *, tracked: bool = False) -> None:
        """Append records, in order. Tracked: `ends` knows where they end."""

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Input offsets (next to read) of the group, each carrying `metadata`."""

    def flush(self) -> None:
        """Wait until every record sent is acknowledged."""

    def commit(self) -> None:
        """All or nothing. CommitUnknown if the log did not answer: call again."""

    def abort(self) -> None: ...

    def ends(self) -> dict[TopicPartition, int]:
        """After commit, per tracked partition written: the offset after its last record."""

    def close(self) -> None: ...


class Bounds(NamedTuple):
    """What a log partition holds: from `start` up to `end`, the last stable offset, exclusive."""

    start: int
    end: int


class Replayed(NamedTuple):
    """A stretch of changelog: the records, and the offset to go on from (past control records)."""

    batch: Batch
    offset_next: int


class Changelog(Protocol):
    """Reads changelog partitions back, committed records only."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]: ...

    def replay(self, tp: TopicPartition, start: int, end: int) -> Iterator[Replayed]:
        """All records in [start, end), the last stretch beyond it; offsets gone: TaskCorrupted."""


class LogRecords(NamedTuple):
    """A stretch of committed records by column, in order; a value of None deletes its key."""

    keys: list[bytes | None]
    values: list[bytes | None]
    times: list[int]


class AuditLogReader(Protocol):
    """Reads changelogs for an audit: shares no code with Changelog, whose work it judges."""

    def bounds(self, tp: TopicPartition) -> Bounds: ...

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[LogRecords]:
        """What [start, end) holds; `end` is at most the last stable offset."""

    def close(self) -> None: ...


class GroupOffset(NamedTuple):
    """A committed input offset (next to read) and the metadata committed with it."""

    offset: int
    metadata: str


class TopicSpec(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int
    config: Mapping[str, str]


class KeyHashes(NamedTuple):
    """Whether either hash places all of a topic's first `keys` keys where they lie."""

    keys: int
    murmur2: bool
    crc32: bool


class Cluster(Protocol):
    """What a driver asks a Kafka cluster."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts of those that exist; the missing are absent."""

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create what is missing; existing topics are never altered."""

    def topic_settings(self, topics: Sequence[str]) -> dict[str, Mapping[str, str]]:
        """Of topics that exist: what holds for them, set or by default."""

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """What the cluster calls those that exist; a topic made anew gets another id."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""

    def offsets_at(self, tps: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """Per partition the first offset at or after that time, else its last stable offset."""

    def group_offsets(
        self, tps: Sequence[TopicPartition], *, stable: bool = True
    ) -> dict[TopicPartition, GroupOffset]:
        """The group's committed offsets, pending transactions waited out; some may be absent.

        `stable` False: those of now, which a transaction still open may be about to move.
        """

    def key_hashes(
        self, topics: Mapping[str, int], windowed: Collection[str] = ()
    ) -> dict[str, KeyHashes]:
        """Of each topic's first 100 keys; `topics` are partition counts by name.

        `windowed`: those whose keys are in windows, placed by the key alone.
        """

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Purge records below these offsets."""

    def abort_open_transactions(self, transactional_ids: Sequence[str]) -> None:
        """Fence whoever writes under these ids, and end what they left open, for good."""

    def check(self) -> None:
        """Unavailable if it does not answer, BrokerTooOld if its transactions can be torn."""

    def close(self) -> None: ...


class InputFacts(NamedTuple):
    """An input partition as monitoring sees it; times are of records, None where there is none.

    `next_ms`: of the first committed record the group has not committed; None: it has them all.
    `newest_ms`: the largest of the last committed records; None also where it is not known.
    """

    bounds: Bounds
    committed: GroupOffset | None
    next_ms: int | None
    newest_ms: int | None


class MonitoringClient(Protocol):
    """What somebody asks a cluster who must not be in anybody's way; Unavailable, soon."""

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """Partition counts of those that exist."""

    def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Log start and last stable offset of each."""

    def inputs(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, InputFacts]:
        """Each input of the application, and how far its group is; not read in time: absent."""

    def close(self) -> None: ...


class Target(Protocol):
    """A folder of files, here or far away, where exports lie; a file appears whole or not at all.

    Names are relative, with slashes. Unavailable, HostFailure or Misuse say what is wrong with it.
    """

    @property
    def url(self) -> str: ...

    def names(self, folder: str) -> dict[str, int]:
        """Every file below `folder`, however deep, and its size."""

    def read(self, name: str) -> bytes | None:
        """Its content; None if there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace it; durable when this returns."""

    def put(self, source: Path, *, temporary: str, name_of: Callable[[str], str]) -> str:
        """Read `source` once; keep it under the name its SHA-256 gives, which is returned.

        A death leaves at most `temporary` behind.
        """

    def fetch(self, name: str, into: Path | None) -> str | None:
        """Copy it to the new file `into`, or only read it; its SHA-256, None if there is none."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove these; those that are gone do not matter."""


class Clock(Protocol):
    """Time, passed in so that tests own it."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

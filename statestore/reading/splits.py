"""Splits: ranges of the rows of a store in one stream task, all of one snapshot (docs/adr/0045).

Whoever plans a read takes one snapshot of each stream task whose store is to be split, and lets it
be: nobody tells when the last split has been read, as Spark may read a split again. Each split that
is read keeps up the leases of all snapshots of the read, so these stay as long as any split is
being read, and then until their lease runs out. A split whose snapshot is gone fails, as rows of
another snapshot would not fit those of the other splits.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from statestore.errors import HostFailure, Unavailable
from statestore.model.ids import TaskId
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import size_of
from statestore.operations.looking.task_snapshots import Snapshot, Snapshots
from statestore.reading.row_ranges import row_ranges
from statestore.reading.views import StoreView
from statestore.stores.file_source import FileSource, RowSpan
from statestore.stores.keyvalue import TABLE
from statestore.stores.kinds.kind import AnyReader
from statestore.stores.kinds.opening import reader_over

COUNT_MAX: Final = 1000
"""How many splits one partition of a store may have."""
ROWS_EACH: Final = 500_000
_WHOLE_BYTES: Final = 4 << 20
"""Smaller stores are not looked into: they are read at once by one."""
_AT_ONCE: Final = 16
"""How many snapshots are taken at once."""


class SplitWish(NamedTuple):
    """Into how many splits a partition is divided; None: into splits of about `rows_each` rows."""

    pieces: int | None = None
    rows_each: int = ROWS_EACH


class Pin(NamedTuple):
    """A snapshot that splits are read from, by the stream task and its id."""

    stream_task: str
    snapshot_id: str


class Split(NamedTuple):
    """A span of the rows of a stream task; `pins`: all snapshots of the read, its own first."""

    span: RowSpan
    pins: tuple[Pin, ...]


def plan_splits(
    environment: Environment,
    view: StoreView,
    tasks: Sequence[str],
    wish: SplitWish,
    low: bytes | None = None,
    high: bytes | None = None,
) -> list[list[Split]]:
    """Return the splits for each of these stream tasks; none for a task that is not divided.

    `low` and `high`: keys outside of these are not asked for. The snapshots of those divided stay.
    """
    snapshots = Snapshots(environment)
    if view.kind.has_windows:
        # Rows begin with times there, and those from `unlogged_from` on are shown to nobody.
        low, high = None, view.kind.unlogged_from
    divide = partial(_divided, environment, snapshots, view, wish=wish, low=low, high=high)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        divided = list(threads.map(divide, map(TaskId.parse, tasks)))
    pins = [pin for pin, _ in divided if pin is not None]
    return [
        [Split(span, (pin, *(one for one in pins if one != pin))) for span in spans]
        if pin is not None
        else []
        for pin, spans in divided
    ]


def _divided(
    environment: Environment,
    snapshots: Snapshots,
    view: StoreView,
    task: TaskId,
    *,
    wish: SplitWish,
    low: bytes | None,
    high: bytes | None,
) -> tuple[Pin | None, list[RowSpan]]:
    if wish.pieces is None and size_of(snapshots.layout.store_dir(task, view.name)) < _WHOLE_BYTES:
        return None, []
    snapshots.sweep(task)
    taken = snapshots.take(task)
    try:
        with closing(environment.databases.read(taken.store_dir(view.name))) as engine:
            spans = row_ranges(
                engine.table(TABLE),
                rows_each=wish.rows_each,
                count=wish.pieces,
                count_max=COUNT_MAX,
                low=low,
                high=high,
            ).spans
    except BaseException:
        taken.release()
        raise
    if len(spans) == 1:
        taken.release()
        return None, []
    return Pin(str(task), taken.snapshot_id), spans


@contextmanager
def split_reader(environment: Environment, view: StoreView, split: Split) -> Iterator[AnyReader]:
    """Read a split in bytes; its scans have the rows of the split alone.

    Unavailable if its snapshot is gone.
    """
    snapshots, (own, *others) = Snapshots(environment), split.pins
    held = [_held(snapshots, view, own)]
    for pin in others:
        with suppress(Unavailable, HostFailure):  # Only its own splits need that one.
            held.append(snapshots.held(TaskId.parse(pin.stream_task), pin.snapshot_id))
    path = held[0].store_dir(view.name)

    def renew() -> None:
        for one in held.copy():
            try:
                one.renew()
            except (Unavailable, HostFailure) as error:
                if one is held[0]:
                    raise _gone(view, own) from error
                held.remove(one)

    engine = environment.databases.read(path)
    with closing(FileSource(view.name, engine, renew, split.span)) as source:
        yield reader_over(view.in_bytes, [source], str(path), source.close)


def _held(snapshots: Snapshots, view: StoreView, pin: Pin) -> Snapshot:
    try:
        return snapshots.held(TaskId.parse(pin.stream_task), pin.snapshot_id)
    except Unavailable as error:
        raise _gone(view, pin) from error


def _gone(view: StoreView, pin: Pin) -> Unavailable:
    return Unavailable(
        f"store {view.name!r}: the snapshot {pin.snapshot_id} of stream task {pin.stream_task}, of "
        "which this is a split, is gone: nobody read a split of it for statestore.snapshot.lease.ms"
        ", or its folder was removed; load the DataFrame again, raise that setting, or pass "
        '.option("splits", "1"), with which each Spark task takes a snapshot of its own'
    )

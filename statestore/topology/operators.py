"""The operators: functions that build, for one stream task, a push function over whole batches.

Each `…(…)` here returns a `build(context, forward)`. Batch-shaped inside: one pass, one get_many,
one put_all per batch; keys and values are decoded only where the user's function needs them
(INTERFACE rule 6).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import length_hint
from typing import Any, Protocol

from statestore.errors import InvalidTopology, StateStoreError, UnknownStore
from statestore.model.batch import Batch, Column
from statestore.model.ids import TaskId
from statestore.model.modes import PunctuationType, Span
from statestore.model.records import Record, T
from statestore.stores.specs import StoreSpec
from statestore.topology.callbacks import Maker, check_arity
from statestore.topology.failures import Stage, decoded, failed, punctuating
from statestore.topology.graph import Build, Forward, NodeContext, Push
from statestore.topology.punctuation import Punctuation
from statestore.topology.stream_time import stream_times

Transform = Callable[[Batch, Iterator[Any]], T]


class Processor(Protocol):
    """A user's per-record code; may also have close()."""

    def process(self, record: Record[Any, Any]) -> None: ...


class BatchProcessor(Protocol):
    """A user's per-batch code; may also have close()."""

    def process_batch(self, records: Sequence[Record[Any, Any]]) -> None: ...


class ProcessorContext:
    """What a user's processor may do (INTERFACE)."""

    def __init__(
        self,
        node: NodeContext,
        stores: tuple[str, ...],
        name: str,
        forward: Forward,
    ) -> None:
        self._node = node
        self._stores = stores
        self._name = name
        self._forward = forward
        self._clocks = node.clocks(stores)
        self._forwarded: list[tuple[Record[Any, Any], str | None, int | None]] = []
        self.stream_time: int | None = None
        """The largest timestamp of the task's input up to the record at hand, ms."""

    @property
    def task_id(self) -> TaskId:
        return self._node.task_id

    def store(self, spec: StoreSpec | str) -> Any:
        """A store connected to this processor; UnknownStore names the connected ones."""
        name = spec if isinstance(spec, str) else spec.name
        if name not in self._stores:
            raise UnknownStore(
                f"store {name!r} is not connected to this processor; connected: "
                f"{', '.join(self._stores) or 'none'}: pass it to process()"
            )
        return self._node.store(name)

    def forward(self, record: Record[Any, Any], *, to: str | None = None) -> None:
        """Hand a record to the children, or to the one named."""
        self._forwarded.append((record, to, self.stream_time))

    def commit(self) -> None:
        """Ask for a task commit (KIP-892: the only commit a processor may ask for)."""
        self._node.request_commit()

    def schedule(
        self, interval_ms: Span, kind: PunctuationType, function: Callable[[int], object]
    ) -> Punctuation:
        """Call function(stream or wall-clock time, ms) by time; `cancel()` what comes back to stop.

        It may use the stores, forward and ask for a commit, as process() may. Scheduled where the
        processor is made, a replay fires it by stream time at the very same records (rule 7).
        """
        check_arity(f"schedule of node {self._name}", function, 1)
        fire = partial(self._punctuate, function)
        return self._node.schedule(self._name, interval_ms, kind, fire)

    def take_lots(self) -> list[tuple[Batch, str | None]]:
        """What was forwarded: runs for the same child as one batch each."""
        made, self._forwarded = self._forwarded, []
        lots = []
        start = 0
        while start < len(made):
            child = made[start][1]
            stop = start + 1
            while stop < len(made) and made[stop][1] == child:
                stop += 1
            lot = Batch.of(record for record, _, _ in made[start:stop])
            times = [time for _, _, time in made[start:stop] if time is not None]
            lot.stream_times = times if len(times) == len(lot) else None
            lots.append((lot, child))
            start = stop
        return lots

    def at(self, stream_time_ms: int | None, time_ms: int | None) -> None:
        """What comes now is of this time: the stores' changelogs say so of what it writes."""
        self.stream_time = stream_time_ms
        for clock in self._clocks:
            clock.now_ms = time_ms

    def done(self) -> None:
        """A call is over; forget what it forwarded if that failed."""
        self._forwarded = []
        for clock in self._clocks:
            clock.now_ms = None

    def _punctuate(self, function: Callable[[int], object], time_ms: int) -> None:
        stream_time_ms = self._node.stream_time()
        self.at(stream_time_ms, stream_time_ms)
        try:
            with punctuating(self._name, time_ms):
                function(time_ms)
                for made, child in self.take_lots():
                    self._forward(made, child)
        finally:
            self.done()


def guarded(node: str, transform: Transform[Batch], *sides: str) -> Build:
    """A stateless operator; `transform` gets the batch and its rows, decoded on these `sides`."""

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            out = _transformed(node, batch, transform, sides)
            if len(out):
                forward(out, None)

        return push

    return build


def _transformed(node: str, batch: Batch, transform: Transform[T], sides: Sequence[str]) -> T:
    first, *others = (decoded(node, batch, side) for side in sides)
    # A list's iterator knows how many are left, so the row a function raised for is known.
    ahead = iter(first)
    try:
        return transform(batch, zip(ahead, *others, strict=True) if others else ahead)
    except Exception as error:
        found = [(len(batch) - length_hint(ahead) - 1, error)]
        # Those before it are not tried again: a function may have changed what it was given.
        for i in range(found[0][0] + 1, len(batch)):
            row = tuple(column[i] for column in (first, *others))
            try:
                transform(batch.slice(i, i + 1), iter([row if others else row[0]]))
            except Exception as another:  # noqa: BLE001  # whatever it is, it is the finding
                found.append((i, another))
        raise failed(Stage.PROCESSING, node, batch, error, found=found, certain=True) from error


def filtered(node: str, predicate: Callable[[Any, Any], object]) -> Build:
    """Keep the records the predicate holds for."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        kept = [i for i, (key, value) in enumerate(rows) if predicate(key, value)]
        return batch if len(kept) == len(batch) else batch.take(kept)

    return guarded(node, transform, "key", "value")


def mapped_values(node: str, function: Callable[[Any], Any]) -> Build:
    """New values, same keys."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.with_columns(values=Column(objects=[function(value) for value in rows]))

    return guarded(node, transform, "value")


def mapped(node: str, function: Callable[[Any, Any], tuple[Any, Any]]) -> Build:
    """New keys and values."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        pairs = [(key, value) for k, v in rows for key, value in (function(k, v),)]
        return batch.with_columns(
            keys=Column(objects=[key for key, _ in pairs]),
            values=Column(objects=[value for _, value in pairs]),
        )

    return guarded(node, transform, "key", "value")


def keyed(node: str, function: Callable[[Any, Any], Any]) -> Build:
    """New keys, same values."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        return batch.with_columns(keys=Column(objects=[function(key, v) for key, v in rows]))

    return guarded(node, transform, "key", "value")


def flattened(node: str, function: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> Build:
    """Any number of new records for each."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        made = [(i, key, new) for i, (k, v) in enumerate(rows) for key, new in function(k, v)]
        return batch.take([i for i, _, _ in made]).with_columns(
            keys=Column(objects=[key for _, key, _ in made]),
            values=Column(objects=[value for _, _, value in made]),
        )

    return guarded(node, transform, "key", "value")


def flattened_values(node: str, function: Callable[[Any], Iterable[Any]]) -> Build:
    """Any number of new values for each record, same key."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        made = [(i, new) for i, old in enumerate(rows) for new in function(old)]
        spread = batch.take([i for i, _ in made])
        return spread.with_columns(values=Column(objects=[value for _, value in made]))

    return guarded(node, transform, "value")


def peeked(node: str, function: Callable[[Any, Any], object]) -> Build:
    """Look at each record, change none."""

    def transform(batch: Batch, rows: Iterator[Any]) -> Batch:
        for key, value in rows:
            function(key, value)
        return batch

    return guarded(node, transform, "key", "value")


def passed() -> Build:
    """Hand on as is: merges and renames."""
    return lambda _context, forward: lambda batch: forward(batch, None)


def branched(
    node: str, predicates: Sequence[Callable[[Any, Any], object]], children: Sequence[str]
) -> Build:
    """Each record to the first child whose predicate holds, else to the last."""

    def choose(_batch: Batch, rows: Iterator[Any]) -> list[list[int]]:
        chosen: list[list[int]] = [[] for _ in children]
        for i, (key, value) in enumerate(rows):
            hit = (n for n, holds in enumerate(predicates) if holds(key, value))
            chosen[next(hit, len(predicates))].append(i)
        return chosen

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            chosen = _transformed(node, batch, choose, ("key", "value"))
            for child, indices in zip(children, chosen, strict=True):
                if indices:
                    forward(batch.take(indices), child)

        return push

    return build


def processed(
    node: str,
    factory: Callable[[ProcessorContext], Any],
    stores: tuple[str, ...],
    *,
    per_record: bool,
) -> Build:
    """A user's Processor or BatchProcessor, made once per stream task."""
    maker = Maker(node, factory, "process" if per_record else "process_batch")

    def build(context: NodeContext, forward: Forward) -> Push:
        outward = ProcessorContext(context, stores, node, forward)
        processor = _made(node, maker, outward)
        context.keep_stream_times()
        if hasattr(processor, "close"):
            context.on_close(processor.close)

        run = _per_record if per_record else _per_batch

        def push(batch: Batch) -> None:
            decoded(node, batch, "key")
            decoded(node, batch, "value")
            try:
                run(node, batch, processor, outward, stream_times(context, batch))
                lots = outward.take_lots()
            except AttributeError as error:  # what it forwarded was no record
                raise failed(Stage.PROCESSING, node, batch, error) from error
            finally:
                outward.done()
            for made, child in lots:
                forward(made, child)

        return push

    return build


def _per_record(
    node: str, batch: Batch, processor: Any, outward: ProcessorContext, times: list[int]
) -> None:
    done = 0
    call = processor.process
    try:
        for record, time in zip(batch.records(), times, strict=True):
            outward.at(time, record.timestamp_ms)
            call(record)
            done += 1
    except Exception as error:
        found = [(done, error)]
        raise failed(Stage.PROCESSING, node, batch, error, found=found) from error


def _per_batch(
    node: str, batch: Batch, processor: Any, outward: ProcessorContext, times: list[int]
) -> None:
    # Which of them made what is not known.
    outward.at(times[-1], max(batch.timestamps))
    try:
        processor.process_batch(list(batch.records()))
    except Exception as error:
        raise failed(Stage.PROCESSING, node, batch, error) from error


def _made(node: str, maker: Maker, context: ProcessorContext) -> Any:
    """What the factory makes; InvalidTopology if it raises: it would again, so none tries."""
    try:
        return maker.make(context)
    except StateStoreError:
        raise
    except Exception as error:
        raise InvalidTopology(
            f"node {node}: its factory raised {type(error).__name__}: {error}: correct the pipeline"
        ) from error

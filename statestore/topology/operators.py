"""The operators: functions that build, for one stream task, a push function over whole batches.

Each `…(…)` here returns a `build(context, forward)`. Batch-shaped inside: one pass, one get_many,
one put_all per batch; keys and values are decoded only where the user's function needs them
(INTERFACE rule 6).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from statestore.errors import RecordFailed, StateStoreError, UnknownStore
from statestore.model import Batch, Column, PunctuationType, Record, Serde, Span, TaskId
from statestore.stores import serdes
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Build, Forward, NodeContext, Push
from statestore.topology.punctuation import Punctuation, fired


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
        self._forwarded: list[tuple[Record[Any, Any], str | None]] = []
        self.stream_time: int | None = None

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
        self._forwarded.append((record, to))

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
        fire = partial(self._punctuate, function)
        return self._node.schedule(interval_ms, kind, fire)

    def hand_on(self) -> None:
        """Pass on what was forwarded: runs for the same child as one batch each."""
        made, self._forwarded = self._forwarded, []
        start = 0
        while start < len(made):
            child = made[start][1]
            stop = start + 1
            while stop < len(made) and made[stop][1] == child:
                stop += 1
            self._forward(Batch.of(record for record, _ in made[start:stop]), child)
            start = stop

    def drop_forwarded(self) -> None:
        """Forget what was forwarded by a call that failed."""
        self._forwarded = []

    def _punctuate(self, function: Callable[[int], object], time_ms: int) -> None:
        self.stream_time = self._node.stream_time()
        try:
            fired(self._name, function, time_ms)
        except BaseException:
            self.drop_forwarded()
            raise
        self.hand_on()


def failed(node: str, batch: Batch, error: Exception) -> StateStoreError:
    """A user's function failed: the error that says in which node and on which input."""
    if isinstance(error, StateStoreError):
        return error
    where = f"{batch.topic}-{batch.partition}" if batch.topic else "records made by an operator"
    span = f" offsets {batch.offsets[0]} to {batch.offsets[-1]}" if batch.offsets else ""
    return RecordFailed(
        f"node {node}, {where}{span}: {type(error).__name__}: {error}; "
        "fix the pipeline or the record, then start again: nothing of this batch was committed"
    )


def encoded(node: str, batch: Batch, side: str, serde: Serde[Any]) -> list[bytes | None]:
    """The keys or values (`side`) of a batch under a serde; SerdeMismatch names the one unfit."""
    column = batch.keys if side == "key" else batch.values
    try:
        return column.encoded(serde)
    except Exception as error:
        unfit = next((item for item in column.objects if not _fits(item, serde)), None)
        raise mismatch(node, side, unfit, serde, error) from error


def mismatch(
    node: str, side: str, value: object, serde: Serde[Any], error: Exception
) -> StateStoreError:
    """The error for a key or value that does not fit its serde (INTERFACE rule 3)."""
    where, keyword = f"node {node}", f"{side}_serde"
    return serdes.mismatch(
        where=where, side=side, value=value, serde=serde, keyword=keyword, cause=error
    )


def _fits(item: object, serde: Serde[Any]) -> bool:
    try:
        return item is None or isinstance(serde.serialize(item), bytes)
    except Exception:  # noqa: BLE001  # whatever a user's serde raises: it does not fit
        return False


def guarded(node: str, transform: Callable[[Batch], Batch]) -> Build:
    """A stateless operator from a batch-to-batch function."""

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            try:
                out = transform(batch)
            except Exception as error:
                raise failed(node, batch, error) from error
            if len(out):
                forward(out, None)

        return push

    return build


def filtered(node: str, predicate: Callable[[Any, Any], object]) -> Build:
    """Keep the records the predicate holds for."""

    def transform(batch: Batch) -> Batch:
        pairs = zip(batch.keys.objects, batch.values.objects, strict=True)
        kept = [i for i, (key, value) in enumerate(pairs) if predicate(key, value)]
        return batch if len(kept) == len(batch) else batch.take(kept)

    return guarded(node, transform)


def mapped_values(node: str, function: Callable[[Any], Any]) -> Build:
    """New values, same keys."""
    return guarded(
        node,
        lambda batch: batch.with_columns(
            values=Column(objects=[function(value) for value in batch.values.objects])
        ),
    )


def mapped(node: str, function: Callable[[Any, Any], tuple[Any, Any]]) -> Build:
    """New keys and values."""

    def transform(batch: Batch) -> Batch:
        pairs = [
            function(key, value)
            for key, value in zip(batch.keys.objects, batch.values.objects, strict=True)
        ]
        return batch.with_columns(
            keys=Column(objects=[key for key, _ in pairs]),
            values=Column(objects=[value for _, value in pairs]),
        )

    return guarded(node, transform)


def keyed(node: str, function: Callable[[Any, Any], Any]) -> Build:
    """New keys, same values."""

    def transform(batch: Batch) -> Batch:
        pairs = zip(batch.keys.objects, batch.values.objects, strict=True)
        return batch.with_columns(keys=Column(objects=[function(key, v) for key, v in pairs]))

    return guarded(node, transform)


def flattened(node: str, function: Callable[[Any, Any], Iterable[tuple[Any, Any]]]) -> Build:
    """Any number of new records for each."""

    def transform(batch: Batch) -> Batch:
        pairs = zip(batch.keys.objects, batch.values.objects, strict=True)
        made = [(i, pair) for i, (k, v) in enumerate(pairs) for pair in function(k, v)]
        spread = batch.take([i for i, _ in made])
        return spread.with_columns(
            keys=Column(objects=[key for _, (key, _) in made]),
            values=Column(objects=[value for _, (_, value) in made]),
        )

    return guarded(node, transform)


def flattened_values(node: str, function: Callable[[Any], Iterable[Any]]) -> Build:
    """Any number of new values for each record, same key."""

    def transform(batch: Batch) -> Batch:
        made = [(i, new) for i, old in enumerate(batch.values.objects) for new in function(old)]
        spread = batch.take([i for i, _ in made])
        return spread.with_columns(values=Column(objects=[value for _, value in made]))

    return guarded(node, transform)


def peeked(node: str, function: Callable[[Any, Any], object]) -> Build:
    """Look at each record, change none."""

    def transform(batch: Batch) -> Batch:
        for key, value in zip(batch.keys.objects, batch.values.objects, strict=True):
            function(key, value)
        return batch

    return guarded(node, transform)


def passed() -> Build:
    """Hand on as is: merges and renames."""
    return lambda _context, forward: lambda batch: forward(batch, None)


def branched(
    node: str, predicates: Sequence[Callable[[Any, Any], object]], children: Sequence[str]
) -> Build:
    """Each record to the first child whose predicate holds, else to the last."""

    def build(_context: NodeContext, forward: Forward) -> Push:
        def push(batch: Batch) -> None:
            chosen: list[list[int]] = [[] for _ in children]
            try:
                for i, (key, value) in enumerate(
                    zip(batch.keys.objects, batch.values.objects, strict=True)
                ):
                    hit = (n for n, holds in enumerate(predicates) if holds(key, value))
                    chosen[next(hit, len(predicates))].append(i)
            except Exception as error:
                raise failed(node, batch, error) from error
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

    def build(context: NodeContext, forward: Forward) -> Push:
        outward = ProcessorContext(context, stores, node, forward)
        processor = factory(outward)
        if hasattr(processor, "close"):
            context.on_close(processor.close)

        def each(batch: Batch) -> None:
            time = context.stream_time()
            call = processor.process
            for record in batch.records():
                if time is None or record.timestamp_ms > time:
                    time = record.timestamp_ms
                outward.stream_time = time
                call(record)

        def whole(batch: Batch) -> None:
            latest = max(batch.timestamps)
            time = context.stream_time()
            outward.stream_time = latest if time is None else max(time, latest)
            processor.process_batch(list(batch.records()))

        run = each if per_record else whole

        def push(batch: Batch) -> None:
            try:
                run(batch)
            except Exception as error:
                outward.drop_forwarded()
                raise failed(node, batch, error) from error
            outward.hand_on()

        return push

    return build

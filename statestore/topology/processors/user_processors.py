"""Processors: a user's own code as a node, with the stores, the clock and the way out it is given.

A factory makes a processor for each stream task, and again after each rewind of the task, so that
nothing a processor remembers outlives records that were not committed.
"""

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, Protocol, overload

from typing_extensions import TypeVar

from statestore.errors import InvalidTopology, Misuse, StateStoreError, UnknownStore
from statestore.model.batch import Batch
from statestore.model.ids import TaskId
from statestore.model.keywords import renamed
from statestore.model.modes import EVENT_TIME_MAX_MS, PunctuationType, Span, Time, to_ms
from statestore.model.nulls import any_none
from statestore.model.records import K, Record, V
from statestore.stores.contracts import (
    KeyValueStore,
    SessionStore,
    VersionedKeyValueStore,
    WindowStore,
)
from statestore.stores.kinds.registry import kind_of
from statestore.stores.row_times import WriteTime
from statestore.stores.specs import (
    KeyValueSpec,
    S,
    SessionSpec,
    StoreSpec,
    StoreSupplier,
    VersionedSpec,
    WindowSpec,
)
from statestore.stores.timer_specs import TimerSpec
from statestore.topology import missing_methods
from statestore.topology.callbacks import check_arity, why_processor_idle
from statestore.topology.collector import Collector
from statestore.topology.failures import (
    Stage,
    decoded,
    each,
    failed,
    processing,
    punctuating,
    timer_failed,
)
from statestore.topology.nodes import Build, Forward, NodeContext, Push, stream_times
from statestore.topology.processors.timers import Fired, TimerQueue, Timers
from statestore.topology.punctuation import Punctuation

K_contra = TypeVar("K_contra", contravariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
KF_contra = TypeVar("KF_contra", contravariant=True, default=Any)
VF_contra = TypeVar("VF_contra", contravariant=True, default=Any)


class Processor(Protocol[K_contra, V_contra]):
    """A user's code that takes records one by one.

    It may also have a method `close()`, which is called when its stream task closes. If it has
    timers, it needs a method `on_timer(timer)`, which may do what `process` may do.
    """

    def process(self, record: Record[K_contra, V_contra], /) -> None:
        """Take one record; whatever it raises goes to processing.exception.handler."""


class BatchProcessor(Protocol[K_contra, V_contra]):
    """A user's code that takes records in batches.

    It may also have a method `close()`, which is called when its stream task closes.
    """

    def process_batch(self, records: Sequence[Record[K_contra, V_contra]], /) -> None:
        """Take records in order; batches have any size, and results must not depend on it."""


@missing_methods.explains(missing_methods.OF_CONTEXTS)
class ProcessorContext(Generic[KF_contra, VF_contra]):
    """What a user's processor may do: use its stores, forward records, ask for commits, use timers.

    The parameters are the types of the keys and values that it forwards. `stream_time` is the
    largest timestamp of the task's input up to the current record, in ms; None before the first.
    """

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
        clocks = node.clocks(stores)
        self._clocks = [clock for clock in clocks if not clock.of_stream]
        self._clocks_of_stream = [clock for clock in clocks if clock.of_stream]
        self._forwarded: list[tuple[Record[Any, Any], str | None, int | None]] = []
        self._queue: TimerQueue | None = None
        self._is_held = node.time_bound() is not None
        plain = len(clocks) < 2 and not self._clocks_of_stream and not self._is_held
        self.only_clock = next(iter(clocks), WriteTime()) if plain else None
        self.stream_time: int | None = None

    @property
    def task_id(self) -> TaskId:
        """The stream task that runs this processor."""
        return self._node.task_id

    @overload
    def store(self, spec: KeyValueSpec[K, V]) -> KeyValueStore[K, V]: ...
    @overload
    def store(self, spec: VersionedSpec[K, V]) -> VersionedKeyValueStore[K, V]: ...
    @overload
    def store(self, spec: WindowSpec[K, V]) -> WindowStore[K, V]: ...
    @overload
    def store(self, spec: SessionSpec[K, V]) -> SessionStore[K, V]: ...
    @overload
    def store(self, spec: StoreSupplier[S]) -> S: ...
    @overload
    def store(self, spec: str) -> Any: ...
    def store(self, spec: StoreSpec | str) -> Any:
        """Return a store that was passed to process() or process_batch(), by its spec or name.

        The spec gives the store its type; a name gives none. UnknownStore names the stores that
        are connected to this processor.
        """
        name = spec if isinstance(spec, str) else spec.name
        if name not in self._stores:
            raise UnknownStore(
                f"store {name!r} is not connected to this processor; connected: "
                f"{', '.join(self._stores) or 'none'}; pass the store to process()"
            )
        if self._queue is not None and name == self._queue.store:
            raise UnknownStore(f"store {name!r} has timers: take them with context.timers(spec)")
        return self._node.store(name)

    def timers(self, spec: TimerSpec[K]) -> Timers[K]:
        """Return the timers in a store that `timer_store` described and process() was given.

        UnknownStore if this processor has no such store.
        """
        if self._queue is None or spec.name != self._queue.store:
            raise UnknownStore(
                f"store {spec.name!r} has no timers of this processor: pass "
                "ss.timer_store(name, key_serde=…) to process()"
            )
        return Timers(self._queue)

    def wall_clock_ms(self) -> int:
        """Return the wall-clock time in ms since the epoch, as timers and punctuations go by it."""
        return self._node.wall_clock_ms()

    def forward(self, record: Record[KF_contra, VF_contra], *, to: str | None = None) -> None:
        """Hand a record to all children of this node, or to the one that is named.

        Children take the records after the current call, in the order in which they were forwarded.
        A name that is not a child's is an error then.
        """
        self._forwarded.append((record, to, self.stream_time))

    def commit(self) -> None:
        """Ask for a commit of the stream task; a processor must not commit a store (KIP-892)."""
        self._node.request_commit()

    @renamed(interval="interval_ms")
    def schedule(
        self,
        interval: Span,
        kind: PunctuationType | str,
        function: Callable[[int], object],
        *,
        at: Time | None = None,
    ) -> Punctuation:
        """Call function(time in ms) by stream time or wall-clock time; return what cancels it.

        `interval` is in milliseconds or a timedelta. With `at`, a time in milliseconds or an
        aware datetime, it is called from then on, each interval after it; without it, at the first
        record of all and then at multiples of the interval since 1970, or by wall-clock time each
        interval from now on. The function may use the stores, forward and ask for a commit, as
        process() may. If it is scheduled where the processor is made, a replay fires it by stream
        time at the very same records (INTERFACE rule 7). Misuse if the interval is less than a
        millisecond, or if the function does not take one argument.
        """
        check_arity(f"schedule of node {self._name}", function, 1)
        fire = partial(self._punctuate, function)
        start_ms = None if at is None else to_ms(at)
        if at is not None and (type(start_ms) is not int or abs(start_ms) > EVENT_TIME_MAX_MS):
            raise Misuse(
                f"schedule: at is {at!r:.99}, which is no time: pass milliseconds since 1970, or "
                "an aware datetime"
            )
        return self._node.schedule(self._name, interval, PunctuationType(kind), fire, start_ms)

    def keep_timers(self, queue: TimerQueue) -> None:
        """Give the processor timers, before it is made."""
        self._queue = queue

    def take_forwarded(self) -> list[tuple[Batch, str | None]]:
        """Return what was forwarded: each run of records for the same child as one batch."""
        made, self._forwarded = self._forwarded, []
        if not made:
            return []
        records, children, times = zip(*made, strict=True)
        if children.count(children[0]) == len(children):
            check_records(records)
            stream_times = None if None in times else list(times)
            return [(Batch.of(records, stream_times=stream_times), children[0])]
        runs = []
        start = 0
        while start < len(made):
            child = children[start]
            stop = start + 1
            while stop < len(made) and children[stop] == child:
                stop += 1
            run, at = records[start:stop], times[start:stop]
            check_records(run)
            runs.append((Batch.of(run, stream_times=None if any_none(at) else at), child))
            start = stop
        return runs

    def at(self, stream_time_ms: int | None, time_ms: int | None) -> None:
        """Note the time of what comes now; the changelogs give it to rows written meanwhile."""
        if self._is_held and stream_time_ms == -1:
            stream_time_ms = None
        self.stream_time = stream_time_ms
        for clock in self._clocks:
            clock.now_ms = time_ms
        for clock in self._clocks_of_stream:
            clock.now_ms = stream_time_ms
            clock.ahead_ms = time_ms if self._is_held else None

    def done(self) -> None:
        """End a call; what it forwarded is forgotten unless it was taken."""
        self._forwarded = []
        for clock in (*self._clocks, *self._clocks_of_stream):
            clock.now_ms = None

    def _punctuate(self, function: Callable[[int], object], time_ms: int) -> None:
        stream_time_ms = self._node.stream_time()
        self.at(stream_time_ms, stream_time_ms)
        try:
            with punctuating(self._name, time_ms):
                function(time_ms)
                for made, child in self.take_forwarded():
                    self._forward(made, child)
            if self._queue is not None:
                self._queue.write()
        finally:
            self.done()


def declared(
    builder: Collector, verb: str, stores: Sequence[StoreSpec | str], name: str | None
) -> tuple[tuple[str, ...], TimerSpec[Any] | None]:
    """Make the stores of a processor known; return their names, and the store of its timers.

    InvalidTopology if it cannot have such timers.
    """
    timers = [store for store in stores if isinstance(store, TimerSpec)]
    where = verb if name is None else f"{verb} {name!r}"
    if timers and verb != "process":
        raise InvalidTopology(
            f"{where}: store {timers[0].name!r} has timers, which fire between two records: use "
            "process()"
        )
    if len(timers) > 1:
        raise InvalidTopology(
            f"{where}: a processor has one store of timers, not {len(timers)}: give its timers "
            "names"
        )
    for store in stores:
        if not isinstance(store, str):
            declare = builder.keep if kind_of(store).has_one_user else builder.declare
            declare(store)
    names = tuple(store if isinstance(store, str) else store.name for store in stores)
    return names, timers[0] if timers else None


def processed(
    node: str,
    factory: Callable[[ProcessorContext[Any, Any]], Any],
    stores: tuple[str, ...],
    *,
    per_record: bool,
) -> Build:
    """Build a node that runs a user's Processor (`per_record`) or BatchProcessor."""
    maker = Maker(node, factory, "process" if per_record else "process_batch")
    run = one_by_one if per_record else _per_batch
    return forwarding(node, maker, stores, ProcessorContext, run)


C = TypeVar("C", bound=ProcessorContext[Any, Any])


def forwarding(
    node: str,
    maker: "Maker",
    stores: tuple[str, ...],
    context_type: Callable[[NodeContext, tuple[str, ...], str, Forward], C],
    run: Callable[[str, Batch, Any, C, list[int]], None],
) -> Build:
    """Build a node that hands on what a user's processor forwards to a context of this type.

    `run(node, batch, processor, context, stream times)` has the processor take a batch.
    """

    def build(context: NodeContext, forward: Forward) -> Push:
        outward = context_type(context, stores, node, forward)
        processor = _made(node, maker, outward)
        context.keep_stream_times()
        context.sets_times(node)
        if hasattr(processor, "close"):
            context.on_close(processor.close)

        def push(batch: Batch) -> None:
            decoded(node, batch, "key")
            decoded(node, batch, "value")
            try:
                run(node, batch, processor, outward, stream_times(context, batch))
                runs = outward.take_forwarded()
            except TypeError as error:  # What it forwarded was not a record.
                raise failed(Stage.PROCESSING, node, batch, error) from error
            finally:
                outward.done()
            for made, child in runs:
                forward(made, child)

        return push

    return build


def one_by_one(
    node: str,
    batch: Batch,
    processor: Any,
    outward: ProcessorContext[Any, Any],
    times: list[int],
) -> None:
    """Have a processor take the records of a batch; NodeFailed names the one that failed."""
    call, at, clock = processor.process, outward.at, outward.only_clock

    def take(ahead: Iterator[int]) -> None:
        if clock is not None:
            # All that `at` does here, without a call for each record.
            for time, record, time_ms in zip(ahead, batch.records(), batch.timestamps, strict=True):
                outward.stream_time, clock.now_ms = time, time_ms
                call(record)
            return
        for time, record, time_ms in zip(ahead, batch.records(), batch.timestamps, strict=True):
            at(time, time_ms)
            call(record)

    each(node, batch, times, take)


def _per_batch(
    node: str,
    batch: Batch,
    processor: Any,
    outward: ProcessorContext[Any, Any],
    times: list[int],
) -> None:
    # Which of the records made what is not known.
    outward.at(times[-1], max(batch.timestamps))
    with processing(node, batch):
        processor.process_batch(list(batch.records()))


def timed(
    node: str,
    factory: Callable[[ProcessorContext[Any, Any]], Any],
    stores: tuple[str, ...],
    spec: TimerSpec[Any],
) -> Build:
    """Build a node that runs a user's Processor with timers."""
    maker = Maker(node, factory, "process", "on_timer")

    def build(context: NodeContext, forward: Forward) -> Push:
        outward: ProcessorContext[Any, Any] = ProcessorContext(context, stores, node, forward)
        timed_node = _TimedNode(context, node, spec, outward, forward)
        timed_node.processor = processor = _made(node, maker, outward)
        context.keep_stream_times()
        context.sets_times(node)
        context.keep_alarm(timed_node.queue)
        if hasattr(processor, "close"):
            context.on_close(processor.close)
        return timed_node.push

    return build


class _TimedNode:
    """A processor with timers, in one stream task."""

    processor: Any = None

    def __init__(
        self,
        context: NodeContext,
        node: str,
        spec: TimerSpec[Any],
        outward: ProcessorContext[Any, Any],
        forward: Forward,
    ) -> None:
        self._context = context
        self._node = node
        self._outward = outward
        self._forward = forward
        self.queue = TimerQueue(context, node, spec, self._call, self._hand_on)
        outward.keep_timers(self.queue)

    def push(self, batch: Batch) -> None:
        """Take the records of a batch, and fire the timers that are due between them."""
        node, queue, outward = self._node, self.queue, self._outward
        decoded(node, batch, "key")
        decoded(node, batch, "value")
        times, records = stream_times(self._context, batch), list(batch.records())
        start = 0
        queue.batch_begins(times[-1])
        try:
            while start < len(records):
                queue.stream_time_passes(times[start])
                start = self._take(batch, records, times, start)
            queue.stream_time_passes(times[-1])
            queue.write()
            runs = outward.take_forwarded()
        except TypeError as error:  # What it forwarded was not a record.
            raise failed(Stage.PROCESSING, node, batch, error) from error
        finally:
            outward.done()
        for made, child in runs:
            self._forward(made, child)

    def _take(
        self, batch: Batch, records: list[Record[Any, Any]], times: list[int], start: int
    ) -> int:
        """Have the processor take records up to one before which a timer is due."""
        queue, outward, call = self.queue, self._outward, self.processor.process
        places = range(start, len(records))

        def take(ahead: Iterator[int]) -> int:
            for place in ahead:
                time = times[place]
                if queue.next_ms < time:
                    return place
                outward.at(time, records[place].timestamp_ms)
                call(records[place])
                queue.stream_time_is(time)
            return len(records)

        return each(self._node, batch, places, take, place_of=places.__getitem__)

    def _call(self, fired: Fired) -> None:
        timer, now_ms = fired
        by_stream_time = timer.kind is PunctuationType.STREAM_TIME
        self._outward.at(now_ms, timer.time_ms if by_stream_time else now_ms)
        try:
            self.processor.on_timer(timer)
        except BaseException:
            self._outward.done()
            raise

    def _hand_on(self) -> None:
        try:
            runs = self._outward.take_forwarded()
        except TypeError as error:
            raise timer_failed(self._node, error) from error
        finally:
            self._outward.done()
        for made, child in runs:
            self._forward(made, child)


def no_record(forwarded: Sequence[object]) -> TypeError:
    """The error for the first thing forwarded that is not a Record."""
    wrong = next((it for it in forwarded if not isinstance(it, Record)), None)
    return TypeError(
        f"forward() takes a Record, not {type(wrong).__name__}: forward record.replace(key=…, "
        "value=…), or ss.Record(key, value, timestamp_ms)"
    )


def check_records(forwarded: Sequence[Any]) -> None:
    """Raise TypeError for the first thing forwarded that is not a Record, or has no time of one."""
    try:
        times = [record.timestamp_ms for record in forwarded]
    except AttributeError as error:
        raise no_record(forwarded) from error
    fits = set(map(type, times)) == {int}
    if fits and min(times) >= -EVENT_TIME_MAX_MS and max(times) <= EVENT_TIME_MAX_MS:
        return
    for time in times:
        if type(time) is not int or abs(time) > EVENT_TIME_MAX_MS:
            raise TypeError(
                f"forward() takes a Record with a time in ms since 1970, not {time!r:.99}"
            )


def _made(node: str, maker: "Maker", context: ProcessorContext[Any, Any]) -> Any:
    """Return what the factory makes; InvalidTopology if it raises, as it would raise again."""
    try:
        return maker.make(context)
    except StateStoreError:
        raise
    except Exception as error:
        raise InvalidTopology(
            f"node {node}: its factory raised {type(error).__name__}: {error}: correct the pipeline"
        ) from error


class Maker:
    """Makes the processors of one node, a new one for each start and rewind of a stream task."""

    def __init__(self, node: str, factory: Callable[..., Any], *verbs: str) -> None:
        """`verbs`: the methods that take records, and timers."""
        self._node = node
        self._factory = factory
        self._verbs = verbs
        self._made: list[Callable[[], Any]] = []

    def make(self, context: Any) -> Any:
        """Return a new processor; whatever the factory raises is raised.

        InvalidTopology if what the factory made cannot process, or if it existed before: it might
        remember records that were not committed.
        """
        known = [kept() for kept in self._made] + list(_within_reach(self._factory))
        processor = self._factory(context)
        name = type(processor).__name__
        for verb in self._verbs:
            if not callable(getattr(processor, verb, None)):
                raise InvalidTopology(
                    f"node {self._node}: its factory made {name}, which has no {verb}()"
                )
            why = why_processor_idle(processor, verb)
            if why is not None:
                raise InvalidTopology(f"node {self._node}: {why}")
        if any(one is processor for one in known):
            raise InvalidTopology(
                f"node {self._node}: its factory returned a processor ({name}) that existed "
                "before; what it remembers would outlive records that were not committed, and "
                "several stream tasks would share it: make a new one in each call"
            )
        self._made = [kept for kept in self._made if kept() is not None]
        self._made.append(_reference(processor))
        return processor


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def _within_reach(factory: Callable[..., Any]) -> Iterator[Any]:
    """Yield what a factory refers to: things that are older than any call of it."""
    if isinstance(factory, partial):
        yield from (*factory.args, *factory.keywords.values())
        yield from _within_reach(factory.func)
        return
    owner = getattr(factory, "__self__", None)
    if owner is not None:
        yield owner
        yield from getattr(owner, "__dict__", {}).values()
    function = getattr(factory, "__func__", factory)
    if not inspect.isfunction(function):
        yield from getattr(function, "__dict__", {}).values()
        return
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    try:
        used = inspect.getclosurevars(function)
    except ValueError:
        return  # A variable of the function around it has no value yet.
    yield from (*used.nonlocals.values(), *used.globals.values())

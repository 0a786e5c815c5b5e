"""Reads the stores of an application for others: routing, moments, freshness, pages.

It knows nothing of HTTP: `statestore serve` is one face of it. Keys come and go as bytes here, and
`encoding.py` says what they are in JSON. Every answer comes with the freshness of each stream task
that it was read from, of the very commit that was read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from statestore.errors import Misuse, Unavailable
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.served import Freshness
from statestore.operations.at_rest import (
    READABLE,
    StoresAtRest,
    existing_application,
    spec_of,
    tasks_text,
)
from statestore.operations.deployed import Deployed, DeployedStore
from statestore.operations.environment import Environment
from statestore.operations.homes import homes
from statestore.operations.pipelines import serdes_of
from statestore.serving.encoding import Encoding
from statestore.serving.followers import Followers, TaskState
from statestore.serving.pages import RowPage, RowPages
from statestore.serving.replicas import Replica, Stand
from statestore.serving.values import Range, RowInBytes, RowsFound, RowStream, StoreAbout
from statestore.stores import keyvalue, serdes
from statestore.stores.kinds import AnyReader, reader_over
from statestore.stores.reads import Entry, RowScan
from statestore.stores.sessions import SessionReader
from statestore.stores.specs import AtRestSpec
from statestore.stores.versioned.store import VersionedReader
from statestore.stores.windows import WindowReader
from statestore.tasks.progress import Sums, read_progress
from statestore.topology.graph import Topology

T = TypeVar("T")
_BORROW_TRIES = 100


@dataclass(frozen=True)
class _Asked:
    """What one question got, and what keeps its copies open."""

    result: Any
    span_names: tuple[str, ...]
    freshness: list[Freshness]
    close: Callable[[], None]


Lags = Callable[[TaskId], tuple[int | None, float | None]]


def no_lags(_task: TaskId) -> tuple[int | None, float | None]:
    """Know nothing of lags."""
    return None, None


class StateService:
    """The stores of one application, to be asked by any thread; use `with`, or start() and close().

    Misuse if there is no such application.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        pages_kept_s: float = 60,
        lags: Lags = no_lags,
        topology: Topology | None = None,
    ) -> None:
        """`lags`: the records and seconds by which a stream task is behind, if they are known.

        `topology`: has the serdes that only the pipeline knows.
        """
        existing_application(environment.layout)
        self._environment = environment
        self._followers = Followers(environment)
        self._pages = RowPages(environment.clock, kept_s=pages_kept_s)
        self._lags = lags
        self._topology = topology

    def start(self) -> None:
        """Begin to copy; `unready` says what is still missing."""
        self._followers.start()

    def close(self) -> None:
        """Let everything go."""
        self._pages.close()
        self._followers.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # What there is.

    def sums_of_runs(self) -> dict[str, Sums]:
        """Return what all runs have counted, by stream task, as their files say."""
        layout = self._environment.layout
        kept = {str(task): read_progress(layout.task_dir(task)).sums for task in layout.tasks()}
        return {task: sums.in_all for task, sums in kept.items() if sums.serving}

    @property
    def deployed(self) -> Deployed:
        """The topology deployed last."""
        return self._followers.deployed

    def unready(self) -> list[str]:
        """Return the stream tasks that have no copy yet, and why."""
        return [
            f"{task}: {state.problem or 'its copy is being made'}"
            for task, state in sorted(self._followers.states().items())
            if state.replica is None
        ]

    def tasks(self) -> list[Freshness]:
        """Return how new the copy of each stream task is."""
        found = []
        for task, state in sorted(self._followers.states().items()):
            replica = state.replica
            stand = Stand(None, None, {}, Position())
            if replica is not None and replica.borrow():
                try:
                    with replica.turn:
                        stands = [replica.stand(store) for store in replica.stores()]
                finally:
                    replica.give_back()
                for one in stands:
                    stand = Stand(
                        one.commit_number,
                        one.committed_ms,
                        stand.changelog | one.changelog,
                        stand.position.merge(one.position),
                    )
            found.append(self._freshness(task, state, stand))
        return found

    def stores(self) -> list[StoreAbout]:
        """Return all stores of the deployed topology, and whether they are served."""
        deployed = self.deployed
        found = []
        for name, known in sorted(deployed.stores.items()):
            why_not = _why_not_served(known)
            found.append(
                StoreAbout(
                    store=name,
                    kind=known.kind,
                    key_serde=known.key_serde,
                    value_serde=known.value_serde,
                    partitions=self._partitions(name),
                    served=why_not is None,
                    why_not=why_not,
                    inputs=self._inputs(name),
                    retention_ms=known.retention_ms,
                )
            )
        return found

    # Questions.

    def get(
        self,
        store: str,
        keys: Sequence[bytes],
        *,
        as_of_ms: int | None = None,
        partition: int | None = None,
    ) -> RowsFound:
        """Return one row or None per key, in order; those of one stream task are of one moment.

        A key that is not where its hash puts it is looked for in the other partitions, because a
        processor may keep it anywhere and other clients place records in another way.
        """
        places = self._places(store, keys, partition)
        found: dict[int, RowInBytes | None] = {}
        freshness: dict[str, Freshness] = {}
        span_names: tuple[str, ...] = ()

        def ask(asked_in: int, numbers: list[int]) -> None:
            nonlocal span_names
            wanted = [keys[number] for number in numbers]
            asked = self._ask(
                store,
                [self._task(store, asked_in)],
                lambda reader: _found(reader, wanted, as_of_ms),
            )
            asked.close()
            span_names = asked.span_names
            freshness.update({one.stream_task: one for one in asked.freshness})
            found.update(
                {n: row for n, row in zip(numbers, asked.result, strict=True) if row is not None}
            )

        for place, numbers in places.items():
            ask(place, numbers)
        missed = [number for number in range(len(keys)) if number not in found]
        if missed and partition is None:
            for place in range(self._partitions(store)):
                left = [n for n in missed if n not in found and n not in places.get(place, ())]
                if left:
                    ask(place, left)
        rows = [found.get(number) for number in range(len(keys))]
        return RowsFound(rows, span_names, _sorted(freshness))

    def scan(self, store: str, wanted: Range) -> RowStream:
        """Return all rows in a range, in the order of the store, of one moment per stream task."""
        lo, hi, beyond = wanted.bounds()

        def ask(reader: AnyReader) -> RowScan[Entry]:
            times = wanted.times
            if times is None:
                return reader.entries(lo, hi, as_of_ms=wanted.as_of_ms, reverse=wanted.reverse)
            return _with_versions(reader, store).versions(
                lo,
                hi,
                from_ms=times.first_ms,
                to_ms=times.last_ms,
                ascending=times.ascending,
                reverse=wanted.reverse,
            )

        asked = self._ask(store, self._tasks(store, wanted.partition), ask)
        rows = (RowInBytes(*entry) for entry in asked.result if entry.key != beyond)

        def close() -> None:
            asked.result.close()
            asked.close()

        return RowStream(rows, asked.span_names, asked.freshness, close)

    def range(self, store: str, wanted: Range, *, limit: int, page_token: str | None) -> RowsFound:
        """Return a page of a range. All pages are of the moment of the first one."""
        subject = f"{store} {msgspec.json.encode(wanted).decode()}"
        if page_token is not None:
            return _answer(self._pages.next(page_token, limit, subject=subject))
        stream = self.scan(store, wanted)
        about = stream.span_names, stream.freshness
        first = self._pages.first(
            stream.rows,
            limit,
            subject=subject,
            about=about,
            size_of=lambda row: len(row.key) + len(row.value),
            close=stream.close,
        )
        return _answer(first)

    def history(
        self,
        store: str,
        key: bytes,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        ascending: bool = False,
        partition: int | None = None,
        limit: int,
    ) -> RowsFound:
        """Return versions of a key in a store with history, the latest first."""

        def ask(reader: AnyReader) -> list[RowInBytes]:
            found = _with_versions(reader, store).history(
                key, from_time=from_ms, to_time=to_ms, descending=not ascending
            )
            with found:
                return [RowInBytes(key, *one) for one in _limited(found, store, limit)]

        return self._of_key(store, key, partition, ask)

    def windows(
        self,
        store: str,
        key: bytes,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        partition: int | None = None,
        limit: int,
    ) -> RowsFound:
        """Return windows that start in a span, or sessions that overlap it, of one key."""

        def ask(reader: AnyReader) -> list[RowInBytes]:
            if not isinstance(reader, WindowReader | SessionReader):
                raise Misuse(f"store {store!r} has no windows: ask for the row itself")
            with reader.fetch(key, from_time=from_ms, to_time=to_ms) as found:
                return [
                    RowInBytes(key, value, window.start_ms, window.end_ms)
                    for window, value in _limited(found, store, limit)
                ]

        return self._of_key(store, key, partition, ask)

    # Waiting for one's own write.

    def bound(self, store: str, wanted: Mapping[TopicPartition, int]) -> Position:
        """Return what is to be waited for; Misuse if the store is not made of such a topic."""
        inputs = self._inputs(store)
        for topic, partition in wanted:
            if topic not in inputs:
                raise Misuse(
                    f"min_position: store {store!r} is not made of topic {topic!r}: wait for "
                    f"{', '.join(inputs) or 'nothing'}"
                )
            if not 0 <= partition < self._partitions(store):
                raise Misuse(
                    f"min_position: store {store!r} has no partition {partition}: it has "
                    f"{self._partitions(store)}"
                )
        return Position.of(wanted)

    def behind(self, store: str, bound: Position) -> str | None:
        """Return what is not processed yet up to the bound; None: everything is."""
        for tp, last in bound.as_dict().items():
            task = self._task(store, tp.partition)
            asked = self._ask(store, [task], lambda _reader: None)
            asked.close()
            reached = asked.freshness[0].position.get(tp.topic, {}).get(tp.partition, -1)
            if reached < last:
                return f"stream task {task} has processed {tp} up to {reached}, asked for {last}"
        return None

    def sweep(self) -> None:
        """Close the scans of pages that nobody goes on with; call it now and then."""
        self._pages.sweep()

    def check_served(self, store: str) -> None:
        """Raise what forbids any question: UnknownStore, or Misuse for a store without files."""
        known = self.deployed.stores.get(store)
        if known is None:
            if not self._having(store):
                raise self._not_there(store, [])
        elif (why_not := _why_not_served(known)) is not None:
            raise Misuse(f"store {store!r} cannot be served: {why_not}")

    def encoding(self, store: str, *, raw: bool) -> Encoding:
        """Return how keys and values of a store are shown; an error if it is not served."""
        self.check_served(store)
        if raw or self._topology is None:
            return Encoding.of(self.deployed, store, raw=raw)
        found = serdes_of(self._topology, store, self._environment.settings.application_id)
        return Encoding(store, found.key, found.value)

    # How it is done.

    def _of_key(
        self,
        store: str,
        key: bytes,
        partition: int | None,
        ask: Callable[[AnyReader], list[RowInBytes]],
    ) -> RowsFound:
        """Return rows of one key, from where its hash puts it or else from another partition."""
        places = list(self._places(store, [key], partition))
        if partition is None:
            places += [place for place in range(self._partitions(store)) if place not in places]
        freshness: dict[str, Freshness] = {}
        span_names: tuple[str, ...] = ()
        for place in places:
            asked = self._ask(store, [self._task(store, place)], ask)
            asked.close()
            span_names = asked.span_names
            freshness.update({one.stream_task: one for one in asked.freshness})
            if asked.result:
                return RowsFound(asked.result, span_names, asked.freshness)
        return RowsFound([], span_names, _sorted(freshness))

    def _ask(self, store: str, tasks: Sequence[TaskId], ask: Callable[[AnyReader], Any]) -> _Asked:
        """Ask the copies of some stream tasks, each at one commit; close what is returned."""
        with ExitStack() as kept:
            replicas = [self._borrowed(store, task, kept) for task in tasks]
            with ExitStack() as turns:
                # All threads take the turns in the order of tasks, and keep them for a moment.
                for replica, _ in replicas:
                    turns.enter_context(replica.turn)
                sources = [replica.source(store) for replica, _ in replicas]
                reader = reader_over(self._spec(store), sources, f"store {store!r}", lambda: None)
                result = ask(reader)
                freshness = []
                for replica, state in replicas:
                    moved = not self._is_home(store, replica.task)
                    known = state._replace(stale=state.stale or moved)
                    freshness.append(self._freshness(replica.task, known, replica.stand(store)))
            return _Asked(result, reader.span_names, freshness, kept.pop_all().close)

    def _borrowed(self, store: str, task: TaskId, kept: ExitStack) -> tuple[Replica, TaskState]:
        for _ in range(_BORROW_TRIES):
            state = self._followers.state(task)
            if state is None or state.replica is None or not state.replica.knows(store):
                break  # Among others, because the store has just been moved.
            if state.replica.borrow():
                kept.callback(state.replica.give_back)
                return state.replica, state
        raise self._not_there(store, [task])

    def _spec(self, store: str) -> AtRestSpec:
        return spec_of(self.deployed, store, serdes.BYTES, serdes.BYTES)

    def _partitions(self, store: str) -> int:
        """Return how many partitions a store has: as deployed, or else as were seen on disk.

        Those that are copied are no measure: a row of another one would seem not to exist.
        """
        counted = self.deployed.partitions(store)
        if counted is not None:
            return counted
        return self._followers.width(store)

    def _inputs(self, store: str) -> list[str]:
        """Return the topics that the tasks of a store read."""
        known = self.deployed.stores.get(store)
        application_id = self._environment.settings.application_id
        return [
            topic
            for part in self.deployed.sub_topologies
            if known is not None and part.ordinal == known.sub_topology
            for topic in part.topics(application_id)
        ]

    def _having(self, store: str) -> dict[int, TaskId]:
        """Return the stream tasks whose copy has the store, by partition.

        While a store is moved to another sub-topology two copies may have it: the one that is not
        of its new place is of the time before.
        """
        having = [
            task
            for task, state in self._followers.states().items()
            if state.replica is not None and state.replica.knows(store)
        ]
        having.sort(key=lambda task: self._is_home(store, task))
        return {task.partition: task for task in having}

    def _is_home(self, store: str, task: TaskId) -> bool:
        """Return whether the deployed topology has the store in that stream task."""
        known = self.deployed.stores.get(store)
        return known is None or known.sub_topology == task.sub_topology

    def _tasks(self, store: str, partition: int | None) -> list[TaskId]:
        """Return the stream tasks to ask; an error says which have no copy, and why."""
        found = self._having(store)
        chosen = [task for p, task in sorted(found.items()) if partition in {None, p}]
        wanted = range(self._partitions(store))
        if partition is not None:
            wanted = wanted[partition:][:1]
        missing = [place for place in wanted if place not in found]
        if missing or not chosen:
            known = self.deployed.stores.get(store)
            tasks = [] if known is None else [TaskId(known.sub_topology, p) for p in missing]
            raise self._not_there(store, tasks, partition)
        return chosen

    def _task(self, store: str, partition: int) -> TaskId:
        return self._tasks(store, partition)[0]

    def _not_there(
        self, store: str, tasks: Sequence[TaskId], partition: int | None = None
    ) -> Exception:
        """Return why stream tasks of a store cannot be asked."""
        known = self.deployed.stores.get(store)
        kind = keyvalue.KIND if known is None else known.kind
        if kind not in READABLE:
            return Misuse(f"store {store!r} is of a class of its own: only that can read its files")
        # What lies on disk tells a store that does not exist from one that is not copied yet.
        looked = StoresAtRest(self._environment)
        try:
            found = looked.find(store, partition, kind=kind)
        finally:
            looked.close()
        waiting = list(tasks) or found
        states = [self._followers.state(task) for task in waiting]
        why = next((state.problem for state in states if state and state.problem), None)
        return Unavailable(
            f"store {store!r} of {tasks_text(waiting)} is not copied yet"
            f"{f' ({why})' if why else ''}: its owner may be restoring it; try again"
        )

    def _places(
        self, store: str, keys: Sequence[bytes], partition: int | None
    ) -> dict[int, list[int]]:
        """Return by partition the indexes of the keys that a hash puts there.

        None are put anywhere if a partitioner of the user's places the rows of the store.
        """
        if partition is not None:
            return {partition: list(range(len(keys)))}
        count = self._partitions(store)
        if not count:
            raise self._not_there(store, [])
        places: dict[int, list[int]] = {}
        found = homes(self._environment, self.deployed, store, keys, count)
        for number, place in enumerate(found):
            places.setdefault(place, []).append(number)
        return places

    def _freshness(self, task: TaskId, state: TaskState, stand: Stand) -> Freshness:
        lag_records, lag_seconds = self._lags(task)
        now_ms, committed_ms = self._environment.clock.now_ms(), stand.committed_ms
        return Freshness(
            stream_task=str(task),
            owner=str(state.owner),
            stale=state.stale,
            commit_number=stand.commit_number,
            committed_ms=committed_ms,
            age_ms=None if committed_ms is None else max(0, now_ms - committed_ms),
            position=_by_topic(stand.position.as_dict()),
            changelog=_by_topic(stand.changelog),
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            problem=state.problem,
        )


def _with_versions(reader: AnyReader, store: str) -> VersionedReader[bytes, bytes]:
    """Return the reader of a store with history; Misuse if it is another."""
    if not isinstance(reader, VersionedReader):
        raise Misuse(f"store {store!r} keeps no versions: ask for the row itself")
    return reader


def _why_not_served(known: DeployedStore) -> str | None:
    if known.kind not in READABLE:
        return "it is of a class of its own: only that can read its files"
    return None if known.persistent else "it is in memory: it has no files to serve"


def _found(
    reader: AnyReader, keys: Sequence[bytes], as_of_ms: int | None
) -> list[RowInBytes | None]:
    if as_of_ms is None and isinstance(reader, keyvalue.KeyValueReader):
        values = reader.get_many(keys)
        return [
            None if value is None else RowInBytes(key, value)
            for key, value in zip(keys, values, strict=True)
        ]
    entries = [reader.find(key, as_of_ms) for key in keys]
    return [None if entry is None else RowInBytes(*entry) for entry in entries]


def _limited(found: RowScan[T], store: str, limit: int) -> Iterator[T]:
    for number, one in enumerate(found):
        if number == limit:
            raise Misuse(
                f"store {store!r}: more than {limit} rows of one key: narrow the times, or raise "
                "limit"
            )
        yield one


def _answer(page: RowPage[RowInBytes]) -> RowsFound:
    span_names, freshness = page.about
    return RowsFound(list(page.rows), span_names, freshness, page.next_token)


def _sorted(freshness: Mapping[str, Freshness]) -> list[Freshness]:
    return [freshness[task] for task in sorted(freshness, key=TaskId.parse)]


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[partition] = offset
    return found

"""Reads the stores of an application for others: routing, moments, freshness, pages.

It knows nothing of HTTP: `statestore serve` is one face of it. Keys come and go as bytes here, and
`encoding.py` says what they are in JSON. Every answer comes with the freshness of each stream task
that it was read from, of the very commit that was read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import msgspec

from statestore.errors import Misuse, Unavailable
from statestore.model.ids import Position, TaskId, TopicPartition
from statestore.model.served import Freshness
from statestore.operations.deployed import Deployed
from statestore.operations.environment import Environment
from statestore.operations.looking.at_rest import (
    StoresAtRest,
    existing_application,
    tasks_text,
)
from statestore.operations.looking.likely_partitions import likely_partitions
from statestore.reading.decoding import Decoding
from statestore.reading.questions import Range
from statestore.reading.views import StoreView
from statestore.serving.encoding import IN_BYTES, WAYS_OUT, Encoding
from statestore.serving.followers import Followers, TaskState
from statestore.serving.paging import RowPage, RowPages
from statestore.serving.replicas import Replica, StorePosition
from statestore.serving.values import RowsFound, RowStream, StoreAbout
from statestore.stores.kinds.kind import AnyReader
from statestore.stores.kinds.opening import reader_over
from statestore.stores.reads import Entry, RowScan
from statestore.tasks.progress_file import Sums, read_progress
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
        self._views: tuple[Deployed | None, dict[str, StoreView]] = (None, {})
        self._encodings: dict[tuple[str, bool], tuple[StoreView, Encoding]] = {}

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
            reached = StorePosition(None, None, {}, Position())
            if replica is not None and replica.borrow():
                try:
                    with replica.turn:
                        positions = [replica.store_position(store) for store in replica.stores()]
                finally:
                    replica.give_back()
                for one in positions:
                    reached = StorePosition(
                        one.commit_number,
                        one.committed_ms,
                        reached.changelog | one.changelog,
                        reached.position.merge(one.position),
                    )
            found.append(self._freshness(task, state, reached))
        return found

    def stores(self) -> list[StoreAbout]:
        """Return all stores of the deployed topology, and whether they are served."""
        deployed = self.deployed
        found = []
        for name, known in sorted(deployed.stores.items()):
            view = self._view(name)
            found.append(
                StoreAbout(
                    store=name,
                    kind=known.kind,
                    key_serde=known.key_serde,
                    value_serde=known.value_serde,
                    partitions=self._partitions(view),
                    served=view.cannot_be_read is None,
                    why_not=view.cannot_be_read,
                    inputs=list(view.inputs),
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
        view = self._view(store)
        places, kind = self._places(view, keys, partition), view.kind
        found: dict[int, Entry | None] = {}
        freshness: dict[str, Freshness] = {}
        span_names: tuple[str, ...] = ()

        def ask(asked_in: int, numbers: list[int]) -> None:
            nonlocal span_names
            wanted = [keys[number] for number in numbers]
            asked = self._ask(
                view,
                [self._task(view, asked_in)],
                lambda reader: kind.find_many(reader, wanted, as_of_ms),
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
            for place in range(self._partitions(view)):
                left = [n for n in missed if n not in found and n not in places.get(place, ())]
                if left:
                    ask(place, left)
        rows = [found.get(number) for number in range(len(keys))]
        return RowsFound(rows, span_names, _sorted(freshness))

    def scan(self, store: str, wanted: Range) -> RowStream:
        """Return all rows in a range, in the order of the store, of one moment per stream task."""
        view = self._view(store)
        asked = self._ask(
            view,
            self._tasks(view, wanted.partition),
            lambda reader: wanted.rows(view.kind, reader),
        )

        def close() -> None:
            asked.result.close()
            asked.close()

        return RowStream(asked.result, asked.span_names, asked.freshness, close)

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
        view = self._view(store)

        def ask(reader: AnyReader) -> list[Entry]:
            with view.kind.versions(
                reader, key, key, from_ms=from_ms, to_ms=to_ms, ascending=ascending
            ) as found:
                return list(_limited(found, store, limit))

        return self._of_key(view, key, partition, ask)

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
        view = self._view(store)

        def ask(reader: AnyReader) -> list[Entry]:
            with view.kind.windows(reader, key, from_ms=from_ms, to_ms=to_ms) as found:
                return list(_limited(found, store, limit))

        return self._of_key(view, key, partition, ask)

    # Waiting for one's own write.

    def bound(self, store: str, wanted: Mapping[TopicPartition, int]) -> Position:
        """Return what is to be waited for; Misuse if the store is not made of such a topic."""
        view = self._view(store)
        partitions = self._partitions(view)
        for topic, partition in wanted:
            if topic not in view.inputs:
                raise Misuse(
                    f"min_position: store {store!r} is not made of topic {topic!r}: wait for "
                    f"{', '.join(view.inputs) or 'nothing'}"
                )
            if not 0 <= partition < partitions:
                raise Misuse(
                    f"min_position: store {store!r} has no partition {partition}: it has "
                    f"{partitions}"
                )
        return Position.of(wanted)

    def behind(self, store: str, bound: Position) -> str | None:
        """Return what is not processed yet up to the bound; None: everything is."""
        view = self._view(store)
        for tp, last in bound.as_dict().items():
            task = self._task(view, tp.partition)
            asked = self._ask(view, [task], lambda _reader: None)
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
        view = self._view(store)
        if view.known is None:
            if not self._having(view):
                raise self._not_there(view, [])
        elif view.cannot_be_read is not None:
            raise Misuse(f"store {store!r} cannot be served: {view.cannot_be_read}")

    def encoding(self, store: str, *, raw: bool) -> Encoding:
        """Return how keys and values of a store are shown; an error if it is not served."""
        self.check_served(store)
        kept = self._encodings.get((store, raw))
        view = self._view(store)
        if kept is None or kept[0] is not view:
            found = view.serdes(WAYS_OUT, raw=raw, topology=self._topology)
            kept = self._encodings[store, raw] = (
                view,
                Encoding(Decoding(store, found, IN_BYTES)),
            )
        return kept[1]

    # How it is done.

    def _of_key(
        self,
        view: StoreView,
        key: bytes,
        partition: int | None,
        ask: Callable[[AnyReader], list[Entry]],
    ) -> RowsFound:
        """Return rows of one key, from where its hash puts it or else from another partition."""
        places = list(self._places(view, [key], partition))
        if partition is None:
            places += [place for place in range(self._partitions(view)) if place not in places]
        freshness: dict[str, Freshness] = {}
        span_names: tuple[str, ...] = ()
        for place in places:
            asked = self._ask(view, [self._task(view, place)], ask)
            asked.close()
            span_names = asked.span_names
            freshness.update({one.stream_task: one for one in asked.freshness})
            if asked.result:
                return RowsFound(asked.result, span_names, asked.freshness)
        return RowsFound([], span_names, _sorted(freshness))

    def _view(self, store: str) -> StoreView:
        """Return what the topology deployed last says of a store, made once for each deployment."""
        now = self.deployed
        deployed, views = self._views
        if deployed is not now:
            views = {}
            self._views = now, views
        view = views.get(store)
        if view is None:
            application_id = self._environment.settings.application_id
            view = StoreView.of(now, application_id, store)
            if view.known is not None:  # Clients may ask for any name, again and again.
                views[store] = view
        return view

    def _ask(
        self, view: StoreView, tasks: Sequence[TaskId], ask: Callable[[AnyReader], Any]
    ) -> _Asked:
        """Ask the copies of some stream tasks, each at one commit; close what is returned."""
        with ExitStack() as kept:
            replicas = [self._borrowed(view, task, kept) for task in tasks]
            if self._view(view.name).partitions != view.partitions:
                raise Unavailable(
                    f"store {view.name!r} has another number of partitions now: ask again"
                )
            with ExitStack() as turns:
                # All threads take the turns in the order of tasks, and keep them for a moment.
                for replica, _ in replicas:
                    turns.enter_context(replica.turn)
                sources = [replica.source(view.name) for replica, _ in replicas]
                reader = reader_over(view.in_bytes, sources, f"store {view.name!r}", lambda: None)
                result = ask(reader)
                freshness = []
                for replica, state in replicas:
                    moved = not _is_deployed_in(view, replica.task)
                    known = state._replace(stale=state.stale or moved)
                    freshness.append(
                        self._freshness(replica.task, known, replica.store_position(view.name))
                    )
            return _Asked(result, reader.span_names, freshness, kept.pop_all().close)

    def _borrowed(
        self, view: StoreView, task: TaskId, kept: ExitStack
    ) -> tuple[Replica, TaskState]:
        for _ in range(_BORROW_TRIES):
            state = self._followers.state(task)
            if state is None or state.replica is None or not state.replica.knows(view.name):
                break  # Among others, because the store has just been moved.
            if state.replica.borrow():
                kept.callback(state.replica.give_back)
                return state.replica, state
        raise self._not_there(view, [task])

    def _partitions(self, view: StoreView) -> int:
        """Return how many partitions a store has: as deployed, or else as were seen on disk.

        Those that are copied are no measure: a row of another one would seem not to exist.
        """
        counted = view.partitions
        return self._followers.width(view.name) if counted is None else counted

    def _having(self, view: StoreView) -> dict[int, TaskId]:
        """Return the stream tasks whose copy has the store, by partition.

        While a store is moved to another sub-topology two copies may have it: the one that is not
        of its new place is of the time before.
        """
        having = [
            task
            for task, state in self._followers.states().items()
            if state.replica is not None and state.replica.knows(view.name)
        ]
        having.sort(key=lambda task: _is_deployed_in(view, task))
        return {task.partition: task for task in having}

    def _tasks(self, view: StoreView, partition: int | None) -> list[TaskId]:
        """Return the stream tasks to ask; an error says which have no copy, and why."""
        found = self._having(view)
        chosen = [task for p, task in sorted(found.items()) if partition in {None, p}]
        wanted = range(self._partitions(view))
        if partition is not None:
            wanted = wanted[partition:][:1]
        missing = [place for place in wanted if place not in found]
        if missing or not chosen:
            of = view.sub_topology
            tasks = [] if of is None else [TaskId(of, place) for place in missing]
            raise self._not_there(view, tasks, partition)
        return chosen

    def _task(self, view: StoreView, partition: int) -> TaskId:
        return self._tasks(view, partition)[0]

    def _not_there(
        self, view: StoreView, tasks: Sequence[TaskId], partition: int | None = None
    ) -> Exception:
        """Return why stream tasks of a store cannot be asked."""
        if not view.kind.is_readable:
            return Misuse(f"store {view.name!r} cannot be served: {view.cannot_be_read}")
        # What lies on disk tells a store that does not exist from one that is not copied yet.
        with closing(StoresAtRest(self._environment)) as looked:
            found = looked.find(view.name, partition, kind=view.kind.name)
        waiting = list(tasks) or found
        states = [self._followers.state(task) for task in waiting]
        why = next((state.problem for state in states if state and state.problem), None)
        return Unavailable(
            f"store {view.name!r} of {tasks_text(waiting)} is not copied yet"
            f"{f' ({why})' if why else ''}: its owner may be restoring it; try again"
        )

    def _places(
        self, view: StoreView, keys: Sequence[bytes], partition: int | None
    ) -> dict[int, list[int]]:
        """Return by partition the indexes of the keys that a hash puts there.

        None are put anywhere if a partitioner of the user's places the rows of the store.
        """
        if partition is not None:
            return {partition: list(range(len(keys)))}
        count = self._partitions(view)
        if not count:
            raise self._not_there(view, [])
        places: dict[int, list[int]] = {}
        found = likely_partitions(self._environment, self.deployed, view.name, keys, count)
        for number, place in enumerate(found):
            places.setdefault(place, []).append(number)
        return places

    def _freshness(self, task: TaskId, state: TaskState, reached: StorePosition) -> Freshness:
        lag_records, lag_seconds = self._lags(task)
        now_ms, committed_ms = self._environment.clock.now_ms(), reached.committed_ms
        return Freshness(
            stream_task=str(task),
            owner=str(state.owner),
            stale=state.stale,
            commit_number=reached.commit_number,
            committed_ms=committed_ms,
            age_ms=None if committed_ms is None else max(0, now_ms - committed_ms),
            position=_by_topic(reached.position.as_dict()),
            changelog=_by_topic(reached.changelog),
            lag_records=lag_records,
            lag_seconds=lag_seconds,
            problem=state.problem,
        )


def _is_deployed_in(view: StoreView, task: TaskId) -> bool:
    """Return whether the deployed topology has the store in that stream task."""
    return view.sub_topology in {None, task.sub_topology}


def _limited(found: RowScan[T], store: str, limit: int) -> Iterator[T]:
    for number, one in enumerate(found):
        if number == limit:
            raise Misuse(
                f"store {store!r}: more than {limit} rows of one key: narrow the times, or raise "
                "limit"
            )
        yield one


def _answer(page: RowPage[Entry]) -> RowsFound:
    span_names, freshness = page.about
    return RowsFound(list(page.rows), span_names, freshness, page.next_token)


def _sorted(freshness: Mapping[str, Freshness]) -> list[Freshness]:
    return [freshness[task] for task in sorted(freshness, key=TaskId.parse)]


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[partition] = offset
    return found

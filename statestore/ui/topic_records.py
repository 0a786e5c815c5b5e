"""A look into a topic of an application: its latest records, or those from an offset on.

It reads committed records by assigned partitions, so it joins no group and commits nothing. How
many records and bytes it reads, how long that takes, and how many such looks go on at once is
limited. Only topics of the application can be looked into. What cannot be shown is a problem in
words, never an error.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from statestore.errors import Misuse, StateStoreError, Unavailable
from statestore.model.ids import TopicPartition
from statestore.model.records import Header, Record, Serde
from statestore.model.texts import whole_number
from statestore.operations.clone_record import read_record, renamed, with_own_dead_letters
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.environment import Environment
from statestore.operations.pipelines import load_pipeline
from statestore.ports import Bounds, Clock, MonitoringClient
from statestore.topology.graph import Topology
from statestore.topology.nodes import SinkNode, SourceNode
from statestore.topology.patterns import matches
from statestore.ui.shown import decoded, readable, shortened

COUNTS: Final = (10, 25, 100)
"""How many records people may ask for at once."""
_PARTITIONS_MAX: Final = 100
_BYTES_MAX: Final = 16 << 20
_REQUEST_MS: Final = 5_000
_PATIENCE_S: Final = 10.0
_AT_ONCE: Final = 4
_ROUNDS: Final = 5
_ERRORS: Final = "__streams.errors."
_looks = threading.BoundedSemaphore(_AT_ONCE)


class Role(StrEnum):
    """What a topic is to an application."""

    INPUT = "input"
    OUTPUT = "output"
    LETTERS = "dead letters"
    TABLE = "global table"
    INTERNAL = "between sub-topologies"


@dataclass(frozen=True)
class TopicQuestion:
    """What the form asks; empty fields ask for the latest records of all partitions."""

    topic: str = ""
    partition: str = ""
    offset: str = ""
    count: str = ""
    raw: bool = False

    def limit(self) -> int:
        """Return how many records to show."""
        number = whole_number(self.count)
        asked = COUNTS[1] if number is None else number
        return min((each for each in COUNTS if each >= asked), default=COUNTS[-1])


class Letter(NamedTuple):
    """What the headers of a dead letter say: the error, and the record that it came from.

    `origin`: topic, partition and offset, if that record is known. `place`: where else it failed.
    """

    error: str
    message: str
    origin: tuple[str, str, str] | None
    place: str
    trace: str


class SeenRecord(NamedTuple):
    """A record as text."""

    partition: int
    offset: int
    time_ms: int
    key: str
    value: str
    headers: list[tuple[str, str]]
    letter: Letter | None = None


@dataclass(frozen=True)
class SeenTopic:
    """The answer: records, newest first unless they begin at an offset; `problem`: why none.

    `topics`: all that can be looked into, by role. `next_offset`: where the next ones begin.
    """

    topics: Mapping[str, Role] = field(default_factory=dict)
    records: Sequence[SeenRecord] = ()
    partitions: int | None = None
    told: str = ""
    next_offset: int | None = None
    problem: str = ""
    notes: Sequence[str] = ()


def topics_of(environment: Environment, deployed: Deployed) -> dict[str, Role]:
    """Return the topics of an application as they are called on the broker, by role."""
    settings, found = environment.settings, dict[str, Role]()
    record = read_record(environment.layout)
    if record is not None:
        settings = with_own_dead_letters(settings, record.topics)

    def full(topic: str, internal: Sequence[str] | None) -> tuple[str, Role | None]:
        if topic in (internal or ()):
            return f"{settings.application_id}-{topic}", Role.INTERNAL
        return topic, None

    for part in deployed.sub_topologies:
        for topics, role in ((part.source_topics, Role.INPUT), (part.sink_topics, Role.OUTPUT)):
            for topic in topics:
                name, internal = full(topic, part.internal)
                found.setdefault(name, internal or role)
    between = [it for part in deployed.sub_topologies for it in part.internal or ()]
    for topic in between:
        found.pop(topic, None)  # One part writes it and another one has it as an input.
        found[f"{settings.application_id}-{topic}"] = Role.INTERNAL
    for store in deployed.global_stores.values():
        if store.topic is not None:
            found.setdefault(store.topic, Role.TABLE)
    if settings.dead_letter_topic and found:
        found[settings.dead_letter_topic] = Role.LETTERS
    order = list(Role)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[1]), item[0])))


def look_into(
    environment: Environment, question: TopicQuestion, pipeline: str | None = None
) -> SeenTopic:
    """Look into the topic that the question names; `pipeline` may be imported for its serdes."""
    topics: dict[str, Role] = {}
    try:
        topics = topics_of(environment, read_deployed(environment.layout))
        if not question.topic:
            return SeenTopic(topics)
        return _Look(environment, question, topics, pipeline).answer()
    except (StateStoreError, OSError) as error:
        return SeenTopic(topics, problem=str(error))


@dataclass(frozen=True)
class _Look:
    environment: Environment
    question: TopicQuestion
    topics: Mapping[str, Role]
    pipeline: str | None
    notes: list[str] = field(default_factory=list)

    def answer(self) -> SeenTopic:
        settings, topic = self.environment.settings, self.question.topic
        if topic not in self.topics:
            raise Misuse(
                f"{topic} is not a topic of {settings.application_id}: choose one of the list"
            )
        if not settings.bootstrap_servers:
            raise Misuse(
                "the page does not know the brokers: give the application bootstrap_servers in "
                "statestore.toml, or pass --bootstrap-servers"
            )
        if not _looks.acquire(timeout=_PATIENCE_S):
            raise Unavailable("other looks into topics take long: try again soon")
        try:
            quick = replace(
                settings, request_timeout_ms=min(_REQUEST_MS, settings.request_timeout_ms)
            )
            asked = self.environment.with_settings(quick)
            return self._read(asked.monitoring_client)
        finally:
            _looks.release()

    def _read(self, client: MonitoringClient) -> SeenTopic:
        topic, limit = self.question.topic, self.question.limit()
        count = client.partitions([topic]).get(topic)
        if count is None:
            return SeenTopic(self.topics, problem=f"topic {topic} does not exist on these brokers")
        tps = [TopicPartition(topic, partition) for partition in self._partitions(count)]
        bounds = client.bounds(tps)
        following = None
        if self.question.offset:
            found = self._from_offset(client, bounds, limit)
            if len(found) == limit:
                following = (found[-1].offset or 0) + 1
        else:
            found = self._latest(client, bounds, limit)
        return SeenTopic(
            self.topics,
            list(self._shown(found)),
            count,
            self._told(bounds, found),
            following,
            notes=self.notes,
        )

    def _partitions(self, count: int) -> Sequence[int]:
        text = self.question.partition
        if text:
            partition = whole_number(text)
            if partition is None or partition >= count:
                raise Misuse(f"partition {text!r:.99}: the topic has 0 to {count - 1}")
            return [partition]
        if self.question.offset and count > 1:
            raise Misuse("an offset is one of a partition: name the partition, too")
        if count > _PARTITIONS_MAX:
            self.notes.append(
                f"The topic has {count:,} partitions: this shows the first {_PARTITIONS_MAX}."
            )
        return range(min(count, _PARTITIONS_MAX))

    def _from_offset(
        self, client: MonitoringClient, bounds: Mapping[TopicPartition, Bounds], limit: int
    ) -> list[Record[bytes | None, bytes | None]]:
        text = self.question.offset
        offset = whole_number(text)
        if offset is None or len(text) > 18:
            raise Misuse(f"offset {text!r:.99}: write a whole number, or leave it empty")
        ((tp, bound),) = bounds.items()
        span = Bounds(min(max(offset, bound.start), bound.end), bound.end)
        found = client.records({tp: span}, each_max=limit, bytes_max=_BYTES_MAX)
        if found.unread:
            self.notes.append("The brokers, or the size of the records, allowed no more of them.")
        return found.records

    def _latest(
        self, client: MonitoringClient, bounds: Mapping[TopicPartition, Bounds], limit: int
    ) -> list[Record[bytes | None, bytes | None]]:
        """Return the records with the latest times, from the end of each partition.

        Offsets may belong to no record, so it goes back further until there are enough.
        """
        kept: dict[TopicPartition, list[Record[bytes | None, bytes | None]]] = {}
        clock: Clock = self.environment.clock
        until_s, width = clock.monotonic() + _PATIENCE_S, limit
        spans = {tp: Bounds(max(at.start, at.end - width), at.end) for tp, at in bounds.items()}
        for _ in range(_ROUNDS):
            found = client.records(spans, each_max=width, bytes_max=_BYTES_MAX)
            if found.unread:
                self.notes.append("The records are large or slow to read: some may be missing.")
            for tp in spans:
                own = [it for it in found.records if (it.topic, it.partition) == tp]
                kept[tp] = [*own, *kept.get(tp, ())]
            width *= 4
            spans = {
                tp: Bounds(max(bounds[tp].start, span.start - width), span.start)
                for tp, span in spans.items()
                if len(kept[tp]) < limit and span.start > bounds[tp].start
            }
            if not spans or found.unread or clock.monotonic() > until_s:
                break
        newest = sorted(
            (record for records in kept.values() for record in records[-limit:]),
            key=lambda it: (it.timestamp_ms, it.offset or 0, it.partition or 0),
            reverse=True,
        )
        return newest[:limit]

    def _told(
        self,
        bounds: Mapping[TopicPartition, Bounds],
        found: Sequence[Record[bytes | None, bytes | None]],
    ) -> str:
        offsets = sum(at.end - at.start for at in bounds.values())
        if not found:
            return "There is no record." if not offsets else "There is no record in that place."
        what = "record" if len(found) == 1 else "records"
        if self.question.offset:
            return f"{len(found):,} {what}, in the order of their offsets."
        return f"The latest {len(found):,} {what} of at most {offsets:,}, the newest first."

    def _shown(self, found: Sequence[Record[bytes | None, bytes | None]]) -> Iterator[SeenRecord]:
        is_letter = self.topics[self.question.topic] is Role.LETTERS
        topology = None if self.question.raw else self._topology()
        for record in found:
            letter = _letter_of(record.headers) if is_letter else None
            topic = record.topic or ""
            if letter is not None and letter.origin is not None:
                topic = letter.origin[0]  # Its bytes are those of that topic.
            key_serde, value_serde = self._serdes(topology, topic)
            yield SeenRecord(
                record.partition or 0,
                record.offset or 0,
                record.timestamp_ms,
                _text(record.key, key_serde),
                _text(record.value, value_serde),
                [(shortened(name), _text(value, None)) for name, value in record.headers],
                letter,
            )

    def _topology(self) -> Topology | None:
        if self.pipeline is None:
            return None
        try:
            loaded = load_pipeline(self.pipeline)
        except StateStoreError as error:
            self.notes.append(f"Not decoded by the pipeline: {error}")
            return None
        record = read_record(self.environment.layout)
        return loaded if record is None else renamed(loaded, record.topics)

    def _serdes(
        self, topology: Topology | None, topic: str
    ) -> tuple[Serde[Any] | None, Serde[Any] | None]:
        """Return what the pipeline reads or writes a topic with; None: not known."""
        if topology is None:
            return None, None
        application_id = self.environment.settings.application_id
        for node in topology.nodes:
            match node:
                case SourceNode(topics=topics, pattern=pattern):
                    is_it = any(each.full(application_id) == topic for each in topics)
                    is_it = is_it or (pattern is not None and matches(pattern, topic))
                case SinkNode(topic=written):
                    is_it = written.full(application_id) == topic
                case _:
                    continue
            if is_it:
                return node.key_serde.at(topic, "key"), node.value_serde.at(topic, "value")
        for shared in topology.global_sources:
            if shared.spec.topic == topic:
                key, value = shared.spec.key_serde, shared.spec.value_serde
                return key.at(topic, "key"), value.at(topic, "value")
        return None, None


def _text(data: bytes | None, serde: Serde[Any] | None) -> str:
    if data is None:
        return "none"
    return readable(data) if serde is None else decoded(data, serde)


def _letter_of(headers: Sequence[Header]) -> Letter | None:
    """What a dead letter says of itself; None: another program wrote the record."""
    told = {
        name.removeprefix(_ERRORS): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(_ERRORS)
    }
    if not told:
        return None
    origin = None
    with suppress(KeyError):
        origin = (told["topic"], told["partition"], told["offset"])
    places = {"store": "store", "node": "node", "punctuation": "timer by", "task": "stream task"}
    place = [f"{words} {told[name]}" for name, words in places.items() if name in told]
    return Letter(
        shortened(told.get("exception", "")),
        shortened(told.get("message", "")),
        origin,
        shortened(", ".join(place)),
        told.get("stacktrace", ""),
    )

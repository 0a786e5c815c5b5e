"""One schedule of faults, drawn from one seed, over a whole application that counts by key.

The application is an ordinary one on a real broker, but all that its clients say goes through the
fault proxy, and one plan befalls every kind of request they make. In the end what was late has
arrived, the rest is processed in peace, and the log checker judges what is left behind.
"""

import logging
import shutil
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

import statestore as ss
from statestore import serdes
from statestore.errors import Action as Advice
from statestore.errors import StateStoreError
from statestore.kafka.testing import TopicPlan, admin, create_topics
from statestore.model.ids import TopicPartition
from statestore.model.modes import KafkaClient
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Moment, Of
from tests.kafka.log_checker import (
    Entry,
    Evidence,
    Finding,
    Origin,
    Result,
    Topic,
    View,
    check,
)
from tests.kafka.log_evidence import (
    Reader,
    entries_of,
    group_partitions,
    marks_of,
    settled_logs,
    stored_rows,
)
from tests.kafka.wire import Api, Request
from tests.one_epoch import switch_off_epochs

_STORE = "counts"
_COUNTS = ss.persistent_key_value_store(_STORE, key_serde=serdes.STRING, value_serde=serdes.INT64)
_AT_ONCE = 10
_PARTITIONS = 2
_KEYS = 5
_RECORDS = 40
_LIVES = 3
_LIVES_IN_PEACE = 4
_LIFE_S = 90.0
_LIFE_MS = 120_000  # of a run without an end, which is stopped before
_GLANCE_S = 0.05
_TOLD = 20  # findings in words
_CLEANING = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
_SETTINGS: Mapping[str, object] = {
    "processing.exception.handler": "continue",
    "commit.interval.ms": 1,
    "statestore.batch.max.records": 4,
    "transaction.timeout.ms": 15_000,
    "default.api.timeout.ms": 8_000,
    # How long a client waits for an answer that was swallowed.
    "producer.socket.timeout.ms": 1_000,
    "consumer.socket.timeout.ms": 1_000,
    "admin.socket.timeout.ms": 1_000,
}
# How many of a kind a life asks, about.
_TRANSACTIONAL: Mapping[Api, int] = {
    Api.END_TXN: 12,
    Api.TXN_OFFSET_COMMIT: 12,
    Api.ADD_PARTITIONS_TO_TXN: 14,
    Api.ADD_OFFSETS_TO_TXN: 12,
    Api.INIT_PRODUCER_ID: 24,
    Api.PRODUCE: 30,
}
_OTHERS: Mapping[Api, int] = {
    Api.FIND_COORDINATOR: 16,
    Api.METADATA: 30,
    Api.LIST_OFFSETS: 4,
    Api.OFFSET_FETCH: 8,
    Api.FETCH: 12,
    Api.API_VERSIONS: 20,
}
_ACTIONS: Mapping[Action, int] = {
    Action.LATE: 8,
    Action.REPEAT: 2,
    Action.LATE_IN_SILENCE: 1,
    Action.CUT: 2,
    Action.SWALLOW: 1,
    Action.DELAY: 2,
}


class FaultPlan:
    """Which request of which kind, counted over all clients of an application, meets what."""

    def __init__(self, faults: Mapping[tuple[int, int], Fault]) -> None:
        self._faults = faults
        self._seen: Counter[int] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        nth = self._seen[request.api]
        self._seen[request.api] += 1
        return self._faults.get((request.api, nth))


def drawn_plan(rng: Random) -> FaultPlan:
    """Some faults, most of them in the transaction protocol."""
    faults: dict[tuple[int, int], Fault] = {}
    for _ in range(rng.choice((1, 2, 3, 5, 8))):
        kinds = _TRANSACTIONAL if rng.random() < 0.8 else _OTHERS
        api = rng.choices(list(kinds), [3 if kind is Api.END_TXN else 1 for kind in kinds])[0]
        faults[api, rng.randrange(kinds[api])] = _drawn_fault(rng)
    return FaultPlan(faults)


def _drawn_fault(rng: Random) -> Fault:
    action = rng.choices(list(_ACTIONS), list(_ACTIONS.values()))[0]
    if action in {Action.CUT, Action.SWALLOW, Action.DELAY}:
        return Fault(action, rng.choice(list(Of)), delay_s=rng.choice((0.02, 0.1, 0.5)))
    # What a late request meets: the beginning, the middle or the end of a transaction, or nothing.
    meets = rng.choice([Api.PRODUCE, Api.PRODUCE, *_TRANSACTIONAL])
    until = Moment(meets, rng.randint(1, 6), same_id=rng.random() < 0.7)
    return Fault(action, until=until if rng.random() < 0.9 else None)


@dataclass(frozen=True)
class Story:
    """What one seed led to."""

    seed: int
    findings: Sequence[Finding]
    trace: Sequence[str]

    def __str__(self) -> str:
        found = "\n".join(map(str, self.findings[:_TOLD])) or "nothing wrong"
        if len(self.findings) > _TOLD:
            found += f"\nand {len(self.findings) - _TOLD} more"
        return f"seed {self.seed}:\n{found}\n\n" + "\n".join(self.trace)


class Order(msgspec.Struct):
    """What a process of its own is to run."""

    seeds: list[int]
    clients: tuple[str, ...] = (KafkaClient.LIBRDKAFKA,)
    """The values of `kafka.client` of which each life has one."""
    in_turn: bool | None = None
    """Whether tasks are served in turn, so that their commits overlap; None: the seed decides."""
    one_epoch: bool = False
    guarantee: str = "exactly_once"
    to_the_first_finding: bool = False


def stories_of(order: Order) -> list[Story]:
    """The stories of these seeds, lived through in a process of their own, which must not end."""
    stories, death = tried(order)
    assert not death, death
    return stories


def tried(order: Order) -> tuple[list[Story], str]:
    """The stories that were told, and how the process died that told them; empty if it did not."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kafka.fault_schedules", msgspec.json.encode(order)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    # A process that dies may do so within a line.
    lines = [line for line in done.stdout.splitlines(keepends=True) if line.endswith(b"\n")]
    told = [msgspec.json.decode(line, type=Story) for line in lines]
    said = done.stderr.decode(errors="replace")[-4000:]
    death = f"exit code {done.returncode}: {said}" if done.returncode else ""
    return sorted(told, key=lambda story: story.seed), death


def main() -> None:
    """Run what was ordered, on a broker behind a proxy of its own; tell each story as a line."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    logging.disable(logging.CRITICAL)  # warnings by the thousand say nothing
    with ExitStack() as stack:
        if order.one_epoch:
            switch_off_epochs(stack.enter_context(pytest.MonkeyPatch.context()))
        proxy = stack.enter_context(FaultProxy())
        kafka = stack.enter_context(LocalKafka(proxy_port=proxy.port, config=_CLEANING))
        proxy.lead_to(kafka.behind_proxy)
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="late-")))
        run_schedules(lambda: Schedules(kafka, proxy, scratch, order), order, _tell)


def _tell(story: Story) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(story) + b"\n")
    sys.stdout.flush()


def run_schedules(
    make: Callable[[], "Schedules"], order: Order, tell: Callable[[Story], None]
) -> None:
    """Run several schedules at a time, as they wait much."""
    waiting = deque(order.seeds)
    found: list[Finding] = []
    turn = threading.Lock()

    def work() -> None:
        with closing(make()) as schedules:
            while not (order.to_the_first_finding and found):
                try:
                    seed = waiting.popleft()
                except IndexError:
                    return
                story = schedules.run(seed)
                found.extend(story.findings)
                with turn:
                    tell(story)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(work) for _ in range(_AT_ONCE)]:
            done.result()


class Schedules:
    """Schedules on one broker behind one proxy, one after another; each thread has its own."""

    def __init__(self, kafka: LocalKafka, proxy: FaultProxy, scratch: Path, order: Order) -> None:
        self._clients = order.clients
        self._in_turn = order.in_turn
        self._guarantee = order.guarantee
        self._kafka = kafka
        self._proxy = proxy
        self._scratch = scratch
        address = kafka.bootstrap_servers
        self._live, self._committed = (Reader(address, "read_committed") for _ in range(2))
        self._uncommitted = Reader(address, "read_uncommitted")
        self._groups_read: dict[TopicPartition, int] = dict.fromkeys(group_partitions(), 0)

    def close(self) -> None:
        for reader in (self._live, self._committed, self._uncommitted):
            reader.close()

    def run(self, seed: int) -> Story:
        """Live through one schedule and judge what it left."""
        rng, name = Random(seed), f"late-{seed}"
        poisonous, in_turn, restart = (rng.random() < 0.3 for _ in range(3))
        app = _Application(
            self._kafka,
            self._proxy,
            name,
            self._scratch / name,
            (Random(f"{seed} {life}").choice(self._clients) for life in count()),
            poisonous=poisonous,
            in_turn=in_turn if self._in_turn is None else self._in_turn,
            guarantee=self._guarantee,
        )
        app.create_topics()
        self._live.start(dict.fromkeys(app.outputs, 0))
        try:
            findings = app.live(drawn_plan(rng), restart=restart)
            if not findings:
                findings = self._judged(app)
        finally:
            self._proxy.follow(name, None)
            shutil.rmtree(app.state_dir, ignore_errors=True)
        return Story(seed, findings, [*self._proxy.trace(name), *app.errors])

    def _judged(self, app: "_Application") -> list[Finding]:
        address, groups = self._kafka.bootstrap_servers, group_partitions()
        try:
            logs = settled_logs(address, [*app.outputs, *app.changelogs])
            settled = settled_logs(address, groups, self._groups_read)
        except AssertionError as error:
            return [Finding("transaction left open", str(error))]
        ends = {tp: log.stable_end for tp, log in logs.items()}
        group_ends = {tp: log.stable_end for tp, log in settled.items()}
        self._committed.start({**dict.fromkeys(ends, 0), **self._groups_read})
        self._uncommitted.start(dict.fromkeys(ends, 0))
        seen = self._committed.read_to({**ends, **group_ends})
        self._groups_read = group_ends
        live = self._live.read_to({tp: ends[tp] for tp in app.outputs})
        evidence = Evidence(
            topics=app.topics(),
            ends={TopicPartition(app.topic("in"), p): end for p, end in app.ends.items()},
            committed=[_view(live, app.outputs), _view(seen, ends)],
            uncommitted=[_view(self._uncommitted.read_to(ends), ends)],
            raw={tp: log.batches for tp, log in logs.items()},
            commits=marks_of(seen, settled, app.name),
            stores=stored_rows(_COUNTS, app.state_dir, app.name),
        )
        return check(evidence)


class _Application:
    """Counts by key and passes every record on; two partitions, so two stream tasks."""

    def __init__(
        self,
        kafka: LocalKafka,
        proxy: FaultProxy,
        name: str,
        state_dir: Path,
        clients: Iterator[str],
        *,
        poisonous: bool,
        in_turn: bool,
        guarantee: str,
    ) -> None:
        """`clients`: the one of each life.

        `poisonous`: some records fail and are passed over, which aborts what came with them.
        `in_turn`: the tasks are served in turn until all is committed, not each to its end.
        """
        self.name = name
        self.state_dir = state_dir
        self.errors: list[str] = []
        self.inputs: dict[int, list[Entry]] = {partition: [] for partition in range(_PARTITIONS)}
        self.ends = dict.fromkeys(range(_PARTITIONS), 0)
        self._kafka = kafka
        self._proxy = proxy
        self._clients = clients
        self._poisonous = poisonous
        self._in_turn = in_turn
        self._guarantee = guarantee

    def topic(self, name: str) -> str:
        return f"{self.name}-{name}"

    @property
    def outputs(self) -> list[TopicPartition]:
        return [tp for name in ("passed", "counts") for tp in self._partitions(name)]

    @property
    def changelogs(self) -> list[TopicPartition]:
        return self._partitions("counts-changelog")

    def topics(self) -> dict[str, Topic]:
        """What must be in each."""
        passed, counts, numbers = [], [], Counter[str]()
        for partition, entries in self.inputs.items():
            for entry in entries:
                causes = frozenset({Origin(self.topic("in"), partition, entry.offset)})
                key = str(entry.key)
                numbers[key] += 1
                passed.append(Result(key, entry.value, causes))
                counts.append(Result(key, numbers[key], causes))
        return {
            self.topic("passed"): Topic(passed),
            self.topic("counts"): Topic(counts),
            self.topic("counts-changelog"): Topic(counts, is_changelog=True),
        }

    def create_topics(self) -> None:
        plans = [TopicPlan(self.topic(name), _PARTITIONS) for name in ("in", "passed", "counts")]
        client = admin(self._kafka.bootstrap_servers)
        create_topics(client, plans, timeout_ms=int(DEADLINE_S * 1000))

    def live(self, plan: FaultPlan, *, restart: bool) -> list[Finding]:
        """Process the input under the plan, then more of it, if so wanted, in peace."""
        self._feed(_RECORDS)
        self._proxy.follow(self.name, plan)
        found = self._process(_LIVES)
        self._proxy.release(self.name)
        if restart and not found:
            self._proxy.follow(self.name, None)
            self._feed(_RECORDS)
            found = self._process(0)
        return found

    def _process(self, lives: int) -> list[Finding]:
        """Run to the end of the input; a failure that the product says to retry is retried.

        After `lives` under the plan the application has some in peace. One is enough on a machine
        that has time for it.
        """
        last = lives + _LIVES_IN_PEACE
        for life in range(1, last + 1):
            if life > lives:
                self._proxy.release(self.name)
                self._proxy.follow(self.name, None)
            try:
                stopped = self._run()
            except StateStoreError as error:
                self.errors.append(f"life {life}: {type(error).__name__}: {error}")
                if error.action is not Advice.RETRY or life == last:
                    return [Finding("run failed", self.errors[-1])]
            else:
                if stopped:
                    return [Finding("run wedged", f"life {life} was not over in {_LIFE_S:g} s")]
                return []
        raise AssertionError("the last life returns")

    def _run(self) -> bool:
        """One run to the end of the input; whether it had to be stopped before that."""
        with _deadline() as (stop, late):
            if not self._in_turn:
                ss.run(self._topology(), self._settings(), stop=stop)
                return late.is_set()
            with ThreadPoolExecutor(1) as aside:
                watching = aside.submit(self._stop_at_end, stop)
                try:
                    ss.run(self._topology(), self._settings(), run_for=_LIFE_MS, stop=stop)
                finally:
                    stop.set()
                    watching.result()
            return late.is_set()

    def _stop_at_end(self, stop: threading.Event) -> None:
        """Watch what the group commits."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka.bootstrap_servers,
                "group.id": self.name,
                "isolation.level": "read_uncommitted",
                "log_level": 0,
            }
        )
        tps = [KafkaPartition(*tp) for tp in self._partitions("in")]
        with closing(consumer):
            while not stop.wait(_GLANCE_S):
                with suppress(KafkaException):
                    found = consumer.committed(tps, DEADLINE_S)
                    if all(tp.offset == self.ends[tp.partition] for tp in found):
                        stop.set()

    def _partitions(self, name: str) -> list[TopicPartition]:
        return [TopicPartition(self.topic(name), partition) for partition in range(_PARTITIONS)]

    def _topology(self) -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
        stream = b.stream(self.topic("in"))
        stream.to(self.topic("passed"))
        digestible = stream.map_values(_digested) if self._poisonous else stream
        counted = digestible.group_by_key().count(ss.Materialized(_STORE, caching=False))
        counted.to_stream().to(self.topic("counts"))
        return b.build()

    def _settings(self) -> dict[str, object]:
        return {
            "application.id": self.name,
            "bootstrap.servers": self._proxy.address,
            "state.dir": str(self.state_dir),
            "kafka.client": next(self._clients),
            "processing.guarantee": self._guarantee,
            **_SETTINGS,
        }

    def _feed(self, count: int) -> None:
        """Input with numbers of its own; the broker says where each record is."""

        producer = Producer(
            {"bootstrap.servers": self._kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0}
        )

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            partition = message.partition()
            assert partition is not None
            (entry,) = entries_of([message])
            self.ends[partition] = entry.offset + 1
            if not (self._poisonous and _is_poison(int(message.value() or 0))):
                self.inputs[partition].append(entry)

        first = sum(self.ends.values())
        for number in range(first, first + count):
            key, value = f"k{number % _KEYS}", str(number)
            producer.produce(self.topic("in"), value, key, on_delivery=acknowledged)
        assert producer.flush(DEADLINE_S) == 0


def _is_poison(number: int) -> bool:
    return number % 9 == 7


def _digested(number: int) -> int:
    if _is_poison(number):
        raise ValueError(number)
    return number


def _view(logs: Mapping[TopicPartition, Sequence[Message]], tps: Iterable[TopicPartition]) -> View:
    return {tp: entries_of(logs[tp]) for tp in tps}


@contextmanager
def _deadline() -> Iterator[tuple[threading.Event, threading.Event]]:
    """An event that stops a life, and one that says that it took too long; both are set then."""
    stop, late = threading.Event(), threading.Event()

    def expire() -> None:
        late.set()
        stop.set()

    timer = threading.Timer(_LIFE_S, expire)
    timer.start()
    try:
        yield stop, late
    finally:
        timer.cancel()


if __name__ == "__main__":
    main()

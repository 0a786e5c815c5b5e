r"""Tasks on a real broker behind a proxy that delays, drops and repeats what their clients say.

STATESTORE_FAULT_SCHEDULES=1000 pytest tests/kafka/test_late_messages.py -s \
    -o faulthandler_timeout=7200                                           more of the schedules
STATESTORE_FAULT_SEED=77 pytest tests/kafka/test_late_messages.py -k one_seed -s    one of them
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import pytest

import statestore as ss
from statestore.errors import Unavailable
from statestore.kafka.epochs import Epochs
from statestore.kafka.groups import GroupClient
from statestore.kafka.outbox import TransactionalOutbox
from statestore.model.ids import TopicPartition
from statestore.model.modes import KafkaClient
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Moment, Of
from tests.kafka.fault_schedules import FaultPlan, Order, Story, stories_of
from tests.kafka.log_evidence import settled_logs
from tests.kafka.run_pipelines import PREFIX_VARIABLE, counts_by_key
from tests.kafka.run_rig import App
from tests.kafka.wire import Api, Request
from tests.one_epoch import switch_off_epochs
from tests.tiers import commit_seed

pytestmark = pytest.mark.kafka

SCHEDULES = int(os.environ.get("STATESTORE_FAULT_SCHEDULES", "50"))
NEW_SCHEDULES = 1
IS_LONG = "STATESTORE_FAULT_SCHEDULES" in os.environ
SEED = os.environ.get("STATESTORE_FAULT_SEED")
BOTH: tuple[str, ...] = tuple(KafkaClient)


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


def told(stories: Sequence[Story]) -> str:
    """The stories of the first seeds that found something, and how to repeat each."""
    red = [story for story in stories if story.findings]
    texts = [f"{len(red)} of {len(stories)} seeds are red: {[story.seed for story in red]}"]
    texts += [
        f"{story}\n\nrepeat it:  STATESTORE_FAULT_SEED={story.seed} REQUIRE_KAFKA=1 "
        f"{sys.executable} -m pytest {__name__.replace('.', '/')}.py -k one_seed -s"
        for story in red[:3]
    ]
    return "\n\n".join(texts)


@pytest.mark.parametrize("clients", [BOTH[:1], BOTH[1:], BOTH], ids="+".join)
def test_no_late_message_of_those_of_the_commit_loses_or_doubles_anything(
    clients: tuple[str, ...],
) -> None:
    seeds = [commit_seed() + nth for nth in range(NEW_SCHEDULES)]
    stories = stories_of(Order(seeds, clients))
    assert len(stories) == NEW_SCHEDULES
    if any(story.findings for story in stories):
        pytest.fail(told(stories), pytrace=False)


def test_no_late_message_loses_or_doubles_anything_where_commits_overlap() -> None:
    seeds = [commit_seed() + nth for nth in range(NEW_SCHEDULES)]
    stories = stories_of(Order(seeds, BOTH[1:], in_turn=True))
    assert len(stories) == NEW_SCHEDULES
    if any(story.findings for story in stories):
        pytest.fail(told(stories), pytrace=False)


@pytest.mark.thorough
@pytest.mark.timeout(120 + 4 * SCHEDULES)
@pytest.mark.parametrize("clients", [BOTH[:1], BOTH[1:], BOTH], ids="+".join)
def test_no_late_message_loses_or_doubles_anything(clients: tuple[str, ...]) -> None:
    stories = stories_of(Order(list(range(SCHEDULES)), clients))
    assert len(stories) == SCHEDULES
    if any(story.findings for story in stories):
        pytest.fail(told(stories), pytrace=False)


@pytest.mark.thorough
@pytest.mark.timeout(120 + 4 * SCHEDULES)
def test_with_one_epoch_for_all_transactions_late_messages_lose_and_double() -> None:
    seeds = list(range(SCHEDULES))
    stories = stories_of(Order(seeds, one_epoch=True, to_the_first_finding=not IS_LONG))
    if IS_LONG:
        print(told(stories))  # noqa: T201 - asked for
    assert any(story.findings for story in stories)


@pytest.mark.thorough
def test_one_seed_that_tears_transactions_of_one_epoch() -> None:
    (story,) = stories_of(Order([int(SEED or 11)]))
    if SEED:
        print(story)  # noqa: T201 - asked for
    assert story.findings == []


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("of", Of, ids=lambda of: of.value)
def test_a_lost_answer_about_the_ends_of_logs_is_asked_for_again(
    app: App, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, of: Of, nth: int
) -> None:
    """The client makes no error of it, but offsets that no log has: nothing was processed."""
    monkeypatch.setenv(PREFIX_VARIABLE, app.name)
    proxy.follow(app.name, FaultPlan({(Api.LIST_OFFSETS, nth): Fault(Action.CUT, of)}))
    settings = app.run_settings(**{"bootstrap.servers": proxy.address})
    summary = ss.run(counts_by_key(), settings)
    assert len(proxy.trace(app.name)) == 1
    assert summary.records_in == 20


# The proxy itself.


class Producing:
    """An outbox with one epoch behind the proxy, its requests counted from the first transaction.

    So that it is known which request comes next, and that a late one is taken.
    """

    def __init__(self, app: App, proxy: FaultProxy) -> None:
        where = {"bootstrap.servers": proxy.address, "producer.socket.timeout.ms": 500}
        self._settings = Settings.from_mapping(app.run_settings(**where))
        self._app = app
        name = f"{app.name}-x"
        self.outbox = TransactionalOutbox(
            self._settings, transactional_ids=[name], group_id=app.name
        )
        self.outbox.open()

    def transact(self, *keys: str) -> None:
        self.outbox.begin()
        for key in keys:
            self.outbox.send(Records(f"{self._app.name}-out", [key.encode()], [b"0"], [1]))
            self.outbox.flush()
        self.outbox.send_offsets({TopicPartition(f"{self._app.name}-in", 0): 1}, "")
        self.outbox.commit()


@pytest.fixture
def producing(app: App, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producing]:
    switch_off_epochs(monkeypatch)
    made = Producing(app, proxy)
    yield made
    made.outbox.close()


@pytest.mark.parametrize(
    "action",
    [
        Action.LATE,
        pytest.param(Action.LATE_IN_SILENCE, marks=pytest.mark.thorough),
        pytest.param(Action.REPEAT, marks=pytest.mark.thorough),
    ],
    ids=["LATE", "LATE_IN_SILENCE", "REPEAT"],
)
def test_a_late_request_reaches_the_broker_when_its_moment_comes(
    app: App, proxy: FaultProxy, producing: Producing, action: Action
) -> None:
    """Its connection is long gone, or has carried other requests since."""
    moment = Moment(Api.ADD_PARTITIONS_TO_TXN)
    proxy.follow(app.name, FaultPlan({(Api.END_TXN, 0): Fault(action, until=moment)}))
    producing.transact("a")
    name = f"{app.name}-x"
    (held,) = proxy.trace(app.name)
    assert held.startswith(f"END_TXN (commit) of {name}: its request is {action}, until request 1")
    producing.transact("b")
    _, arrived = proxy.trace(app.name)
    assert f"arrives before ADD_PARTITIONS_TO_TXN of {name}: answered with code" in arrived


def test_a_late_request_without_a_moment_arrives_at_release(
    app: App, proxy: FaultProxy, producing: Producing
) -> None:
    proxy.follow(app.name, FaultPlan({(Api.TXN_OFFSET_COMMIT, 0): Fault(Action.LATE)}))
    producing.transact("a")
    assert len(proxy.trace(app.name)) == 1
    proxy.release(app.name)
    assert proxy.trace(app.name)[1].endswith("arrives at the end: answered")


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_late_offsets_and_their_late_end_do_not_take_the_next_commit_back(
    app: App, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """The id that carried them is not open again: with its epoch the broker takes all three."""
    if not waits:
        monkeypatch.setattr(Epochs, "wait_opened", lambda _epochs: None)
    where = {"bootstrap.servers": proxy.address, "default.api.timeout.ms": 3_000}
    settings = Settings.from_mapping(app.run_settings(**where))
    first, tp = f"{app.name}-x-2", TopicPartition(f"{app.name}-in", 0)
    repeated = {Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN}

    def plan(request: Request) -> Fault | None:
        if request.transactional_id != first:
            return None
        if request.api == Api.INIT_PRODUCER_ID:
            return Fault(Action.CUT)
        return Fault(Action.REPEAT) if request.api in repeated else None

    direct = GroupClient(Settings.from_mapping(app.run_settings()), app.name)
    ids = [f"{app.name}-x", first]
    outbox = TransactionalOutbox(settings, transactional_ids=ids, group_id=app.name)
    with closing(direct) as group, closing(outbox):
        outbox.open()
        proxy.follow(app.name, plan)
        committed = 0
        with suppress(Unavailable):
            for number in (1, 2):
                outbox.begin(number)
                outbox.send(Records(f"{app.name}-out", [b"k"], [b"%d" % number], [1]))
                outbox.flush()
                outbox.send_offsets({tp: number}, "")
                outbox.commit()
                committed = number
        assert committed == (1 if waits else 2)
        (before,) = group.committed([tp])  # no transaction holds it any more
        assert before.offset == committed
        proxy.release(app.name)
        late = [told for told in proxy.trace(app.name) if "arrives at the end" in told]
        assert len(late) == len(repeated)
        assert all(told.endswith((": answered", " code 0")) for told in late), late
        (after,) = group.committed([tp])
        proxy.follow(app.name, None)
    assert after.offset == 1


FIRST = [Fault(Action.CUT), Fault(Action.SWALLOW, Of.ANSWER)]
OTHERS = [
    Fault(Action.SWALLOW),
    Fault(Action.DELAY, delay_s=0.1),
    Fault(Action.CUT, Of.ANSWER),
    Fault(Action.DELAY, Of.ANSWER, delay_s=0.1),
]


@pytest.mark.parametrize(
    "fault",
    [*FIRST, *(pytest.param(fault, marks=pytest.mark.thorough) for fault in OTHERS)],
    ids=[f"{fault.of.value} {fault.action.name}" for fault in (*FIRST, *OTHERS)],
)
def test_a_transaction_goes_through_whatever_befalls_the_first_try_to_commit_it(
    app: App, proxy: FaultProxy, producing: Producing, fault: Fault
) -> None:
    proxy.follow(app.name, FaultPlan({(Api.END_TXN, 0): fault}))
    producing.transact("a", "b")
    (told,) = proxy.trace(app.name)
    assert told == f"END_TXN (commit) of {app.name}-x: its {fault.of.value} is {fault.action}"
    # The broker answers a commit before its records can be read.
    settled_logs(
        app.kafka.bootstrap_servers, [TopicPartition(f"{app.name}-out", p) for p in (0, 1)]
    )
    assert [row.key for row in app.read()] == ["a", "b"]

"""Commits whose answer never came, on a real broker behind a proxy that cuts connections (E4).

Whether the log has committed or not: no store is wiped, no record lost, none counted twice.

Shows I4.
"""

import time
from collections.abc import Iterator

import pytest

from statestore.errors import Unavailable
from statestore.kafka.outbox import TransactionalOutbox
from statestore.model.ids import TopicPartition
from statestore.ports import Records
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Of
from tests.kafka.run_rig import App, counted, end_of, running, updates_in_order
from tests.kafka.wire import Api, Request

pytestmark = pytest.mark.kafka

RECORDS = 600
SMALL = ("--set=commit.interval.ms=1", "--set=statestore.batch.max.records=40")
# What the log has done and nobody was told is the harder of the two.
ANSWER_FIRST = [Of.ANSWER, pytest.param(Of.REQUEST, marks=pytest.mark.thorough)]
IMPATIENT = "--set=default.api.timeout.ms=2000"


class CutCommits:
    """A plan: cut the connection at a commit of a stream task, after `skip` more.

    Of the request: the commit did not happen. Of the answer: it did, and nobody was told. Once;
    with `until_reopened` whenever it is tried again, until its id is initialised anew.
    """

    def __init__(self, of: Of, task: str, *, skip: int = 2, until_reopened: bool = False) -> None:
        self.cuts = 0
        self._fault = Fault(Action.CUT, of)
        self._task = task
        self._skip = skip
        self._until_reopened = until_reopened
        self._victim: str | None = None
        self._over = False

    def __call__(self, request: Request) -> Fault | None:
        name = request.transactional_id
        if self._over or name is None or not name.startswith(self._task):
            return None
        if request.api == Api.INIT_PRODUCER_ID:
            self._over = name == self._victim
        if not request.commits or self._victim not in {None, name}:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._victim = name
        self.cuts += 1
        self._over = not self._until_reopened
        return self._fault


@pytest.fixture(scope="module")
def kafka(proxy: FaultProxy) -> Iterator[LocalKafka]:
    with LocalKafka(proxy_port=proxy.port) as broker:
        proxy.lead_to(broker.behind_proxy)
        yield broker


def through(proxy: FaultProxy) -> str:
    return f"--bootstrap-servers={proxy.address}"


def assert_exact(app: App) -> None:
    """Output and store agree with the oracle, and no store was put aside."""
    numbers = range(RECORDS)
    assert updates_in_order(app.read()) == counted(numbers) == app.stored()
    assert not (app.state_dir / app.name / "quarantine").exists()


@pytest.fixture
def loaded(app: App) -> App:
    app.produce(range(20, RECORDS))
    return app


@pytest.mark.parametrize("of", Of, ids=lambda of: of.value)
def test_a_connection_cut_at_a_commit_costs_nothing(loaded: App, proxy: FaultProxy, of: Of) -> None:
    plan = CutCommits(of, f"{loaded.name}-1_0")
    proxy.follow(loaded.name, plan)
    loaded.drained(*SMALL, through(proxy))
    assert plan.cuts == 1
    assert_exact(loaded)


@pytest.mark.parametrize("of", ANSWER_FIRST, ids=["answer", "request"])
def test_a_commit_that_stays_unanswered_is_settled_by_asking_the_log(
    loaded: App, proxy: FaultProxy, of: Of
) -> None:
    plan = CutCommits(of, f"{loaded.name}-1_0", until_reopened=True)
    proxy.follow(loaded.name, plan)
    summary = loaded.drained(*SMALL, IMPATIENT, through(proxy))
    assert plan.cuts > 1
    assert summary["records_in"] == 2 * RECORDS, "what was committed was not processed again"
    assert_exact(loaded)


@pytest.mark.parametrize("of", ANSWER_FIRST, ids=["answer", "request"])
def test_a_run_killed_while_its_commit_is_unanswered_is_settled_by_the_next(
    loaded: App, proxy: FaultProxy, of: Of
) -> None:
    plan = CutCommits(of, f"{loaded.name}-1_0", until_reopened=True)
    proxy.follow(loaded.name, plan)
    process = loaded.start(*SMALL, through(proxy))
    running(loaded, process, lambda: plan.cuts > 0)
    process.kill()
    end_of(process, time.monotonic())
    loaded.drained(*SMALL)
    assert_exact(loaded)


@pytest.mark.parametrize(
    "lost",
    [
        (Api.TXN_OFFSET_COMMIT,),
        pytest.param((Api.FIND_COORDINATOR, Api.TXN_OFFSET_COMMIT), marks=pytest.mark.thorough),
    ],
    ids=["no answer", "no coordinator"],
)
def test_offsets_nobody_takes_are_given_up_in_time_and_the_next_try_goes_through(
    app: App, proxy: FaultProxy, lost: tuple[Api, ...]
) -> None:
    """The client alone would wait for them, until the time limit of this test."""
    where = {
        "bootstrap.servers": proxy.address,
        "default.api.timeout.ms": 10_000,
        "producer.socket.timeout.ms": 300_000,
        "transaction.timeout.ms": 400_000,
    }
    settings = Settings.from_mapping(app.run_settings(**where))
    outbox = TransactionalOutbox(
        settings, transactional_ids=[f"{app.name}-x", f"{app.name}-x-2"], group_id=app.name
    )
    offsets = {TopicPartition(f"{app.name}-in", 0): 1}
    outbox.open()
    outbox.begin()
    outbox.send(Records(f"{app.name}-out", [b"lost"], [b"0"], [1]))
    proxy.follow(app.name, lambda it: Fault(Action.SWALLOW) if it.api in lost else None)
    try:
        with pytest.raises(Unavailable, match="could not send input offsets"):
            outbox.send_offsets(offsets, "")
        outbox.abort()
    finally:
        proxy.follow(app.name, None)
    outbox.open()
    outbox.begin()
    outbox.send(Records(f"{app.name}-out", [b"kept"], [b"1"], [1]))
    outbox.send_offsets(offsets, "")
    outbox.commit()
    outbox.close()
    assert [row.key for row in app.read()] == ["kept"]
    assert app.committed() == {0: 1}

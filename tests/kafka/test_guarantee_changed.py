"""An application that goes on under the other guarantee right after a death (SEMANTICS E4a).

Shows I2.
"""

from dataclasses import replace

import pytest

from statestore.kafka.outbox import TransactionalOutbox
from statestore.ports import Records
from statestore.settings import Settings
from statestore.tasks.plan import transactional_ids
from tests.kafka.run_rig import App

pytestmark = pytest.mark.kafka

# Nobody waits until the broker ends it by itself.
PATIENT = {"transaction.timeout.ms": 600_000}
AT_LEAST_ONCE = {"processing.guarantee": "at_least_once"}


def leave_open(app: App, task: str, index: int) -> TransactionalOutbox:
    """What a task leaves that dies when the broker has its changelog records, but no offsets."""
    settings = Settings.from_mapping(app.run_settings(**PATIENT))
    one = transactional_ids(app.name, task)[index]
    outbox = TransactionalOutbox(settings, transactional_ids=[one], group_id=app.name)
    outbox.open()
    outbox.begin()
    log, partition = f"{app.name}-counts-changelog", int(task[-1])
    outbox.send(Records(log, [b"lost"], [bytes(8)], [1], partition=partition))
    outbox.flush()
    return outbox


@pytest.mark.parametrize("index", [0, 1])
def test_what_a_transaction_left_open_is_ended_before_the_first_run_without_any(
    app: App, index: int
) -> None:
    app = replace(app, pipeline="counts_by_key")
    app.drained()
    left = [leave_open(app, f"0_{partition}", index) for partition in range(2)]
    plain = replace(app, settings={**app.settings, **AT_LEAST_ONCE})
    plain.produce(range(20, 1000))
    for _ in range(2):
        assert plain.drained()["caught_up"]
        plain.produce(range(1000, 1010))
    assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(1010)}
    assert not (app.state_dir / app.name / "quarantine").exists()
    for outbox in left:
        outbox.close()

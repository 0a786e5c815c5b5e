"""Whether an application has input to process, asked of its brokers afresh each time.

Nothing is remembered between two questions and no consumer group is joined: the answer follows
from the offsets that the application committed and from what its inputs hold now. A question that
failed is asked again, so no input is ever overlooked because an earlier answer was lost.
"""

from collections.abc import Sequence
from typing import NamedTuple

from statestore.errors import Misuse, Unavailable
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.operations.deployed import Deployed, read_deployed
from statestore.operations.start.matching import OwnTopics, matched_now
from statestore.ports import InputFacts, MonitoringClient
from statestore.settings import Settings


class WaitingInput(NamedTuple):
    """What an application has not processed yet.

    `records`: at most so many, as transaction markers and aborted records count; 0 if no committed
    record waits. `oldest_ms`: the smallest time among the next unread records of the partitions;
    None if none waits. `is_first_run`: nothing was deployed yet, so the first run is what waits.
    """

    records: int
    oldest_ms: int | None
    is_first_run: bool = False


class Threshold(NamedTuple):
    """How much input must wait before a run is worth its start: either limit is enough.

    `records`: more than so many; `age_ms`: the oldest is older than that, None for no such limit.
    """

    records: int = 0
    age_ms: int | None = None

    def check(self) -> "Threshold":
        """Return it; Misuse if a limit is negative."""
        if self.records < 0 or (self.age_ms is not None and self.age_ms < 0):
            raise Misuse(f"a threshold of {self}: records and age are 0 or more")
        return self

    def is_reached(self, waiting: WaitingInput, now_ms: int) -> bool:
        """Whether a run has enough to do."""
        if waiting.is_first_run:
            return True
        if waiting.oldest_ms is None:
            return False
        is_old = self.age_ms is not None and now_ms - waiting.oldest_ms > self.age_ms
        return is_old or waiting.records > self.records


def waiting_input(
    layout: StateLayout, monitoring: MonitoringClient, settings: Settings
) -> WaitingInput:
    """Ask for the input of the topology that was deployed last, its repartition topics included.

    Unavailable if the brokers do not answer for every partition in time; HostFailure if
    `topology.json` cannot be read. A new topic that a pattern matches counts. One that is
    gone holds nothing: a run would say so.
    """
    shape = read_deployed(layout)
    if not shape.sub_topologies:
        return WaitingInput(0, None, is_first_run=True)
    shape = matched_now(shape, monitoring, OwnTopics.of(layout, settings))
    tps = _inputs(shape, layout.application_id, monitoring)
    facts = monitoring.inputs(tps)
    late = [str(tp) for tp in tps if tp not in facts]
    if late:
        raise Unavailable(f"{', '.join(late)}: not read in time: ask again")
    unread = [fact for fact in facts.values() if fact.next_ms is not None]
    oldest = [fact.next_ms for fact in unread if fact.next_ms is not None]
    return WaitingInput(sum(map(_records, unread)), min(oldest, default=None))


def _inputs(
    shape: Deployed, application_id: str, monitoring: MonitoringClient
) -> Sequence[TopicPartition]:
    topics = {topic for part in shape.sub_topologies for topic in part.topics(application_id)}
    counts = monitoring.partitions(sorted(topics))
    return [TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)]


def _records(fact: InputFacts) -> int:
    committed = 0 if fact.committed is None else fact.committed.offset
    return fact.bounds.end - max(fact.bounds.start, committed)

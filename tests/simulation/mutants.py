"""The library with a fault planted in its commit code: what the simulation is there to find."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.ports import Changelog, Cluster, Outbox
from statestore.tasks import commit as commits
from statestore.tasks import committer as committers
from statestore.tasks.commit import Settle, TaskCommit
from statestore.tasks.committer import Committer
from statestore.tasks.owned import OpenStore, OwnedStore
from statestore.tasks.restore import Restored, Restorer
from statestore.tasks.steps import Pause, Steps
from statestore.tasks.stores import TaskStores
from statestore.tasks.task import StreamTask
from tests.simulation.schedule import Simulation
from tests.simulation.stage import APPLICATION

Mutant = Callable[[pytest.MonkeyPatch, Simulation], None]
_commit_task = commits.commit_task
_read_committed = Committer.read_committed


def offsets_before_the_log(patch: pytest.MonkeyPatch, simulation: Simulation) -> None:
    """The input offsets are committed on their own, before the log commits."""
    plain = simulation.broker.plain_outbox(APPLICATION)

    def mutated(
        commit: TaskCommit,
        stores: Sequence[OwnedStore],
        outbox: Outbox,
        guarantee: ProcessingGuarantee,
        settle: Settle,
    ) -> Steps[None]:
        plain.send_offsets(commit.offsets, commit.stamp.text())
        yield from _commit_task(commit, stores, outbox, guarantee, settle)

    patch.setattr(committers, "commit_task", mutated)


def offsets_after_the_log(patch: pytest.MonkeyPatch, simulation: Simulation) -> None:
    """The input offsets are no part of the transaction: they follow it."""

    def mutated(
        commit: TaskCommit,
        stores: Sequence[OwnedStore],
        outbox: Outbox,
        _guarantee: ProcessingGuarantee,
        settle: Settle,
    ) -> Steps[None]:
        yield from _commit_task(commit, stores, outbox, ProcessingGuarantee.AT_LEAST_ONCE, settle)

    patch.setattr(committers, "commit_task", mutated)
    plain = simulation.broker.plain_outbox(APPLICATION)

    def send_offsets(_outbox: object, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        plain.send_offsets(offsets, metadata)

    patch.setattr("tests.simulation.wires.SimulatedOutbox.send_offsets", send_offsets)


def stores_before_the_log(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """The stores commit first, the log after them."""

    def mutated(
        commit: TaskCommit,
        stores: Sequence[OwnedStore],
        outbox: Outbox,
        _guarantee: ProcessingGuarantee,
        settle: Settle,
    ) -> Steps[None]:
        for opened in stores:
            commits._log_changes(opened, outbox, commit.stamp)
        yield Pause.ASKED
        outbox.send_offsets(commit.offsets, commit.stamp.text())
        ends = outbox.ends()
        for opened in stores:
            opened.commit(ends.get(opened.log.tp), commit.position())
        commits._commit_log(outbox, commit, settle)

    patch.setattr(committers, "commit_task", mutated)


def unanswered_is_taken_for_lost(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """A commit without an answer is simply done again, by the same records."""

    def mutated(committer: Committer, _commit: TaskCommit) -> None:
        committer.fence()

    def read_at_start_only(committer: Committer) -> None:
        if not committer.offsets:
            _read_committed(committer)

    patch.setattr(Committer, "_settle", mutated)
    patch.setattr(Committer, "read_committed", read_at_start_only)


def unanswered_is_taken_for_done(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """A commit without an answer is thought to have happened."""

    def mutated(committer: Committer, _commit: TaskCommit) -> dict[TopicPartition, int]:
        committer.fence()
        logs = [opened.log.tp for opened in committer._stores.opened.values()]
        return {tp: at.end for tp, at in committer._edges.changelog.bounds(logs).items()}

    patch.setattr(Committer, "_settle", mutated)


def settling_always_says_yes(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """Whatever the log is asked about an unanswered commit, the answer is that it happened."""

    def mutated(
        _commit: TaskCommit,
        stores: Sequence[OwnedStore],
        _cluster: Cluster,
        changelog: Changelog,
    ) -> Mapping[TopicPartition, int]:
        logs = [opened.log.tp for opened in stores if opened.log.exists]
        return {tp: bound.end for tp, bound in changelog.bounds(logs).items()}

    patch.setattr(committers, "settled", mutated)


def going_back_without_a_restore(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """After a failure the stores are not brought up to what the log committed."""
    patch.setattr(StreamTask, "_restore", _only_at_start(StreamTask._restore))


def going_back_with_pending_writes(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """A failure does not drop what is pending."""
    patch.setattr(TaskStores, "rollback", lambda _stores: False)


def restore_forgets(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """A task starts with its stores as they are on disk."""
    patch.setattr(Restorer, "restore", lambda *_arguments, **_by_name: Restored(0, 0.0))


def _only_at_start(step: Callable[[StreamTask], None]) -> Callable[[StreamTask], None]:
    def mutated(task: StreamTask) -> None:
        if task._attempt is None:
            step(task)

    return mutated


def stores_without_offsets_of_their_log(patch: pytest.MonkeyPatch, _simulation: Simulation) -> None:
    """The store's batch does not carry where its changelog stands."""
    whole = OpenStore.commit
    patch.setattr(OpenStore, "commit", lambda store, _end, position: whole(store, None, position))


MUTANTS: tuple[Mutant, ...] = (
    offsets_before_the_log,
    offsets_after_the_log,
    stores_before_the_log,
    unanswered_is_taken_for_lost,
    unanswered_is_taken_for_done,
    settling_always_says_yes,
    going_back_without_a_restore,
    going_back_with_pending_writes,
    restore_forgets,
    stores_without_offsets_of_their_log,
)

"""The Kafka log of a store: what a commit adds to it, and what a restore reads from it.

There are two kinds (docs/adr/0015). An `OwnChangelog` is written by the commits of the task alone,
and a restore reads it up to its last stable offset. A `SourceTopic` is the input topic that a table
is made of: a commit adds nothing, because the topic already has the records, and a restore stops
at the input offset that the group has committed, because the task processes what follows again.

Keeps I16.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from statestore.errors import TopologyMismatch
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, Outbox, Records
from statestore.stores.logged import has_versions, sendable, true_times
from statestore.stores.staged_table import Changes
from statestore.topology.failures import NodeFailed, decoded
from statestore.topology.nodes import SourceNode

LogOffsets = Mapping[TopicPartition, int]


class LoggedRows(NamedTuple):
    """Replayed records that are rows of a store, and the number of those that are not."""

    batch: Batch
    foreign: int


class StoreLog(Protocol):
    """What commits, restores and checks of a store need of its log."""

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def exists(self) -> bool:
        """Whether the partition exists."""

    def append(self, changes: Callable[[], Changes], outbox: Outbox) -> None:
        """Add the pending changes of the store to the open transaction."""

    def offset_after(self, ends: LogOffsets, inputs: LogOffsets, /) -> int | None:
        """Return the offset for the store's batch; None: the commit added nothing.

        `ends`: where the changelogs written by the commit end. `inputs`: the offsets it committed.
        """

    def end(self, bounds: Bounds, inputs: LogOffsets, /) -> int:
        """Return where a restore stops if the group has committed `inputs`."""

    def is_complete(self, start: int, end: int) -> bool:
        """Return whether a store at `start` has every record before `end`."""

    def rows(self, batch: Batch) -> LoggedRows:
        """Return the rows among replayed records, with their true times.

        Of a store with history they are the records as they are.
        """

    def check(self, batch: Batch) -> None:
        """NodeFailed if a batch of the source holds records that a replay would leave out."""


@dataclass(frozen=True)
class OwnChangelog:
    """The changelog of one store, to which nothing else writes.

    `has_versions`: the store has history, and its changes are the records themselves.
    """

    tp: TopicPartition
    exactly_once: bool
    exists: bool = True
    has_versions: bool = False

    def append(self, changes: Callable[[], Changes], outbox: Outbox) -> None:
        keys, values, times, headers = changes()
        if keys:
            if not self.has_versions:
                times, headers = sendable(times)
            topic, partition = self.tp
            records = Records(topic, keys, values, times, partition=partition, headers=headers)
            outbox.send(records, tracked=True)

    def offset_after(self, ends: LogOffsets, _inputs: LogOffsets, /) -> int | None:
        return ends.get(self.tp)

    def end(self, bounds: Bounds, _inputs: LogOffsets, /) -> int:
        return bounds.end

    def is_complete(self, start: int, end: int) -> bool:
        # The marker that ended the last transaction may follow the last record.
        return start + (1 if self.exactly_once else 0) >= end

    def rows(self, batch: Batch) -> LoggedRows:
        if not self.has_versions:
            if has_versions(batch):
                raise TopologyMismatch(
                    f"changelog {self.tp.topic} has the versions of a store with history, and the "
                    "store of the pipeline has none: give it history_retention again, give the "
                    "plain store another name, or process everything anew with `statestore reset`"
                )
            times = true_times(batch)
            if times is not batch.timestamps:
                batch = replace(batch, timestamps=times)
        gone = batch.keys.nulls()
        return LoggedRows(batch.without(gone), len(gone))

    def check(self, batch: Batch) -> None:
        """Accept every batch, because the table logs everything that it takes."""


@dataclass(frozen=True)
class SourceTopic:
    """The input topic that one table is made of.

    The table takes the records that have a key and can be decoded, whatever the handler does about
    the others. So the same records make the same table again.
    """

    tp: TopicPartition
    node: SourceNode
    inputs: Collection[TopicPartition]
    """What the task reads. If another topic has more partitions, it may not read this one."""

    @property
    def exists(self) -> bool:
        return self.tp in self.inputs

    def append(self, changes: Callable[[], Changes], outbox: Outbox) -> None:
        """Do nothing, because the topic already has the records."""

    def offset_after(self, _ends: LogOffsets, inputs: LogOffsets, /) -> int | None:
        return inputs.get(self.tp)

    def end(self, bounds: Bounds, inputs: LogOffsets, /) -> int:
        return min(bounds.end, inputs.get(self.tp, 0))

    def is_complete(self, start: int, end: int) -> bool:
        return start >= end

    def rows(self, batch: Batch) -> LoggedRows:
        readable = batch.read_by(self.node.key_serde, self.node.value_serde)
        unfit = {
            offset for side in ("key", "value") for offset in self._undecodable(readable, side)
        }
        gone = set(batch.keys.nulls())
        gone.update(i for i, offset in enumerate(batch.offsets or ()) if offset in unfit)
        return LoggedRows(batch.without(sorted(gone)), 0)

    def check(self, batch: Batch) -> None:
        decoded(self.node.name, batch, "key")
        decoded(self.node.name, batch, "value")

    def _undecodable(self, batch: Batch, side: str) -> list[int]:
        try:
            decoded(self.node.name, batch, side)
        except NodeFailed as failed:
            return [culprit.offset for culprit in failed.culprits]
        return []

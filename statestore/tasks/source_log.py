"""What of a source topic's records a table has whose log that topic is (SEMANTICS E8)."""

from collections.abc import Sequence

from statestore.model.batch import Batch
from statestore.topology.failures import NodeFailed, decoded
from statestore.topology.nodes import SourceNode


class SourceLog:
    """The topic of one table.

    The table takes the records that have a key and can be decoded, whoever decodes them and
    whatever handles those that cannot: so the same records make the same table again.
    """

    def __init__(self, node: SourceNode) -> None:
        self._node = node

    def check(self, batch: Batch) -> None:
        """NodeFailed names the records that cannot be decoded; `batch` has the node's serdes."""
        decoded(self._node.name, batch, "key")
        decoded(self._node.name, batch, "value")

    def kept(self, batch: Batch) -> Batch:
        """The records of a replayed batch that the table took."""
        gone = set(batch.keys.nulls())
        readable = batch.with_columns(
            keys=batch.keys.with_serde(self._node.key_serde),
            values=batch.values.with_serde(self._node.value_serde),
        )
        for side in ("key", "value"):
            gone.update(_undecodable(self._node.name, readable, side))
        if not gone:
            return batch
        return batch.take([i for i in range(len(batch)) if i not in gone])


def _undecodable(node: str, batch: Batch, side: str) -> Sequence[int]:
    try:
        decoded(node, batch, side)
    except NodeFailed as unfit:
        offsets = {culprit.offset for culprit in unfit.culprits}
        assert batch.offsets is not None
        return [i for i, offset in enumerate(batch.offsets) if offset in offsets]
    return ()

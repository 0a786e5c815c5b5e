"""Joins of streams with tables by Polars expressions over the fields of both. Loads Polars.

Each distinct key of a batch is looked up once, and the fields of its row that the expressions name
become columns once. What joins nothing, is dropped or fails is what it is for functions
(topology/joins/co_partitioned.py and topology/joins/global_tables.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from statestore.model.batch import Batch
from statestore.model.records import Serde
from statestore.topology.column_operators import NewKeys, NewValues, place_of
from statestore.topology.joins.global_tables import KeySelector
from statestore.topology.joins.joiners import ColumnJoiner, Joining
from statestore.topology.joins.meeting import Meeting
from statestore.topology.nodes import NodeContext


def joiner(
    verb: str,
    name: str | None,
    mine: Serde[Any],
    theirs: Serde[Any],
    given: Any,
    value_serde: Serde[Any] | None,
) -> ColumnJoiner:
    """Return what joins records with rows of a table by expressions.

    Results and their serde are as `column_operators.mapped_values` has them.
    """
    where = place_of(verb, name)
    return _ByExpressions(NewValues.checked(where, mine, given, value_serde, beside=theirs))


def selector(
    verb: str, name: str | None, mine: Serde[Any], given: Any, keys: Serde[Any]
) -> KeySelector:
    """Return what tells by an expression which row of a global table a record asks for.

    Misuse if its results are no keys of that serde.
    """
    made = NewKeys.checked(f"key of {place_of(verb, name)}", mine, given, keys)
    return KeySelector(made.begin, f"key={made.says}")


class _ByExpressions:
    """Joins records of a stream with rows of a table by expressions over the fields of both."""

    def __init__(self, values: NewValues) -> None:
        self._values = values
        self.value_serde = values.serde
        self.says = values.says

    def joining(self, node: str, meeting: Meeting, *, left: bool) -> Joining:
        """Return, for a context, the function from a batch of the stream to the joined batch."""
        values = self._values

        def made_for(context: NodeContext) -> Callable[[Batch], Batch]:
            held, meet = values.expressions(), meeting(node, context)

            def joined(batch: Batch) -> Batch:
                has_value = np.ones(len(batch), np.bool_)
                # What cannot be read fails, whether it meets a row or not.
                has_value[held.read(node, batch)] = False
                met, has_key = meet(batch, has_value)
                has_row = np.array([row is not None for row in met.rows], np.bool_)[met.of]
                nulls = np.flatnonzero(~has_value if left else ~(has_value & has_key))
                kept = has_value if left else has_value & has_row
                if len(nulls):
                    context.drop(node, batch, nulls.tolist(), "null_key_or_value")
                unmatched = len(batch) - int(kept.sum()) - len(nulls)
                if unmatched:
                    context.count_unmatched(node, unmatched)
                chosen = batch.where(kept)
                if not len(chosen):
                    return chosen
                found = held.of(node, chosen, met.where(kept))
                return chosen.with_columns(values=values.column(node, chosen, found))

            return joined

        return made_for

"""Joins of streams with tables by Polars expressions over the fields of both. Loads Polars.

Each distinct key of a batch is looked up once, and the fields of its row that the expressions name
become columns once. What joins nothing, is dropped or fails is what it is for functions
(topology/joins/co_partitioned.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import unpacked
from statestore.model.records import Serde
from statestore.topology.aggregates.row_ranks import ranked_rows
from statestore.topology.column_operators import NewValues, place_of
from statestore.topology.expressions import MetRows
from statestore.topology.failures import encoded
from statestore.topology.flows import TableFlow
from statestore.topology.joins.joiners import ColumnJoiner, Joining
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


class _ByExpressions:
    """Joins records of a stream with rows of a table by expressions over the fields of both."""

    def __init__(self, values: NewValues) -> None:
        self._values = values
        self.value_serde = values.serde
        self.says = values.says

    def joining(self, node: str, table: TableFlow, *, left: bool) -> Joining:
        """Return, for a context, the function from a batch of the stream to the joined batch."""
        values = self._values

        def made_for(context: NodeContext) -> Callable[[Batch], Batch]:
            held, meet = values.expressions(), _meeting(node, table, context)

            def joined(batch: Batch) -> Batch:
                has_value = np.ones(len(batch), np.bool_)
                # What cannot be read fails, whether it meets a row or not.
                has_value[held.read(node, batch)] = False
                met, has_key = meet(batch)
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


def _meeting(
    node: str, table: TableFlow, context: NodeContext
) -> Callable[[Batch], tuple[MetRows, NDArray[np.bool_]]]:
    """Return what tells the rows that records meet, and which records have a key."""
    serde = table.key_serde
    if table.history is not None:
        as_of = table.history.look(context)

        def meet_versions(batch: Batch) -> tuple[MetRows, NDArray[np.bool_]]:
            keys = encoded(node, batch, "key", serde)
            rows = as_of(keys, batch.timestamps)
            there = np.array([key is not None for key in keys], np.bool_)
            return MetRows(rows, np.arange(len(rows))), there

        return meet_versions
    look = table.look(context)

    def meet(batch: Batch) -> tuple[MetRows, NDArray[np.bool_]]:
        keys = batch.keys.packed(serde) or encoded(node, batch, "key", serde)
        there = np.ones(len(batch), np.bool_)
        nulls = Column(raw=keys).nulls()
        if not nulls:
            of, wanted = ranked_rows(keys)
            return MetRows(look(wanted), of), there
        there[nulls] = False
        of, wanted = ranked_rows([key for key in unpacked(keys) if key is not None])
        # The last row is none.
        places = np.full(len(batch), len(wanted))
        places[there] = of
        return MetRows([*look(wanted), None], places), there

    return meet

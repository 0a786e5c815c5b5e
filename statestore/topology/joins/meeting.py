"""Which rows of a table the records of whole batches meet; each distinct key is looked up once."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from statestore.model.batch import Batch, Column
from statestore.model.byte_columns import MaybePacked, unpacked
from statestore.topology.aggregates.row_ranks import ranked_rows
from statestore.topology.failures import encoded
from statestore.topology.flows import Look, TableFlow
from statestore.topology.met_rows import MetRows
from statestore.topology.nodes import NodeContext

Meet = Callable[[Batch, NDArray[np.bool_]], tuple[MetRows, NDArray[np.bool_]]]
"""From a batch, and which of its records have a value, to their rows and which have a key.

The key is that of the row, null for none.
"""
Meeting = Callable[[str, NodeContext], Meet]
"""Gives what meets rows, for the name of a node and its context."""


def with_table(table: TableFlow) -> Meeting:
    """Return what meets the rows of a table by the keys of records."""
    serde, history = table.key_serde, table.history

    def meeting(node: str, context: NodeContext) -> Meet:
        if history is not None:
            as_of = history.look(context)

            def meet_versions(
                batch: Batch, _has_value: NDArray[np.bool_]
            ) -> tuple[MetRows, NDArray[np.bool_]]:
                keys = encoded(node, batch, "key", serde)
                rows = as_of(keys, batch.timestamps)
                there = np.array([key is not None for key in keys], np.bool_)
                return MetRows(rows, np.arange(len(rows))), there

            return meet_versions
        look = table.look(context)

        def meet(batch: Batch, _has_value: NDArray[np.bool_]) -> tuple[MetRows, NDArray[np.bool_]]:
            keys = batch.keys.packed(serde) or encoded(node, batch, "key", serde)
            return met(keys, np.ones(len(batch), np.bool_), look)

        return meet

    return meeting


def met(
    keys: MaybePacked, asked: NDArray[np.bool_], look: Look
) -> tuple[MetRows, NDArray[np.bool_]]:
    """Return the rows that records meet, given the keys of those `asked`, and which have one."""
    has_key = asked
    if nulls := Column(raw=keys).nulls():
        has_key = asked.copy()
        has_key[np.flatnonzero(asked)[nulls]] = False
        keys = [key for key in unpacked(keys) if key is not None]
    of, wanted = ranked_rows(keys)
    if has_key.all():
        return MetRows(look(wanted), of), has_key
    # The last row is none.
    places = np.full(len(asked), len(wanted))
    places[has_key] = of
    return MetRows([*look(wanted), None], places), has_key

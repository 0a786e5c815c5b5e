"""Processors that keep the keys of their records (KIP-820's fixed-key processors).

What such a processor forwards has the key of the record that it was given, in the same bytes.
Therefore no repartition is needed after it, and the keys keep their serde.
"""

import reprlib
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Any

from statestore.model.batch import Batch, Column
from statestore.model.records import Record
from statestore.topology.nodes import Build
from statestore.topology.processors.user_processors import (
    Maker,
    ProcessorContext,
    check_records,
    forwarding,
    no_record,
    one_by_one,
)

_WAY_OUT = "forward record.replace(value=…), or use process(), which may change keys"


_Forwarded = tuple[str | None, int, Record[Any, Any]]
"""The child that is named, the place of the record for which this was forwarded, and what was."""
_by_child = itemgetter(0)


class FixedKeyContext(ProcessorContext[Any, Any]):
    """A ProcessorContext that forwards only records with the key of the one being processed."""

    _batch: Batch | None = None
    _place = -1
    _key: Any = None

    def begin(self, batch: Batch) -> None:
        """Note the records that come one by one from here on."""
        self._batch, self._keys, self._place = batch, batch.keys.objects, -1
        self._made: list[_Forwarded] = []
        self.only_clock = None  # `at` does more here.

    def at(self, stream_time_ms: int | None, time_ms: int | None) -> None:
        """Note the time of what comes now: of the next record, or of a timer between batches."""
        super().at(stream_time_ms, time_ms)
        if self._batch is not None:
            self._place += 1
            self._key = self._keys[self._place]

    def forward(self, record: Record[Any, Any], *, to: str | None = None) -> None:
        """Hand a record to all children of this node, or to the one that is named."""
        try:
            key = record.key
        except AttributeError as error:
            raise no_record([record]) from error
        if self._batch is None:
            raise ValueError(
                "process_values() keeps keys, and a timer has no record whose key it could keep: "
                "use process()"
            )
        if key is not self._key and key != self._key:
            raise ValueError(
                f"process_values() keeps keys: the record has the key {reprlib.repr(self._key)}, "
                f"and one with the key {reprlib.repr(key)} was forwarded: {_WAY_OUT}"
            )
        self._made.append((to, self._place, record))

    def take_forwarded(self) -> list[tuple[Batch, str | None]]:
        """Return what was forwarded: each run of records for the same child as one batch."""
        batch = self._batch
        if batch is None:
            return []
        runs = [(child, list(run)) for child, run in groupby(self._made, _by_child)]
        check_records([record for _, _, record in self._made])
        return [(_made_of(batch, run), child) for child, run in runs]

    def done(self) -> None:
        """End a call; what it forwarded is forgotten unless it was taken."""
        super().done()
        self._batch = None


def _made_of(batch: Batch, run: list[_Forwarded]) -> Batch:
    """Return records of a batch, in the same places and with the same keys, as they went on."""
    places, records = [place for _, place, _ in run], [record for _, _, record in run]
    chosen = batch if places == [*range(len(batch))] else batch.take(places)
    headers = [record.headers for record in records]
    return Batch(
        keys=chosen.keys,
        values=Column(objects=[record.value for record in records]),
        timestamps=[record.timestamp_ms for record in records],
        headers=headers if any(headers) else None,
        topic=chosen.topic,
        partition=chosen.partition,
        offsets=chosen.offsets,
        stream_times=chosen.stream_times,
    )


def processed_values(
    node: str, factory: Callable[[ProcessorContext[Any, Any]], Any], stores: tuple[str, ...]
) -> Build:
    """Build a node that runs a user's Processor, whose records keep their keys."""

    def run(
        name: str,
        batch: Batch,
        processor: Any,
        outward: FixedKeyContext,
        times: list[int],
    ) -> None:
        outward.begin(batch)
        one_by_one(name, batch, processor, outward, times)

    return forwarding(node, Maker(node, factory, "process"), stores, FixedKeyContext, run)

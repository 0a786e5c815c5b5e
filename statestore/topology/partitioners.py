"""Partitioners of sinks and repartition topics: a user's function places each record."""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from statestore.model.batch import Batch
from statestore.topology.failures import Stage, decoded, each
from statestore.topology.nodes import Partitioner

Choice = Callable[[int], list[int | None]]
"""From the number of partitions to the partition of each record of a batch."""


def choice(node: str, topic: str, batch: Batch, partitioner: Partitioner) -> Choice:
    """Return what chooses the partitions of a batch's records for a topic.

    It raises NodeFailed for the first record for which the function raises, or returns what is no
    partition of the topic.
    """
    keys, values = decoded(node, batch, "key"), decoded(node, batch, "value")

    def chosen(count: int) -> list[int | None]:
        def place_all(ahead: Iterator[Any]) -> list[int | None]:
            return [
                place
                if (place := partitioner(topic, key, value, count)) is None
                or (type(place) is int and 0 <= place < count)
                else _refuse(topic, place, count)
                for key, value in zip(ahead, values, strict=True)
            ]

        return each(node, batch, keys, place_all, stage=Stage.PRODUCTION, certain=True)

    return chosen


def _refuse(topic: str, place: object, count: int) -> NoReturn:
    """Raise for what is not a partition of a topic."""
    if type(place) is not int:
        raise TypeError(
            f"the partitioner returned {place!r:.99}, which is {type(place).__name__}: return the "
            "number of a partition, or None for that of the key"
        )
    raise ValueError(
        f"the partitioner returned {place}, and topic {topic} has the partitions 0 to {count - 1}"
    )

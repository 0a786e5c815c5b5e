"""Where the rows of keys lie: the partition to look in first, without looking into others.

Only a guess: a processor may keep a row anywhere, and other clients may place records in another
way. Whoever finds no row there looks in the other partitions.
"""

from collections.abc import Sequence

from statestore.operations.deployed import Deployed
from statestore.operations.environment import Environment
from statestore.serdes import composed


def likely_partitions(
    environment: Environment, deployed: Deployed, store: str, keys: Sequence[bytes], count: int
) -> list[int]:
    """Return the partition, of `count`, in which the hash of the producers places each key.

    The list is empty if a partitioner of the user's places the rows of the store. Keys of a store
    with windows are those in the windows.
    """
    known = deployed.stores.get(store)
    if known is not None and known.placed_apart:
        return []
    placed = None
    if known is not None and composed.of_windowed(known.key_serde) is None:
        placed = composed.placed_by(known.key_serde)
    placing = keys if placed is None else [placed(key) for key in keys]
    hashed = environment.partitioners[environment.settings.partitioner_hash]
    return list(hashed(placing, count))

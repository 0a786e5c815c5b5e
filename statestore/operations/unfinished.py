"""What a start refuses to go on from: a reset, or a change of the partition count, half done."""

from pathlib import Path
from typing import Final

from statestore.errors import Misuse
from statestore.layout.folders import StateLayout
from statestore.operations.deployed import read_deployed
from statestore.ports import Cluster
from statestore.topology.graph import Topology

COPIES: Final = "-changelog-repartitioning"
"""How the names of topics end that have the records of changelogs while these are made anew."""


def reset_file(layout: StateLayout) -> Path:
    """The journal of a reset, which exists while one goes on."""
    return layout.application_dir / "reset.json"


def repartition_file(layout: StateLayout) -> Path:
    """The journal of a change of the partition count, which exists while one is finished."""
    return layout.application_dir / "repartition.json"


def require_no_reset(layout: StateLayout) -> None:
    """Raise Misuse if a reset was begun and not finished: state and offsets do not match then."""
    if _exists(reset_file(layout)):
        raise Misuse(
            f"a reset of {layout.application_id} was begun and not finished: repeat "
            "`statestore reset`, which finishes it"
        )


def require_no_repartition(layout: StateLayout) -> None:
    """Raise Misuse if the partition count is being changed: topics and offsets do not match."""
    if repartition_begun(layout):
        raise Misuse(
            f"a change of the partition count of {layout.application_id} was begun and not "
            "finished: repeat `statestore repartition`, which finishes it"
        )


def copied_by(application_id: str, store: str) -> str:
    """The topic that has the records of a store while its changelog is made anew."""
    return f"{application_id}-{store}{COPIES}"


def copies_of(application_id: str, topology: Topology) -> set[str]:
    """These topics of all stores."""
    return {copied_by(application_id, store) for store in topology.stores}


def require_no_copies(layout: StateLayout, topology: Topology, cluster: Cluster) -> None:
    """Raise Misuse if nothing is deployed, and a change of the partition count left copies.

    So it is after the loss of a volume: the journal went with it, and a start would go by
    changelogs that may have lost their records to the copies (docs/adr/0052).
    """
    if read_deployed(layout).sub_topologies:
        return
    read, written = topology.topics()
    names = copies_of(layout.application_id, topology)
    if found := cluster.partitions(sorted(names - read - written)):
        raise Misuse(
            f"topics {', '.join(sorted(found))} are copies of changelogs, left by a change of the "
            "partition count, of which this volume knows nothing: was it lost? Bring "
            "repartition.json and topology.json back from a backup and repeat `statestore "
            "repartition`; or, if the changelogs are known to be whole, delete these topics"
        )


def repartition_begun(layout: StateLayout) -> bool:
    """Whether the partition count is being changed: its journal is there."""
    return _exists(repartition_file(layout))


def require_whole(layout: StateLayout) -> None:
    """Raise Misuse if either was begun and not finished."""
    require_no_reset(layout)
    require_no_repartition(layout)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # The next read or write there reports what is wrong with the folder.

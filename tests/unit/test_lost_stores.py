"""Which exports a start may restore lost stores from, as far as their manifests tell.

Shows I18.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.layout.snapshots import StoreOffsets
from statestore.model.ids import TaskId
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import Deployed, describe_deployment
from statestore.operations.exports.lost_stores import Start, why_not
from statestore.operations.exports.manifest import (
    VERSION,
    ExportedStore,
    ExportedTask,
    ExportManifest,
)
from statestore.topology.nodes import TopicName

PLACE = ("counts", 1)
TASK = "0_1"
COMMITS = 7
EXACTLY_ONCE = ProcessingGuarantee.EXACTLY_ONCE


def counting(key_serde: "ss.Serde[Any]" = serdes.STRING) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=key_serde, value_serde=serdes.BYTES)
    b.stream("in").group_by_key().count("counts").to_stream().to("out")
    return b.build()


def deployed(
    topology: ss.Topology,
    *,
    partitions: int = 2,
    guarantee: ProcessingGuarantee = EXACTLY_ONCE,
    changelog_id: str | None = "id",
) -> Deployed:
    ids = {} if changelog_id is None else {"counts": changelog_id}
    counts = {TopicName("in"): partitions}
    return describe_deployment(topology, guarantee, counts, {}, ids)


def manifest(said: Deployed, commit: int | None) -> ExportManifest:
    stores = {"counts": ExportedStore("keyvalue", StoreOffsets([], []), [])}
    return ExportManifest(
        VERSION, "id", "app", 0, said, [ExportedTask(TASK, 0, commit, stores, {})], None
    )


def start(said: Deployed, topology: ss.Topology, known: Deployed | None = None) -> Start:
    commits = {TaskId.parse(TASK): COMMITS}
    return Start(topology, said, known or Deployed(), commits, {PLACE})


def changed(said: Deployed, **fields: Any) -> Deployed:
    """The same, with other fields of the store."""
    store = msgspec.structs.replace(said.stores["counts"], **fields)
    return msgspec.structs.replace(said, stores={"counts": store})


@pytest.mark.parametrize("commit", [None, COMMITS - 1, COMMITS])
def test_an_export_of_what_starts_fits(commit: int | None) -> None:
    topology = counting()
    said = deployed(topology)
    assert why_not(start(said, topology), manifest(said, commit), PLACE) is None


OTHERS: dict[str, tuple[Callable[[], Deployed], str]] = {
    "kind": (lambda: changed(deployed(counting()), kind="versioned"), "another kind"),
    "retention": (lambda: changed(deployed(counting()), retention_ms=9), "windows or retention"),
    "place": (lambda: changed(deployed(counting()), sub_topology=1), "place in the topology"),
    "count": (lambda: deployed(counting(), partitions=3), "number of partitions: 3, now 2"),
    "log": (lambda: changed(deployed(counting()), source_topic="in"), "another log"),
    "guarantee": (
        lambda: deployed(counting(), guarantee=ProcessingGuarantee.AT_LEAST_ONCE),
        "another processing guarantee",
    ),
    "keys": (lambda: deployed(counting(serdes.INT64)), "cannot go on with its serdes: its keys"),
    "values": (
        lambda: changed(deployed(counting()), value_serde="JSON", value_writers=[]),
        "cannot go on with its serdes: its values",
    ),
    "partitioner": (lambda: changed(deployed(counting()), placed_apart=True), "partitioner"),
    "another log": (lambda: deployed(counting(), changelog_id="other"), "another history"),
    "unknown log": (lambda: deployed(counting(), changelog_id=None), "another history"),
    "no store": (
        lambda: msgspec.structs.replace(deployed(counting()), stores={}),
        "does not say what store 'counts' is",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_an_export_of_anything_else_does_not(what: str) -> None:
    made, says = OTHERS[what]
    topology = counting()
    reason = why_not(start(deployed(topology), topology), manifest(made(), COMMITS), PLACE)
    assert reason is not None
    assert says in reason


def test_an_export_of_commits_that_the_group_does_not_have_is_of_another_history() -> None:
    topology = counting()
    said = deployed(topology)
    reason = why_not(start(said, topology), manifest(said, COMMITS + 1), PLACE)
    assert reason == (
        "it is of another history: it was made after commit 8 of task 0_1, and the group has 7"
    )
    assert why_not(start(said, topology), manifest(said, COMMITS + 1), ("counts", 0)) is None


def test_an_export_from_before_its_store_was_made_anew_does_not_fit_those_that_are_left() -> None:
    topology = counting()
    said, older = deployed(topology), changed(deployed(topology), row_times=False)
    reason = why_not(start(said, topology, known=said), manifest(older, COMMITS), PLACE)
    assert reason == "store 'counts' was made anew since"

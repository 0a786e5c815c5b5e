"""The small charts of lists, and the data that the page's scripts draw."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from statestore.operations.deployed import Deployed, DeployedPart, DeployedStore
from statestore.runtime import Runtime
from statestore.tasks.history import WorkSample
from statestore.ui.charts import sparkline
from statestore.ui.drawn import charts_json, graph_of, told_of
from statestore.ui.polling import look_at
from statestore.ui.timeline import Span, day_of

HOSTILE = '"><script>alert(1)</script>&'
NOW_MS = 1_700_000_000_000


def drawn(svg: str) -> ET.Element:
    """The drawing, which must be well-formed."""
    return ET.fromstring(svg)  # ours


def test_a_gap_of_values_is_a_gap_of_the_line() -> None:
    root = drawn(sparkline([1.0, 2.0, None, 0.0], "told"))
    lines = [line.attrib["points"].split() for line in root.iter("polyline")]
    assert [len(line) for line in lines] == [2, 1]
    assert root.attrib["aria-label"] == "told"


def test_values_of_nothing_and_no_values_are_drawn() -> None:
    for values in ([], [None, None], [0.0, 0.0], [1e18]):
        drawn(sparkline(values, ""))


def test_what_a_drawing_says_is_text() -> None:
    svg = sparkline([1], HOSTILE)
    assert "<script" not in svg
    assert not re.search(r"\son\w+=", svg)
    assert drawn(svg).attrib["aria-label"] == HOSTILE


def test_charts_have_a_value_for_each_time_and_no_lag_that_nobody_had() -> None:
    done = WorkSample(NOW_MS - 120_000, NOW_MS, 600, 4, process_seconds=90.0, lag_records=0)
    work = day_of([[done]], NOW_MS).over(Span.QUARTER)
    shown = json.loads(charts_json(work))
    assert shown["times"][-2:] == [NOW_MS / 1000 - 90, NOW_MS / 1000 - 30]
    assert shown["rate"][-3:] == [0, 5, 5]
    assert shown["phases"]["process"][-3:] == [0, 0.75, 0.75], "tasks at work on average"
    assert (shown["lag"], shown["lag_told"]) == ([], "never behind")
    assert "process 1 min 30 s" in shown["phases_told"]
    assert told_of(work, Span.QUARTER) == ("600 records in the last 15 minutes, at most 5 a second")


def test_the_topology_has_each_topic_once_and_stores_in_their_sub_topology(tmp_path: Path) -> None:
    parts = [
        DeployedPart(0, ["in"], 2, [], ["mid-repartition", "out"]),
        DeployedPart(1, ["mid-repartition"], 2, ["mid-repartition"], ["out"]),
    ]
    stores = {HOSTILE: DeployedStore(1, "STRING", "JSON", persistent=True)}
    with Runtime({"application.id": "a", "state.dir": str(tmp_path)}) as runtime:
        found = look_at(runtime)
    taken, sent = {(1, "a-mid-repartition"): 12.345}, {(0, "out"): 1500.0}
    known = replace(found, taken=taken, sent=sent)
    graph = graph_of("/at", "a", Deployed(sub_topologies=parts, stores=stores), known)
    assert [box.name for box in graph.boxes] == [
        *("in", "Sub-topology 0", "mid-repartition", "out", "Sub-topology 1")
    ]
    names = graph.names()
    assert {(names[edge.begin], names[edge.end]): edge.note for edge in graph.edges} == {
        ("in", "Sub-topology 0"): "",
        ("Sub-topology 0", "mid-repartition"): "",
        ("Sub-topology 0", "out"): "1,500/s",
        ("mid-repartition", "Sub-topology 1"): "12.3/s",
        ("Sub-topology 1", "out"): "",
    }
    (store,) = graph.boxes[-1].stores
    assert store.name == HOSTILE
    assert store.address.startswith("/at/applications/a/stores/%22%3E%3Cscript")
    assert graph.boxes[2].address == "/at/applications/a/topics?topic=a-mid-repartition"
    assert json.loads(graph.json())["boxes"][-1]["stores"][0]["name"] == HOSTILE

"""Charts and graphs of the page: what they draw, and that names in them do nothing."""

import re
from xml.etree import ElementTree as ET

from statestore.ui.charts import Box, graph, sparkline, stacked

HOSTILE = '"><script>alert(1)</script>&'


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
    drawn(stacked({"poll": []}, [], ""))
    drawn(graph({}, {}, ""))


def test_bars_stand_upon_each_other() -> None:
    root = drawn(stacked({"poll": [1.0, 0.0], "commit": [3.0, 0.0]}, ["first", "second"], ""))
    below, above = (bar.attrib for bar in root.iter("rect"))
    assert (below["class"], above["class"]) == ("poll", "commit")
    assert float(below["y"]) > float(above["y"])
    assert float(above["height"]) > 2.9 * float(below["height"])


def test_boxes_stand_right_of_those_that_lead_to_them_even_in_a_circle() -> None:
    boxes = {name: Box(name, "topic") for name in "abcd"}
    edges = {("a", "b"): "5/s", ("b", "c"): "", ("c", "b"): "", ("c", "d"): ""}
    root = drawn(graph(boxes, edges, "a topology"))
    places = {
        group.findtext("title", "").strip(): int(group.find("rect").attrib["x"])  # type: ignore[union-attr]
        for group in root.iter("g")
        if group.find("rect") is not None
    }
    assert places["a"] < places["b"]
    assert places["c"] < places["d"]
    assert "5/s" in "".join(root.itertext())


def test_names_are_text_wherever_they_stand() -> None:
    box = Box(HOSTILE, "store", HOSTILE, f"/a?{HOSTILE}")
    svg = graph({"one": box}, {}, HOSTILE)
    svg += sparkline([1], HOSTILE) + stacked({"poll": [1.0]}, [HOSTILE], HOSTILE)
    assert "<script" not in svg
    assert not re.search(r"\son\w+=", svg)

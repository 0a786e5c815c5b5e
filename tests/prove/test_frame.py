"""What runs the sections of the proof, and what the report says of them."""

import dataclasses
import json
import multiprocessing
import re
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from statestore.errors import Misuse
from tests.builders import eventually
from tests.prove import running
from tests.prove.__main__ import main
from tests.prove.little_sections import (
    BREAKS,
    DIES,
    HANGS,
    HOLDS,
    LEAVES,
    LITTLE,
    NOTHING,
    RAISES,
)
from tests.prove.registry import SECTIONS
from tests.prove.report import Report, html_of, json_of, table_of, written
from tests.prove.running import chosen, tried
from tests.prove.section import Deadline, Planted, Section, Verdict


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """One of every kind but a section that hangs."""
    sections = (HOLDS, BREAKS, NOTHING, LITTLE, RAISES, DIES)
    return report_of(sections, tmp_path_factory.mktemp("prove"))


def report_of(sections: Sequence[Section], folder: Path, *, grace_s: float = 60.0) -> Report:
    done = tried(sections, seed=7, seconds=0.2, folder=folder, grace_s=grace_s)
    return Report(7, "abc", "a machine", datetime(2026, 1, 1, tzinfo=UTC), 1.0, tuple(done))


def page_of(report: Report) -> ET.Element:
    """The page is strict enough for a parser of XML, once its void elements are closed."""
    text = html_of(report).removeprefix("<!doctype html>")
    return ET.fromstring(re.sub(r"<(meta[^>]*|br)>", r"<\1/>", text))


def text_of(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def rows_of(page: ET.Element, place: str) -> list[list[str]]:
    (table,) = [it for it in page.iter("table") if place in {it.get("id"), it.get("class")}]
    return [[text_of(cell) for cell in row] for row in table.iter("tr")]


def test_each_section_has_the_verdict_that_its_figures_say(report: Report) -> None:
    assert {it.name: it.verdict for it in report.sections} == {
        "holds": Verdict.HELD,
        "breaks": Verdict.BROKEN,
        "tries_nothing": Verdict.NOTHING,
        "tries_little": Verdict.SHORT,
        "raises": Verdict.FAILED,
        "dies": Verdict.FAILED,
    }
    assert not report.passes


def test_the_page_says_of_each_section_what_was_tried_and_what_came_of_it(report: Report) -> None:
    page = page_of(report)
    rows = {row[0]: row[1:] for row in rows_of(page, "sections")[1:]}
    assert rows["breaks"][:6] == ["broken", "1 dice", "1", "60", "0", "0 of 1"]
    assert rows["holds"][0] == "held"
    assert rows["holds"][2:6] == ["0", "0", "0", "1 of 1"]
    assert rows["tries_nothing"][:2] == ["nothing tried", "3 dice0 coins"]
    assert rows["dies"][:2] == [
        "could not be tried",
        " ".join(report.sections[5].failure.partition("\n")[0].split()),
    ]
    assert rows["dies"][1].startswith("its process died by SIGABRT; the end of ")
    (headline,) = [it for it in page.iter("span") if it.get("id") == "headline"]
    assert text_of(headline) == ("It does not hold: breaks, tries_nothing, raises, dies.")


def test_the_page_shows_findings_with_the_command_that_repeats_each(report: Report) -> None:
    (findings,) = [it for it in page_of(report).iter("ol") if it.get("class") == "findings"]
    lines = [text_of(it) for it in findings]
    assert lines[0] == (
        "lost write (lost): <script>alert(1)</script> is lost "
        "repeat it: make prove SECTIONS=breaks SEED=7"
    )
    assert len(lines) == 50
    assert "11 more are in report.json." in html_of(report)


def test_the_page_names_planted_defects_with_the_rules_that_caught_them(report: Report) -> None:
    tables = [it for it in page_of(report).iter("table") if it.get("class") == "planted"]
    rows = [[text_of(cell) for cell in table[1]] for table in tables]
    assert rows == [["a loaded die", "chance", "2"], ["a loaded die", "missed", "7"]]


def test_the_page_shows_how_often_what_was_tried_with_what(report: Report) -> None:
    tables = [it for it in page_of(report).iter("table") if it.get("class") == "coverage"]
    rows = [[[text_of(cell) for cell in row] for row in table] for table in tables]
    assert rows[0] == [["", "red", "<blue>"], ["six", "1", "-"]]
    low = [text_of(cell) for cell in tables[1].iter("td") if cell.get("class") == "n low"]
    assert low == ["1"]


def test_the_page_says_what_was_tried_less_often_than_promised(report: Report) -> None:
    (short,) = [it for it in page_of(report).iter("ul") if it.get("class") == "short"]
    assert [text_of(it) for it in short] == ["dice: 3 of 4", "six x red: 1 of 2"]


def test_the_page_loads_nothing_and_fits_a_phone(report: Report) -> None:
    page = page_of(report)
    assert [it.attrib for it in page.iter() if {"src", "srcset"} & it.attrib.keys()] == []
    assert [it for it in page.iter() if it.tag in {"script", "link", "iframe"}] == []
    assert all(it.get("href", "#").startswith("#") for it in page.iter("a"))
    assert [it.get("content") for it in page.iter("meta") if it.get("name") == "viewport"]
    # What is wide scrolls by itself.
    holders = [it for it in page.iter() if any(child.tag == "table" for child in it)]
    assert {it.get("class") for it in holders} == {"wide"}


def test_the_json_has_all_findings_and_the_verdicts(report: Report, tmp_path: Path) -> None:
    written(report, tmp_path)
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept == json.loads(json_of(report))
    by_name = {it["name"]: it for it in kept["sections"]}
    assert not kept["passes"]
    assert len(by_name["breaks"]["result"]["findings"]) == 61
    assert by_name["breaks"]["harm"] == {"lost": 1, "doubled": 60, "anomaly": 0}
    assert by_name["tries_little"]["verdict"] == "less than promised"
    assert "ValueError: no dice" in by_name["raises"]["failure"]


def test_a_terminal_shows_each_section_in_a_row(report: Report) -> None:
    assert table_of(report).row_count == 6


def test_a_proof_without_a_section_is_none(tmp_path: Path) -> None:
    assert not report_of((), tmp_path).passes


def test_a_proof_that_tried_less_than_promised_is_no_failure(tmp_path: Path) -> None:
    assert report_of((HOLDS, LITTLE), tmp_path).passes


def test_a_section_that_hangs_is_told_as_such(tmp_path: Path) -> None:
    (one,) = report_of((HANGS,), tmp_path, grace_s=0.0).sections
    assert one.verdict is Verdict.FAILED
    assert one.failure.startswith("it hung: 0 s after its time it was ended")


def has_begun(log: Path) -> bool:
    """Whether HANGS has started its child, as its log says."""
    return log.exists() and log.read_text().endswith("\n")


def is_gone(log: Path) -> bool:
    """Whether the child that HANGS has started has ended."""
    (pid,) = re.findall(r"child (\d+)", log.read_text())
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_section_is_ended_with_what_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = multiprocessing.get_context("spawn").Process(
        target=running._alone, args=(HANGS, 1, 0.0, 0.0, tmp_path / "result", log)
    )
    process.start()

    eventually(lambda: has_begun(log), "the section has started a child")
    running._end(process)
    assert not process.is_alive()
    eventually(lambda: is_gone(log), "the child has ended")


def test_time_is_shared_and_what_is_left_over_goes_to_the_next(tmp_path: Path) -> None:
    begun: list[float] = []
    sections = (NOTHING, BREAKS, HOLDS)
    done = tried(
        sections,
        seed=1,
        seconds=400.0,
        folder=tmp_path,
        begin=lambda _section, budget_s: begun.append(budget_s),
    )
    next(done), next(done)
    assert begun[0] == pytest.approx(100, rel=0.01)
    # Without what is left over it would be 200, less what the first one took.
    assert 200 < begun[1] <= 400 * 2 / 3


def test_a_section_without_a_share_has_all_of_the_time_beside_the_others(tmp_path: Path) -> None:
    begun: list[tuple[str, float]] = []
    hangs, log = dataclasses.replace(HANGS, share=None), tmp_path / "hangs.log"
    done = tried(
        (NOTHING, hangs, HOLDS),
        seed=1,
        seconds=400.0,
        folder=tmp_path,
        begin=lambda section, budget_s: begun.append((section.name, budget_s)),
    )
    assert next(done).name == "tries_nothing"
    (first, whole_s), (second, part_s) = begun
    assert (first, whole_s, second) == ("hangs", 400.0, "tries_nothing")
    assert part_s == pytest.approx(200, rel=0.02)
    eventually(lambda: has_begun(log), "the section goes on while others take turns")
    assert not is_gone(log)
    done.close()
    eventually(lambda: is_gone(log), "nobody waits for it, so it has ended")


def test_what_a_dead_section_left_ends_with_it_while_others_go_on(tmp_path: Path) -> None:
    leaves, log = dataclasses.replace(LEAVES, share=None), tmp_path / "leaves.log"
    with closing(tried((leaves, NOTHING, HANGS), seed=1, seconds=400.0, folder=tmp_path)) as done:
        assert next(done).name == "tries_nothing"
        eventually(lambda: has_begun(log) and is_gone(log), "its child has ended")


def test_what_has_all_of_the_time_is_told_last(tmp_path: Path) -> None:
    report = report_of((dataclasses.replace(HOLDS, share=None), NOTHING), tmp_path)
    assert [it.name for it in report.sections] == ["tries_nothing", "holds"]
    (held,) = [it.result for it in report.sections if it.name == "holds"]
    assert held is not None
    assert held.figures["budget"] == "0.20"


@pytest.mark.parametrize(
    ("seconds", "whole_s", "is_night"),
    [(1800, 1800, False), (7200, 7200, True), (2400, 8 * 3600, True), (2400, 4 * 3600, False)],
)
def test_in_a_night_each_section_promises_what_the_night_does(
    seconds: float, whole_s: float, *, is_night: bool
) -> None:
    assert Deadline(seconds, whole_s).is_night is is_night


def test_a_deadline_gives_parts_of_what_is_left() -> None:
    now = [0.0]
    deadline = Deadline(100.0, clock=lambda: now[0])
    now[0] = 60.0
    part = deadline.part(0.5)
    assert part.left_s == 20.0
    now[0] = 80.0
    assert part.over
    assert not deadline.over
    assert list(part.rounds(least=2)) == [0, 1]


def test_an_unknown_section_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"no section dice; known: .*simulation"):
        chosen("dice,simulation", SECTIONS)
    assert [it.name for it in chosen(" simulation , ", SECTIONS)] == ["simulation"]
    told = CliRunner().invoke(main, ["--sections=dice", f"--report={tmp_path}"])
    assert told.exit_code == 2
    assert "no section dice" in told.output


def test_the_names_of_sections_are_unique_and_say_what_they_try() -> None:
    assert len({it.name for it in SECTIONS}) == len(SECTIONS)
    assert all(it.tries.endswith(".") and it.share != 0 for it in SECTIONS)


def test_a_missed_defect_is_a_failure_even_without_findings() -> None:
    held = HOLDS.run(1, Deadline(0))
    assert held.verdict is Verdict.HELD
    missed = msgspec.structs.replace(held, planted=(Planted("a loaded die", (), 2),))
    assert missed.verdict is Verdict.BROKEN
    assert msgspec.structs.replace(held, tried={}).verdict is Verdict.NOTHING

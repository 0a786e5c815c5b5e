"""Drills: what is planned, when the whole is a pass, what the workload's ledger finds.

Shows I20.
"""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from statestore.cli import cli
from statestore.errors import DrillFailed, Misuse, NotDrilled
from statestore.testing.drills.drill_plan import (
    DRILLED,
    Drilled,
    DrillReport,
    Kind,
    Outcome,
    Special,
    plan,
)
from statestore.testing.drills.report import html_of, table_of
from statestore.testing.drills.scratch import Scratch
from statestore.testing.drills.workload import PARTITIONS, Ledger, Row, Seen

USERS = 17


def drill(outcome: Outcome, name: str = "commit.begin", **fields: object) -> Drilled:
    given = {"kind": Kind.POINT, "seed": 3, "happened": "killed", **fields}
    return Drilled(name=name, outcome=outcome, **given)  # type: ignore[arg-type]  # as given


def report(*drills: Drilled) -> DrillReport:
    return DrillReport(
        application_id="drill-1",
        workload="generated",
        seed=9,
        started_ms=0,
        seconds=1.0,
        drills=list(drills),
    )


def test_all_is_every_point_and_every_special_and_some_moments() -> None:
    planned = plan("all", 3, "all", seed=1)
    assert [p.name for p in planned] == [*DRILLED, "moment 1", "moment 2", "moment 3", *Special]
    assert not any(p.by_name for p in planned)


def test_one_drill_alone_is_as_it_was_among_the_others() -> None:
    among = {p.name: p.seed for p in plan("all", 2, "all", seed=5)}
    (alone,) = plan("commit.begin", 0, "none", seed=5)
    assert alone.seed == among["commit.begin"]
    assert alone.by_name
    assert plan("none", 2, "none", seed=5)[1].seed == among["moment 2"]
    assert {p.name: p.seed for p in plan("all", 2, "all", seed=6)} != among


@pytest.mark.parametrize("asked", [("commit.end", 0, "none"), ("none", 0, "meteor")])
def test_a_name_that_is_none_is_refused_with_those_there_are(asked: tuple[str, int, str]) -> None:
    with pytest.raises(Misuse, match=r"commit\.begin|broker-restart"):
        plan(*asked, seed=1)
    with pytest.raises(Misuse, match="nothing to drill"):
        plan("none", 0, "none", seed=1)


def test_it_is_a_pass_only_with_something_green_and_nothing_red() -> None:
    green, missed = drill(Outcome.GREEN), drill(Outcome.NOT_DRILLED)
    red = drill(Outcome.RED, findings=["lost: 3"], evidence="folder")
    assert report(green).failure() is None
    assert report(green, missed).failure() is None
    assert isinstance(report(missed).failure(), NotDrilled)
    wanted = drill(Outcome.NOT_DRILLED, by_name=True)
    assert isinstance(report(green, wanted).failure(), NotDrilled)
    failure = report(green, red, wanted).failure()
    assert isinstance(failure, DrillFailed)
    for told in ("lost: 3", "evidence in folder", "--points commit.begin --random 0", "--seed 9"):
        assert told in str(failure)


def test_the_page_needs_nothing_else_and_shows_findings_as_text() -> None:
    page = html_of(report(drill(Outcome.RED, findings=["<script>"], evidence="a&b")))
    assert "&lt;script&gt;" in page
    assert "a&amp;b" in page
    assert "http" not in page
    assert "src=" not in page
    assert table_of(report(drill(Outcome.GREEN))).row_count == 1


def test_a_real_application_is_never_drilled(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="not a scratch application"):
        Scratch("orders", tmp_path, (), (), (), {}, None, tmp_path)  # type: ignore[arg-type]  # never used
    flags = ["--application-id=orders", "--bootstrap-servers=localhost:1", "--brokers=application"]
    refused = CliRunner().invoke(cli, ["drill", *flags, f"--report={tmp_path / 'r'}", "--json"])
    assert isinstance(refused.exception, Misuse)
    assert "--confirm" in json.loads(refused.stdout)["error"]["message"]
    assert list(tmp_path.iterdir()) == []


# The ledger.


def sound(ledger: Ledger, count: int) -> Seen:
    """What an exact run of that many records leaves."""
    numbers = [int(value) for _, value, _ in ledger.lot(count)]
    inputs = {p: len(numbers[p::PARTITIONS]) for p in range(PARTITIONS)}
    origins = [(p, at) for p, end in inputs.items() for at in range(end)]
    passed = [
        Row(p, b"k", json.dumps([f"{ledger.prefix}-in", p, at]).encode()) for p, at in origins
    ]
    seen: dict[bytes, int] = {}
    counts = []
    for number in numbers:
        user = f"user-{number % USERS}".encode()
        seen[user] = seen.get(user, 0) + 1
        counts.append(Row(0, user, seen[user].to_bytes(8)))
    return Seen(inputs, passed, counts, counts, {u: n.to_bytes(8) for u, n in seen.items()})


def test_what_is_exact_has_no_findings() -> None:
    ledger = Ledger("drill-1")
    assert ledger.findings(sound(ledger, 100)) == []


SPOILT: list[tuple[str, Callable[[Seen], Seen]]] = [
    ("more than once", lambda s: s._replace(passed=[*s.passed, s.passed[0]])),
    ("missing", lambda s: s._replace(passed=s.passed[1:])),
    ("out of order", lambda s: s._replace(passed=[s.passed[1], s.passed[0], *s.passed[2:]])),
    ("wrong from update", lambda s: s._replace(counts=[*s.counts, s.counts[-1]])),
    ("wrong from update", lambda s: s._replace(counts=s.counts[:-1])),
    ("the changelog gives", lambda s: s._replace(changelog=list(s.changelog)[:-1])),
    ("the store has", lambda s: s._replace(rows={**s.rows, b"user-3": bytes(8)})),
]


@pytest.mark.parametrize(("said", "spoil"), SPOILT, ids=range(len(SPOILT)))
def test_every_loss_doubling_and_disagreement_is_found(
    said: str, spoil: Callable[[Seen], Seen]
) -> None:
    ledger = Ledger("drill-1")
    findings = ledger.findings(spoil(sound(ledger, 100)))
    assert any(said in finding for finding in findings)


def test_a_report_travels_as_json() -> None:
    made = report(drill(Outcome.GREEN, restore_seconds=0.5))
    assert msgspec.json.decode(msgspec.json.encode(made), type=DrillReport) == made

"""The page of an audit: it says what was found, needs nothing else, and nothing in it is code."""

import re
from html.parser import HTMLParser

import pytest

from statestore.layout.audits import (
    AuditedPlace,
    AuditedStore,
    AuditFailure,
    AuditRecord,
    AuditVerdict,
)
from statestore.operations.audits.report_page import ROWS_MAX, audit_page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; </td></table><h1>",
    "&lt;b&gt;",
    "{when}",
    "%s",
    "\x00\u2028",
]


class Seen(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def record(
    verdict: AuditVerdict = AuditVerdict.WRONG, *, failures: int = 1, text: str = "a"
) -> AuditRecord:
    one = AuditFailure("no key missing", text, "1_1", 3, [text, "b"], text)
    return AuditRecord(
        application_id=text,
        time_ms=1_700_000_000_000,
        verdict=verdict,
        source=text,
        stores=[AuditedStore(text, "keyvalue", 1_234_567, 2, 3, 4, text)],
        places=[AuditedPlace(text, f"0_{p}", text, p, 5, 6) for p in range(failures)],
        failures=[one] * failures,
        not_checked={text: text},
        data_docs=f"file:///{text}",
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_audit_becomes_an_element(text: str) -> None:
    plain, seen = Seen(audit_page(record())), Seen(audit_page(record(text=text)))
    assert seen.tags == plain.tags
    # application (twice), source, store, failure (store, key, detail), not checked, place, docs …
    assert seen.text.count(text) >= plain.text.count("keyvalue") + 8


def test_the_page_needs_nothing_outside_it_and_runs_nothing() -> None:
    page = audit_page(record())
    attributes = {name for _, attrs in Seen(page).tags for name in attrs}
    assert attributes <= {"class", "lang", "charset"}
    assert not re.search(r"<(script|link|iframe|object|embed|img|form)|url\(|@import", page)


@pytest.mark.parametrize("verdict", AuditVerdict)
def test_every_verdict_says_what_it_means(verdict: AuditVerdict) -> None:
    told = Seen(audit_page(record(verdict))).text
    assert verdict in told
    assert "2023-11-14 22:13:20 UTC" in told
    assert "1,234,567" in told


def test_of_very_many_failures_the_page_shows_the_first_and_says_so() -> None:
    few, many = (audit_page(record(failures=count)) for count in (ROWS_MAX, 100 * ROWS_MAX))
    assert f"… and {99 * ROWS_MAX:,} more" in many
    assert len(many) < len(few) + 1000


def test_of_a_long_key_the_page_shows_the_beginning() -> None:
    key = AuditFailure("no key missing", "s", "0_0", 1, ["k" * 100_000], "")
    long = AuditRecord(application_id="a", time_ms=0, verdict=AuditVerdict.WRONG, failures=[key])
    assert len(audit_page(long)) < 10_000

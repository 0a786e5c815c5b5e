"""What others wrote cannot look like a line of ours, and one failure does not fill a log."""

import json
import logging
from collections.abc import Iterator

import pytest

import statestore as ss
from statestore.cli import _tell, set_up_logging
from statestore.errors import RecordFailed, Sparing, log_left, one_line
from statestore.testing import TopologyTestDriver

FORGED = "key\n2026-01-01 00:00:00,000 ERROR statestore.tasks: forged\r\x1b[2J\x85\u2028end"


@pytest.fixture(params=["text", "json"])
def log_format(request: pytest.FixtureRequest) -> Iterator[str]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        set_up_logging(log_format=request.param)
        yield request.param
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def forged(lines: list[str], log_format: str) -> list[str]:
    if log_format == "json":
        assert all(json.loads(line)["logger"] != "forged" for line in lines)
        return []
    return [line for line in lines if line.startswith(("2026-01-01", "\x1b", "end"))]


def test_no_key_begins_a_line_of_the_log(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("statestore.tests")
    log.warning("task 0_0: %s", FORGED)
    log_left(log, ValueError(FORGED), "while closing")
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("with a traceback")
    _tell(f"no such row: {FORGED}")
    told = capsys.readouterr().err
    assert "forged" in told
    assert forged(told.rstrip().split("\n"), log_format) == []
    if log_format == "text":
        assert not set("\r\x1b\x85\u2028") & set(told)


def test_the_log_line_of_a_dead_letter_is_one_in_every_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    builder = ss.StreamsBuilder(key_serde=ss.serdes.STRING, value_serde=ss.serdes.STRING)

    def fail(value: str) -> str:
        raise ValueError(value)

    builder.stream("in").map_values(fail).to("out")
    with TopologyTestDriver(
        builder.build(), {"processing.exception.handler": "continue"}
    ) as driver:
        driver.pipe("in", "k", FORGED)
    assert "forged" in caplog.text
    assert not [one for one in caplog.records if not one.getMessage().isprintable()]


def test_what_is_printable_stays_as_it_is() -> None:
    assert one_line("Ümläute, 日本, 😀 and spaces") == "Ümläute, 日本, 😀 and spaces"
    assert one_line("a\tb\\n\ud800") == "a\\tb\\n\\ud800"
    assert isinstance(RecordFailed("x"), Exception)


def test_a_kind_of_failure_is_new_once_and_again_after_a_while() -> None:
    sparing = Sparing(again_s=60)
    first = "cannot create /state/shop/0_1/snapshots/.1700000000300-25606-4b567348: No space left"
    again = "cannot create /state/shop/0_1/snapshots/.1700000000999-25606-77aa0b1c: No space left"
    assert sparing.is_new(first, 0)
    assert not any(sparing.is_new(again, at_s) for at_s in range(60))
    assert sparing.is_new("cannot write owner.json: No space left", 30)
    assert sparing.is_new(again, 60)
    assert not sparing.is_new(first, 61)

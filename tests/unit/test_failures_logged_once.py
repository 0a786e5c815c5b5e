"""Errors that nobody raises further: one line each in the log, and the same one only once."""

import logging
import threading

import pytest

from statestore.errors import HostFailure, log_left
from statestore.stores.durability import watch
from tests.builders import eventually

FULL = "cannot write /state: No space left on device;\nfree some"


class Flushing:
    """Something to flush, on a disk that is full for as long as `is_full` is set."""

    name = "counts"

    def __init__(self) -> None:
        self.is_full = threading.Event()
        self.is_full.set()
        self.tries = 0
        self.closed = False

    def is_open(self) -> bool:
        return not self.closed

    def catch_up(self) -> None:
        pass

    def maintain(self) -> int:
        self.tries += 1
        if self.is_full.is_set():
            raise HostFailure(FULL)
        return 1000


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of this store above the debug log."""
    return [
        line.getMessage()
        for line in caplog.records
        if "'counts'" in line.getMessage() and line.levelno > logging.DEBUG
    ]


def test_a_disk_that_stays_full_is_one_line_however_often_it_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    flushing = Flushing()
    watch(flushing)
    try:
        eventually(lambda: flushing.tries >= 3, "it is tried again")
        failed = (
            "store 'counts': could not flush while idle: HostFailure: cannot write /state: "
            "No space left on device; free some"
        )
        assert told(caplog) == [failed]
        assert all(line.exc_info is None for line in caplog.records)
        flushing.is_full.clear()
        well = "store 'counts': flushed again"
        eventually(lambda: told(caplog) == [failed, well], "it is told that it is well")
        flushing.is_full.set()
        eventually(lambda: told(caplog) == [failed, well, failed], "the next time is another one")
    finally:
        flushing.closed = True


def test_an_error_of_a_users_class_says_where_it_was_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("mine")
    try:
        raise ValueError("one\ntwo")
    except ValueError as error:
        log_left(log, error, "a processor's close")
    line, traced = caplog.records
    place = f"a processor's close: ValueError: one two ({__file__}:"
    assert line.getMessage().startswith(place)
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert (traced.levelno, traced.exc_info is not None) == (logging.DEBUG, True)

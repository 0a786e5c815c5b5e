"""What an error of the engine means, by its text."""

import errno
import os

import pytest

from statestore.engines.rocks_errors import translate
from statestore.errors import HostFailure, Locked, StateStoreError, TaskCorrupted


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        # What rocksdict asks of the file system itself is told by its number.
        (f"{os.strerror(errno.EIO)} (os error 5)", HostFailure, "repair it"),
        (f"{os.strerror(errno.EMFILE)} (os error 24)", HostFailure, "repair it"),
        (f"{os.strerror(errno.ENOENT)} (os error 2)", TaskCorrupted, "missing"),
        ("IO error: While lock file: a/LOCK: No locks available", HostFailure, "POSIX locks"),
        ("IO error: While lock file: a/LOCK: Function not implemented", HostFailure, "POSIX locks"),
        (
            "IO error: While lock file: a/LOCK: Resource temporarily unavailable",
            Locked,
            "elsewhere",
        ),
        ("IO error: While fsync: a: No space left on device", HostFailure, "repair it"),
    ],
)
def test_an_error_is_told_by_what_it_says(
    text: str, kind: type[StateStoreError], says: str
) -> None:
    found = translate(Exception(text), "here")
    assert type(found) is kind
    assert str(found).startswith("here: ")
    assert says in str(found)


def test_what_the_engine_did_not_say_is_left_alone() -> None:
    for error in (Exception("a mistake of the caller"), ValueError("(os error 5)")):
        assert translate(error, "here") is None

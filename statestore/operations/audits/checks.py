"""What an audit checks of every store, and the faults that a store's files show by themselves."""

from enum import StrEnum
from typing import Final, NamedTuple


class AuditCheck(StrEnum):
    """What must hold for every store."""

    PRESENT = "every partition is there"
    READABLE = "files are readable"
    FORMAT = "files of the deployed kind"
    ROW_COUNTS = "equal row counts"
    UNIQUE_KEYS = "unique keys"
    NONE_MISSING = "no key missing"
    NONE_EXTRA = "no key the log does not have"
    EQUAL_VALUES = "equal values"
    DERIVED_ROWS = "derived rows follow from the others"
    NOTHING_PENDING = "nothing pending persisted"
    STABLE_OFFSETS = "offsets at or below the last stable offset"
    FORWARD_OFFSETS = "offsets never go back"
    INPUT_POSITIONS = "no input position beyond the commits"
    BEHIND_COMMITS = "no input position behind the commits"
    STREAM_TIME = "stream time as committed"
    RIGHT_PARTITION = "no key in a wrong partition"
    VERSIONS_APART = "versions do not overlap"
    ONE_LATEST = "one latest version"
    KNOWN_WRITERS = "every row of a known serde"


FAULTS: Final = (AuditCheck.DERIVED_ROWS, AuditCheck.FORMAT, AuditCheck.STREAM_TIME)
"""The checks that a `Fault` may fail."""


class Fault(NamedTuple):
    """A row of a store's files that cannot be right; `key` is None if it is of no key."""

    check: AuditCheck
    key: bytes | None

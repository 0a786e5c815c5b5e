"""The searches of the model of the commit protocol: their bounds, and what is switched off."""

from collections.abc import Mapping
from typing import NamedTuple

ONE = {"OWNERS": 1, "LIVES": 1, "COMMITS": 3, "FAULTS": 2}
TWO = {"OWNERS": 2, "LIVES": 2, "COMMITS": 3, "FAULTS": 0, "LATE": 0}
TORN = "(ids[m_id].number==m_number)"
TWICE = "(m_number==(logged+1))"
BACK = "offsets>=group)"
AHEAD_OF_LOG = "(owners[who].store<=logged)"
AHEAD_OF_GROUP = "(owners[who].store<=group)"


class Case(NamedTuple):
    """A search: its bounds, what is switched off, and the assertion that fails."""

    name: str
    parameters: Mapping[str, int]
    violated: str


FOUND = [
    Case("one epoch for all transactions", ONE | {"IDS": 1, "EPOCHS": 0}, TORN),
    Case("two ids, an epoch each", ONE | {"EPOCHS": 0, "LATE": 1}, TORN),
    Case("offsets before the last id is open again", ONE | {"FIRST": 0}, BACK),
    Case("no look at the group", TWO | {"FIRST": 0, "CHECK": 0}, TWICE),
    Case("no answer is taken for lost", ONE | {"SETTLE": 0}, TWICE),
    Case("no answer is taken for done", ONE | {"SETTLE": 2}, AHEAD_OF_LOG),
    Case("stores before the log", ONE | {"LIVES": 2, "LOGFIRST": 0}, AHEAD_OF_GROUP),
]
HOLDS = {
    "librdkafka, one owner": ONE,
    "KIP-890, one owner": ONE | {"WIRE": 1},
    "librdkafka, a takeover": TWO,
}
HOLDS_LONGER = {
    "librdkafka, a takeover among faults": TWO | {"COMMITS": 2, "FAULTS": 1, "LATE": 1},
    "librdkafka is replaced by KIP-890 or the reverse": TWO
    | {"COMMITS": 2, "FAULTS": 1, "WIRE": 1},
    "KIP-890, a takeover among faults": TWO | {"COMMITS": 2, "FAULTS": 1, "WIRE": 3, "LATE": 1},
    "a transaction expires": ONE | {"EXPIRIES": 1},
}

"""The pending writes of a table: size accounting, order and savepoints against a recomputation."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statestore.stores.pending import ENTRY_COST, MISSING, Entries, Missing, Overlay, slice_of

KEYS = st.sampled_from([b"", b"a", b"ab"])
VALUES = st.none() | st.binary(max_size=5)
# Both sides of put_all's two ways.
WRITES = st.dictionaries(KEYS | st.binary(max_size=2), VALUES, max_size=24)
BOUNDS = st.none() | KEYS


def size_of(entries: Entries) -> int:
    return sum(len(key) + len(value or b"") + ENTRY_COST for key, value in entries.items())


def between(
    entries: Entries, lo: bytes | None, hi: bytes | None
) -> list[tuple[bytes, bytes | None]]:
    return [
        (key, value)
        for key, value in sorted(entries.items())
        if (lo is None or lo <= key) and (hi is None or key <= hi)
    ]


class OverlayMachine(RuleBasedStateMachine):
    """Random writes and savepoints; a list of dicts is the model: one per open savepoint."""

    def __init__(self) -> None:
        super().__init__()
        self.overlay = Overlay()
        self.entries = self.overlay.entries
        self.levels: list[Entries] = [{}]
        self.marks: list[int] = []

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes | None) -> None:
        self.overlay.put(key, value)
        self.levels[-1][key] = value

    @rule(writes=WRITES)
    def put_all(self, writes: Entries) -> None:
        self.overlay.put_all(writes)
        self.levels[-1].update(writes)

    @precondition(lambda self: len(self.levels) < 4)
    @rule()
    def mark(self) -> None:
        self.marks.append(self.overlay.mark())
        self.levels.append(dict(self.levels[-1]))

    @precondition(lambda self: len(self.levels) > 1)
    @rule()
    def merge(self) -> None:
        """What was written inside stays; the outermost savepoint has the marks forgotten."""
        self.marks.pop()
        if not self.marks:
            self.overlay.forget_marks()
        inner = self.levels.pop()
        self.levels[-1] = inner

    @precondition(lambda self: len(self.levels) > 1)
    @rule()
    def undo(self) -> None:
        self.overlay.go_back(self.marks.pop())
        if not self.marks:
            self.overlay.forget_marks()
        self.levels.pop()

    @rule()
    def clear(self) -> None:
        """A commit or a rollback: nothing is pending, and what is undone later comes later."""
        self.overlay.clear()
        self.marks = [self.overlay.mark() for _ in self.marks]
        self.levels = [{} for _ in self.levels]

    @rule(lo=BOUNDS, hi=BOUNDS, reverse=st.booleans())
    def slices_are_ordered_and_inclusive(
        self, lo: bytes | None, hi: bytes | None, reverse: bool
    ) -> None:
        expected = between(self.levels[-1], lo, hi)
        if reverse:
            expected.reverse()
        assert self.overlay.between(lo, hi, reverse=reverse) == expected
        assert slice_of(dict(self.overlay.entries), lo, hi, reverse=reverse) == expected

    @invariant()
    def holds_what_was_written(self) -> None:
        assert self.overlay.entries == self.levels[-1]

    @invariant()
    def knows_its_size(self) -> None:
        assert self.overlay.size_bytes == size_of(self.overlay.entries)

    @invariant()
    def entries_stay_the_same_object(self) -> None:
        assert self.overlay.entries is self.entries


TestOverlay = OverlayMachine.TestCase
TestOverlay.settings = settings(max_examples=120, stateful_step_count=30)


def test_a_pending_delete_is_not_the_same_as_nothing_pending() -> None:
    overlay = Overlay()
    overlay.put(b"k", None)
    assert overlay.entries.get(b"k", MISSING) is None
    assert isinstance(overlay.entries.get(b"absent", MISSING), Missing)


def test_empty_keys_and_values_cost_an_entry_each() -> None:
    overlay = Overlay()
    overlay.put(b"", b"")
    assert overlay.size_bytes == ENTRY_COST
    assert overlay.between(None, None, reverse=False) == [(b"", b"")]

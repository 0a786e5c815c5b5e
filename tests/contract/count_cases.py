"""Windows of a number of records, as text tables; see operator_tables."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
CLOSE = ss.EmitStrategy.ON_WINDOW_CLOSE


@case("""
    | in     | out    |
    | a 1 20 | a 1 20 |
    | a 1 10 | a 2 20 |
    | b 1 30 | b 1 30 |
    | a 1 40 | a 3 40 |
    | - 1 50 |        |
    | a - 50 |        |
    | a 1 50 | a 1 50 |
    | b 1 20 | b 2 30 |
""")
def count_windows(of: Case) -> None:
    by_key = of.stream().group_by_key()
    of.out(by_key.windowed_by(ss.CountWindows.of(3)).count(of.kept()).to_stream())


@case("""
    | in     | out            |
    | a 1 10 |                |
    | a 2 20 |                |
    | a 3 30 | a [1,2,3] 30   |
    | a 4 15 | a [2,3,4] 30   |
    | b 9 40 |                |
    | a 5 50 | a [3,4,5] 50   |
    | b 8 60 |                |
    | b 7 61 | b [9,8,7] 61   |
""")
def count_slide(of: Case) -> None:
    lasts = ss.CountWindows.of(3).advance_by(1)
    opened = of.stream().group_by_key().windowed_by(lasts, emit=CLOSE)
    of.out(opened.aggregate(list, lambda _key, value, seen: [*seen, value], of.kept()).to_stream())


@case("""
    | in     | out     |
    | a 1 10 | a 1 10  |
    | a 2 20 | a 3 20  |
    | a 3 30 | a 6 30  |
    | a 4 40 | a 10 40 |
    | a 5 50 | a 12 50 |
    | a 6 45 | a 18 50 |
    | a 7 70 | a 18 70 |
""")
def count_hop(of: Case) -> None:
    opened = of.stream().group_by_key().windowed_by(ss.CountWindows.of(4).advance_by(2))
    of.out(opened.reduce(lambda old, new: old + new, of.kept()).to_stream())


@case("""
    | in     | out          |
    | a 1 10 |              |
    | a 0 20 | a - 20       |
    | a 2 30 |              |
    | a 3 40 | a ["a",2,3] 40 |
    | a 0 50 |              |
    | a 4 60 | a ["a",4] 60 |
""")
def count_none(of: Case) -> None:
    """An aggregate of None begins anew, and a window that ends with it deletes the row."""

    def add(key: str, value: int, seen: list[object]) -> list[object] | None:
        return [*(seen or [key]), value] if value else None

    opened = of.stream().group_by_key().windowed_by(ss.CountWindows.of(2), emit=CLOSE)
    of.out(opened.aggregate(list, add, of.kept()).to_stream())

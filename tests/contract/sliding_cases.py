"""Sliding windows, as text tables; see operator_tables.

A key `a@10-20` is a in the window that has the records from 10 to 20, both inclusive.
"""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
TENS = ss.SlidingWindows(10, grace=20)


@case("""
    | in     | out                                        |
    | a 1 20 | a@10-20 1 20                               |
    | a 1 24 | a@21-31 1 24 ; a@14-24 2 24                |
    | b 1 24 | b@14-24 1 24                               |
    | a 1 24 | a@14-24 3 24 ; a@21-31 2 24                |
    | a 1 22 | a@14-24 4 24 ; a@21-31 3 24 ; a@12-22 2 22 ; a@23-33 2 24 |
    | a 1 45 | a@35-45 1 45                               |
    | - 1 99 |                                            |
    | a - 99 |                                            |
    | a 1 40 | a@35-45 2 45 ; a@30-40 1 40 ; a@41-51 1 45 |
    | a 1 14 |                                            |
""")
def slide_count(of: Case) -> None:
    of.out(of.stream().group_by_key().windowed_by(TENS).count(of.kept()).to_stream())


@case("""
    | in     | out                                        |
    | a 1 20 | a@10-20 ["a",1] 20                         |
    | a 2 25 | a@21-31 ["a",2] 25 ; a@15-25 ["a",1,2] 25  |
    | a 0 25 | a@15-25 - 25 ; a@21-31 - 25                |
    | a 3 26 | a@21-31 ["a",3] 26 ; a@16-26 ["a",1,3] 26  |
""")
def slide_aggregate(of: Case) -> None:
    def add(key: str, value: int, seen: list[object]) -> list[object] | None:
        return [*(seen or [key]), value] if value else None

    of.out(of.stream().group_by_key().windowed_by(TENS).aggregate(list, add, of.kept()).to_stream())


@case("""
    | in     | out                                                     |
    | a 1 20 | a@10-20 1 20                                            |
    | a 1 25 | a@21-31 1 25 ; a@15-25 2 25                             |
    | a 1 28 | a@21-31 2 28 ; a@26-36 1 28 ; a@18-28 3 28              |
    | a 1 26 | a@18-28 4 28 ; a@21-31 3 28 ; a@26-36 2 28 ; a@27-37 1 28 |
    | a 1 30 | a@21-31 4 30 ; a@26-36 3 30 ; a@27-37 2 30 ; a@29-39 1 30 ; a@20-30 5 30 |
""")
def slide_order(of: Case) -> None:
    no_grace = ss.SlidingWindows(10)
    of.out(of.stream().group_by_key().windowed_by(no_grace).count(of.kept()).to_stream())


@case("""
    | in      | out                                      |
    | a 1 20  |                                          |
    | a 1 24  |                                          |
    | b 1 40  |                                          |
    | b 1 41  | a@10-20 1 20                             |
    | a 1 20  |                                          |
    | b 1 99  | a@14-24 3 24 ; a@21-31 1 24 ; b@30-40 1 40 ; b@31-41 2 41 ; b@41-51 1 41 |
""")
def slide_close(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(TENS, emit=ss.EmitStrategy.ON_WINDOW_CLOSE)
    of.out(windowed.count(of.kept()).to_stream())

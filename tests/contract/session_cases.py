"""Session windows, as text tables; see operator_tables.

A key `a@10-20` is a in the session whose first record is of 10 and whose last one of 20.
"""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
GAP = ss.SessionWindows(10)
GRACE = ss.SessionWindows(10, grace=20, retention=90)
FINAL = ss.EmitStrategy.ON_WINDOW_CLOSE


@case("""
    | in      | out                                           |
    | a 1 10  | a@10-10 1 10                                  |
    | a 1 20  | a@10-10 - 10 ; a@10-20 2 20                   |
    | b 1 20  | b@20-20 1 20                                  |
    | a 1 15  | a@10-20 - 20 ; a@10-20 3 20                   |
    | a 1 31  | a@31-31 1 31                                  |
    | a 1 31  | a@31-31 2 31                                  |
    | - 1 42  |                                               |
    | b 1 20  |                                               |
    | a 1 21  | a@31-31 - 31 ; a@21-31 3 31                   |
    | a 1 41  | a@21-31 - 31 ; a@21-41 4 41                   |
    | a 1 52  | a@52-52 1 52                                  |
""")
def session_count(of: Case) -> None:
    of.out(of.stream().group_by_key().windowed_by(GAP).count(of.kept()).to_stream())


@case("""
    | in      | out                                                                 |
    | a 1 10  | a@10-10 1 10                                                        |
    | a 2 30  | a@30-30 2 30                                                        |
    | a 4 50  | a@50-50 4 50                                                        |
    | a 8 40  | a@30-30 - 30 ; a@50-50 - 50 ; a@30-50 14 50                         |
    | a 16 20 | a@30-50 - 50 ; a@20-50 30 50                                        |
    | a - 45  | a@20-50 - 50 ; a@20-50 30 50                                        |
    | b 1 19  |                                                                     |
    | b 1 20  | b@20-20 1 20                                                        |
    | - 1 60  |                                                                     |
    | a 9 10  | a@20-50 - 50 ; a@10-50 39 50                                        |
""")
def session_reduce_with_grace(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(GRACE)
    of.out(windowed.reduce(lambda old, new: (old or 0) + (new or 0), of.kept()).to_stream())


@case("""
    | in      | out                                                    |
    | a 1 10  | a@10-10 ["a",1] 10                                     |
    | a 2 12  | a@10-10 - 10 ; a@10-12 ["a",1,2] 12                    |
    | a 3 28  | a@28-28 ["a",3] 28                                     |
    | a 4 20  | a@10-12 - 12 ; a@28-28 - 28 ; a@10-28 ["a",1,2,3,4] 28 |
    | a 0 30  | a@10-28 - 28 ; a@10-30 - 30                            |
    | a 5 31  | a@31-31 ["a",5] 31                                     |
""")
def session_aggregate(of: Case) -> None:
    def add(key: str, value: int, seen: list[object]) -> list[object] | None:
        return [*(seen or [key]), value] if value else None

    def merged(_key: str, one: list[object], other: list[object]) -> list[object]:
        return one + (other[1:] if one else other)

    grouped = of.stream().group_by_key().windowed_by(GRACE)
    of.out(grouped.aggregate(list, add, merged, of.kept()).to_stream())


@case("""
    | in       | out                             |
    | b 1 10   |                                 |
    | a 1 12   |                                 |
    | a 1 20   |                                 |
    | c 1 40   |                                 |
    | c 1 41   | b@10-10 1 10                    |
    | b 1 10   |                                 |
    | b 1 11   |                                 |
    | a 1 25   |                                 |
    | - 1 90   |                                 |
    | c 1 60   | b@11-11 1 11 ; a@12-25 3 25     |
    | c 1 91   | c@40-41 2 41 ; c@60-60 1 60     |
    | c 1 200  | c@91-91 1 91                    |
""")
def session_close(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(GRACE, emit=FINAL)
    of.out(windowed.count(of.kept()).to_stream())


@case("""
    | in      | out                          |
    | a 7 10  | 7@10-10 1 10                 |
    | b 7 12  | 7@10-10 - 10 ; 7@10-12 2 12  |
    | b 8 13  | 8@13-13 1 13                 |
""")
def session_count_of_other_keys(of: Case) -> None:
    grouped = of.stream().group_by(lambda _key, value: str(value), name=of.of("by"))
    of.out(grouped.windowed_by(GAP).count(of.kept()).to_stream())


@case("""
    | in      | out                            |
    | a 1 10  |                                |
    | a 1 12  | a@10-12 [2] 12                 |
    | a 1 13  | a@10-12 - 12                   |
    | a 1 14  | a@10-14 [4] 14                 |
""")
def session_table_filtered_and_mapped(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(GAP).count(of.kept())
    of.out(counts.filter(lambda _window, n: n % 2 == 0).map_values(lambda n: [n]).to_stream())


@case("""
    | in           | out                                   |
    | a 1 10       |                                       |
    | right:a 1 10 | a@10-10 [1,1] 10                      |
    | a 1 12       | a@10-10 - 10                          |
    | right:a 1 12 | a@10-12 [2,2] 12                      |
""")
def session_tables_joined(of: Case) -> None:
    left = of.stream().group_by_key().windowed_by(GAP).count(of.kept())
    right = of.stream("right").group_by_key().windowed_by(GAP).count(of.kept("kept-right"))
    of.out(left.join(right, lambda a, b: [a, b]).to_stream())

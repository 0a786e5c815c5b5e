"""Tumbling and hopping windows, as text tables; see operator_tables.

A key `a@10-20` is a in that window.
"""

from datetime import timedelta

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
TENS = ss.TumblingWindows(10)
GRACE = ss.TumblingWindows(10, grace=5, retention=30)
HOPS = ss.HoppingWindows(10, 5)
UNEVEN = ss.HoppingWindows(timedelta(milliseconds=10), 4, grace=5, retention=30)
FINAL = ss.EmitStrategy.ON_WINDOW_CLOSE


@case("""
    | in       | out             |
    | a 1 0    | a@0-10 1 0      |
    | a 1 9    | a@0-10 2 9      |
    | b 1 9    | b@0-10 1 9      |
    | a 1 10   | a@10-20 1 10    |
    | a 1 9    |                 |
    | - 1 25   |                 |
    | a 1 19   | a@10-20 2 19    |
    | a 1 29   | a@20-30 1 29    |
    | a 1 19   |                 |
""")
def window_count(of: Case) -> None:
    of.out(of.stream().group_by_key().windowed_by(TENS).count(of.kept()).to_stream())


@case("""
    | in       | out                |
    | a 1 0    | a@0-10 1 0         |
    | a 2 12   | a@10-20 2 12       |
    | a 4 5    | a@0-10 5 5         |
    | a 8 14   | a@10-20 10 14      |
    | a 1 9    | a@0-10 6 9         |
    | a 1 15   | a@10-20 11 15      |
    | a 9 9    |                    |
    | a - 16   | a@10-20 11 16      |
""")
def window_reduce_with_grace(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(GRACE)
    of.out(windowed.reduce(lambda old, new: old + (new or 0), of.kept()).to_stream())


@case("""
    | in       | out                |
    | a 1 8    | a@0-10 1 8         |
    | a 1 12   | a@10-20 1 12       |
    | a 1 5    | a@0-10 2 8         |
    | a 1 11   | a@10-20 2 12       |
    | a 1 14   | a@10-20 3 14       |
""")
def window_count_of_late_records(of: Case) -> None:
    of.out(of.stream().group_by_key().windowed_by(GRACE).count(of.kept()).to_stream())


@case("""
    | in       | out                |
    | a 1 3    | a@0-10 ["a",1] 3   |
    | a 2 4    | a@0-10 ["a",1,2] 4 |
    | a 0 5    | a@0-10 - 5         |
    | a 3 6    | a@0-10 ["a",3] 6   |
""")
def window_aggregate(of: Case) -> None:
    def add(key: str, value: int, seen: list[object]) -> list[object] | None:
        return [*(seen or [key]), value] if value else None

    of.out(of.stream().group_by_key().windowed_by(TENS).aggregate(list, add, of.kept()).to_stream())


@case("""
    | in       | out                           |
    | b 1 1    |                               |
    | a 1 2    |                               |
    | a 1 12   |                               |
    | a 1 3    |                               |
    | a 1 15   | a@0-10 2 3 ; b@0-10 1 1       |
    | a 1 4    |                               |
    | a 1 24   |                               |
    | c 1 99   | a@10-20 2 15 ; a@20-30 1 24   |
    | c 1 105  | c@90-100 1 99                 |
    | - 1 200  |                               |
    | c 1 115  | c@100-110 1 105               |
""")
def window_close(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(GRACE, emit=FINAL)
    of.out(windowed.count(of.kept()).to_stream())


@case("""
    | in       | out           |
    | a 7 1    | 7@0-10 1 1    |
    | b 7 2    | 7@0-10 2 2    |
    | b 8 13   | 8@10-20 1 13  |
    | c 7 3    |               |
""")
def window_count_of_other_keys(of: Case) -> None:
    grouped = of.stream().group_by(lambda _key, value: str(value), name=of.of("by"))
    of.out(grouped.windowed_by(TENS).count(of.kept()).to_stream())


@case("""
    | in       | out           |
    | a 1 1    |               |
    | a 1 2    | a@0-10 [2] 2  |
    | a 1 3    | a@0-10 - 3    |
    | a 1 11   |               |
    | a 1 12   | a@10-20 [2] 12|
""")
def window_table_filtered_and_mapped(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(TENS).count(of.kept())
    of.out(counts.filter(lambda _window, n: n == 2).map_values(lambda n: [n]).to_stream())


@case("""
    | in         | out                 |
    | a 1 1      |                     |
    | right:a 1 2| a@0-10 [1,1] 2      |
    | a 1 3      | a@0-10 [2,1] 3      |
    | a 1 13     |                     |
    | right:a 1 14| a@10-20 [1,1] 14   |
""")
def window_tables_joined(of: Case) -> None:
    left = of.stream().group_by_key().windowed_by(TENS).count(of.kept())
    right = of.stream("right").group_by_key().windowed_by(TENS).count(of.kept("kept-right"))
    of.out(left.join(right, lambda a, b: [a, b]).to_stream())


@case("""
    | in       | out     |
    | a 1 1    | a 1 1   |
    | b 1 2    | b 1 2   |
    | a 1 3    | a 2 3   |
    | a 1 11   | a 3 11  |
""")
def window_updates_counted_by_key(of: Case) -> None:
    counts = of.stream().group_by_key().windowed_by(TENS).count(of.kept()).to_stream()
    by_key = counts.group_by(lambda window, _n: window.key, name=of.of("updates"))
    of.out(by_key.count(of.kept("all")).to_stream())


@case("""
    | in     | out                         |
    | a 1 13 | a@5-15 1 13 ; a@10-20 1 13  |
    | a 1 17 | a@10-20 2 17 ; a@15-25 1 17 |
    | b 1 17 | b@10-20 1 17 ; b@15-25 1 17 |
    | a 1 22 | a@15-25 2 22 ; a@20-30 1 22 |
    | a 1 19 | a@15-25 3 22                |
    | - 1 36 |                             |
    | a 1 25 | a@20-30 2 25 ; a@25-35 1 25 |
    | b 1 35 | b@30-40 1 35 ; b@35-45 1 35 |
    | a 1 24 |                             |
""")
def hop_count(of: Case) -> None:
    of.out(of.stream().group_by_key().windowed_by(HOPS).count(of.kept()).to_stream())


@case("""
    | in     | out                                        |
    | a 1 21 | a@12-22 1 21 ; a@16-26 1 21 ; a@20-30 1 21 |
    | a 2 23 | a@16-26 3 23 ; a@20-30 3 23                |
    | a 4 32 | a@24-34 4 32 ; a@28-38 4 32 ; a@32-42 4 32 |
    | a 8 21 | a@20-30 11 23                              |
    | a 9 19 |                                            |
    | a - 24 | a@20-30 11 24 ; a@24-34 4 32               |
""")
def hop_reduce_with_grace(of: Case) -> None:
    windowed = of.stream().group_by_key().windowed_by(UNEVEN)
    of.out(windowed.reduce(lambda old, new: old + (new or 0), of.kept()).to_stream())


@case("""
    | in     | out                                       |
    | a 1 13 | a@5-15 ["a",1] 13 ; a@10-20 ["a",1] 13    |
    | a 2 15 | a@10-20 ["a",1,2] 15 ; a@15-25 ["a",2] 15 |
    | a 0 22 | a@15-25 - 22 ; a@20-30 - 22               |
    | a 3 24 | a@15-25 ["a",3] 24 ; a@20-30 ["a",3] 24   |
""")
def hop_aggregate(of: Case) -> None:
    def add(key: str, value: int, seen: list[object]) -> list[object] | None:
        return [*(seen or [key]), value] if value else None

    of.out(of.stream().group_by_key().windowed_by(HOPS).aggregate(list, add, of.kept()).to_stream())


@case("""
    | in     | out                                                                      |
    | a 1 23 |                                                                          |
    | a 1 27 |                                                                          |
    | b 1 32 | a@15-25 1 23                                                             |
    | a 1 35 | a@20-30 2 27                                                             |
    | a 1 28 |                                                                          |
    | c 1 60 | a@25-35 2 28 ; b@25-35 1 32 ; a@30-40 1 35 ; b@30-40 1 32 ; a@35-45 1 35 |
    | c 1 70 | c@55-65 1 60                                                             |
""")
def hop_close(of: Case) -> None:
    hops = ss.HoppingWindows(10, 5, grace=5)
    of.out(of.stream().group_by_key().windowed_by(hops, emit=FINAL).count(of.kept()).to_stream())


@case("""
    | in           | out                                 |
    | a 1 11       |                                     |
    | right:a 1 17 | a@10-20 [1,1] 17                    |
    | a 1 18       | a@10-20 [2,1] 18 ; a@15-25 [1,1] 18 |
""")
def hop_tables_joined(of: Case) -> None:
    left = of.stream().group_by_key().windowed_by(HOPS).count(of.kept())
    right = of.stream("right").group_by_key().windowed_by(HOPS).count(of.kept("kept-right"))
    of.out(left.join(right, lambda a, b: [a, b]).to_stream())

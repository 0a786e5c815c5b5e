"""Tumbling windows, as text tables; see operator_tables. A key `a@10-20` is a in that window."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
TENS = ss.TumblingWindows(10)
GRACE = ss.TumblingWindows(10, grace_ms=5, retention_ms=30)
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
    | a 1 15   | a@0-10 2 9 ; b@0-10 1 9       |
    | a 1 4    |                               |
    | a 1 24   |                               |
    | c 1 99   | a@10-20 2 19 ; a@20-30 1 29   |
    | c 1 105  | c@90-100 1 99                 |
    | - 1 200  |                               |
    | c 1 115  | c@100-110 1 109               |
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

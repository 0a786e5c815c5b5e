"""The operators of tables and the joins, each as a text table; see operator_tables."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()

# Tables. A filter emits a delete only for a key that passed before.


@case("""
    | in       | out      |
    | a 1 0    |          |
    | a 5 1    | a 5 1    |
    | a 1 2    | a - 2    |
    | a 2 3    |          |
    | a - 4    |          |
    | b 9 5    | b 9 5    |
    | b - 6    | b - 6    |
""")
def table_filter(of: Case) -> None:
    of.out(of.table("in").filter(lambda _key, value: value > 3).to_stream())


@case("""
    | in       | out      |
    | a 5 0    |          |
    | a 1 1    | a 1 1    |
    | a 5 2    | a - 2    |
    | a - 3    |          |
""")
def table_filter_not(of: Case) -> None:
    of.out(of.table("in").filter_not(lambda _key, value: value > 3, of.kept()).to_stream())


@case("""
    | in       | out          |
    | a 5 0    | a5 5 0       |
    | a 1 1    | a1 1 1       |
    | a - 2    | a! - 2       |
""")
def table_to_stream_with_other_keys(of: Case) -> None:
    def rename(key: str, value: int | None) -> str:
        return f"{key}{'!' if value is None else value}"

    of.out(of.table("in").to_stream(rename))


@case("""
    | in       | out        |
    | a 1 0    | a [1] 0    |
    | a - 1    | a - 1      |
    | b - 2    | b - 2      |
""")
def table_map_values(of: Case) -> None:
    of.out(of.table("in").map_values(lambda value: [value]).to_stream())


@case("""
    | in       | out      |
    | a 1 0    |          |
    | a 1 1    |          |
    | a 1 2    | a 6 2    |
    | a 1 3    | a - 3    |
    | a 1 4    |          |
""")
def table_filter_of_a_count_and_map_values(of: Case) -> None:
    counts = of.stream().group_by_key().count(of.kept())
    three = counts.filter(lambda _key, n: n == 3, of.kept("three"))
    of.out(three.map_values(lambda n: n * 2).to_stream())


@case("""
    | in       | out                |
    | a 1 0    | a 1 0              |
    | a 5 1    | a 5 1 ; a [5] 1    |
    | a 2 2    | a 2 2 ; a - 2      |
    | b - 3    | b - 3              |
""")
def table_merged_with_a_view_of_itself(of: Case) -> None:
    table = of.table("in")
    both = table.to_stream()
    seen = table.filter(lambda _key, value: value > 3).map_values(lambda value: [value])
    of.out(both.merge(seen.to_stream()))


# A stream and a table.

STREAM_TABLE = """
    | in          | out           |
    | a 1 0       | {none}        |
    | right:a 9 1 |               |
    | a 2 2       | a [2,9] 2     |
    | b 3 3       | {other}       |
    | right:a 8 4 |               |
    | a 4 5       | a [4,8] 5     |
    | a - 6       |               |
    | - 5 7       | {no_key}      |
    | right:a - 8 |               |
    | a 6 9       | {deleted}     |
    | right:- 1 10|               |
"""


@case(STREAM_TABLE.format(none="", other="", no_key="", deleted=""))
def join(of: Case) -> None:
    of.out(of.stream().join(of.table("right"), lambda left, right: [left, right]))


@case(
    STREAM_TABLE.format(
        none="a [1,null] 0", other="b [3,null] 3", no_key="- [5,null] 7", deleted="a [6,null] 9"
    )
)
def left_join(of: Case) -> None:
    of.out(of.stream().left_join(of.table("right"), lambda left, right: [left, right]))


@case("""
    | in          | out           |
    | right:1 9 0 |               |
    | a 1 1       | 1 [1,9] 1     |
    | b 1 2       | 1 [1,9] 2     |
    | right:1 8 3 |               |
    | a 1 4       | 1 [1,8] 4     |
    | a 2 5       |               |
""")
def join_of_a_rekeyed_stream(of: Case) -> None:
    stream = of.stream().select_key(lambda _key, value: str(value))
    joined = stream.join(of.table("right"), lambda a, b: [a, b], name=of.of("rekeyed"))
    of.out(joined)


@case("""
    | in          | out          |
    | right:a 1 0 |              |
    | a 1 1       |              |
    | right:a 5 2 |              |
    | a 2 3       | a [2,[5]] 3  |
    | right:a 2 4 |              |
    | a 3 5       |              |
""")
def join_with_a_table_computed_from_another(of: Case) -> None:
    table = of.table("right").filter(lambda _key, value: value > 3).map_values(lambda v: [v])
    of.out(of.stream().join(table, lambda a, b: [a, b]))


@case("""
    | in       | out        |
    | a 7 0    | a [7,1] 0  |
    | a 8 1    | a [8,2] 1  |
    | b 9 2    | b [9,1] 2  |
    | a 6 3    | a [6,3] 3  |
""")
def join_with_a_table_made_of_the_stream_itself(of: Case) -> None:
    stream = of.stream()
    counts = stream.group_by_key().count(of.kept())
    of.out(stream.join(counts, lambda value, n: [value, n]))


# Functions that take the key, too.


def with_key(key: object, left: object, right: object) -> list[object]:
    return [key, left, right]


@case("""
    | in       | out          |
    | a 1 0    | a ["a",1] 0  |
    | a 5 1    | a ["a",5] 1  |
    | a - 2    | a - 2        |
""")
def table_map_values_with_key(of: Case) -> None:
    of.out(of.table("in").map_values(lambda key, value: [key, value]).to_stream())


@case("""
    | in          | out               |
    | a 1 0       | a ["a",1,null] 0  |
    | right:a 9 1 |                   |
    | a 2 2       | a ["a",2,9] 2     |
    | - 3 3       | - [null,3,null] 3 |
""")
def left_join_with_key(of: Case) -> None:
    of.out(of.stream().left_join(of.table("right"), with_key))


@case("""
    | in          | out                    |
    | a 1 0       | a ["a",1,null] 0       |
    | right:a 9 1 | a ["a",1,["a",9]] 1    |
    | a - 2       | a ["a",null,["a",9]] 2 |
    | right:b 4 3 | b ["b",null,["b",4]] 3 |
    | right:a - 4 | a - 4                  |
""")
def table_outer_join_with_key(of: Case) -> None:
    named = of.table("right").map_values(lambda key, value: [key, value])
    of.out(of.table("in").outer_join(named, with_key).to_stream())


@case("""
    | in          | out                    |
    | table:a 1 0 |                        |
    | right:a 9 1 |                        |
    | a 3 2       | a [3,["a",1,9]] 2      |
""")
def join_with_a_join_of_tables_with_key(of: Case) -> None:
    both = of.table("table").join(of.table("right"), with_key)
    of.out(of.stream().join(both, lambda value, row: [value, row]))


# Two tables.


@case("""
    | in          | out         |
    | a 1 0       |             |
    | right:a 9 1 | a [1,9] 1   |
    | a 2 2       | a [2,9] 2   |
    | right:a - 3 | a - 3       |
    | right:a - 4 | a - 4       |
    | a 3 5       |             |
    | right:a 8 6 | a [3,8] 6   |
    | a - 7       | a - 7       |
    | right:a 7 8 |             |
    | - 1 9       |             |
""")
def table_join(of: Case) -> None:
    of.out(of.table("in").join(of.table("right"), lambda a, b: [a, b]).to_stream())


@case("""
    | in          | out           |
    | right:a 9 0 |               |
    | a 1 1       | a [1,9] 1     |
    | b 2 2       | b [2,null] 2  |
    | right:a - 3 | a [1,null] 3  |
    | a - 4       | a - 4         |
    | c - 5       |               |
    | right:b 8 6 | b [2,8] 6     |
    | b - 7       | b - 7         |
    | right:b 7 8 |               |
""")
def table_left_join(of: Case) -> None:
    of.out(of.table("in").left_join(of.table("right"), lambda a, b: [a, b]).to_stream())


@case("""
    | in           | out           |
    | a 1 9        | a [1,null] 9  |
    | right:b 0 10 |               |
    | right:a 8 5  | a [1,8] 9     |
    | right:a 7 11 | a [1,7] 11    |
    | c 1 12       | c [1,null] 12 |
    | a 2 3        | a [2,7] 11    |
    | right:b 0 13 |               |
    | right:a - 4  | a [2,null] 4  |
    | right:a 6 1  | a [2,6] 3     |
    | a - 14       | a - 14        |
""")
def table_left_join_of_late_updates(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    of.out(left.left_join(right, lambda a, b: [a, b], of.kept()).to_stream())


@case("""
    | in          | out           |
    | right:a 9 0 | a [null,9] 0  |
    | a 1 1       | a [1,9] 1     |
    | b 2 2       | b [2,null] 2  |
    | right:a - 3 | a [1,null] 3  |
    | a - 4       | a - 4         |
    | c - 5       |               |
    | right:c - 5 |               |
    | right:b 8 6 | b [2,8] 6     |
    | b - 7       | b [null,8] 7  |
    | right:b 7 8 | b [null,7] 8  |
    | right:b - 9 | b - 9         |
    | - 1 10      |               |
""")
def table_outer_join(of: Case) -> None:
    of.out(of.table("in").outer_join(of.table("right"), lambda a, b: [a, b]).to_stream())


@case("""
    | in           | out            |
    | right:a 1 9  | a [null,1] 9   |
    | b 0 10       | b [0,null] 10  |
    | a 8 5        | a [8,1] 9      |
    | a - 4        | a [null,1] 9   |
    | a 7 11       | a [7,1] 11     |
    | right:b 0 12 | b [0,0] 12     |
    | right:a 2 3  | a [7,2] 11     |
    | right:a - 4  | a [7,null] 11  |
    | right:a 3 12 | a [7,3] 12     |
    | b 1 13       | b [1,0] 13     |
    | a - 1        | a [null,3] 12  |
    | right:b 1 14 | b [1,1] 14     |
    | right:a - 2  | a - 2          |
""")
def table_outer_join_of_late_updates(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    of.out(left.outer_join(right, lambda a, b: [a, b], of.kept()).to_stream())


@case("""
    | in           | out           |
    | right:a 1 3  |               |
    | a 5 4        | a 6 4         |
    | last:a 2 5   | a 8 5         |
    | right:a - 6  | a 7 6         |
    | a - 7        | a - 7         |
    | last:a - 8   |               |
    | right:a 9 9  | a 9 9         |
""")
def table_outer_joins_of_joins_filtered(of: Case) -> None:
    both = of.table("in").outer_join(of.table("right"), lambda a, b: (a or 0) + (b or 0))
    more = both.outer_join(of.table("last"), lambda a, b: (a or 0) + (b or 0))
    of.out(more.filter(lambda _key, n: n > 2).to_stream())


@case("""
    | in          | out       |
    | a 1 0       |           |
    | right:a 2 1 | a 13 1    |
    | last:a 3 2  | a 16 2    |
    | right:a 4 3 | a 18 3    |
    | last:a - 4  | a 15 4    |
    | a 9 5       | a - 5     |
    | a 8 6       |           |
    | right:a - 7 |           |
""")
def table_joins_of_joins_filtered(of: Case) -> None:
    both = of.table("in").join(of.table("right"), lambda a, b: a + b)
    more = both.left_join(of.table("last"), lambda a, b: a + (b or 0), of.kept())
    of.out(more.map_values(lambda n: n + 10).filter(lambda _key, n: n < 20).to_stream())


# A table in groups.


@case("""
    | in       | out                 |
    | a 1 0    | 1 1 0               |
    | b 1 1    | 1 2 1               |
    | a 2 2    | 1 1 2 ; 2 1 2       |
    | b - 3    | 1 0 3               |
    | a 2 4    | 2 1 4               |
    | c - 5    |                     |
    | a - 6    | 2 0 6               |
""")
def table_in_groups_counted(of: Case) -> None:
    groups = of.table("in").group_by(lambda key, value: (str(value), key), name=of.of("by"))
    of.out(groups.count(of.kept("counts")).to_stream())


@case("""
    | in       | out                 |
    | a 1 0    | 1 1 0               |
    | b 3 1    | 1 4 1               |
    | a 5 2    | 1 8 2               |
    | b 2 3    | 1 5 3 ; 0 2 3       |
    | a - 4    | 1 0 4               |
    | a 7 5    | 1 7 5               |
    | - 9 6    |                     |
""")
def table_in_groups_reduced(of: Case) -> None:
    groups = of.table("in").group_by(lambda _key, value: (str(value % 2), value))
    kept = of.kept("sums")
    of.out(groups.reduce(lambda a, b: a + b, lambda a, b: a - b, kept).to_stream())


@case("""
    | in       | out                 |
    | a 11 9   | 1 [11] 9            |
    | b 12 5   | 1 [11,12] 9         |
    | a 21 7   | 1 [12] 9 ; 2 [21] 7 |
    | b - 8    | 1 - 9               |
    | b 13 3   | 1 [13] 3            |
    | c -1 10  |                     |
    | c 15 11  | 1 [13,15] 11        |
    | c -1 12  | 1 [13] 12           |
""")
def table_in_groups_aggregated(of: Case) -> None:
    def add(_group: str, value: int, members: list[int]) -> list[int]:
        return sorted([*members, value])

    def take(_group: str, value: int, members: list[int]) -> list[int] | None:
        return [one for one in members if one != value] or None

    big = of.table("in").filter(lambda _key, value: value != 0)
    groups = big.group_by(lambda _key, v: (str(v // 10) if v > 0 else None, v), name=of.of("by"))
    of.out(groups.aggregate(list, add, take, of.kept("members")).to_stream())


@case("""
    | in       | out       |
    | a 1 1    | a 1 1     |
    | b 1 2    | b 1 2     |
    | a 1 3    | a 2 3     |
    | a 1 11   | a 3 11    |
    | a 1 12   | a 4 12    |
""")
def table_of_windows_in_groups(of: Case) -> None:
    windows = of.stream().group_by_key().windowed_by(ss.TumblingWindows(10)).count(of.kept())
    groups = windows.group_by(lambda window, n: (window.key, n), name=of.of("by"))
    of.out(groups.reduce(lambda a, b: a + b, lambda a, b: a - b, of.kept("sums")).to_stream())


@case("""
    | in       | out                                |
    | a 1 0    | left:a [1,1] 0; left:a [1,1] 0     |
    | a 2 1    | left:a [2,2] 1; left:a [2,2] 1     |
    | a - 2    | left:a - 2                         |
""")
def table_left_join_with_itself(of: Case) -> None:
    table = of.table("in")
    of.out(table.left_join(table, lambda one, other: [one, other]).to_stream(), "left")


@case("""
    | in       | out                         |
    | a 1 0    | a [1,2] 0                   |
    | a 2 1    | a [2,2] 1; a [2,4] 1        |
    | a - 2    | a - 2                       |
    | b - 3    |                             |
""")
def table_join_of_two_kept_views_of_one_table(of: Case) -> None:
    table = of.table("in")
    one = table.map_values(lambda value: value, of.kept("one"))
    two = table.map_values(lambda value: 2 * value, of.kept("two"))
    of.out(one.join(two, lambda left, right: [left, right]).to_stream())


@case("""
    | in          | out                    |
    | right:a 5 0 |                        |
    | a 2 1       | kept:a [2,5] 1         |
    | in2:a 7 2   | a [7,[2,5]] 2          |
    | right:a 1 3 | kept:a - 3             |
    | in2:a 8 4   | a [8,null] 4           |
""")
def joins_with_kept_views_and_a_kept_join(of: Case) -> None:
    high = of.table("right").filter(lambda _key, value: value > 3, of.kept("high"))
    same = of.table("in").map_values(lambda value: value, of.kept("same"))
    both = same.join(high, lambda left, right: [left, right], of.kept("both"))
    of.out(both.to_stream(), "kept")
    of.out(of.stream("in2").left_join(both, lambda one, two: [one, two]))

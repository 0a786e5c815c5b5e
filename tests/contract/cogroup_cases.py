"""Aggregates of several streams, each as a text table; see operator_tables."""

from typing import Any

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()


def added(_key: str, value: Any, total: list[Any]) -> list[Any]:
    return [*total, value]


def taken(_key: str, value: Any, total: list[Any]) -> list[Any] | None:
    return [one for one in total if one != value] or None


@case("""
    | in          | out         |
    | a 1 0       | a [1] 0     |
    | right:b 5 1 | b - 1       |
    | a 2 2       | a [1,2] 2   |
    | a 4 1       | a [1,2,4] 2 |
    | right:a 1 3 | a [2,4] 3   |
    | right:a - 4 |             |
    | right:a 2 5 | a [4] 5     |
    | right:a 4 6 | a - 6       |
    | - 1 7       |             |
    | a 7 8       | a [7] 8     |
""")
def cogroup(of: Case) -> None:
    left, right = of.stream().group_by_key(), of.stream("right").group_by_key()
    both = left.cogroup(added).cogroup(right, taken)
    of.out(both.aggregate(list, of.kept()).to_stream())


@case("""
    | in          | out            |
    | a 1 0       | 1 1 0          |
    | right:b 1 1 | b 10 1         |
    | b 1 2       | 1 2 2          |
    | right:1 1 3 | 1 12 3         |
    | last:x 1 4  | 1 112 4        |
    | last:y b 5  | b 110 5        |
""")
def cogroup_of_three_of_which_two_are_rekeyed(of: Case) -> None:
    left = of.stream().group_by(lambda _key, value: str(value), name=of.of("by-value"))
    last = of.stream("last").group_by(lambda _key, value: str(value))
    both = (
        left.cogroup(lambda _key, _value, total: total + 1)
        .cogroup(of.stream("right").group_by_key(), lambda _key, _value, total: total + 10)
        .cogroup(last, lambda _key, _value, total: total + 100)
    )
    of.out(both.aggregate(int, of.kept()).to_stream())


@case("""
    | in    | out             |
    | a 1 0 | a [1] 0 ; a [1,1] 0 |
    | a 2 1 | a [1,1,2] 1 ; a [1,1,2,2] 1 |
""")
def cogroup_of_a_stream_with_itself(of: Case) -> None:
    grouped = of.stream().group_by_key()
    of.out(grouped.cogroup(added).cogroup(grouped, added).aggregate(list, of.kept()).to_stream())


@case("""
    | in           | out             |
    | a 1 0        | a@0-10 1 0      |
    | right:a 2 5  | a@0-10 21 5     |
    | a 3 12       | a@10-20 3 12    |
    | right:a - 13 | a@10-20 3 13    |
    | right:a 1 9  |                 |
    | right:a 1 14 | a@10-20 13 14   |
""")
def cogroup_in_windows(of: Case) -> None:
    left, right = of.stream().group_by_key(), of.stream("right").group_by_key()
    both = left.cogroup(lambda _key, value, total: total + (value or 0)).cogroup(
        right, lambda _key, value, total: total + 10 * (value or 0)
    )
    table = both.windowed_by(ss.TumblingWindows(10)).aggregate(int, of.kept())
    of.out(table.to_stream())


@case("""
    | in           | out                             |
    | a 1 10       |                                 |
    | right:a 2 15 | a@5-15 1 10                     |
    | right:b 1 17 |                                 |
    | a 3 22       | a@10-20 21 15 ; b@10-20 10 17   |
    | right:c 1 28 | a@15-25 23 22 ; b@15-25 10 17   |
""")
def cogroup_in_hopping_windows_that_close(of: Case) -> None:
    left, right = of.stream().group_by_key(), of.stream("right").group_by_key()
    both = left.cogroup(lambda _key, value, total: total + value).cogroup(
        right, lambda _key, value, total: total + 10 * value
    )
    windows = both.windowed_by(ss.HoppingWindows(10, 5), emit="on_window_close")
    of.out(windows.aggregate(int, of.kept()).to_stream())


@case("""
    | in           | out                        |
    | a 1 0        | a@0-0 1 0                  |
    | right:a 2 8  | a@8-8 20 8                 |
    | right:a 3 4  | a@0-0 - 0 ; a@8-8 - 8 ; a@0-8 51 8 |
    | a 1 30       | a@30-30 1 30               |
""")
def cogroup_in_sessions(of: Case) -> None:
    left, right = of.stream().group_by_key(), of.stream("right").group_by_key()
    both = left.cogroup(lambda _key, value, total: total + value).cogroup(
        right, lambda _key, value, total: total + 10 * value
    )
    sessions = both.windowed_by(ss.SessionWindows(5, grace=9))
    table = sessions.aggregate(int, lambda _key, one, other: one + other, of.kept())
    of.out(table.to_stream())

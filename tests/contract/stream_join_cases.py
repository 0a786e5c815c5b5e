"""Joins of two streams, as text tables; see operator_tables."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()
NEAR = ss.JoinWindows(10, 5)
PATIENT = ss.JoinWindows(10, 5, grace=5)
AFTER = ss.JoinWindows(-5, 20)
BEFORE = ss.JoinWindows(20, -5)
AT_ONCE = ss.JoinWindows(0)


def pair(left: object, right: object) -> list[object]:
    return [left, right]


@case("""
    | in            | out                                     |
    | a 1 10        |                                         |
    | right:a 2 15  | a [1,2] 15                              |
    | right:a 3 16  |                                         |
    | a 4 20        | a [4,2] 20 ; a [4,3] 20                 |
    | a 5 25        | a [5,2] 25 ; a [5,3] 25                 |
    | right:b 6 26  |                                         |
    | right:a 7 20  | a [4,7] 20 ; a [5,7] 25                 |
    | right:a 7 16  | a [4,7] 20 ; a [5,7] 25                 |
    | right:a 8 10  |                                         |
    | right:a - 26  |                                         |
    | - 1 27        |                                         |
    | a - 27        |                                         |
    | a 9 12        | a [9,2] 15 ; a [9,3] 16 ; a [9,7] 16    |
    | a 9 11        |                                         |
    | a 9 27        | a [9,7] 27                              |
""")
def streams_join(of: Case) -> None:
    of.out(of.stream().join(of.stream("right"), pair, NEAR, name=of.of("pairs")))


@case("""
    | in            | out                       |
    | right:a 2 9   |                           |
    | a 1 10        |                           |
    | a 1 10        |                           |
    | right:a 2 10  | a [1,2] 10 ; a [1,2] 10   |
    | right:a 2 10  | a [1,2] 10 ; a [1,2] 10   |
    | a 3 11        |                           |
    | right:a 4 11  | a [3,4] 11                |
    | right:a 4 10  |                           |
""")
def streams_join_duplicates_at_one_time(of: Case) -> None:
    of.out(of.stream().join(of.stream("right"), pair, AT_ONCE, name=of.of("pairs")))


@case("""
    | in            | out                             |
    | a 1 10        |                                 |
    | b 2 11        |                                 |
    | right:a 3 15  | a [1,3] 15                      |
    | right:c 4 16  |                                 |
    | right:c 4 17  | b [2,null] 11                   |
    | right:b 5 16  |                                 |
    | x 0 18        |                                 |
    | a 6 10        | a [6,3] 15                      |
    | z 6 11        | z [6,null] 11                   |
    | z 6 2         |                                 |
    | - 7 1         | - [7,null] 1                    |
    | - 8 23        | - [8,null] 23                   |
    | right:- 9 24  | x [0,null] 18                   |
    | a - 30        |                                 |
    | d 1 30        |                                 |
    | d 2 30        |                                 |
    | e 3 29        |                                 |
    | x 0 40        | e [3,null] 29 ; d [1,null] 30 ; d [2,null] 30 |
""")
def streams_left_join(of: Case) -> None:
    of.out(of.stream().left_join(of.stream("right"), pair, NEAR, name=of.of("pairs")))


@case("""
    | in            | out                             |
    | a 1 10        |                                 |
    | right:b 2 11  |                                 |
    | right:a 3 20  |                                 |
    | right:a 3 16  |                                 |
    | x 9 21        | a [1,null] 10                   |
    | b 4 16        | b [4,2] 16                      |
    | a 5 16        | a [5,3] 16 ; a [5,3] 20         |
    | x 9 31        |                                 |
    | x 9 60        | x [9,null] 21 ; x [9,null] 31   |
""")
def streams_left_join_with_grace(of: Case) -> None:
    of.out(of.stream().left_join(of.stream("right"), pair, PATIENT, name=of.of("pairs")))


@case("""
    | in            | out                             |
    | a 1 10        |                                 |
    | right:b 2 11  |                                 |
    | right:a 3 15  | a [1,3] 15                      |
    | right:a 4 16  |                                 |
    | x 9 22        | b [null,2] 11                   |
    | b 5 17        |                                 |
    | right:b 2 23  | b [5,null] 17                   |
    | right:b 6 16  |                                 |
    | x 8 27        | a [null,4] 16 ; b [null,6] 16   |
    | right:- 6 28  | x [9,null] 22 ; - [null,6] 28   |
    | x 7 60        | x [8,null] 27 ; b [null,2] 23   |
    | a 6 30        |                                 |
    | right:y 1 61  |                                 |
    | right:a 6 50  | a [null,6] 50                   |
    | right:x 5 65  | x [7,5] 65                      |
""")
def streams_outer_join(of: Case) -> None:
    of.out(of.stream().outer_join(of.stream("right"), pair, NEAR, name=of.of("pairs")))


@case("""
    | in            | out                             |
    | a 1 10        |                                 |
    | right:a 2 14  |                                 |
    | right:a 3 15  | a [null,2] 14 ; a [1,3] 15      |
    | right:a 4 30  | a [1,4] 30                      |
    | b 5 31        |                                 |
    | b 6 60        | b [5,null] 31                   |
""")
def streams_outer_join_with_later_ones_only(of: Case) -> None:
    of.out(of.stream().outer_join(of.stream("right"), pair, AFTER, name=of.of("pairs")))


@case("""
    | in            | out                             |
    | right:a 1 10  |                                 |
    | a 2 14        |                                 |
    | a 3 15        | a [2,null] 14 ; a [3,1] 15      |
    | a 4 30        | a [4,1] 30                      |
    | right:b 5 31  |                                 |
""")
def streams_left_join_with_earlier_ones_only(of: Case) -> None:
    of.out(of.stream().left_join(of.stream("right"), pair, BEFORE, name=of.of("pairs")))


@case("""
    | in            | out                |
    | a 1 10        |                    |
    | right:a 2 15  | a ["a",1,2] 15     |
    | right:b 3 16  |                    |
    | a 4 99        | b ["b",null,3] 16  |
    | - 5 99        | - [null,5,null] 99 |
    | c 6 200       | a ["a",4,null] 99  |
""")
def streams_outer_join_with_key(of: Case) -> None:
    def keyed(key: object, left: object, right: object) -> list[object]:
        return [key, left, right]

    of.out(of.stream().outer_join(of.stream("right"), keyed, NEAR, name=of.of("pairs")))


@case("""
    | in            | out                                   |
    | a 1 10        | a [1,1] 10                            |
    | a 2 15        | a [2,1] 15 ; a [1,2] 15 ; a [2,2] 15  |
    | a 3 21        | a [3,2] 21 ; a [3,3] 21               |
""")
def streams_self_join(of: Case) -> None:
    stream = of.stream()
    of.out(stream.join(stream, pair, NEAR, name=of.of("pairs")))


@case("""
    | in            | out              |
    | a 1 10        |                  |
    | b 1 12        |                  |
    | right:1 2 15  | 1 [1,2] 15 ; 1 [1,2] 15 |
    | right:2 9 40  |                  |
    | a 2 41        | 2 [2,9] 41       |
""")
def streams_join_after_a_new_key(of: Case) -> None:
    stream = of.stream().select_key(lambda _key, value: str(value))
    of.out(stream.join(of.stream("right"), pair, NEAR, name=of.of("rekeyed")))


@case("""
    | in            | out         |
    | a 1 10        |             |
    | right:a 2 15  | a 1 15      |
    | right:a 2 14  | a 2 15      |
    | a 1 16        | a 3 16 ; a 4 16 |
""")
def streams_join_counted(of: Case) -> None:
    pairs = of.stream().join(of.stream("right"), pair, NEAR, name=of.of("pairs"))
    of.out(pairs.group_by_key().count(of.kept()).to_stream())

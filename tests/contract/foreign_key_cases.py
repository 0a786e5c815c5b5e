"""Joins of tables by a foreign key, each as a text table; see operator_tables.

A left value is a pair of the foreign key and something else.
"""

from typing import Any

from tests.contract.operator_tables import Case, collection

CASES, case = collection(races=True)

ROWS = """
    | in           | out               |
    | a ["x",1] 0  | {alone}           |
    | right:x 7 1  | a [1,7] 1         |
    | b ["x",2] 2  | b [2,7] 2         |
    | right:x 8 3  | a [1,8] 3 ; b [2,8] 3 |
    | right:y 5 4  |                   |
    | a ["y",3] 5  | a [3,5] 5         |
    | right:x 9 6  | b [2,9] 6         |
    | b ["z",4] 7  | {moved}           |
    | b [null,5] 8 | {none}            |
    | b ["y",6] 9  | b [6,5] 9         |
    | right:y - 10 | {gone}            |
    | c - 11       |                   |
    | a - 12       | {deleted}         |
    | right:y 4 13 | b [6,4] 13        |
    | b - 14       | b - 14            |
    | right:y 3 15 |                   |
    | right:- 1 16 |                   |
"""


def pair(left: list[Any], right: Any) -> list[Any]:
    return [left[1], right]


def first(value: list[Any]) -> Any:
    return value[0]


@case(ROWS.format(alone="", moved="b - 7", none="", gone="a - 10 ; b - 10", deleted=""))
def foreign_key_join(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    of.out(left.join(right, pair, foreign_key=first, name=of.of("by-key")).to_stream())


@case(
    ROWS.format(
        alone="a [1,null] 0",
        moved="b [4,null] 7",
        none="b [5,null] 8",
        gone="a [3,null] 10 ; b [6,null] 10",
        deleted="a - 12",
    )
)
def foreign_key_left_join(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    of.out(left.left_join(right, pair, of.kept(), foreign_key=first).to_stream())


@case("""
    | in            | out       |
    | right:x 1 9   |           |
    | a ["x",1] 5   | a [1,1] 9 |
    | right:x 2 3   | a [1,2] 5 |
    | a ["x",3] 12  | a [3,2] 12 |
    | right:x 4 2   | a [3,4] 12 |
    | a - 7         | a - 12    |
""")
def foreign_key_join_of_late_updates(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    of.out(left.join(right, pair, of.kept(), foreign_key=first).to_stream())


@case("""
    | in           | out             |
    | ann ["",1] 0 |                 |
    | bob ["a",2] 1 | bob [2,["",1]] 1 |
    | ann ["",3] 2 | bob [2,["",3]] 2 |
    | cid ["b",4] 3 | cid [4,["a",2]] 3 |
    | bob ["c",5] 4 | cid [4,["c",5]] 4 ; bob [5,["b",4]] 4 |
    | bob - 5      | bob - 5 ; cid - 5 |
""")
def foreign_key_join_of_a_table_with_itself(of: Case) -> None:
    people = of.table("in")
    named = {"a": "ann", "b": "bob", "c": "cid"}
    of.out(
        people.join(
            people, pair, foreign_key=lambda person: named.get(person[0]), name=of.of("boss")
        ).to_stream()
    )


@case("""
    | in            | out                 |
    | right:x 1 0   |                     |
    | x.1 ["",2] 1  |                     |
    | right:x 5 2   | x.1 ["x.1",2,[5]] 2 |
    | x.2 ["",3] 3  | x.2 ["x.2",3,[5]] 3 |
    | x.1 ["",0] 4  | x.1 - 4             |
    | right:x 2 5   | x.2 - 5             |
    | x.1 ["",4] 6  |                     |
""")
def foreign_key_of_key_and_value_of_views(of: Case) -> None:
    left = of.table("in").filter(lambda _key, value: value[1] > 1)
    right = of.table("right").filter(lambda _key, value: value > 3).map_values(lambda v: [v])
    joined = left.join(
        right,
        lambda key, a, b: [key, a[1], b],
        foreign_key=lambda key, _value: key[0],
        name=of.of("by-prefix"),
    )
    of.out(joined.to_stream())


@case("""
    | in           | out      |
    | right:x 1 0  |          |
    | a ["x",2] 1  | a 3 1    |
    | last:a 10 2  | a 13 2   |
    | b ["x",9] 3  |          |
    | right:x 2 4  | a 14 4   |
    | b ["x",1] 5  | b 3 5    |
    | a ["y",1] 6  | a - 6    |
    | b ["x",9] 7  | b - 7    |
""")
def foreign_key_join_joined_and_filtered(of: Case) -> None:
    left, right = of.table("in"), of.table("right")
    joined = left.join(right, lambda a, b: a[1] + b, foreign_key=first, name=of.of("by-key"))
    more = joined.left_join(of.table("last"), lambda a, b: a + (b or 0))
    of.out(more.filter(lambda key, n: key == "a" or n < 10).to_stream())

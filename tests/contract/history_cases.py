"""Tables and aggregates with history, and joins with them, as text tables; see operator_tables."""

import statestore as ss
from tests.contract.operator_tables import Case, collection

CASES, case = collection()


@case("""
    | in            | out           |
    | right:a 1 10  |               |
    | a 1 15        |               |
    | right:a 5 20  |               |
    | right:a 7 12  |               |
    | a 2 25        | a [2,[5]] 25  |
    | a 3 14        | a [3,[7]] 14  |
""")
def join_with_a_view_of_a_table_with_history(of: Case) -> None:
    kept = ss.Materialized(of.of("right"), history_retention=1000)
    table = of.builder.table(of.of("right"), materialized=kept)
    seen = table.filter(lambda _key, value: value > 3).map_values(lambda value: [value])
    of.out(of.stream().join(seen, lambda a, b: [a, b]))


@case("""
    | in           | out          |
    | right:a 5 10 |              |
    | a 2 15       | a [2,5] 15   |
    | a 3 16       |              |
    | right:a 7 20 |              |
    | a 4 25       | a [4,7] 25   |
    | a 6 14       | a [6,5] 14   |
    | right:a 6 17 |              |
    | a 7 19       | a [7,6] 19   |
    | right:a - 30 |              |
    | a 8 31       |              |
""")
def join_with_a_version_that_is_not_too_old(of: Case) -> None:
    kept = ss.Materialized(of.of("right"), history_retention=1000)
    table = of.builder.table(of.of("right"), materialized=kept)
    of.out(of.stream().join(table, lambda a, b: [a, b], tolerance=5))


@case("""
    | in           | out              |
    | right:a 1 10 |                  |
    | right:a 5 20 |                  |
    | a 1 25       | a [1,null] 25    |
    | a 2 20       | a [2,[5]] 20     |
    | a 3 21       | a [3,null] 21    |
    | right:a 7 30 |                  |
    | right:a 9 15 |                  |
    | a 5 31       | a [5,null] 31    |
    | a 6 15       | a [6,[9]] 15     |
    | a 7 30       | a [7,[7]] 30     |
    | - 7 32       | - [7,null] 32    |
""")
def left_join_with_a_version_of_a_view_that_begins_then(of: Case) -> None:
    kept = ss.Materialized(of.of("right"), history_retention=1000)
    table = of.builder.table(of.of("right"), materialized=kept)
    seen = table.filter(lambda _key, value: value > 3).map_values(lambda value: [value])
    of.out(of.stream().left_join(seen, lambda a, b: [a, b], tolerance=0))


@case("""
    | in           | out                   |
    | right:a 5 10 |                       |
    | a 1 14       |                       |
    | a 2 16       |                       |
    | right:a 7 13 |                       |
    | a 3 25       | a [1,7] 14;a [2,7] 16 |
    | a 4 40       | a [3,null] 25         |
    | right:a 1 60 | a [4,null] 40         |
""")
def left_join_with_a_grace_and_a_tolerance(of: Case) -> None:
    kept = ss.Materialized(of.of("right"), history_retention=1000)
    table = of.builder.table(of.of("right"), materialized=kept)
    met = of.stream().left_join(table, lambda a, b: [a, b], grace=5, tolerance=8, name=of.of("met"))
    of.out(met)


# Aggregates with history.


@case("""
    | in          | out         |
    | right:a 1 10 | all:a [1] 10 |
    | right:a 2 20 | all:a [1,2] 20 |
    | right:a 3 15 | all:a [1,2,3] 20 |
    | a 1 5       |             |
    | a 2 12      | a [2,[1]] 12 |
    | right:a - 21 |            |
    | a 3 22      | a [3,[1,2,3]] 22 |
    | right:a 0 30 | all:a - 30 |
    | right:a 9 25 | all:a [9] 30 |
    | a 4 31      | a [4,[9]] 31 |
    | a 5 29      | a [5,[1,2,3]] 29 |
""")
def join_with_an_aggregate_as_of_a_time(of: Case) -> None:
    def add(_key: str, value: int, members: list[int]) -> list[int] | None:
        return [*members, value] if value else None

    kept = ss.Materialized(of.of("kept"), history_retention=1000)
    table = of.stream("right").group_by_key().aggregate(list, add, kept)
    of.out(table.to_stream(), "all")
    of.out(of.stream().join(table, lambda a, b: [a, b]))


@case("""
    | in           | out          |
    | right:a 1 10 | all:1 1 10   |
    | 1 0 15       | 1 [0,1] 15   |
    | right:b 1 20 | all:1 2 20   |
    | right:a 2 30 | all:1 1 30 ; all:2 1 30 |
    | 1 0 25       | 1 [0,2] 25   |
    | 2 0 25       |              |
    | 1 0 31       | 1 [0,1] 31   |
""")
def join_with_counted_groups_as_of_a_time(of: Case) -> None:
    kept = ss.Materialized(of.of("kept"), history_retention=1000)
    groups = of.table("right").group_by(lambda key, value: (str(value), key), name=of.of("by"))
    table = groups.count(kept)
    of.out(table.to_stream(), "all")
    of.out(of.stream().join(table, lambda a, b: [a, b], name=of.of("met")))


# Views and joins of tables with history.


@case("""
    | in           | out             |
    | right:a 1 10 |                 |
    | right:a 5 20 | all:a 5 20      |
    | right:a 7 12 |                 |
    | a 1 11       |                 |
    | a 2 25       | a [2,[5]] 25    |
    | a 3 14       | a [3,[7]] 14    |
    | right:a 2 30 | all:a - 30      |
    | right:a 9 26 |                 |
    | a 6 31       |                 |
    | a 4 27       | a [4,[9]] 27    |
    | right:a 3 40 |                 |
    | right:a 8 35 |                 |
    | a 7 41       |                 |
    | a 5 36       | a [5,[8]] 36    |
    | right:a - 50 |                 |
    | right:a 6 60 | all:a 6 60      |
""")
def join_with_a_kept_view_of_a_table_with_history(of: Case) -> None:
    kept = [ss.Materialized(of.of(n), history_retention=1000) for n in ("right", "kept", "more")]
    table = of.builder.table(of.of("right"), materialized=kept[0])
    seen = table.filter(lambda _key, value: value > 3, kept[1])
    of.out(seen.to_stream(), "all")
    of.out(of.stream().join(seen.map_values(lambda v: [v], kept[2]), lambda a, b: [a, b]))


@case("""
    | in           | out             |
    | right:a 5 20 | all:a [5] 20    |
    | right:a 7 30 | all:a [7] 30    |
    | a 1 31       | a [1,[7]] 31    |
    | a 2 25       | a [2,[5]] 25    |
    | right:a 8 40 | all:a [8] 40    |
    | right:a 6 24 |                 |
    | a 3 41       | a [3,[8]] 41    |
    | a 4 26       | a [4,[6]] 26    |
    | right:a - 50 | all:a - 50      |
    | right:a - 60 |                 |
    | a 5 61       |                 |
    | a 6 49       | a [6,[8]] 49    |
""")
def join_with_the_history_of_a_view(of: Case) -> None:
    kept = ss.Materialized(of.of("kept"), history_retention=1000)
    seen = of.table("right").map_values(lambda value: [value], kept, name=of.of("seen"))
    of.out(seen.to_stream(), "all")
    of.out(of.stream().join(seen, lambda a, b: [a, b]))


@case("""
    | in           | out             |
    | right:a 1 10 |                 |
    | last:a 2 20  | all:a 3 20      |
    | right:a 5 30 | all:a 7 30      |
    | a 1 35       | a [1,7] 35      |
    | a 2 25       | a [2,3] 25      |
    | last:a - 40  | all:a - 40      |
    | a 3 45       |                 |
    | a 4 35       | a [4,7] 35      |
    | last:b 1 50  |                 |
    | last:a 1 15  |                 |
    | a 5 51       |                 |
    | a 6 35       | a [6,6] 35      |
""")
def join_with_the_history_of_a_join_of_tables(of: Case) -> None:
    kept = ss.Materialized(of.of("kept"), history_retention=1000)
    both = of.table("right").join(of.table("last"), lambda a, b: a + b, kept, name=of.of("both"))
    of.out(both.to_stream(), "all")
    of.out(of.stream().join(both, lambda a, b: [a, b]))

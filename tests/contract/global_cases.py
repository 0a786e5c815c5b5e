"""Joins with global tables, each as a text table; see operator_tables.

A run has all rows of a global table before the first record of a stream. So do these tables.
"""

from pathlib import Path
from typing import Any

import statestore as ss
from statestore.topology.processors.user_processors import ProcessorContext
from tests.contract.operator_tables import Case, collection

CASES, case = collection()


def rates(of: Case) -> Any:
    return of.builder.global_table(of.of("rates"), materialized=of.of("rates"))


@case("""
    | in            | out              |
    | rates:x 2 0   |                  |
    | rates:y 3 0   |                  |
    | rates:z 4 0   |                  |
    | rates:z - 0   |                  |
    | rates:- 4 0   |                  |
    | a "x" 1       | a ["x",2] 1      |
    | b "x" 2       | b ["x",2] 2      |
    | - "y" 3       | - ["y",3] 3      |
    | a "z" 4       |                  |
    | a "none" 5    |                  |
    | a - 6         |                  |
""")
def global_join(of: Case) -> None:
    joined = of.stream().join(
        rates(of), lambda v, rate: [v, rate], key=lambda _k, v: None if v == "none" else v
    )
    of.out(joined)


@case("""
    | in            | out                 |
    | rates:x 2 0   |                     |
    | a "x" 1       | a ["x",2] 1         |
    | - "y" 3       | - ["y",null] 3      |
    | a "none" 5    | a ["none",null] 5   |
    | a - 6         |                     |
""")
def global_left_join(of: Case) -> None:
    joined = of.stream().left_join(
        rates(of), lambda v, rate: [v, rate], key=lambda _k, v: None if v == "none" else v
    )
    of.out(joined)


@case("""
    | in            | out              |
    | rates:a 1 0   |                  |
    | rates:x 2 0   |                  |
    | a "x" 1       | a [2,1] 1        |
    | b "x" 2       |                  |
""")
def global_joins_of_one_table(of: Case) -> None:
    table = rates(of)
    by_value = of.stream().join(table, lambda _v, rate: rate, key=lambda _k, v: v)
    of.out(by_value.join(table, lambda one, two: [one, two], key=lambda k, _v: k))


@case("""
    | in            | out                |
    | rates:x 2 0   |                    |
    | a "x" 1       | a ["a","x",2] 1    |
    | - "x" 2       | - [null,"x",2] 2   |
""")
def global_join_that_takes_the_key(of: Case) -> None:
    table = rates(of)
    of.out(of.stream().join(table, lambda k, v, rate: [k, v, rate], key=lambda _k, v: v))


@case("""
    | in            | out                                    |
    | a "x" 1       | a ["x",{"code":"x","rate":"2"}] 1      |
    | b "z" 2       | b ["z",null] 2                         |
    | c "none" 3    | c ["none",null] 3                      |
""")
def join_with_a_lookup(of: Case) -> None:
    file = Path(__file__).with_name("rates.csv")
    table = of.builder.lookup(str(file), key="code", store=of.of("lookup"))
    of.out(
        of.stream().left_join(
            table, lambda v, row: [v, row], key=lambda _k, v: None if v == "none" else v
        )
    )


class Looking:
    """Forwards what a global table has, by value."""

    def __init__(self, context: ProcessorContext, store: str) -> None:
        self._context = context
        self._rows = context.store(store)

    def process(self, record: ss.Record[str, str]) -> None:
        every = [*self._rows.all()]
        found = [self._rows.get(record.value), record.value in self._rows, len(every)]
        self._context.forward(record.replace(value=found))


@case("""
    | in            | out               |
    | rates:x 2 0   |                   |
    | rates:y 3 0   |                   |
    | a "x" 1       | a [2,true,2] 1    |
    | a "z" 2       | a [null,false,2] 2|
""")
def global_table_in_a_processor(of: Case) -> None:
    store = rates(of).store
    of.out(of.stream().process(lambda context: Looking(context, store), store))

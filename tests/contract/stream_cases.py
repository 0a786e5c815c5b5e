"""The operators of streams, each as a text table; see operator_tables."""

from collections.abc import Iterator, Sequence
from typing import Any

import statestore as ss
from statestore import serdes
from statestore.topology.processors.user_processors import ProcessorContext
from tests.contract.operator_tables import Case, collection

CASES, case = collection()

# Without state.


@case("""
    | in       | out      |
    | a 1 0    |          |
    | a 2 1    | a 2 1    |
    | - 3 2    | - 3 2    |
    | b - 3    |          |
""")
def filter_(of: Case) -> None:
    of.out(of.stream().filter(lambda _key, value: value is not None and value > 1))


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | a 2 1    |          |
    | - 1 2    | - 1 2    |
    | b - 3    | b - 3    |
""")
def filter_not(of: Case) -> None:
    of.out(of.stream().filter_not(lambda _key, value: value is not None and value > 1))


@case("""
    | in       | out      |
    | a 1 0    | 1 "a" 0  |
    | b - 1    | - "b" 1  |
""")
def map_(of: Case) -> None:
    of.out(of.stream().map(lambda key, value: (value and str(value), key)))


@case("""
    | in       | out      |
    | a 1 0    | a 2 0    |
    | - 2 1    | - 4 1    |
    | b - 2    | b -1 2   |
""")
def map_values(of: Case) -> None:
    of.out(of.stream().map_values(lambda value: -1 if value is None else value * 2))


@case("""
    | in       | out         |
    | a 1 0    | a ["a",1] 0 |
    | - 2 1    | - [null,2] 1|
""")
def map_values_with_key(of: Case) -> None:
    of.out(of.stream().map_values(lambda key, value: [key, value]))


@case("""
    | in       | out             |
    | a 0 0    |                 |
    | a 1 1    | x 0 1           |
    | - 2 2    | x 0 2 ; x 1 2   |
""")
def flat_map(of: Case) -> None:
    of.out(of.stream().flat_map(lambda _key, value: [("x", n) for n in range(value)]))


@case("""
    | in       | out             |
    | a 0 0    |                 |
    | a 2 1    | a 0 1 ; a 1 1   |
""")
def flat_map_values(of: Case) -> None:
    of.out(of.stream().flat_map_values(range))


@case("""
    | in       | out                       |
    | a 0 0    |                           |
    | a 2 1    | a ["a",0] 1 ; a ["a",1] 1 |
    | - 1 2    | - [null,0] 2              |
""")
def flat_map_values_with_key(of: Case) -> None:
    def numbered(key: Any, count: int) -> Iterator[list[Any]]:
        for number in range(count):
            yield [key, number]

    of.out(of.stream().flat_map_values(numbered))


@case("""
    | in       | out      |
    | a 1 0    | a1 1 0   |
    | b - 1    | b- - 1   |
""")
def select_key(of: Case) -> None:
    of.out(of.stream().select_key(lambda key, value: f"{key}{'-' if value is None else value}"))


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | - - 1    | - - 1    |
""")
def peek(of: Case) -> None:
    of.out(of.stream().peek(lambda _key, _value: None))


@case("""
    | in        | out      |
    | a 1 10    | a 1 10   |
    | - - 21    |          |
    | b - 12    | b - 12   |
""")
def filter_records(of: Case) -> None:
    of.out(of.stream().filter_records(lambda record: record.timestamp_ms % 2 == 0))


def retimed(record: ss.Record[str, int]) -> int:
    """The time that a record's value tells, in the second in which all of a case lie."""
    return record.timestamp_ms // 1_000 * 1_000 + record.value


@case("""
    | in          | out        |
    | a 5 0       | a 5 5      |
    | - 3 9       | - 3 3      |
    | a 2 1       | a 2 2      |
""")
def set_timestamp(of: Case) -> None:
    of.out(of.stream().set_timestamp(retimed))


@case("""
    | in          | out          |
    | a 5 100     | a@0-10 1 5   |
    | a 7 101     | a@0-10 2 7   |
    | a 13 102    | a@10-20 1 13 |
    | a 8 103     |              |
""")
def set_timestamp_before_windows(of: Case) -> None:
    of_values = of.stream().set_timestamp(retimed).group_by_key()
    windows = of_values.windowed_by(ss.TumblingWindows(10))
    of.out(windows.count(of.kept()).to_stream())


@case("""
    | in       | out                     |
    | a 1 0    | a [["of",0],["to",1]] 0 |
    | b 2 1    | b [["of",1],["to",2]] 1 |
""")
def set_headers(of: Case) -> None:
    named = of.stream().set_headers(lambda record: [("of", bytes([record.timestamp_ms % 100]))])
    more = named.set_headers(lambda record: [*record.headers, ("to", bytes([record.value]))])
    of.out(more.process_values(ShowsHeaders, name=of.of("shown")))


@case("""
    | in         | out        |
    | a 1 0      | a 1 0      |
    | other:a 2 1| a 2 1      |
    | a 3 2      | a 3 2      |
""")
def merge(of: Case) -> None:
    of.out(of.stream().merge(of.stream("other")))


@case("""
    | in       | out               |
    | a 1 0    | a -1 0 ; a 1 0    |
    | a 2 1    | a -2 1 ; a 2 1    |
    | a 3 2    | a -3 2 ; a 3 2    |
""")
def merge_with_itself(of: Case) -> None:
    stream = of.stream()
    of.out(stream.merge(stream.map_values(lambda value: -value)))


@case("""
    | in       | out          |
    | a 1 0    | odd:a 1 0    |
    | a 9 1    | big:a 9 1    |
    | a 2 2    | a 2 2        |
""")
def branch(of: Case) -> None:
    big, odd, rest = of.stream().branch(lambda _k, v: v > 5, lambda _k, v: v % 2)
    of.out(big, "big")
    of.out(odd, "odd")
    of.out(rest)


@case("""
    | in       | out          |
    | a 1 0    | odd:a 1 0    |
    | a 9 1    | big:a 9 1    |
    | a 2 2    | a 2 2        |
""")
def split(of: Case) -> None:
    named = of.stream().split(
        {"big": lambda _k, v: v > 5, "odd": lambda _k, v: v % 2}, default="rest"
    )
    of.out(named["big"], "big")
    of.out(named["odd"], "odd")
    of.out(named["rest"])


@case("""
    | in       | out          |
    | a 1 0    | a 1 0        |
    | a 2 1    |              |
    | - 3 2    | - 3 2        |
""")
def split_without_a_default(of: Case) -> None:
    of.out(of.stream().split({"odd": lambda _k, v: v % 2})["odd"])


@case("""
    | in       | out          |
    | a 1 0    | odd:a 1 0    |
    | b 2 1    | even:b 2 1   |
    | - 3 2    | odd:- 3 2    |
    | a 4 9    | late:a 4 9   |
""")
def to_by_record(of: Case) -> None:
    topics = {name: of.of(name) for name in ("odd", "even", "late")}

    def choose(record: ss.Record[Any, Any]) -> str:
        if record.timestamp_ms % 100 > 5:
            return topics["late"]
        return topics["odd" if record.value % 2 else "even"]

    of.stream().to(choose, topics=[*topics.values()])


def by_length(_topic: str, key: str | None, _value: Any, partitions: int) -> int | None:
    """Place keys by their length; a record without a key may lie anywhere."""
    return None if key is None else len(key) % partitions


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | - 2 1    | - 2 1    |
    | bb 3 2   | bb 3 2   |
    | a 4 3    | a 4 3    |
""")
def to_by_partitioner(of: Case) -> None:
    of.stream().to(of.of("out"), partitioner=by_length)


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | - 2 1    |          |
    | a 3 2    | a 3 2    |
""")
def repartition(of: Case) -> None:
    of.out(of.stream().repartition(of.of("again")))


@case("""
    | in       | out            |
    | a 1 0    | 1 1 0          |
    | - 1 1    |                |
    | b 1 2    | 1 2 2          |
""")
def repartition_before_groups(of: Case) -> None:
    values = of.stream().repartition(of.of("again")).group_by(lambda _key, value: str(value))
    of.out(values.count(of.kept()).to_stream())


@case("""
    | in       | out                             |
    | a 1 0    | counts:1 1 0 ; a [1,null] 0     |
    | - 1 1    | counts:1 2 1 ; - [1,null] 1     |
    | - - 2    |                                 |
""")
def repartition_before_a_left_join(of: Case) -> None:
    again = of.stream().repartition(of.of("again"))
    twice = again.filter(lambda _key, value: value is not None).repartition(of.of("twice"))
    of.out(twice.left_join(of.table("right"), lambda a, b: [a, b]))
    of.out(
        again.group_by(lambda _key, value: str(value), name=of.of("by"))
        .count(of.kept())
        .to_stream(),
        "counts",
    )


@case("""
    | in       | out            |
    | a 1 0    |                |
    | - 1 1    | a [1,null] 0 ; - [1,null] 1 |
""")
def repartition_before_an_outer_join_of_streams(of: Case) -> None:
    again = of.stream().repartition(of.of("again"))
    windows = ss.JoinWindows(0)
    other = of.stream("right").repartition(of.of("other"))
    made = again.outer_join(other, lambda a, b: [a, b], windows, name=of.of("met"))
    of.out(made)


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | - 2 1    |          |
    | bb 3 2   | bb 3 2   |
    | a 4 3    | a 4 3    |
""")
def repartition_by_partitioner(of: Case) -> None:
    of.out(of.stream().repartition(of.of("again"), partitioner=by_length))


# Stores.


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | b 1 1    | b 1 1    |
    | - 1 2    |          |
    | a - 3    |          |
    | a 1 1    | a 2 1    |
""")
def count(of: Case) -> None:
    counts = of.stream().group_by_key().count(of.kept())
    of.out(counts.to_stream())


@case("""
    | in        | out       |
    | a 1 100   | a 1 100   |
    | a 1 50    | a 2 100   |
    | b 1 40    | b 1 40    |
    | a 1 60    | a 3 100   |
    | b 1 70    | b 2 70    |
    | a 1 101   | a 4 101   |
""")
def count_of_late_records(of: Case) -> None:
    of.out(of.stream().group_by_key().count(of.kept()).to_stream())


@case("""
    | in       | out      |
    | a 1 0    | 1 1 0    |
    | b 1 1    | 1 2 1    |
    | c 2 2    | 2 1 2    |
    | - 1 3    | 1 3 3    |
    | a - 4    |          |
""")
def group_by(of: Case) -> None:
    grouped = of.stream().group_by(lambda _key, value: value and str(value), name=of.of("by"))
    of.out(grouped.count(of.kept()).to_stream())


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | a 4 1    | a 4 1    |
    | a - 2    |          |
    | a 3 3    | a 4 3    |
    | - 9 4    |          |
""")
def reduce(of: Case) -> None:
    of.out(of.stream().group_by_key().reduce(max, of.kept()).to_stream())


@case("""
    | in       | out      |
    | a 1 0    | a [1] 0  |
    | a 2 1    | a [1,2] 1|
    | a 0 2    | a - 2    |
    | a 3 3    | a [3] 3  |
    | - 9 4    |          |
    | a - 5    |          |
""")
def aggregate(of: Case) -> None:
    def add(_key: str, value: int, numbers: list[int]) -> list[int] | None:
        return [*numbers, value] if value else None

    of.out(of.stream().group_by_key().aggregate(list, add, of.kept()).to_stream())


@case("""
    | in       | out        |
    | a 1 9    | a [1] 9    |
    | a 2 5    | a [1,2] 9  |
    | a 0 6    | a - 9      |
    | a 3 4    | a [3] 4    |
    | a 4 2    | a [3,4] 4  |
""")
def aggregate_of_late_records(of: Case) -> None:
    def add(_key: str, value: int, numbers: list[int]) -> list[int] | None:
        return [*numbers, value] if value else None

    of.out(of.stream().group_by_key().aggregate(list, add, of.kept()).to_stream())


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | a - 1    | a - 1    |
    | - 5 2    |          |
    | b 2 3    | b 2 3    |
""")
def to_table(of: Case) -> None:
    of.out(of.stream().to_table(of.kept()).to_stream())


class ShowsHeaders:
    """Forwards the names of headers, and the first byte of each, as the value."""

    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def process(self, record: "ss.Record[Any, Any]") -> None:
        shown = [[name, value[0] if value else None] for name, value in record.headers]
        self._context.forward(record.replace(value=shown))


class Latest:
    """Forwards a record with the one before it under its key."""

    def __init__(self, context: ProcessorContext, store: str) -> None:
        self._forward, self._rows = context.forward, context.store(store)

    def process(self, record: "ss.Record[str, int]") -> None:
        before = self._rows.get(record.key)
        self._rows.put(record.key, record.value)
        self._forward(record.replace(value=[before, record.value]))


class LatestIfKnown(Latest):
    def process(self, record: "ss.Record[Any, int]") -> None:
        if record.key is None:
            self._forward(record.replace(value=[None, record.value]))
        else:
            super().process(record)


class LatestOfMany(Latest):
    def process_batch(self, records: "Sequence[ss.Record[str, int]]") -> None:
        for record in records:
            self.process(record)


LATEST = """
    | in       | out           |
    | a 1 0    | a [null,1] 0  |
    | b 2 1    | b [null,2] 1  |
    | a 3 2    | a [1,3] 2     |
"""


@case(LATEST)
def process(of: Case) -> None:
    spec = _json_store(of.of("latest"))
    of.out(of.stream().process(lambda context: Latest(context, spec.name), spec))


@case(LATEST)
def process_batch(of: Case) -> None:
    spec = _json_store(of.of("latest"))
    of.out(of.stream().process_batch(lambda context: LatestOfMany(context, spec.name), spec))


@case(f"""{LATEST.rstrip()}
    | - 4 3    | - [null,4] 3  |
""")
def process_values(of: Case) -> None:
    spec = _json_store(of.of("latest"))
    of.out(of.stream().process_values(lambda context: LatestIfKnown(context, spec.name), spec))


@case("""
    | in       | out      |
    | a 1 0    | a 1 0    |
    | b 2 1    | b 1 1    |
    | a 3 2    | a 2 2    |
""")
def process_values_counted(of: Case) -> None:
    spec = _json_store(of.of("latest"))
    latest = of.stream().process_values(lambda context: Latest(context, spec.name), spec)
    of.out(latest.group_by_key().count(of.kept()).to_stream())


@case("""
    | in       | out               |
    | a 1 0    | a [1,1] 0         |
    | a 2 1    | a [2,2] 1         |
    | a 3 2    | a [3,3] 2         |
""")
def two_processors_with_one_store(of: Case) -> None:
    spec = _json_store(of.of("latest"))
    written = of.stream().process(lambda context: Put(context, spec.name), spec)
    of.out(written.process(lambda context: Get(context, spec.name), spec.name))


class Put:
    def __init__(self, context: ProcessorContext, store: str) -> None:
        self._forward, self._rows = context.forward, context.store(store)

    def process(self, record: "ss.Record[str, int]") -> None:
        self._rows.put(record.key, record.value)
        self._forward(record)


class Get(Put):
    def process(self, record: "ss.Record[str, int]") -> None:
        self._forward(record.replace(value=[record.value, self._rows.get(record.key)]))


def _json_store(name: str) -> ss.KeyValueSpec[str, Any]:
    return ss.persistent_key_value_store(name, key_serde=serdes.STRING, value_serde=serdes.JSON)

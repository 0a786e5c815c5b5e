"""What a user's callables must not be: generators, coroutines, one processor for all tasks."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import statestore as ss
from statestore.errors import InvalidTopology, Misuse, StateStoreError
from statestore.model.modes import PunctuationType
from statestore.model.records import Record
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.streams import KStream
from tests.unit.pipelines import right, typed
from tests.unit.poison_rig import settings, texts


async def awaited(*_row: Any) -> bool:
    return False


def yielding(*_row: Any) -> Iterator[Any]:
    yield 1


async def yielding_later(*_row: Any) -> AsyncIterator[Any]:
    yield 1


class Called:
    """Is called like a function, and is none."""

    async def __call__(self, *_row: Any) -> bool:
        return False


LAZY: dict[str, Callable[..., Any]] = {
    "a coroutine": awaited,
    "a generator": yielding,
    "an asynchronous generator": yielding_later,
    "partly given": functools.partial(awaited),
    "an object": Called(),
}


def grouped(stream: KStream[Any, Any]) -> ss.KGroupedTable[Any, Any]:
    return stream.to_table("t").group_by(lambda key, value: (key, value))


OPERATORS: dict[str, Callable[[KStream[Any, Any], Any], object]] = {
    "filter": lambda s, f: s.filter(f),
    "map": lambda s, f: s.map(f),
    "map_values": lambda s, f: s.map_values(f),
    "select_key": lambda s, f: s.select_key(f),
    "peek": lambda s, f: s.peek(f),
    "filter_records": lambda s, f: s.filter_records(f),
    "set_timestamp": lambda s, f: s.set_timestamp(f),
    "filter_not": lambda s, f: s.filter_not(f),
    "foreach": lambda s, f: s.foreach(f),
    "KTable.filter_not": lambda s, f: s.to_table("t").filter_not(f),
    "to_stream": lambda s, f: s.to_table("t").to_stream(f),
    "branch": lambda s, f: s.branch(f),
    "split": lambda s, f: s.split({"some": f}),
    "to": lambda s, f: s.to(f, topics=["a"]),
    "group_by": lambda s, f: s.group_by(f),
    "stream join": lambda s, f: s.join(right(s), f),
    "streams join": lambda s, f: s.join(s, f, ss.JoinWindows(1)),
    "streams outer_join": lambda s, f: s.outer_join(s, f, ss.JoinWindows(1)),
    "stream left_join": lambda s, f: s.left_join(right(s), f),
    "table filter": lambda s, f: s.to_table("t").filter(f),
    "table map_values": lambda s, f: s.to_table("t").map_values(f),
    "table join": lambda s, f: s.to_table("t").join(right(s), f),
    "table left_join": lambda s, f: s.to_table("t").left_join(right(s), f),
    "table outer_join": lambda s, f: s.to_table("t").outer_join(right(s), f),
    "table group_by": lambda s, f: s.to_table("t").group_by(f),
    "table adder": lambda s, f: grouped(s).reduce(f, max, "c"),
    "table subtractor": lambda s, f: grouped(s).reduce(max, f, "c"),
    "table aggregate adder": lambda s, f: grouped(s).aggregate(dict, f, max, "c"),
    "table aggregate subtractor": lambda s, f: grouped(s).aggregate(dict, max, f, "c"),
    "process": lambda s, f: s.process(f),
    "process_batch": lambda s, f: s.process_batch(f),
    "reduce": lambda s, f: s.group_by_key().reduce(f, "c"),
    "aggregate": lambda s, f: s.group_by_key().aggregate(dict, f, "c"),
    "aggregate initial": lambda s, f: s.group_by_key().aggregate(f, max, "c"),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("lazy", LAZY)
def test_a_function_that_would_never_run_is_refused_at_build(operator: str, lazy: str) -> None:
    with pytest.raises(Misuse, match=r"would never (run|be awaited)"):
        OPERATORS[operator](typed(texts()), LAZY[lazy])


@pytest.mark.parametrize("lazy", LAZY)
def test_a_lazy_timestamp_extractor_is_refused_at_build(lazy: str) -> None:
    b = texts()
    with pytest.raises(Misuse, match=r"timestamp_extractor.*would never"):
        b.stream("in", timestamp_extractor=LAZY[lazy])
    with pytest.raises(Misuse, match=r"timestamp_extractor.*would never"):
        b.table("in", timestamp_extractor=LAZY[lazy])


def test_flat_map_takes_generators_and_no_coroutines() -> None:
    def twice(value: str) -> Iterator[str]:
        yield value
        yield value

    def pairs(key: str, value: str) -> Iterator[tuple[str, str]]:
        yield key, value

    b = texts()
    b.stream("in").flat_map_values(twice).flat_map(pairs).to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "k", "v", 1)
        assert [r.value for r in driver.read("out")] == ["v", "v"]
    for lazy in (awaited, yielding_later):
        with pytest.raises(Misuse, match=r"flat_map.*would never be awaited"):
            texts().stream("in").flat_map(lazy)  # type: ignore[arg-type]  # the point of the test
        with pytest.raises(Misuse, match=r"flat_map_values.*would never be awaited"):
            texts().stream("in").flat_map_values(lazy)  # type: ignore[arg-type]  # the point of the test


# Processors.


class Base:
    def __init__(self, context: ss.ProcessorContext) -> None:
        self.context = context
        self.held: list[Any] = []


class Yields(Base):
    def process(self, record: Record[Any, Any]) -> Iterator[Any]:
        yield record

    process_batch = process


class Awaits(Base):
    async def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)

    process_batch = process


class Closes(Base):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)

    process_batch = process

    async def close(self) -> None:
        raise AssertionError


VERBS = ["process", "process_batch"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("lazy", [Yields, Awaits, Closes])
def test_a_class_whose_methods_would_never_run_is_refused_at_build(verb: str, lazy: Any) -> None:
    with pytest.raises(Misuse, match=rf"{verb}.*{lazy.__name__}.*would never"):
        getattr(texts().stream("in"), verb)(lazy)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("lazy", [Yields, Awaits, Closes])
def test_a_processor_whose_methods_would_never_run_is_refused_before_any_record(
    verb: str, lazy: Any
) -> None:
    b = texts()
    getattr(b.stream("in"), verb)(lambda context: lazy(context)).to("out")  # noqa: PLW0108 - no class
    with pytest.raises(InvalidTopology, match="would never"), TopologyTestDriver(b.build()):
        pass


def test_a_lazy_punctuation_is_refused_when_it_is_scheduled() -> None:
    class Schedules(Base):
        def __init__(self, context: ss.ProcessorContext) -> None:
            super().__init__(context)
            context.schedule(10, PunctuationType.STREAM_TIME, awaited)

        def process(self, record: Record[Any, Any]) -> None:
            raise AssertionError

    b = texts()
    b.stream("in").process(Schedules)
    with (
        pytest.raises(StateStoreError, match=r"schedule.*would never"),
        TopologyTestDriver(b.build()),
    ):
        pass


class Caching:
    def __init__(self) -> None:
        self.seen = 0

    def process(self, record: Record[Any, Any]) -> None:
        self.seen += 1
        if record.value == "poison" and self.seen < 4:
            raise ValueError("poison")

    def process_batch(self, records: Any) -> None:
        for record in records:
            self.process(record)


SHARED = Caching()


def shared_factories() -> dict[str, Callable[[Any], Any]]:
    local, kept = Caching(), {"one": Caching()}

    class Registry:
        def __init__(self) -> None:
            self.one = Caching()

        def get(self, _context: Any) -> Caching:
            return self.one

    def by_default(_context: Any, one: Caching = Caching()) -> Caching:  # noqa: B008 - the point
        return one

    return {
        "a global": lambda _context: SHARED,
        "a local": lambda _context: local,
        "a default": by_default,
        "of an object": Registry().get,
        "partly given": functools.partial(lambda one, _context: one, Caching()),
        "in a dict": lambda _context: kept["one"],
    }


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", shared_factories())
def test_one_processor_for_all_is_refused_before_its_second_life(verb: str, kind: str) -> None:
    """Most before any record; whatever is made elsewhere when the factory gives it again."""
    b = texts()
    getattr(b.stream("in"), verb)(shared_factories()[kind])
    topology = b.build()

    def lived() -> None:
        with TopologyTestDriver(topology, settings("continue")) as driver:
            assert kind == "in a dict"
            driver.pipe_all("in", [Record("k", "v", 1), Record("k", "poison", 2)])

    with pytest.raises(InvalidTopology, match=r"existed before.*a new one in each call"):
        lived()


def test_a_factory_may_keep_what_it_makes() -> None:
    class Factory:
        last: Any = None

        def make(self, _context: Any) -> Caching:
            made = self.last = Caching()
            return made

    factory = Factory()
    b = texts()
    b.stream("in").process(factory.make)
    with TopologyTestDriver(b.build(), partitions=3) as driver:
        driver.pipe("in", "k", "v", 1)
        driver.crash()


def test_a_factory_that_makes_a_new_processor_each_time_is_welcome() -> None:
    b = texts()
    b.stream("in").process(lambda _context: Caching())
    with TopologyTestDriver(b.build(), settings("continue"), partitions=3) as driver:
        driver.pipe_all("in", [Record("k", "v", 1), Record("k", "poison", 2), Record("k", "v", 3)])
        driver.crash()


def first_of(*row: Any) -> str:
    return "".join(map(str, row))


def with_default(value: str, more: str = "!") -> str:
    return value + more


def with_key(key: str, value: str) -> str:
    return key + value


def any_of(key: str, *values: str) -> str:
    return f"{key}:{values}"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (first_of, "v"),
        (with_default, "v!"),
        (with_key, "kv"),
        (functools.partial(with_key, "given"), "givenv"),
        (any_of, "v:()"),
        (str.upper, "V"),
        (repr, "'v'"),
    ],
    ids=["first", "default", "key", "partial", "any", "method", "built in"],
)
def test_a_function_gets_the_key_only_if_it_cannot_be_called_without(
    function: Callable[..., str], expected: str
) -> None:
    builder = ss.StreamsBuilder(key_serde=ss.serdes.STRING, value_serde=ss.serdes.STRING)
    builder.stream("in").map_values(function).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe("in", "k", "v", 0)
        assert [record.value for record in driver.read("out")] == [expected]


def test_a_function_that_takes_neither_number_of_arguments_is_refused() -> None:
    refused = r"^join 'it': 'awaits_four' cannot take 2 arguments, nor 3 with the key before them"

    def awaits_four(_a: object, _b: object, _c: object, _d: object) -> None: ...

    builder = ss.StreamsBuilder()
    wrong: Any = awaits_four
    with pytest.raises(Misuse, match=refused):
        builder.stream("in").join(builder.table("t"), wrong, name="it")

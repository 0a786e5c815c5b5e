"""JSON of one type: msgspec, dataclasses, pydantic, and types made of them."""

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, NamedTuple, TypedDict, cast

import cloudpickle
import msgspec
import pydantic
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, RecordFailed, SerdeMismatch
from statestore.serdes import composed
from statestore.testing import TopologyTestDriver


class Struct(msgspec.Struct):
    customer: str
    cents: int = 0


@dataclass
class Plain:
    customer: str
    cents: int = 0
    tags: dict[str, int] = field(default_factory=dict)


class Model(pydantic.BaseModel):
    customer: str
    cents: int = pydantic.Field(default=0, alias="Cents")


class Pair(NamedTuple):
    customer: str
    cents: int = 0


class Entry(TypedDict):
    customer: str
    cents: int


@dataclass
class Numbered:
    by_number: dict[int, Struct]


class Tagged(pydantic.BaseModel):
    tags: dict[str, int]
    rank: int = pydantic.Field(default=1, ge=1)
    note: int = pydantic.Field(default=0, exclude=True)


class Hidden(pydantic.BaseModel):
    left_out: int = pydantic.Field(exclude=True)


VALUES: list[tuple[Any, Any, str]] = [
    (Struct, Struct("ann", 5), "JSON(Struct)"),
    (Plain, Plain("ann", 5, {"b": 1, "a": 2}), "JSON(Plain)"),
    (Model, Model(customer="ann", Cents=5), "JSON(Model)"),
    (Pair, Pair("ann", 5), "JSON(Pair)"),
    (Entry, Entry(customer="ann", cents=5), "JSON(Entry)"),
    (list[Struct], [Struct("ann", 5)], "JSON(list[Struct])"),
    (Struct | None, Struct("ann"), "JSON(Struct | None)"),
    (dict[str, int], {"a": 1}, "JSON(dict[str, int])"),
    (dict[int, date], {10: date(2026, 1, 2), 9: date(2026, 1, 3)}, "JSON(dict[int, date])"),
    (Numbered, Numbered({2: Struct("b"), 1: Struct("a")}), "JSON(Numbered)"),
    (list[int] | None, [1], "JSON(list[int] | None)"),
    (list[Struct] | Struct, [Struct("ann")], "JSON(list[Struct] | Struct)"),
    (Entry | None, Entry(customer="ann", cents=5), "JSON(Entry | None)"),
    (Annotated[int, msgspec.Meta(ge=0)], 7, "JSON(Annotated[int, Meta(ge=0)])"),
    (Annotated[float, msgspec.Meta(ge=0.5)], 1.0, "JSON(Annotated[float, Meta(ge=0.5)])"),
    (tuple[int, ...], (1, 2), "JSON(tuple[int, ...])"),
]
NAMES = [name for _, _, name in VALUES]


@pytest.mark.parametrize(("kind", "value", "name"), VALUES, ids=NAMES)
def test_a_type_gives_back_what_it_was_given(kind: Any, value: Any, name: str) -> None:
    serde = serdes.json(kind)
    assert serde.name == name
    assert serde.deserialize(serde.serialize(value)) == value
    assert serdes.by_name(name) is serdes.JSON
    assert serdes.JSON.deserialize(serde.serialize(value)) is not None


@pytest.mark.parametrize(("kind", "value", "name"), VALUES, ids=NAMES)
def test_the_serde_of_a_type_is_one_object_here_and_in_other_processes(
    kind: Any, value: Any, name: str
) -> None:
    serde = serdes.json(kind)
    assert serdes.json(kind) is serde
    assert pickle.loads(cloudpickle.dumps(serde)) is serde
    for made in (serdes.windowed(serde, 10), composed.session_windowed(serde)):
        assert pickle.loads(cloudpickle.dumps(made)) is made


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (Struct, {"customer": "ann"}),
        (Struct, Struct("ann", "five")),  # type: ignore[arg-type]
        (Plain, Plain(7)),  # type: ignore[arg-type]
        (Model, Struct("ann")),
        (Model, Model.model_construct(customer=7)),
        (list[Struct], [{"cents": 1}]),
        (dict[str, int], [1]),
        (Tagged, Tagged.model_construct(tags={}, rank=0)),
        (Hidden, Hidden(left_out=1)),
        (list[int] | None, {"a": 1}),
        (Annotated[int, msgspec.Meta(ge=0)], -1),
        (Numbered, Numbered({"one": Struct("a")})),  # type: ignore[dict-item]
    ],
    ids=range(12),
)
def test_a_value_that_could_not_be_read_back_is_refused_as_it_is_written(
    kind: Any, bad: object
) -> None:
    with pytest.raises(Exception, match=r"want|Expected|missing|Unexpected|should be|required"):
        serdes.json(kind).serialize(bad)


@pytest.mark.parametrize("data", [b"{}", b'{"customer": 7}', b"[]", b"{", b""])
@pytest.mark.parametrize("kind", [Struct, Plain, Model, Pair, Entry])
def test_bytes_of_another_type_are_not_read(kind: Any, data: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, pydantic.ValidationError)):
        serdes.json(kind).deserialize(data)


def test_an_older_row_is_read_with_the_defaults_of_its_new_fields() -> None:
    assert serdes.json(Struct).deserialize(b'{"customer":"ann","gone":1}') == Struct("ann", 0)


def test_equal_keys_have_equal_bytes() -> None:
    one, other = Plain("a", 1, {"x": 1, "y": 2}), Plain("a", 1, {"y": 2, "x": 1})
    assert serdes.json(Plain).serialize(one) == serdes.json(Plain).serialize(other)
    tagged = serdes.json(Tagged)
    assert tagged.serialize(Tagged(tags=one.tags)) == tagged.serialize(Tagged(tags=other.tags))
    numbers, again = {9: Struct("a"), 10: Struct("b")}, {10: Struct("b"), 9: Struct("a")}
    numbered = serdes.json(Numbered)
    assert numbered.serialize(Numbered(numbers)) == numbered.serialize(Numbered(again))


def test_the_schema_is_that_of_the_type() -> None:
    schema = serdes.json(Struct).schema
    assert schema is not None
    assert schema.kind == "JSON"
    assert set(msgspec.json.decode(schema.text)["$defs"]["Struct"]["properties"]) == {
        "customer",
        "cents",
    }
    assert serdes.json(Plain).schema != schema


@pytest.mark.parametrize("kind", [object(), type("Own", (), {}), Callable[[], int]], ids=range(3))
def test_a_type_that_json_cannot_have_is_refused_with_the_way_out(kind: Any) -> None:
    with pytest.raises(Misuse, match=r"serdes\.json\(.*pass a msgspec\.Struct, a dataclass"):
        serdes.json(kind)


# In a pipeline.


def totals() -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING)
    orders = builder.stream("orders", value_serde=serdes.json(Struct))
    orders.group_by_key().aggregate(
        lambda: Plain("nobody"),
        lambda key, order, total: Plain(key, total.cents + order.cents),
        ss.Materialized("totals", value_serde=serdes.json(Plain)),
    ).to_stream().to("out")
    return builder.build()


def test_a_pipeline_has_objects_in_functions_stores_and_topics() -> None:
    with TopologyTestDriver(totals()) as driver:
        driver.pipe("orders", "ann", Struct("ann", 5))
        driver.pipe("orders", "ann", Struct("ann", 7))
        assert [record.value.cents for record in driver.read("out")] == [5, 12]
        driver.crash()
        driver.pipe("orders", "ann", Struct("ann", 1))
        assert driver.read("out")[0].value == Plain("ann", 13)


def test_a_record_of_another_type_says_node_side_type_field_and_way_out() -> None:
    expected = (
        r"node KSTREAM-AGGREGATE.*orders-0 offset 0: cannot decode the value as JSON\(Struct\): "
        r"ValidationError: Object missing required field `customer`;.*exception\.handler"
    )
    with TopologyTestDriver(totals()) as driver, pytest.raises(RecordFailed, match=expected):
        driver.pipe_bytes("orders", b"ann", b'{"cents": 5}')


def test_a_value_of_another_type_says_side_type_serde_and_keyword() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.json(Struct))
    builder.stream("in").map_values(lambda order: {"customer": order.customer}).to("out")
    expected = (
        r"the value is dict but its serde is JSON\(Struct\) \(want Struct\): pass value_serde=… to"
    )
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(SerdeMismatch, match=expected),
    ):
        driver.pipe("in", "a", Struct("ann"))


class Texts(msgspec.Struct):
    raw: msgspec.Raw
    price: float = 0.0


SEVERAL: list[tuple[ss.Serde[Any], list[Any]]] = [
    (serdes.json(Struct), [Struct("a", 1), None, Struct("b\nc")]),
    (serdes.json(Struct), [Struct("a", 1), Struct("b\nc"), Struct("", 2**63)]),
    (serdes.json(cast("Any", Struct | None)), [Struct("a"), None]),
    (serdes.json(Plain), [Plain("a", 1, {"x": 1}), Plain("b")]),
    (serdes.json(Model), [Model(customer="a"), Model(customer="b", Cents=3)]),
    (serdes.json(Texts), [Texts(msgspec.Raw(b"[1,\n2]")), Texts(msgspec.Raw(b"1"))]),
    (serdes.json(Numbered), [Numbered({1: Struct("a")}), Numbered({})]),
    (serdes.json(dict[int, int]), [{1: 2}, {}]),
    (serdes.JSON, [{"a": 1}, [1, 2], "x\ny", 1.5, True, None]),
    (serdes.JSON, [{"a": msgspec.Raw(b"[1,\n2]")}, {}]),
    (serdes.JSON, []),
    (serdes.json(Struct), []),
]


@pytest.mark.parametrize(("serde", "values"), SEVERAL)
def test_many_values_are_written_as_each_is(serde: ss.Serde[Any], values: list[Any]) -> None:
    each = [None if value is None else serde.serialize(value) for value in values]
    assert serde.serialize_all(values) == each
    again = cloudpickle.loads(cloudpickle.dumps(serde))
    assert again.serialize_all(values) == each


@pytest.mark.parametrize(
    ("serde", "wrong"),
    [
        (serdes.json(Struct), "a text"),
        (serdes.json(Struct), Struct(1)),  # type: ignore[arg-type]
        (serdes.json(Texts), Texts(msgspec.Raw(b""))),
        (serdes.json(Texts), Texts(msgspec.Raw(b"}{"))),
        (serdes.json(Texts), Texts(msgspec.Raw(b"1"), float("nan"))),
        (serdes.JSON, Struct("a")),
        (serdes.JSON, {"a": object()}),
    ],
)
def test_one_of_many_that_cannot_be_written_fails_as_alone(
    serde: ss.Serde[Any], wrong: Any
) -> None:
    with pytest.raises(Exception) as alone:
        serde.serialize(wrong)
    fine = serde.deserialize(serde.serialize({} if serde is serdes.JSON else _fine_for(wrong)))
    with pytest.raises(alone.type, match=re.escape(str(alone.value))):
        serde.serialize_all([fine, wrong, fine])


def _fine_for(wrong: Any) -> Any:
    return Texts(msgspec.Raw(b"1")) if isinstance(wrong, Texts) else Struct("fine")

"""Columns in Arrow have what the serde has row by row: values, bytes and errors."""

import datetime as dt
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.topology.arrow_results import fitted, whole

UTC = st.just(dt.UTC)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
AWARE = Annotated[dt.datetime, msgspec.Meta(tz=True)]
NAIVE = Annotated[dt.datetime, msgspec.Meta(tz=False)]


class Flat(msgspec.Struct):
    text: str
    number: int
    share: float
    is_new: bool = False
    note: str | None = None
    rank: int | None = 7


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Inner:
    name: str
    counts: list[int] = field(default_factory=list)


class Rich(msgspec.Struct, rename="camel", omit_defaults=True):
    positive_number: Annotated[int, msgspec.Meta(gt=0)]
    at_time: AWARE
    local: NAIVE | None = None
    day: dt.date | None = None
    span: dt.timedelta | None = None
    raw: bytes = b""
    size: Size = Size.SMALL
    mood: Literal["good", "bad"] | None = None
    ident: uuid.UUID | None = None
    inner: Inner | None = None
    inners: list[Inner] = []
    by_name: dict[str, Inner] = {}
    seen: set[int] = set()


class Checked(msgspec.Struct):
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Entry(TypedDict):
    of: str
    n: int


class Pair(NamedTuple):
    of: str
    n: int


@dataclass
class Plain:
    text: str
    n: int | None = None


INNERS = st.builds(Inner, TEXTS, st.lists(INTS, max_size=3))
RICH = st.builds(
    Rich,
    positive_number=st.integers(1, 2**63 - 1),
    at_time=st.datetimes(timezones=UTC),
    local=st.none() | st.datetimes(),
    day=st.none() | st.dates(),
    span=st.none() | st.timedeltas(dt.timedelta(days=-9999), dt.timedelta(days=9999)),
    raw=st.binary(max_size=3),
    size=st.sampled_from(Size),
    mood=st.sampled_from(["good", "bad", None]),
    ident=st.none() | st.uuids(),
    inner=st.none() | INNERS,
    inners=st.lists(INNERS, max_size=2),
    by_name=st.dictionaries(TEXTS, INNERS, max_size=2),
    seen=st.sets(INTS, max_size=2),
)
FLAT = st.builds(Flat, TEXTS, INTS, FLOATS, st.booleans(), st.none() | TEXTS, st.none() | INTS)
AVRO_ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "pieces", "type": "int"},
        {"name": "share", "type": "double"},
        {"name": "is_new", "type": "boolean"},
        {"name": "coupon", "type": ["null", "string"], "default": None},
        {"name": "late", "type": ["long", "null"], "default": 0},
        {"name": "raw", "type": "bytes"},
    ],
}
AVRO_RICH: dict[str, Any] = {
    "type": "record",
    "name": "Rich",
    "fields": [
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "time", "type": ["null", {"type": "long", "logicalType": "time-micros"}]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {
            "name": "line",
            "type": {
                "type": "record",
                "name": "Line",
                "fields": [{"name": "n", "type": "long"}],
            },
        },
        {"name": "lines", "type": {"type": "array", "items": "Line"}},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "Size"]}},
    ],
}
LINES = st.fixed_dictionaries({"n": INTS})
FROM_AVRO = {
    "order": st.fixed_dictionaries(
        {
            "customer": TEXTS,
            "cents": INTS,
            "pieces": st.integers(-(2**31), 2**31 - 1),
            "share": FLOATS,
            "is_new": st.booleans(),
            "coupon": st.none() | TEXTS,
            "late": st.none() | INTS,
            "raw": st.binary(max_size=5),
        }
    ),
    "rich": st.fixed_dictionaries(
        {
            "price": st.decimals(-9999999, 9999999, places=2),
            "at": st.datetimes(timezones=UTC),
            "day": st.dates(),
            "time": st.none() | st.times(),
            "size": st.sampled_from("SL"),
            "hash": st.binary(min_size=2, max_size=2),
            "line": LINES,
            "lines": st.lists(LINES, max_size=2),
            "by_name": st.dictionaries(TEXTS, st.sampled_from(["S", None]), max_size=2),
        }
    ),
}
CASES: dict[str, tuple[ss.Serde[Any], st.SearchStrategy[Any]]] = {
    "STRING": (serdes.STRING, TEXTS),
    "BYTES": (serdes.BYTES, st.binary(max_size=5)),
    "INT64": (serdes.INT64, INTS),
    "FLOAT64": (serdes.FLOAT64, st.floats()),
    "INT16": (serdes.INT16, st.integers(-(2**15), 2**15 - 1)),
    "INT32": (serdes.INT32, st.integers(-(2**31), 2**31 - 1)),
    "FLOAT32": (serdes.FLOAT32, st.floats(width=32)),
    "BOOLEAN": (serdes.BOOLEAN, st.booleans()),
    "flat": (serdes.json(Flat), FLAT),
    "rich": (serdes.json(Rich), RICH),
    "dataclass": (serdes.json(Plain), st.builds(Plain, TEXTS, st.none() | INTS)),
    "checked": (
        serdes.json(Checked),
        st.tuples(INTS, INTS).map(lambda two: Checked(min(two), max(two))),
    ),
    "dict": (serdes.json(Entry), st.builds(Entry, of=TEXTS, n=INTS)),
    "no fields": (serdes.json(list[int]), st.lists(INTS, max_size=3)),
    "json schema": (serdes.json_schema(None, Plain), st.builds(Plain, TEXTS, INTS)),
    "avro": (serdes.avro(AVRO_ORDER), FROM_AVRO["order"]),
    "avro, rich": (serdes.avro(AVRO_RICH), FROM_AVRO["rich"]),
    "avro, objects": (
        serdes.avro(
            {
                "type": "record",
                "name": "Plain",
                "fields": [
                    {"name": "text", "type": "string"},
                    {"name": "n", "type": ["null", "long"]},
                ],
            },
            Plain,
        ),
        st.builds(Plain, TEXTS, st.none() | INTS),
    ),
}


def form_of(serde: ss.Serde[Any]) -> Any:
    form = serde.arrow_form()
    assert form is not None
    return form


def outcome(call: Callable[[], object]) -> tuple[str, object]:
    try:
        return "made", call()
    except Exception as error:  # noqa: BLE001  # the errors of both ways are compared
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_a_column_makes_the_bytes_of_its_rows(name: str, data: st.DataObject) -> None:
    serde, values = CASES[name]
    rows = [
        None if value is None else serde.serialize(value)
        for value in data.draw(st.lists(st.none() | values, max_size=6))
    ]
    form = form_of(serde)
    column = form.decode(rows)
    column.validate(full=True)
    assert column.type == form.type
    assert form.encode(column) == [
        None if row is None else serde.serialize(serde.deserialize(row)) for row in rows
    ]
    start = data.draw(st.integers(0, len(rows)))
    assert form.encode(column.slice(start)) == form.encode(column)[start:], "of a part as well"
    assert form.encode(fitted(column, form.type)) == form.encode(column)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
def test_a_column_fails_for_the_rows_that_the_serde_cannot_read(
    name: str, data: st.DataObject
) -> None:
    serde, values = CASES[name]
    row = bytearray(serde.serialize(data.draw(values)))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(row)))
        with_this = data.draw(st.binary(max_size=2) | st.sampled_from([b"1", b'"', b"null", b","]))
        row[place : place + data.draw(st.integers(0, 3))] = with_this
    bad, good = bytes(row), serde.serialize(data.draw(values))
    form = form_of(serde)
    by_row = outcome(lambda: serde.serialize(serde.deserialize(bad)))
    in_arrow = outcome(lambda: form.encode(form.decode([good, bad]))[1])
    if by_row[0] == "made" and _says_more(name, by_row, in_arrow):
        return
    assert in_arrow == by_row


def _says_more(name: str, by_row: tuple[str, object], in_arrow: tuple[str, object]) -> bool:
    """Whether a row has what no Arrow type has: integers beyond 64 bits, or zones of times."""
    if in_arrow[0] in {"OverflowError", "ArrowInvalid"}:
        return True
    if name != "rich" or in_arrow[0] != "made":
        return False
    one, other = (msgspec.json.decode(str(x[1], "utf-8"), type=Rich) for x in (by_row, in_arrow))  # type: ignore[call-overload]
    return bool(one == other)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"text": None, "number": 1, "share": 1.0}, "Expected `str`, got `null`"),
        ({"text": "x", "number": 1, "share": float("nan")}, "Expected `float`, got `null`"),
        ({"text": "x", "number": 1, "share": float("inf")}, "Expected `float`, got `null`"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(value: dict[str, Any], error: str) -> None:
    form = form_of(serdes.json(Flat))
    rest = {"is_new": True, "note": None, "rank": None}
    with pytest.raises(msgspec.ValidationError, match=error):
        form.encode(pa.array([{**value, **rest}], form.type))


def test_constraints_hold_for_what_columns_write() -> None:
    form = form_of(serdes.json(Checked))
    with pytest.raises(msgspec.ValidationError, match="low is above high"):
        form.encode(pa.array([{"low": 2, "high": 1}], form.type))


def test_a_column_of_no_rows_is_empty() -> None:
    for serde, _ in CASES.values():
        form = form_of(serde)
        assert form.encode(form.decode([])) == []
        assert form.encode(form.decode([None])) == [None]


class Recursive(msgspec.Struct):
    next: "Recursive | None" = None


class Times(msgspec.Struct):
    at: dt.datetime


class Several(msgspec.Struct):
    either: int | str


class Amount(msgspec.Struct):
    price: Decimal


class AsArray(msgspec.Struct, array_like=True):
    n: int


class Optional(TypedDict, total=False):
    n: int


class Model(pydantic.BaseModel):
    n: int


class Empty(msgspec.Struct):
    pass


class Deep(msgspec.Struct):
    entries: list[Several]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Recursive, "Recursive.next, which is a type that contains itself"),
        (Times, r"Times.at, which is a time with or without a zone: .*Meta\(tz="),
        (Several, "Several.either, which is a union of several types"),
        (Deep, r"Deep.entries\[\].either, which is a union"),
        (Amount, "Amount.price, which is decimal"),
        (AsArray, "AsArray, which is written as an array"),
        (Pair, "Pair, which is namedtuple"),
        (Optional, "Optional.n, which is a key that may be missing"),
        (Model, "Model, which is not a type of msgspec's: use a Struct or a dataclass"),
        (Empty, "Empty, which is a type without fields"),
    ],
)
def test_types_that_arrow_does_not_have_are_refused_with_the_field(kind: Any, why: str) -> None:
    serde = serdes.json(kind)
    with pytest.raises(Misuse, match=why):
        serde.arrow_form()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "items": ["int", "string"]}, r"the datum\[\], .*a union of several"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        (
            {
                "type": "record",
                "name": "Tree",
                "fields": [{"name": "left", "type": ["null", "Tree"]}],
            },
            "the datum.left, which is a type that contains itself",
        ),
        ({"type": "record", "name": "Nothing", "fields": []}, "a record without fields"),
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]},
            "the datum.n, which is null alone",
        ),
    ],
)
def test_avro_that_arrow_does_not_have_is_refused(schema: Any, why: str) -> None:
    serde = serdes.avro(schema)
    with pytest.raises(Misuse, match=why):
        serde.arrow_form()


def test_serdes_without_types_offer_no_arrow() -> None:
    for serde in (serdes.JSON, serdes.MSGPACK, serdes.windowed(serdes.STRING, 1)):
        assert serde.arrow_form() is None


# What functions make.

STRUCT = pa.struct([("of", pa.large_string()), ("n", pa.int64())])


def struct(**columns: Any) -> pa.Array:
    made = [pa.array(column) for column in columns.values()]
    return pa.StructArray.from_arrays(made, names=list(columns))


@pytest.mark.parametrize(
    "made",
    [
        struct(n=[1], of=["x"]),
        struct(of=["x"], n=pa.array([1], pa.int8())),
        struct(of=pa.array(["x"]).dictionary_encode(), n=[1]),
        struct(of=pa.array(["x"], pa.string_view()), n=pa.array([1], pa.uint64())),
        pa.record_batch({"of": ["x"], "n": [1]}),
        pa.table({"of": pa.chunked_array([["x"], []]), "n": [1]}),
        pa.chunked_array([struct(of=["x"], n=[1])]),
        struct(of=["y", "x"], n=[2, 1]).slice(1),
    ],
    ids=str,
)
def test_a_column_fits_by_the_names_and_kinds_of_its_fields(made: Any) -> None:
    assert fitted(whole(made, 1), STRUCT).to_pylist() == [{"of": "x", "n": 1}]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (struct(of=["x"]), "lacks the field 'n': it has of, want of, n"),
        (struct(of=["x"], n=[1], m=[2]), "has a field too many"),
        (struct(of=[1], n=[1]), r"the column.of is int64, want large_string"),
        (struct(of=["x"], n=["1"]), r"the column.n is string, want int64"),
        (struct(of=["x"], n=[1.0]), r"the column.n is double, want int64"),
        (struct(of=["x"], n=[True]), r"the column.n is bool, want int64"),
        (pa.array([1]), "the column is int64, want struct"),
    ],
)
def test_a_column_of_another_kind_is_refused(made: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        fitted(made, STRUCT)


def test_nested_columns_fit_or_are_refused_with_the_field() -> None:
    lists = pa.large_list(STRUCT)
    given_lists = pa.array([[{"n": 1, "of": "x"}], None])
    assert fitted(given_lists, lists).to_pylist() == [[{"of": "x", "n": 1}], None]
    with pytest.raises(TypeError, match=r"the column\[\] has a field too many"):
        fitted(pa.array([[{"n": 1, "of": "x", "m": 1}]]), lists)
    maps = pa.map_(pa.large_string(), pa.int64())
    assert fitted(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), maps).type == maps
    with pytest.raises(TypeError, match="the column is list"):
        fitted(given_lists, maps)
    with pytest.raises(TypeError, match="want timestamp"):
        fitted(pa.array([dt.datetime(2026, 1, 1)]), pa.timestamp("us", "UTC"))  # noqa: DTZ001 - none is wanted
    assert fitted(pa.nulls(2), STRUCT).null_count == 2
    with pytest.raises(pa.ArrowInvalid):
        fitted(pa.array([2**63], pa.uint64()), pa.int64())


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ([1], "the function returned list, want a pyarrow.Array"),
        (None, "the function returned NoneType"),
        (pa.scalar(1), "the function returned Int64Scalar"),
        (pa.array([1, 2]), "the function returned 2 rows for 1 records"),
    ],
)
def test_what_is_no_column_of_all_rows_is_refused(made: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        whole(made, 1)

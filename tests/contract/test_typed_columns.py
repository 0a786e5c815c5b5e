"""Columns of the Data Source have the types that serdes know, with the pipeline or without it."""

import datetime as dt
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.operations.deployed import (
    Deployed,
    DeployedSchema,
    DeployedStore,
    key_schema_of,
    publish_deployed,
    writers_in,
)
from statestore.serdes.described import by_description
from statestore.spark.datasource import TransactionalStore
from statestore.spark.reading.typed_columns import decoder_of
from tests.contract.test_stores_at_rest import Shop

NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct, rename="camel"):
    customer: str
    paid_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    lines: list[Line]
    note: str | None = None
    state: Literal["new", "sent"] = "new"
    weights: dict[str, float] = {}
    code: uuid.UUID | None = None
    picture: bytes = b""


class Tree(msgspec.Struct):
    name: str
    anything: Any = None
    children: list["Tree"] = []


@dataclass
class Place:
    city: str
    day: dt.date
    lasts: dt.timedelta


class Model(pydantic.BaseModel):
    name: str
    seen: dt.datetime | None = None
    tags: list[str] = []


ORDER = Order(
    "ann", NOON, [Line("a", 2), Line("b")], weights={"a": 1.5}, code=uuid.UUID(int=7), picture=b"\1"
)
AVRO = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "cents", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
SPECS: dict[str, ss.KeyValueSpec[Any, Any]] = {
    spec.name: spec
    for spec in (
        ss.persistent_key_value_store(
            "orders", key_serde=serdes.STRING, value_serde=serdes.json(Order)
        ),
        ss.persistent_key_value_store(
            "trees", key_serde=serdes.json(Line), value_serde=serdes.json(Tree)
        ),
        ss.persistent_key_value_store(
            "places", key_serde=serdes.STRING, value_serde=serdes.json(Place)
        ),
        ss.persistent_key_value_store(
            "models", key_serde=serdes.STRING, value_serde=serdes.json(Model)
        ),
        ss.persistent_key_value_store(
            "sales", key_serde=serdes.STRING, value_serde=serdes.avro(AVRO)
        ),
        ss.persistent_key_value_store("loose", key_serde=serdes.STRING, value_serde=serdes.JSON),
    )
}
VALUES: dict[str, tuple[Any, Any]] = {
    "orders": ("k", ORDER),
    "trees": (Line("k"), Tree("top", {"x": [1]}, [Tree("leaf")])),
    "places": ("k", Place("Oslo", dt.date(2026, 1, 2), dt.timedelta(hours=1))),
    "models": ("k", Model(name="m", seen=dt.datetime(2026, 1, 2), tags=["t"])),  # noqa: DTZ001  # as users write them
    "sales": ("k", {"cents": 5, "at": NOON, "items": ["i"], "note": None}),
    "loose": ("k", {"a": 1}),
}
ORDER_TYPE = (
    "struct<customer:string,paidAt:timestamp,lines:array<struct<sku:string,count:bigint>>,"
    "note:string,state:string,weights:map<string,double>,code:string,picture:binary>"
)
# A recorded schema has its fields by name; which ones are required it has in their order.
ORDER_TYPE_AT_REST = (
    "struct<customer:string,paidAt:timestamp,lines:array<struct<sku:string,count:bigint>>,"
    "code:string,note:string,picture:binary,state:string,weights:map<string,double>>"
)


def pipeline() -> ss.Topology:
    """The pipeline of these stores, for the option `pipeline`."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)

    class Nothing:
        def __init__(self, context: ss.ProcessorContext[Any, Any]) -> None:
            self.context = context

        def process(self, record: ss.Record[str, str]) -> None:
            """Do nothing."""

    b.stream("in").process(Nothing, *SPECS.values(), name="nothing")
    return b.build()


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_state(tmp_path_factory.mktemp("state"))


def made_state(folder: Path) -> Path:
    """Make the stores of an application, each with one row."""
    layout = StateLayout(folder, "shop")
    stores = {}
    for name, spec in SPECS.items():
        with ss.open_store(spec, layout.task_dir(TaskId(0, 0)) / "rocksdb") as store:
            store.put(*VALUES[name])
            store.commit({TopicPartition(f"shop-{name}-changelog", 0): 1})
        stores[name] = DeployedStore(
            0,
            spec.key_serde.name,
            spec.value_serde.name,
            persistent=True,
            key_schema=DeployedSchema.of(key_schema_of(spec)),
            value_writers=writers_in(spec),
        )
    publish_deployed(layout, Deployed(stores=stores))
    return folder


def source(state_dir: Path, store: str, **options: str) -> TransactionalStore:
    named = {"state_dir": str(state_dir), "application_id": "shop", "store": store}
    return TransactionalStore({**named, **options})


def type_of(state_dir: Path, store: str, column: str = "value", **options: str) -> str:
    shown: str = source(state_dir, store, **options).schema()[column].dataType.simpleString()
    return shown


def row_of(state_dir: Path, store: str, **options: str) -> dict[str, Any]:
    made = source(state_dir, store, **options)
    reader = made.reader(made.schema())
    batches: Iterator[Any] = (lot for part in reader.partitions() for lot in reader.read(part))
    (row,) = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    found: dict[str, Any] = row
    return found


@pytest.mark.parametrize("options", [{}, {"pipeline": f"{__name__}:pipeline"}])
def test_objects_are_structs_of_their_types(state_dir: Path, options: dict[str, str]) -> None:
    expected = ORDER_TYPE if options else ORDER_TYPE_AT_REST
    assert type_of(state_dir, "orders", **options) == expected
    assert row_of(state_dir, "orders", **options)["value"] == {
        "customer": "ann",
        "paidAt": NOON,
        "lines": [{"sku": "a", "count": 2}, {"sku": "b", "count": 1}],
        "note": None,
        "state": "new",
        "weights": {"a": 1.5},
        "code": str(uuid.UUID(int=7)),
        "picture": b"\1",
    }
    assert type_of(state_dir, "places", **options) == (
        "struct<city:string,day:date,lasts:interval day to second>"
    )
    assert row_of(state_dir, "places", **options)["value"] == {
        "city": "Oslo",
        "day": dt.date(2026, 1, 2),
        "lasts": dt.timedelta(hours=1),
    }


@pytest.mark.parametrize("options", [{}, {"pipeline": f"{__name__}:pipeline"}])
def test_avro_is_typed_by_its_schema(state_dir: Path, options: dict[str, str]) -> None:
    assert type_of(state_dir, "sales", **options) == (
        "struct<cents:bigint,at:timestamp,items:array<string>,note:string>"
    )
    assert row_of(state_dir, "sales", **options)["value"] == {
        "cents": 5,
        "at": NOON,
        "items": ["i"],
        "note": None,
    }


def test_commands_and_snapshots_read_avro_by_its_recorded_schema_without_code(
    state_dir: Path,
) -> None:
    shop = Shop(StateLayout(state_dir, "shop"))
    (found,) = shop.json("stores", "range", "sales")
    assert found["value"] == {
        "cents": 5,
        "at": "2026-01-02T12:00:00Z",
        "items": ["i"],
        "note": None,
    }
    with ss.open_snapshot(state_dir, "shop", "sales") as store:
        assert store.get("k") == VALUES["sales"][1]


def test_a_key_with_fields_is_found_as_it_is_shown_without_code(state_dir: Path) -> None:
    shop = Shop(StateLayout(state_dir, "shop"))
    ((_, shown, _),) = shop.said("stores", "range", "trees")
    assert shown == '{"sku":"k","count":1}', "the order of the type, not of the alphabet"
    assert shop.json("stores", "get", "trees", shown)[0]["value"] == msgspec.to_builtins(
        VALUES["trees"][1]
    )
    with ss.open_snapshot(state_dir, "shop", "trees") as store:
        assert store.get({"sku": "k", "count": 1})["name"] == "top"


@pytest.mark.parametrize("options", [{}, {"pipeline": f"{__name__}:pipeline"}])
def test_parts_that_have_no_type_are_json_text(state_dir: Path, options: dict[str, str]) -> None:
    assert type_of(state_dir, "trees", "key", **options) == "struct<sku:string,count:bigint>"
    assert type_of(state_dir, "trees", **options) == (
        "struct<name:string,anything:string,children:array<string>>"
    )
    assert row_of(state_dir, "trees", **options)["value"] == {
        "name": "top",
        "anything": '{"x":[1]}',
        "children": ['{"name":"leaf","anything":null,"children":[]}'],
    }
    assert row_of(state_dir, "loose", **options)["value"] == '{"a":1}'


@pytest.mark.parametrize("options", [{}, {"pipeline": f"{__name__}:pipeline"}])
def test_times_of_pydantic_may_lack_a_zone_and_stay_text(
    state_dir: Path, options: dict[str, str]
) -> None:
    assert row_of(state_dir, "models", **options)["value"] == {
        "name": "m",
        "seen": "2026-01-02T00:00:00",
        "tags": ["t"],
    }


def test_values_that_are_not_typed_stay_json_text(state_dir: Path) -> None:
    assert type_of(state_dir, "orders", typed="false") == "string"
    text = row_of(state_dir, "orders", typed="false")["value"]
    assert msgspec.json.decode(text, type=Order) == ORDER
    assert type_of(state_dir, "sales", typed="false") == "string"


def test_only_the_columns_asked_for_are_there_and_decoded(state_dir: Path) -> None:
    assert row_of(state_dir, "orders", columns="partition, key") == {"partition": 0, "key": "k"}
    with pytest.raises(Misuse, match=r"has no column 'keys'; it has stream_task, partition, key"):
        source(state_dir, "orders", columns="keys").schema()


def test_bytes_that_are_not_of_the_type_are_shown_with_the_ways_out(tmp_path: Path) -> None:
    decoder = decoder_of(serdes.json(Line))
    with pytest.raises(Misuse, match=r'cannot decode \{"sku":1\}.*option\("typed", "false"\)'):
        decoder.column("lines", [b'{"sku":"a"}', b'{"sku":1}'])


PLAIN: list[tuple[ss.Serde[Any], st.SearchStrategy[Any]]] = [
    (serdes.STRING, st.text()),
    (serdes.BYTES, st.binary()),
    (serdes.INT64, st.integers(-(1 << 63), (1 << 63) - 1)),
    (serdes.INT32, st.integers(-(1 << 31), (1 << 31) - 1)),
    (serdes.INT16, st.integers(-(1 << 15), (1 << 15) - 1)),
    (serdes.FLOAT64, st.floats(allow_nan=False)),
    (serdes.FLOAT32, st.floats(width=32, allow_nan=False)),
    (serdes.BOOLEAN, st.booleans()),
    (serdes.list_of(serdes.INT32), st.lists(st.none() | st.integers(-9, 9))),
]


@pytest.mark.parametrize(("serde", "values"), PLAIN, ids=lambda one: getattr(one, "name", ""))
@given(data=st.data())
def test_whole_columns_hold_what_the_serde_reads(
    serde: ss.Serde[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    given_values = data.draw(st.lists(st.none() | values))
    rows = [None if value is None else serde.serialize(value) for value in given_values]
    column = decoder_of(serde).column("store", rows)
    assert column.to_pylist() == given_values
    assert column.type == decoder_of(serde).type


@pytest.mark.parametrize(
    ("serde", "row"),
    [(serdes.INT64, b"1234567"), (serdes.STRING, b"\xff"), (serdes.FLOAT32, b"")],
    ids=str,
)
def test_bytes_of_another_length_or_no_text_are_refused(serde: ss.Serde[Any], row: bytes) -> None:
    good = serde.serialize("a" if serde is serdes.STRING else 1)
    with pytest.raises(Misuse, match="cannot decode"):
        decoder_of(serde).column("store", [good, row])


def test_rows_of_older_serdes_have_the_newest_type() -> None:
    changed = ss.Migration(serdes.INT64, lambda count: Line("old", count))
    spec = ss.persistent_key_value_store(
        "s", key_serde=serdes.STRING, value_serde=serdes.json(Line), migrate=changed
    )
    rows = [serdes.INT64.serialize(3), spec.value_serde.serialize(Line("new", 4))]
    column = decoder_of(spec.value_serde).column("s", rows)
    assert column.to_pylist() == [{"sku": "old", "count": 3}, {"sku": "new", "count": 4}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, ORDER),
        (Tree, Tree("a")),
        (Place, VALUES["places"][1]),
        (list[Line], [Line("a")]),
        (dict[str, Line], {"x": Line("a")}),
        (Model, Model(name="a")),
    ],
)
def test_a_kept_schema_gives_a_type_that_reads_what_the_serde_wrote(kind: Any, value: Any) -> None:
    serde = serdes.json(kind)
    described = by_description(serde.name, serde.schema)
    column = decoder_of(described).column("store", [serde.serialize(value), None])
    assert not pa.types.is_string(column.type)
    assert column.null_count == 1
    assert column[0].as_py()

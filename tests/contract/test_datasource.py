"""The Python Data Source on stores at rest, called as Spark's Python workers call it."""

import json
import pickle
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse, UnknownStore
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.spark.datasource import TransactionalStore
from statestore.stores.specs import BuiltInSpec

COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)
NOTES = ss.persistent_key_value_store("notes", key_serde=serdes.INT64, value_serde=serdes.JSON)
RATES = ss.persistent_versioned_key_value_store(
    "rates", 1000, key_serde=serdes.STRING, value_serde=serdes.FLOAT64
)
OWN = ss.Serde("ITS OWN", str.encode, bytes.decode)
ODD = ss.persistent_key_value_store("odd", key_serde=OWN, value_serde=serdes.STRING)
IDS = ss.persistent_key_value_store("ids", key_serde=serdes.UUID, value_serde=serdes.FLOAT32)
FLAGS = ss.persistent_key_value_store(
    "flags", key_serde=serdes.INT32, value_serde=serdes.list_of(serdes.BOOLEAN)
)
SPECS: dict[str, BuiltInSpec] = {
    spec.name: spec for spec in (COUNTS, NOTES, RATES, ODD, IDS, FLAGS)
}


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of two stream tasks."""
    folder = tmp_path_factory.mktemp("state")
    layout = StateLayout(folder, "shop")
    for partition in range(2):
        where = layout.task_dir(TaskId(0, partition)) / "rocksdb"
        rows: list[tuple[ss.KeyValueSpec[Any, Any], list[tuple[Any, Any]]]] = [
            (COUNTS, [(f"k{partition}{i}", i) for i in range(3)]),
            (NOTES, [(partition, {"n": [partition, None]})]),
            (ODD, [("o", "v")]),
            (IDS, [(uuid.UUID(int=partition), 1.5)]),
            (FLAGS, [(partition, [True, None])]),
        ]
        for spec, pairs in rows:
            with ss.open_store(spec, where) as store:
                store.put_all(pairs)
                store.commit({TopicPartition(f"shop-{spec.name}-changelog", partition): 7})
        with ss.open_store(RATES, where) as rates:
            rates.put_all([("EUR", 1.0, 1000), ("EUR", 2.0, 1500), ("EUR", 3.0, 1900)])
            rates.delete("EUR", 2200)
            rates.put(f"p{partition}", 9.0, 1200)
            rates.commit()
    stores = {
        name: {
            "kind": spec.kind,
            "sub_topology": 0,
            "key_serde": spec.key_serde.name,
            "value_serde": spec.value_serde.name,
            "persistent": True,
        }
        for name, spec in SPECS.items()
    }
    layout.topology_file.write_text(json.dumps({"version": 1, "stores": stores}))
    return folder


def source(state_dir: Path, store: str, **options: str) -> TransactionalStore:
    named = {"state_dir": str(state_dir), "application_id": "shop", "store": store}
    return TransactionalStore({**named, **options})


def rows(state_dir: Path, store: str, **options: str) -> list[tuple[Any, ...]]:
    """All of it, through the pickles Spark would send."""
    made = source(state_dir, store, **options)
    reader: DataSourceReader = pickle.loads(pickle.dumps(made.reader(made.schema())))

    def batches() -> Iterator[pa.RecordBatch]:
        for partition in reader.partitions():
            yield from reader.read(pickle.loads(pickle.dumps(partition)))

    found = [tuple(row.values()) for batch in batches() for row in batch.to_pylist()]
    return sorted(found, key=str)


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_rows_are_decoded_by_the_deployed_serdes_in_a_partition_per_stream_task(
    state_dir: Path,
) -> None:
    expected = [(f"0_{p}", p, f"k{p}{i}", i) for p in range(2) for i in range(3)]
    assert rows(state_dir, "counts") == expected
    schema = source(state_dir, "counts").schema()
    assert schema.simpleString() == (
        "struct<stream_task:string,partition:int,key:string,value:bigint>"
    )
    assert rows(state_dir, "counts", partition="1") == expected[3:]
    assert rows(state_dir, "notes")[0] == ("0_0", 0, 0, '{"n":[0,null]}')
    assert list(StateLayout(state_dir, "shop").application_dir.glob("*/snapshots/*")) == []


def test_columns_have_the_types_of_javas_serdes(state_dir: Path) -> None:
    assert rows(state_dir, "ids")[0] == ("0_0", 0, str(uuid.UUID(int=0)), 1.5)
    assert source(state_dir, "ids").schema()["value"].dataType.simpleString() == "float"
    assert rows(state_dir, "flags")[1] == ("0_1", 1, 1, [True, None])
    assert rows(state_dir, "flags", typed="false")[1] == ("0_1", 1, 1, "[true,null]")
    assert source(state_dir, "flags").schema()["key"].dataType.simpleString() == "int"


def test_large_rows_come_in_batches_that_an_arrow_column_holds(tmp_path: Path) -> None:
    """A column of bytes holds 2 GiB, and ten thousand rows of a megabyte are more."""
    layout, size = StateLayout(tmp_path, "shop"), 3 << 20
    with ss.open_store(ODD, layout.task_dir(TaskId(0, 0)) / "rocksdb") as store:
        store.put_all([(f"k{i:02}", chr(97 + i) * size) for i in range(14)])
        store.commit({TopicPartition("shop-odd-changelog", 0): 7})
    says = {"kind": ODD.kind, "sub_topology": 0, "persistent": True}
    stores = {"odd": says | {"key_serde": OWN.name, "value_serde": "STRING"}}
    layout.topology_file.write_text(json.dumps({"version": 1, "stores": stores}))
    made = source(tmp_path, "odd", raw="true")
    reader: DataSourceReader = made.reader(made.schema())
    (part,) = reader.partitions()
    batches = [*reader.read(part)]
    assert [batch.num_rows for batch in batches] == [6, 6, 2]
    values = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert [value[:1] for value in values] == [bytes([97 + i]) for i in range(14)]


def test_raw_rows_are_bytes(state_dir: Path) -> None:
    assert rows(state_dir, "counts", raw="true")[1] == ("0_0", 0, b"k01", bytes(7) + b"\x01")
    assert rows(state_dir, "odd", raw="true")[0] == ("0_0", 0, b"o", b"v")


def test_a_store_with_history_gives_its_versions_with_their_spans(state_dir: Path) -> None:
    schema = source(state_dir, "rates").schema()
    assert schema["valid_from"].dataType.simpleString() == "timestamp"
    mine = [row[2:] for row in rows(state_dir, "rates") if row[1] == 0]
    assert sorted(mine, key=str) == sorted(
        [
            ("EUR", at(1000), at(1500), 1.0),
            ("EUR", at(1500), at(1900), 2.0),
            ("EUR", at(1900), at(2200), 3.0),
            ("p0", at(1200), None, 9.0),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("as_of", "found"),
    [
        ("1600", {("EUR", 2.0), ("p0", 9.0)}),
        ("1970-01-01T00:00:01.900Z", {("EUR", 3.0), ("p0", 9.0)}),
        ("2200", {("p0", 9.0)}),
        ("1200", {("EUR", 1.0), ("p0", 9.0)}),
        ("1199", set()),  # history begins 1000 ms before the last time seen
    ],
)
def test_as_of_gives_the_versions_valid_then(
    state_dir: Path, as_of: str, found: set[tuple[str, float]]
) -> None:
    valid = rows(state_dir, "rates", as_of=as_of, partition="0")
    assert {(row[2], row[-1]) for row in valid} == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"from_time": "1500", "to_time": "1899"}, {("EUR", 2.0), ("p0", 9.0)}),
        ({"from_time": "1900"}, {("EUR", 3.0), ("p0", 9.0)}),
        ({"from_time": "2200"}, {("p0", 9.0)}),
        (
            {"from_time": "1200", "to_time": "1970-01-01T00:00:01.500Z"},
            {("EUR", 1.0), ("EUR", 2.0), ("p0", 9.0)},
        ),
    ],
)
def test_a_span_of_time_gives_the_versions_valid_in_it(
    state_dir: Path, options: dict[str, str], found: set[tuple[str, float]]
) -> None:
    valid = rows(state_dir, "rates", partition="0", **options)
    assert {(row[2], row[-1]) for row in valid} == found


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        ("counts", {"to_time": "5"}, "keeps no history: leave to_time out"),
        ("rates", {"to_time": "5", "from_time": "6"}, "swap them"),
        ("rates", {"to_time": "5", "as_of": "6"}, "not both"),
        ("counts", {"as_of": "5"}, "keeps no history: leave as_of out"),
        ("counts", {"partitions": "5"}, "no option 'partitions'; it has application_id"),
        ("counts", {"raw": "yes"}, "want true or false"),
        ("odd", {}, r"no serde named 'ITS OWN'.*option\(\"raw\", \"true\"\)"),
        ("", {}, "which store"),
        *(
            ("counts", {"partition": text}, r"partition = '.*': want a whole number from 0 to")
            for text in ("x", "", "-1", "1.0", "²", "9" * 30)
        ),
        ("counts", {"columns": "key, value,key"}, "columns names 'key' twice"),
    ],
)
def test_a_wrong_option_is_refused_with_the_way_out(
    state_dir: Path, store: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        source(state_dir, store, **options).schema()


def test_an_unknown_store_names_those_there_are(state_dir: Path) -> None:
    with pytest.raises(UnknownStore, match="it has: counts, flags, ids, notes, odd, rates"):
        source(state_dir, "nobody").schema()

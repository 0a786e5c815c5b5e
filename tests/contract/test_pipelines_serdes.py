"""Stores decoded with the serdes of their pipeline: command line, Data Source, `open_snapshot`."""

import re
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

import statestore as ss
from statestore.errors import Misuse, StateStoreError
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.operations.deployed import describe_deployment
from statestore.runtime import Runtime
from statestore.stores.in_windows import START, TIME_ROW
from statestore.stores.specs import BuiltInSpec, WindowSpec
from tests.contract.own_serdes import MONEY, RATES, STOCK, Place, topology
from tests.contract.test_datasource import rows, source
from tests.contract.test_stores_at_rest import Shop
from tests.serving_rig import serving

OWN = "tests.contract.own_serdes:topology"
PIPELINE = ("--pipeline", OWN)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    layout = StateLayout(tmp_path_factory.mktemp("state"), "shop")
    folder = layout.task_dir(TaskId(0, 0)) / "rocksdb"
    with ss.open_store(STOCK, folder) as stock:
        stock.put_all([(Place("Ulm", 1), Decimal("1.50")), (Place("Rom", 2), Decimal(7))])
        stock.commit({TopicPartition("shop-stock-changelog", 0): 2})
    with ss.open_store(RATES, folder) as rates:
        rates.put("EUR", Decimal("1.1"), 1000)
        rates.put("EUR", Decimal("1.2"), 2000)
        rates.commit()
    spec = topology().stores["sums"]
    assert isinstance(spec, WindowSpec)
    with ss.open_store(spec.rows, layout.task_dir(TaskId(1, 0)) / "rocksdb") as sums:
        sums.put(START.pack(0) + b"pen", MONEY.serialize(Decimal("3.25")))
        sums.put(TIME_ROW, START.pack(10))
        sums.commit()
    said = describe_deployment(topology(), ProcessingGuarantee.EXACTLY_ONCE)
    layout.topology_file.write_bytes(msgspec.json.encode(said))
    return Shop(layout)


def test_keys_are_typed_as_json_and_rows_are_shown_by_the_serdes_of_the_pipeline(
    shop: Shop,
) -> None:
    place = '{"shelf": 1, "city": "Ulm"}'
    assert shop.said("stores", "get", "stock", place, *PIPELINE) == [["1.50"]]
    assert shop.json("stores", "range", "stock", *PIPELINE) == [
        {"stream_task": "0_0", "key": {"city": "Rom", "shelf": 2}, "value": "7"},
        {"stream_task": "0_0", "key": {"city": "Ulm", "shelf": 1}, "value": "1.50"},
    ]
    history = shop.json("stores", "history", "rates", "EUR", *PIPELINE)
    assert [row["value"] for row in history] == ["1.2", "1.1"]
    assert shop.said("stores", "get", "rates", "EUR", "--as-of", "1500", *PIPELINE) == [["1.1"]]
    (row,) = shop.json("stores", "range", "sums", *PIPELINE)
    assert (row["key"], row["value"]) == ("pen", "3.25")
    assert shop.said("stores", "get", "sums", "pen", "--as-of", "9", *PIPELINE) == [["3.25"]]


def test_a_key_that_looks_like_json_is_a_text_where_the_serde_takes_texts(shop: Shop) -> None:
    done = shop.call("stores", "get", "rates", "12", *PIPELINE)
    assert (done.code, done.err) == (1, "store 'rates' has no key 12\n")


def test_the_applications_file_names_the_pipeline_of_serdes_that_the_library_lacks(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "statestore.toml"
    file.write_text(f'[applications.shop]\nstate_dir = "unused"\npipeline = "{OWN}"\n')
    asked = ("stores", "get", "rates", "EUR", "--config", str(file))
    assert shop.said(*asked) == [["1.2"]]
    assert shop.said(*asked, "--raw") == [["1.2"]]
    file.write_text('[applications.shop]\nstate_dir = "unused"\npipeline = "gone:topology"\n')
    named = shop.call(*asked, STATESTORE_PIPELINE=OWN)
    assert named.out == "1.2\n", named.err
    assert "cannot import 'gone'" in shop.refused(*asked)
    assert shop.said(*asked, "--raw") == [["1.2"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), r"no serde named 'PLACE'.*pass --pipeline module:function.*or pass --raw"),
        (("--pipeline", "nowhere:topology"), "pipeline 'nowhere:topology': cannot import"),
        (("--pipeline", "tests.contract.own_serdes"), "pass module:function"),
        (
            ("--pipeline", "tests.contract.own_serdes:broken"),
            "calling 'broken' raised ValueError: no topology today",
        ),
        (
            ("--pipeline", "tests.contract.own_serdes:without_stores"),
            "pipeline has no store 'stock'; it has: none; name the pipeline",
        ),
        (
            ("--pipeline", "tests.contract.own_serdes:with_other_values"),
            r"the value 7 is not a valid INT64 .*or pass --raw",
        ),
        ((*PIPELINE, "--raw"), "not both"),
    ],
)
def test_a_pipeline_that_does_not_decode_the_store_is_refused(
    shop: Shop, arguments: tuple[str, ...], message: str
) -> None:
    said = shop.refused("stores", "range", "stock", *arguments)
    assert len(said.splitlines()) == 1
    assert re.search(message, said), said


def test_a_key_that_is_none_of_the_serdes_is_refused(shop: Shop) -> None:
    said = shop.refused("stores", "get", "stock", '{"shelf": 1}', *PIPELINE)
    assert "is not a valid PLACE" in said
    assert "city" in said


def test_a_server_of_state_without_the_pipeline_says_how_to_name_it(shop: Shop) -> None:
    known = {"application.id": "shop", "state.dir": shop.layout.state_dir}
    with Runtime(known) as environment, serving(environment) as server:
        answer = server.get("stock/get", key="x")
    told = "no serde named 'PLACE'.* start `statestore serve` with --pipeline module:function"
    assert re.search(told, str(answer)), answer


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        ("own_serdes.py:topology", "pass module:function, which is own_serdes:topology"),
        ("./tests/own.py:f", "which is tests.own:f"),
        ("/srv/shop/own.py:f", "which is own:f, started in the folder /srv/shop"),
        ("tests.contract.own_serdes:topology()", "which is tests.contract.own_serdes:topology"),
        ("tests.contract.own_serdes.py", "such as shop.orders:topology"),
        ("tests.contract.own_serdes:topologi", "has no function 'topologi'; it has: topology, "),
    ],
)
def test_what_names_no_function_of_a_module_is_refused_with_what_does(
    shop: Shop, pipeline: str, told: str
) -> None:
    assert told in shop.refused("stores", "range", "stock", "--pipeline", pipeline)


def test_the_data_source_decodes_by_the_pipeline(shop: Shop) -> None:
    state_dir = shop.layout.state_dir
    assert rows(state_dir, "stock", pipeline=OWN) == [
        ("0_0", 0, '{"city":"Rom","shelf":2}', '"7"'),
        ("0_0", 0, '{"city":"Ulm","shelf":1}', '"1.50"'),
    ]
    assert [row[-1] for row in rows(state_dir, "rates", pipeline=OWN)] == ['"1.1"', '"1.2"']
    assert [row[2] for row in rows(state_dir, "sums", pipeline=OWN)] == ['"pen"']


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline": "nowhere:topology"}, "cannot import 'nowhere'"),
        ({"pipeline": "tests.contract.own_serdes:without_stores"}, "has no store 'stock'"),
        ({"pipeline": OWN, "raw": "true"}, "leave pipeline out, or raw"),
        ({}, r'no serde named .*option\("pipeline", "module:function"\)'),
    ],
)
def test_a_pipeline_without_the_store_is_refused_by_the_data_source(
    shop: Shop, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StateStoreError, match=message):
        source(shop.layout.state_dir, "stock", **options).schema()


def test_a_row_that_a_serde_cannot_decode_is_shown_by_the_data_source(shop: Shop) -> None:
    with pytest.raises(Misuse, match=r"store 'stock': cannot decode 7 .*raw"):
        rows(
            shop.layout.state_dir,
            "stock",
            pipeline="tests.contract.own_serdes:with_other_values",
        )


@pytest.mark.parametrize("spec", [STOCK, RATES])
def test_a_snapshot_is_read_with_the_serdes_of_a_topology(shop: Shop, spec: BuiltInSpec) -> None:
    with pytest.raises(Misuse, match="no serde named"):
        ss.open_snapshot(shop.layout.state_dir, "shop", spec.name)
    key, value = (Place("Ulm", 1), "1.50") if spec is STOCK else ("EUR", "1.2")
    with ss.open_snapshot(
        shop.layout.state_dir, "shop", spec.name, topology=topology()
    ) as snapshot:
        row = snapshot.get(key)
        assert (row if spec is STOCK else row.value) == Decimal(value)

"""The Data Source in a real session: types, what is pushed down, and what Spark shows of it."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own way

from statestore.spark.datasource import TransactionalStore, read_store
from tests.contract import test_pushed_filters, test_splits
from tests.contract.test_typed_columns import NOON, made_state
from tests.spark.local_spark import local_spark

pytestmark = pytest.mark.spark
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("reading state", "local[2]") as session:
        session.dataSource.register(TransactionalStore)
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_state(tmp_path_factory.mktemp("state"))


def frame(spark: SparkSession, state_dir: Path, store: str, **options: str) -> DataFrame:
    named = {"state_dir": str(state_dir), "application_id": "shop", "store": store}
    return spark.read.format("transactional_store").options(**named, **options).load()


def test_fields_of_objects_are_columns_of_sql(spark: SparkSession, state_dir: Path) -> None:
    orders = frame(spark, state_dir, "orders")
    (row,) = orders.select(
        "key",
        "value.customer",
        F.date_trunc("day", "value.paidAt").cast("string").alias("day"),
        F.aggregate("value.lines", F.lit(0).cast("bigint"), lambda n, line: n + line["count"]),
        "value.weights.a",
    ).collect()
    assert tuple(row) == ("k", "ann", "2026-01-02 00:00:00", 3, 1.5)
    for store in ("trees", "places", "models", "sales", "loose"):
        (row,) = frame(spark, state_dir, store).collect()
        assert row is not None
    assert frame(spark, state_dir, "loose").count() == 1
    assert frame(spark, state_dir, "loose").first() is not None
    (sale,) = frame(spark, state_dir, "sales").select("value.*").collect()
    assert sale["cents"] == 5
    assert sale["at"].replace(tzinfo=NOON.tzinfo) == NOON


def test_columns_that_nobody_asks_for_are_not_there(spark: SparkSession, state_dir: Path) -> None:
    assert frame(spark, state_dir, "orders", columns="key").columns == ["key"]
    assert [tuple(row) for row in frame(spark, state_dir, "orders", columns="key").collect()] == [
        ("k",)
    ]


def test_filters_are_shown_as_pushed_and_leave_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    test_pushed_filters.made_state(tmp_path)
    conditions = {
        "words": "key = 'ab' and value > 0",
        "numbers": "key in (1, 2) and partition = 1",
        "windows": "key >= 'b' and window_start between '1970-01-01 00:00:00.01' and "
        "'1970-01-01 00:00:00.03'",
        "versions": "key like 'a%' and valid_to is null",
    }

    def rows(store: str) -> list[str]:
        found = frame(spark, tmp_path, store).filter(conditions[store])
        return sorted(map(str, found.collect()))

    unpushed = {store: rows(store) for store in conditions}
    assert all(unpushed.values())
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert {store: rows(store) for store in conditions} == unpushed
        shown = {
            store: explained(frame(spark, tmp_path, store).filter(condition))
            for store, condition in conditions.items()
        }
    finally:
        spark.conf.set(PUSHDOWN, "false")
    assert "EqualTo(key,ab)" in shown["words"]
    assert "GreaterThan(value,0)" not in shown["words"]
    assert "In(key, [1,2])" in shown["numbers"]
    assert "EqualTo(partition,1)" in shown["numbers"]
    assert "GreaterThanOrEqual(key,b)" in shown["windows"]
    assert "LessThanOrEqual(window_start," in shown["windows"]
    assert "StringStartsWith(key,a)" in shown["versions"]
    assert "IsNull(valid_to)" in shown["versions"]


def test_the_plan_says_what_is_read_of_a_store_and_as_of_when(
    spark: SparkSession, tmp_path: Path
) -> None:
    test_pushed_filters.made_state(tmp_path)
    asked = {"application_id": "shop", "store": "versions", "columns": "key,value"}

    def read(as_of: str, **options: object) -> DataFrame:
        return read_store(spark, state_dir=tmp_path, **asked, as_of=as_of, **options)

    early, late = "1970-01-01T00:00:00.005Z", "1970-01-01T00:00:00.025Z"
    for as_of in (early, late):
        title = f"transactional_store versions application_id=shop as_of={as_of} columns=key,value"
        frame = read(as_of, splits=None, raw=False)
        assert f"BatchScan {title} raw=false[key" in physical(frame, "simple")
        assert f"BatchScan {title} raw=false (1)" in physical(frame)
        assert str(tmp_path) not in physical(frame, "extended"), "a folder is no part of the plan"
    # A DataFrame keeps what it reads, whatever was read since.
    frames = [read(as_of) for as_of in (early, late, early)]
    rows = [sorted(map(tuple, frame.collect())) for frame in frames]
    named = {"state_dir": str(tmp_path), **asked}
    for as_of, found in zip((early, late, early), rows, strict=True):
        reader = spark.read.format("transactional_store").options(**named, as_of=as_of)
        assert found == sorted(map(tuple, reader.load().collect()))
    assert rows[0] != rows[1]
    with pytest.raises(AnalysisException, match="which store"):
        read_store(spark, state_dir=tmp_path, application_id="shop")


def test_a_store_is_read_in_splits_by_every_action(spark: SparkSession, tmp_path: Path) -> None:
    keys = [b"%04d" % n for n in range(200)]
    test_splits.kept("rows", keys, tmp_path)
    rows = frame(spark, tmp_path, "rows", splits="4")
    assert rows.rdd.getNumPartitions() == 4
    # To sort them, Spark reads all splits twice; and a DataFrame may be collected again.
    ordered = rows.orderBy(F.col("key").desc())
    for _ in range(2):
        assert [bytes(row["key"]) for row in ordered.collect()] == keys[::-1]
    (counted,) = rows.groupBy("value").count().collect()
    assert counted["count"] == len(keys)
    assert "transactional_store" in physical(rows)
    # Filters that the store answers do not keep it from being split.
    spark.conf.set(PUSHDOWN, "true")
    try:
        rows = frame(spark, tmp_path, "rows", splits="4").filter("key >= X'30303530'")
        assert "GreaterThanOrEqual(key," in explained(rows)
        assert rows.rdd.getNumPartitions() == 4
        assert sorted(bytes(row["key"]) for row in rows.collect()) == keys[50:]
    finally:
        spark.conf.set(PUSHDOWN, "false")


def physical(found: DataFrame, mode: str = "formatted") -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        found.explain(mode=mode)
    return said.getvalue()


def explained(found: DataFrame) -> str:
    """What explain() says of the filters that were pushed."""
    (line,) = [line for line in physical(found).splitlines() if "PushedFilters" in line]
    return line

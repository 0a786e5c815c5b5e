"""DataFrames with structs through a real Spark and a real schema registry into topics."""

from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statestore.spark import TransactionalKafka
from statestore.testing.local_kafka import LocalKafka
from tests.kafka.writing_rig import Sink, committed
from tests.schema_registry_rig import Registry, started_registry
from tests.spark.local_spark import local_spark

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]
ORDER = (
    '{"type":"record","name":"Order","namespace":"shop","fields":['
    '{"name":"customer","type":"string"},'
    '{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},'
    '{"name":"paid","type":["null",{"type":"bytes","logicalType":"decimal","precision":10,'
    '"scale":2}]},'
    '{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":['
    '{"name":"sku","type":"string"},{"name":"count","type":"int"}]}}}]}'
)
ROWS = """
    cast(id as string) key,
    if(id = 7, null, named_struct(
        'customer', concat('c', id), 'at', timestamp_millis(id), 'paid',
        if(id % 2 = 0, cast(id as decimal(10, 2)), null), 'lines',
        array(named_struct('sku', 'x', 'count', cast(id as int))))) value
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("sink-schemas", "local[2,4]") as session:
        session.dataSource.register(TransactionalKafka)
        yield session


running = pytest.fixture(scope="module")(started_registry)


def test_structs_are_written_with_the_registrys_schema_or_refused_before_a_row(
    spark: SparkSession, running: Registry, kafka: LocalKafka
) -> None:
    sink = Sink(kafka, "spark-schemas").create()
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": sink.name}
    given |= {"query": sink.name, "valueSerde": "avro", "schema_registry": running.url}

    def write(batch: int, rows: str = ROWS, **others: str) -> None:
        frame = spark.range(0, 20, 1, 3).selectExpr(*_split(rows))
        writing = frame.write.format("transactional_kafka").mode("append")
        writing.options(**given, **others).option("batchId", batch).save()

    said = f"column 'value' for topic {sink.name}.*Nothing was written.*auto_register"
    with pytest.raises(PySparkException, match=said):
        write(1)
    register = {"schema_registry.auto_register": "true", "valueSchema": ORDER}
    for _ in range(2):
        write(1, **register)
    with pytest.raises(PySparkException, match=r"has the field 'lines\[\]\.price'"):
        write(2, ROWS.replace("'sku', 'x'", "'sku', 'x', 'price', 1"))
    with pytest.raises(PySparkException, match=r"row \d+ of Spark partition \d: column 'value'"):
        write(2, ROWS.replace("concat('c', id)", "if(id = 9, null, 'c')"), atomic="batch")
    with SchemaRegistryClient({"url": running.url}) as client:
        read = AvroDeserializer(client)
        values = [read(m.value()) for m in committed(kafka.bootstrap_servers, sink.name)]
    found = {value["customer"]: value for value in values if value is not None}
    assert (len(values), len(found)) == (20, 19), "a row is a tombstone"
    assert str(found["c4"]["paid"]) == "4.00"
    assert (found["c5"]["paid"], found["c5"]["lines"]) == (None, [{"sku": "x", "count": 5}])
    assert found["c9"]["at"].timestamp() == 0.009


def _split(rows: str) -> tuple[str, str]:
    key, _, value = rows.partition(",")
    return key.strip(), value.strip()

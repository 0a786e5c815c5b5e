"""The peers, their pinned versions, and how each of them was run: the one place that names them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tests.bench.peers.jobs import Job, Telling

EXACTLY, AT_LEAST = "exactly once", "at least once"
SPARK, FLINK, KAFKA = "4.2.0", "2.2.1", "4.4.0"
_KAFKA_OF_FLINK = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"

_BATCHES = {Job.COUNT: Telling.SOME, Job.JSON: Telling.SOME, Job.PROCESSOR: Telling.EVERY}
_LATE_ROWS = {Job.COUNT: Telling.EVERY, Job.JSON: Telling.SUMS, Job.PROCESSOR: Telling.EVERY}


class Form(StrEnum):
    """How a peer writes results: as Kafka's own serializers do, or in decimal digits.

    `JSON`: keys in windows as these do, and sums in digits.
    """

    BINARY = "binary"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True)
class Peer:
    """How a peer runs: a `module` of this folder, or a `main_class` of the Java in `sources`.

    `packages` are of Python's index, `jars` of Maven. `telling` says by job which results it tells;
    other jobs it does not do. `properties` are of its Java. Without packages and jars it is us, and
    `pipelines` are those that it does not share with us, by module and name.
    """

    version: str
    guarantee: str
    how: str
    form: Form = Form.TEXT
    packages: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    telling: Mapping[Job, Telling] = field(
        default_factory=lambda: dict.fromkeys(Job, Telling.EVERY)
    )
    module: str = ""
    main_class: str = ""
    sources: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    pipelines: Mapping[Job, str] = field(default_factory=dict)


_STATESTORE = Peer(
    version="this commit",
    guarantee=EXACTLY,
    how="one process, all settings by default",
    form=Form.BINARY,
    telling=_BATCHES,
)
_KAFKA_STREAMS = Peer(
    version=KAFKA,
    guarantee=EXACTLY,
    how="one process of two threads, all other settings by default",
    form=Form.BINARY,
    jars=(f"org.apache.kafka:kafka-streams:{KAFKA}", "org.slf4j:slf4j-nop:1.7.36"),
    telling=_BATCHES,
    main_class="KafkaStreamsBench",
    sources=("../../kafka_streams/KafkaStreamsBench.java",),
)

PEERS: Mapping[str, Peer] = {
    "statestore": _STATESTORE,
    "statestore-typed": replace(
        _STATESTORE,
        how=f"{_STATESTORE.how}, the fields of JSON declared as types",
        telling={Job.JSON: Telling.SOME},
        pipelines={Job.JSON: "pipelines:enriching_typed"},
    ),
    "statestore-columns": replace(
        _STATESTORE,
        how=f"{_STATESTORE.how}, by expressions over declared types",
        form=Form.JSON,
        telling={Job.JSON: Telling.SOME},
        pipelines={Job.JSON: "pipelines_in_columns:enriching"},
    ),
    "kafka-streams": _KAFKA_STREAMS,
    "kafka-streams-tx": replace(
        _KAFKA_STREAMS,
        how=f"{_KAFKA_STREAMS.how}, but with transactional stores (KIP-892)",
        properties=("streams.enable.transactional.statestores=true",),
    ),
    "quix": Peer(
        module="on_quix",
        version="3.28.1",
        guarantee=EXACTLY,
        how="one process, a commit every second",
        packages=("quixstreams==3.28.1",),
    ),
    "bytewax": Peer(
        module="on_bytewax",
        version="0.21.1",
        guarantee=AT_LEAST,
        how="one process of two workers, a snapshot every second",
        packages=("bytewax==0.21.1", "confluent-kafka==2.16.1", "orjson==3.13.0"),
    ),
    "pathway": Peer(
        module="on_pathway",
        version="0.33.0",
        guarantee=AT_LEAST,
        how="one process of two threads, persistence in files every second; the processor is a "
        "stateful reducer, which tells the last result of a batch",
        packages=("pathway==0.33.0",),
        telling=dict.fromkeys(Job, Telling.SOME),
    ),
    "spark": Peer(
        module="on_spark",
        version=SPARK,
        guarantee=AT_LEAST,
        how="local[2], RocksDB as state store with its changelog, four shuffle partitions; the "
        "processor is transformWithState in Python",
        packages=(
            *(f"pyspark=={SPARK}", "pandas==2.3.3", "pyarrow==26.0.1"),
            *("grpcio==1.85.1", "protobuf==7.36.2"),
        ),
        jars=(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",),
        telling=_BATCHES,
    ),
    "flink": Peer(
        version=FLINK,
        guarantee=EXACTLY,
        how="SQL, for the processor a KeyedProcessFunction; one JVM, parallelism 2, RocksDB, a "
        "checkpoint every second",
        jars=(
            f"org.apache.flink:flink-clients:{FLINK}",
            f"org.apache.flink:flink-streaming-java:{FLINK}",
            f"org.apache.flink:flink-connector-base:{FLINK}",
            f"org.apache.flink:flink-table-api-java-bridge:{FLINK}",
            f"org.apache.flink:flink-table-planner-loader:{FLINK}",
            f"org.apache.flink:flink-table-runtime:{FLINK}",
            f"org.apache.flink:flink-json:{FLINK}",
            f"org.apache.flink:flink-statebackend-rocksdb:{FLINK}",
            _KAFKA_OF_FLINK,
            "org.slf4j:slf4j-nop:1.7.36",
        ),
        telling=_LATE_ROWS,
        main_class="FlinkPeer",
        sources=("FlinkPeer.java",),
    ),
    "pyflink": Peer(
        module="on_pyflink",
        version=FLINK,
        guarantee=EXACTLY,
        how="DataStream with KeyedProcessFunction in Python, parallelism 2, RocksDB, a checkpoint "
        "every second",
        telling=_LATE_ROWS,
        packages=(f"apache-flink=={FLINK}",),
        jars=(_KAFKA_OF_FLINK,),
    ),
}

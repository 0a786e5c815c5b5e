"""The same pipelines by stream tasks on Spark and by Kafka Streams, exactly once, in turn.

    python -m tests.bench.bench_kafka_streams [--records 400000] [--repeats 3] [--only counting] \\
        [--set kafka.client=wire]

One broker, the same topics. On each side two things work at a time: slots of a warm Spark session,
threads of a JVM of its own. Both have their default settings. Time runs from the first record to
the commit of the last, and records are those of the topics that a pipeline reads, not of internal
ones. Needs Maven, which fetches the jars once, and a JDK, which compiles the Java side.
"""

import logging
import subprocess
from pathlib import Path

import click

from statestore.testing.kafka_jars import java, kafka_libs, scratch_dir
from statestore.testing.local_kafka import LocalKafka
from tests.bench.bench_tasks import Report, Rig, environment, session
from tests.bench.harness import Bench, scratch
from tests.bench.pipelines import (
    INPUT_VARIABLE,
    JSON_TABLE_VARIABLE,
    JSON_VARIABLE,
    OUTPUT_VARIABLE,
    TABLE_VARIABLE,
)
from tests.bench.topic_children import CUSTOMERS, KEYS, ORDERS, PARTITIONS, fill

INPUT, OUTPUT, TABLE = "bench-in", "bench-out", "bench-table"
JSON, JSON_TABLE = "bench-json", "bench-json-table"
JAVA_SIDE = Path(__file__).with_name("kafka_streams")
_FETCH_S = 900
_RUN_S = 900
ONE_TOPIC = (
    "counting",
    "counting_each",
    "per_record",
    "windows",
    "hops",
    "slides",
    "sessions",
    "final_windows",
    "fewer_updates",
    "regrouping",
    "joining_globally",
)
OBJECTS = ("enriching",)
TWO_TOPICS = (*OBJECTS, "joining", "meeting", "missing", "both_tables", "referring", "cogrouped")


def streams_libs() -> Path:
    """The folder of the jars of Kafka Streams, of the local broker's version."""
    kafka = next(kafka_libs().glob("kafka_*.jar")).stem.rpartition("-")[2]
    home = scratch_dir() / f"kafka-streams-{kafka}"
    if not any(home.glob("kafka-streams-*.jar")):
        subprocess.run(
            [
                *("mvn", "--quiet", "--batch-mode", f"-Dkafka.version={kafka}"),
                *("--file", str(JAVA_SIDE / "pom.xml"), "dependency:copy-dependencies"),
                *(f"-DoutputDirectory={home}", "-DincludeScope=runtime"),
            ],
            stdin=subprocess.DEVNULL,
            timeout=_FETCH_S,
            check=True,
        )
    return home


def compiled(libs: Path, folder: Path, program: str = "KafkaStreamsBench") -> str:
    """Compile a program of the Java side; the class path that runs it."""
    compiler = Path(java()).with_name("javac") if "/" in java() else Path("javac")
    source = JAVA_SIDE / f"{program}.java"
    subprocess.run([str(compiler), "-d", str(folder), "-cp", f"{libs}/*", str(source)], check=True)
    return f"{folder}:{libs}/*"


def seconds_of_streams(rig: Rig, class_path: str, pipeline: str) -> float:
    """A run of Kafka Streams with an application id of its own, in a JVM of its own."""
    rig.runs += 1
    read = (JSON, JSON_TABLE) if pipeline in OBJECTS else (INPUT, TABLE)
    done = subprocess.run(
        [
            *(java(), "-cp", class_path, "KafkaStreamsBench", rig.kafka.bootstrap_servers),
            *(f"streams-{rig.runs}", str(rig.folder / "streams"), pipeline, *read, OUTPUT),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_RUN_S,
        check=True,
    )
    return int(done.stdout.splitlines()[-1]) / 1000


def seconds_of_tasks(reports: list[Report]) -> float:
    began = min(r["first_record_ms"] for r in reports if r["first_record_ms"] is not None)
    ended = max(r["last_commit_ms"] for r in reports if r["last_commit_ms"] is not None)
    return float(ended - began) / 1000


@click.command()
@click.option("--records", default=400_000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(ONE_TOPIC + TWO_TOPICS))
@click.option("--set", "settings", multiple=True, metavar="K=V", help="Any setting of ours.")
def main(records: int, repeats: int, only: tuple[str, ...], settings: tuple[str, ...]) -> None:
    """Measure pipelines beside Kafka Streams."""
    logging.basicConfig(level=logging.WARNING)
    bench = Bench("bench_kafka_streams")
    topics = {
        INPUT_VARIABLE: INPUT,
        TABLE_VARIABLE: TABLE,
        JSON_VARIABLE: JSON,
        JSON_TABLE_VARIABLE: JSON_TABLE,
        OUTPUT_VARIABLE: OUTPUT,
    }
    with LocalKafka() as kafka, scratch() as folder, environment(**topics), session() as spark:
        class_path = compiled(streams_libs(), folder)
        for topic in topics.values():
            kafka.create_topic(topic, partitions=PARTITIONS)
        # The table first: records meet the rows that are older than they.
        fill(kafka.bootstrap_servers, TABLE, KEYS, distinct_from=0)
        fill(kafka.bootstrap_servers, JSON_TABLE, KEYS, distinct_from=0, objects=CUSTOMERS)
        fill(kafka.bootstrap_servers, INPUT, records)
        fill(kafka.bootstrap_servers, JSON, records, objects=ORDERS)
        rig = Rig(kafka, folder, spark, INPUT, records, settings=settings)
        rig.on_spark("counting")  # the session's first Python workers
        for pipeline in only or ONE_TOPIC + TWO_TOPICS:
            count = records + (KEYS if pipeline in TWO_TOPICS else 0)
            ours, theirs = [], []
            for _ in range(repeats):
                ours.append(count / seconds_of_tasks(rig.on_spark(pipeline)))
                theirs.append(count / seconds_of_streams(rig, class_path, pipeline))
            bench.add(pipeline, "rec/s", ours)
            bench.add(f"{pipeline}, Kafka Streams", "rec/s", theirs)
            bench.ratios(f"{pipeline} / Kafka Streams", ours, theirs)
    bench.finish()


if __name__ == "__main__":
    main()

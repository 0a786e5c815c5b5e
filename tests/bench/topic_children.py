"""The input of the task benchmark, and the bare process it is held against.

python -m tests.bench.topic_children '{"servers": …, "topic": …, "partitions": […], "count": …}'
"""

import gc
import json
import random
import subprocess
import sys
from time import monotonic, time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.bench.harness import ROOT

PARTITIONS = 4
KEYS = 100_000
_VALUE_BYTES = 86
ORDERS = b'{"amount":%d,"order":%d,"currency":"EUR","customer":"someone","note":"as agreed"}'
CUSTOMERS = b'{"level":%d,"since":%d,"country":"DE"}'
_SILENCE_S = 30
_PER_CALL = 1000
_PER_BATCH = 20_000


def fill(
    servers: str,
    topic: str,
    count: int,
    *,
    seed: int = 1,
    distinct_from: int | None = None,
    objects: bytes | None = None,
) -> None:
    """`count` records of about 100 bytes, spread over the partitions by key.

    Over 100 000 keys at random, or each with a key of its own, numbered from `distinct_from`.
    Values are noise, or with `objects`, a template, JSON with two numbers.
    """
    rng = random.Random(seed)
    noise = rng.randbytes(1 << 20)
    keys = [f"key-{number:08}".encode() for number in range(KEYS)]

    def some_keys(start: int, size: int) -> list[bytes]:
        if distinct_from is None:
            return rng.choices(keys, k=size)
        first = distinct_from + start
        return [f"key-{number:08}".encode() for number in range(first, first + size)]

    def some_values(size: int) -> list[bytes]:
        if objects is not None:
            return [objects % (rng.randrange(1000), rng.randrange(10**6)) for _ in range(size)]
        places = rng.choices(range(len(noise) - _VALUE_BYTES), k=size)
        return [noise[at : at + _VALUE_BYTES] for at in places]

    producer = filler(servers)
    for start in range(0, count, _PER_BATCH):
        size = min(_PER_BATCH, count - start)
        batch = [
            {"key": key, "value": value}
            for key, value in zip(some_keys(start, size), some_values(size), strict=True)
        ]
        while batch:
            producer.produce_batch(topic, batch)
            batch = [record for record in batch if "_error" in record]
            for record in batch:
                del record["_error"]
            producer.poll(0.01 if batch else 0)
    assert producer.flush(120) == 0


def filler(servers: str, **settings: str) -> Producer:
    """A producer that fills topics as other clients of Kafka do: keys in Java's partitions."""
    return Producer(
        {
            "bootstrap.servers": servers,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "batch.num.messages": 100_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2 * _PER_BATCH,
            "compression.type": "lz4",
            **settings,
        }
    )


def bare_rate(servers: str, topic: str, count: int) -> float:
    """Records a second that two bare processes read, keys and values, of the whole topic."""
    shares = [[0, 2], [1, 3]]
    group = f"bare-{time()}"
    children = []
    for partitions in shares:
        order = {"servers": servers, "topic": topic, "partitions": partitions, "group": group}
        children.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.bench.topic_children", json.dumps(order)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    reports = [json.loads(child.communicate()[0]) for child in children]
    assert sum(report["records"] for report in reports) == count
    began = min(report["began"] for report in reports)
    return float(count / (max(report["ended"] for report in reports) - began))


def consume_bare(servers: str, topic: str, partitions: list[int], group: str) -> dict[str, Any]:
    """Read the partitions to their ends as fast as the client gives them."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # The values docs/benchmarks.md names: what made a bare consumer fastest.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 5,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 200_000,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    gc.disable()
    records, ends, began, ended = 0, 0, 0.0, 0.0
    deadline = monotonic() + _SILENCE_S
    while ends < len(partitions) and monotonic() < deadline:
        messages = consumer.consume(_PER_CALL, 0.05)
        if not messages:
            continue
        deadline = monotonic() + _SILENCE_S
        began = began or time()
        errors = list(map(Message.error, messages))
        if any(errors):
            ends += sum(error is not None for error in errors)
            messages = [m for m, e in zip(messages, errors, strict=True) if e is None]
        keys = list(map(Message.key, messages))
        values = list(map(Message.value, messages))
        assert len(keys) == len(values)
        records += len(keys)
        if keys:
            ended = time()  # the last call waits for more than the ends
    consumer.close()
    return {"began": began, "ended": ended, "records": records}


if __name__ == "__main__":
    print(json.dumps(consume_bare(**json.loads(sys.argv[1]))))  # noqa: T201  # the parent reads it

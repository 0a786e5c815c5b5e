"""Reads the first keys of topics and checks which hash placed them."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace

from statestore.kafka.partitioner import key_hashes
from statestore.kafka.source import KafkaSource
from statestore.model.ids import TopicPartition
from statestore.ports import Bounds, KeyHashes
from statestore.settings import Settings

KEYS = 100
# The limit for a topic with few or no keys.
_RECORDS_MAX = 10_000
_WAIT_MS = 500
# Records that are fetched ahead are discarded.
_LITTLE = {
    "consumer.queued.min.messages": "1000",
    "consumer.queued.max.messages.kbytes": "1024",
    "consumer.max.partition.fetch.bytes": "65536",
}


def first_key_hashes(
    settings: Settings,
    topics: Mapping[str, int],
    bounds: Mapping[TopicPartition, Bounds],
    windowed: Collection[str],
) -> dict[str, KeyHashes]:
    """Check which hash fits the first keys of each topic.

    `topics` maps names to partition counts; `windowed` names the topics with windowed keys.
    """
    unread = {tp: bound for tp, bound in bounds.items() if bound.end > bound.start}
    rows: dict[str, list[tuple[int, bytes | None]]] = {topic: [] for topic in topics}
    if unread:
        little = replace(settings, clients={**settings.clients, **_LITTLE})
        with closing(KafkaSource(little, group_id=settings.application_id)) as source:
            source.start({tp: bound.start for tp, bound in unread.items()})
            while unread:
                for batch in source.poll(KEYS * len(topics), _WAIT_MS):
                    assert batch.topic is not None
                    assert batch.partition is not None
                    rows[batch.topic] += [(batch.partition, key) for key in batch.keys.objects]
                enough = {topic for topic, found in rows.items() if _is_enough(found)}
                done = [
                    tp
                    for tp, bound in unread.items()
                    if tp.topic in enough or source.position(tp) >= bound.end
                ]
                source.pause(done)
                for tp in done:
                    del unread[tp]
    return {
        topic: key_hashes(found, topics[topic], KEYS, windowed=topic in windowed)
        for topic, found in rows.items()
    }


def _is_enough(rows: list[tuple[int, bytes | None]]) -> bool:
    return len(rows) >= _RECORDS_MAX or sum(1 for _, key in rows if key) >= KEYS

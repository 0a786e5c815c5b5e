"""What an unknown setting is answered with: what to do here, or the nearest known key.

Most unknown keys are right elsewhere, in Kafka Streams or in a Kafka client. For these the answer
says what this product does instead.
"""

import difflib
from collections.abc import Iterable

_SERDES = (
    "serdes are objects here: pass key_serde= and value_serde= to StreamsBuilder, for example "
    "ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)"
)
_CACHE = (
    "an updated key is emitted once per commit, so no cache is sized: commit.interval.ms says how "
    "often, statestore.uncommitted.max.bytes bounds the memory, and Materialized(…, caching=False) "
    "emits every update"
)
_STANDBY = (
    "a store lies on the volume of state.dir, and whoever starts next opens it there and replays "
    "only its tail, so there are no standbys to warm up: leave it out"
)
_MEMBERS = "the run assigns stream tasks, and no group has members: leave it out"
_QUERIES = (
    "stores are not queried through instances: use ss.open_snapshot, `statestore stores` or the "
    "Data Source on Spark, beside a run or not"
)
_TOPICS = (
    "the settings of changelogs belong to their stores: Materialized(…, changelog_config={…}); "
    "replication.factor holds for all internal topics"
)
_ANSWERS = {
    "auto.offset.reset": (
        "pass offset_reset= to StreamsBuilder.stream(), for example "
        "ss.AutoOffsetReset.latest(); it holds where an application reads a topic for the first "
        "time, and `statestore reset --to-latest` (or --to-time) moves one that has run"
    ),
    "num.stream.threads": (
        "`statestore run --workers N` spreads stream tasks over processes, as workers=N of ss.run "
        "does, and Spark runs one on each of its cores"
    ),
    "commit.interval": "the key is commit.interval.ms, in milliseconds",
    "auto.commit.interval.ms": "the key is commit.interval.ms, in milliseconds",
    "enable.auto.commit": "offsets are committed together with the results: leave it out",
    "cache.max.bytes.buffering": _CACHE,
    "statestore.cache.max.bytes": _CACHE,
    "input.buffer.max.bytes": "batches are sized by time and memory: statestore.batch.max.records",
    "buffered.records.per.partition": "the largest batch is statestore.batch.max.records",
    "max.poll.records": "the largest batch is statestore.batch.max.records",
    "state.cleanup.delay.ms": (
        "a task's state is never removed because of its age; quarantined stores are, after "
        "statestore.quarantine.retention.ms, and `statestore reset` removes all state"
    ),
    "num.standby.replicas": _STANDBY,
    "max.warmup.replicas": _STANDBY,
    "acceptable.recovery.lag": _STANDBY,
    "probing.rebalance.interval.ms": _STANDBY,
    "application.server": _QUERIES,
    "default.key.serde": _SERDES,
    "default.value.serde": _SERDES,
    "key.serde": _SERDES,
    "value.serde": _SERDES,
    "key.deserializer": _SERDES,
    "value.deserializer": _SERDES,
    "key.serializer": _SERDES,
    "value.serializer": _SERDES,
    "windowed.inner.class.serde": "read windowed keys with serdes.windowed(key_serde, size_ms)",
    "window.size.ms": "read windowed keys with serdes.windowed(key_serde, size_ms)",
    "default.timestamp.extractor": (
        "pass timestamp_extractor= to StreamsBuilder.stream() or table()"
    ),
    "default.deserialization.exception.handler": "the key is deserialization.exception.handler",
    "default.production.exception.handler": "the key is production.exception.handler",
    "group.id": "the group is called like the application: set application.id",
    "client.id": "clients are called like the application and its tasks: set application.id",
    "transactional.id": "every stream task has ids of its own: leave it out",
    "isolation.level": (
        "inputs are always read committed; for readers of stores set default.state.isolation.level"
    ),
    "group.instance.id": _MEMBERS,
    "group.protocol": _MEMBERS,
    "session.timeout.ms": _MEMBERS,
    "heartbeat.interval.ms": _MEMBERS,
    "max.poll.interval.ms": _MEMBERS,
    "partition.assignment.strategy": _MEMBERS,
    "rack.aware.assignment.strategy": _MEMBERS,
    "task.timeout.ms": "the key is default.api.timeout.ms, and Airflow or Spark tries a run again",
    "request.timeout.ms": "the key is default.api.timeout.ms",
    "default.dsl.store": "pass ss.in_memory_key_value_store(…) where a store is to be in memory",
    "dsl.store.suppliers.class": (
        "pass ss.in_memory_key_value_store(…) where a store is to be in memory"
    ),
    "rocksdb.block.cache.size": "the memory of all stores is statestore.memory.bytes",
    "upgrade.from": "what is on disk says by itself which version wrote it: leave it out",
    "enable.metrics.push": "metrics go through OpenTelemetry: leave it out",
    "metric.reporters": "metrics go through OpenTelemetry: configure its SDK instead",
    "metrics.recording.level": "metrics go through OpenTelemetry: configure its SDK instead",
    "security.providers": "pass what librdkafka knows, such as sasl.mechanism and ssl.ca.location",
    "min.insync.replicas": _TOPICS,
}
_PREFIXES = {
    "main.consumer.": "all inputs are read by the same kind of client: use consumer.",
    "restore.consumer.": "restores use the same settings as inputs: use consumer.",
    "global.consumer.": "all inputs are read by the same kind of client: use consumer.",
    "topic.": _TOPICS,
    "metrics.": "metrics go through OpenTelemetry: configure its SDK instead",
}
_OF_CLIENTS = {
    "acks": "producer",
    "batch.size": "producer",
    "compression.type": "producer",
    "delivery.timeout.ms": "producer",
    "linger.ms": "producer",
    "message.max.bytes": "producer",
    "max.request.size": "producer",
    "retries": "producer",
    "fetch.max.bytes": "consumer",
    "fetch.max.wait.ms": "consumer",
    "fetch.min.bytes": "consumer",
    "fetch.wait.max.ms": "consumer",
    "max.partition.fetch.bytes": "consumer",
}


def answer(key: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown setting: the way out."""
    if key in _ANSWERS:
        return f": {_ANSWERS[key]}"
    if key in _OF_CLIENTS:
        return f": settings of Kafka's clients have a prefix: {_OF_CLIENTS[key]}.{key}"
    for prefix, told in _PREFIXES.items():
        if key.startswith(prefix):
            return f": {told}"
    near = difflib.get_close_matches(key, list(known), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return (
        "; `statestore settings` lists all; those of Kafka's clients begin with consumer., "
        "producer. or admin."
    )

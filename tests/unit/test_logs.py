"""Which tables have the topic they are made of as their log (SEMANTICS E8)."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.settings import Settings
from statestore.topology.logs import logs

REUSE = {"topology.optimization": "all"}


def _streams(**source: Any) -> tuple[ss.StreamsBuilder, ss.KTable[Any, Any]]:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    return builder, builder.table("in", materialized="table", **source)


def _writable() -> ss.StreamsBuilder:
    builder, table = _streams()
    table.to_stream().process(_Idle, "table", name="writes")
    return builder


def _joined() -> ss.StreamsBuilder:
    builder, table = _streams()
    builder.stream("clicks").join(table, lambda _left, right: right).to("out")
    return builder


def _mapped() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream("in").map_values(lambda value: value).to_table("table")
    return builder


def _other_serde() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    kept = ss.Materialized("table", value_serde=serdes.MSGPACK)
    builder.table("in", materialized=kept)
    return builder


def _two_topics() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder()
    builder.stream(["in", "more"]).to_table("table")
    return builder


def _from_the_end() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder()
    latest = ss.AutoOffsetReset.latest()
    builder.table("in", materialized="table", offset_reset=latest)
    return builder


def _repartitioned() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder()
    builder.stream("in").repartition("again").to_table("table")
    return builder


def _versioned() -> ss.StreamsBuilder:
    builder = ss.StreamsBuilder()
    builder.table("in", materialized=ss.Materialized("table", history_retention=1000))
    return builder


class _Idle:
    def __init__(self, _context: ss.ProcessorContext) -> None: ...

    def process(self, _record: "ss.Record[str, object]") -> None: ...


@pytest.mark.parametrize(
    ("builder", "why"),
    [
        (_streams()[0], None),
        (_joined(), None),
        (_writable(), "a processor may write to it"),
        (_mapped(), "an operator stands between the topic and it"),
        (_other_serde(), "its serdes are not those of the topic"),
        (_two_topics(), "it is made of several topics"),
        (_repartitioned(), "a repartition topic is purged once it was read"),
        (_versioned(), "it keeps history, which the topic's compaction takes away (KIP-914)"),
        (
            _streams(timestamp_extractor=lambda record: record.timestamp_ms)[0],
            "its timestamp_extractor may drop records",
        ),
        (_from_the_end(), "it may not begin at the topic's start"),
    ],
    ids=[
        "alone",
        "joined",
        "writable",
        "mapped",
        "serde",
        "topics",
        "repartitioned",
        "versioned",
        "extractor",
        "later",
    ],
)
def test_a_table_has_its_topic_as_log_only_where_a_replay_makes_the_same(
    builder: ss.StreamsBuilder, why: str | None
) -> None:
    made = builder.build()
    found = logs(made, Settings.from_mapping(REUSE))
    assert found.topics() == ({"table": "in"} if why is None else {})
    assert found.apart == ({} if why is None else {"table": why})
    assert logs(made, Settings()).topics() == {}

"""How the nodes of a stream task are wired to its sources, stores and outbox."""

from typing import Any

import pytest

from statestore import serdes
from statestore.errors import UnknownStore
from statestore.model.ids import TaskId, TopicPartition
from statestore.model.records import Record
from statestore.ports import TopicSpec
from statestore.settings import Settings
from statestore.stores.specs import KeyValueSpec
from statestore.tasks.announcer import Announcer
from statestore.tasks.context import TaskContext
from statestore.tasks.left_out_counts import LeftOutRecords
from statestore.tasks.owned import OpenStore
from statestore.tasks.poison import Poison
from statestore.tasks.store_log import OwnChangelog
from statestore.tasks.time_plan import TimePlan
from statestore.tasks.watermarks import Watermarks
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.dsl.builder import StreamsBuilder
from statestore.topology.failures import NodeFailed
from statestore.topology.nodes import HeldBack
from statestore.topology.processors.user_processors import ProcessorContext
from tests.builders import ManualClock, batch, memory_store


class Wired:
    """The first sub-topology of a pipeline, its stores and outbox in memory."""

    def __init__(self, builder: StreamsBuilder) -> None:
        topology = builder.build()
        part = topology.sub_topologies[0]
        self.broker = MemoryBroker()
        cluster = self.broker.cluster("shop")
        cluster.create([TopicSpec(name, 1, {}) for name in ("out", "other", "shop-r-repartition")])
        self.outbox = self.broker.plain_outbox("shop")
        self.outbox.open()
        self.outbox.begin()
        stores = {
            name: OpenStore(
                memory_store(spec, owned_by_task=True),
                OwnChangelog(TopicPartition(f"shop-{name}-changelog", 0), exactly_once=True),
            )
            for name, spec in topology.stores.items()
            if isinstance(spec, KeyValueSpec)
        }
        self.context = TaskContext(
            TaskId(0, 0),
            part,
            stores,
            self.outbox,
            application_id="shop",
            stream_time_ms=None,
            seen_ms=None,
            watermarks=Watermarks({}, {}),
            announcer=Announcer(TimePlan(), part, "shop"),
            clock=ManualClock(),
            poison=Poison(TaskId(0, 0), part, Settings(), self.outbox),
            held_back=HeldBack(),
            left_out=LeftOutRecords(TaskId(0, 0)),
        )
        self.pushes = self.context.pushes

    def push(self, topic: str, *rows: tuple[Any, Any, int]) -> None:
        """Undecoded records, as a client gives them."""
        encoded = [(k and k.encode(), v and v.encode(), t) for k, v, t in rows]
        bytes_only = batch(encoded, key_serde=serdes.BYTES, value_serde=serdes.BYTES, topic=topic)
        self.pushes[topic](bytes_only)

    def sent(self, topic: str = "out") -> list[tuple[bytes | None, bytes | None, int]]:
        return [(r.key, r.value, r.timestamp_ms) for r in self.broker.records(topic)]


def texts() -> StreamsBuilder:
    return StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def test_records_go_through_the_nodes_into_the_topic_with_their_times() -> None:
    b = texts()
    b.stream("in").filter(lambda k, v: k != "drop").map_values(str.upper).to("out")
    wired = Wired(b)
    wired.push("in", ("a", "x", 5), ("drop", "y", 6), ("b", "z", 7))
    assert wired.sent() == [(b"a", b"X", 5), (b"b", b"Z", 7)]
    assert wired.context.records_out == 2


def test_a_source_of_several_topics_has_an_entry_for_each() -> None:
    b = texts()
    b.stream(["in", "more"]).to("out")
    wired = Wired(b)
    assert set(wired.pushes) == {"in", "more"}
    wired.push("more", ("a", "x", 5))
    assert wired.sent() == [(b"a", b"x", 5)]


def test_two_sources_of_one_topic_see_each_batch_in_the_order_they_were_declared() -> None:
    b = texts()
    b.stream("in").map_values(lambda v: f"first {v}").to("out")
    b.stream("in").map_values(lambda v: f"second {v}").to("out")
    wired = Wired(b)
    wired.push("in", ("a", "x", 5))
    assert [value for _, value, _ in wired.sent()] == [b"first x", b"second x"]


def test_children_of_a_node_are_served_in_the_order_they_were_declared() -> None:
    b = texts()
    stream = b.stream("in")
    for name in ("first", "second", "third"):
        stream.map_values(lambda v, name=name: f"{name} {v}").to("out")  # type: ignore[misc]  # binds the loop's name
    wired = Wired(b)
    wired.push("in", ("a", "x", 5))
    assert [value for _, value, _ in wired.sent()] == [b"first x", b"second x", b"third x"]


def test_what_is_repartitioned_goes_to_the_applications_internal_topic() -> None:
    b = texts()
    b.stream("in").repartition("r").to("out")
    wired = Wired(b)
    wired.push("in", ("a", "x", 5))
    assert wired.sent("shop-r-repartition") == [(b"a", b"x", 5)]
    assert wired.sent() == []


def test_an_aggregate_writes_its_store_and_its_updates_flow_on() -> None:
    b = texts()
    b.stream("in").group_by_key().count("c").to_stream().to("out")
    wired = Wired(b)
    wired.push("in", ("a", "x", 5), ("a", "y", 6))
    assert wired.sent() == [(b"a", serdes.INT64.serialize(2), 6)]
    assert wired.context.store("c").get("a") == 2
    assert wired.context.table("c").get(b"a") == serdes.INT64.serialize(2)


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (
            "key",
            r"node the-sink, in-0 offset 0: the key is int .* STRING .*pass key_serde=",
        ),
        (
            "value",
            r"node the-sink, in-0 offset 0: the value is int .* STRING .*pass value_serde=",
        ),
    ],
)
def test_a_sink_that_gets_another_type_names_itself_side_type_and_keyword(
    side: str, message: str
) -> None:
    b = texts()
    b.stream("in").map(lambda k, v: (1, v) if side == "key" else (k, 1)).to("out", name="the-sink")
    wired = Wired(b)
    with pytest.raises(NodeFailed, match=message):
        wired.push("in", ("a", "x", 5))
    assert wired.sent() == []


def test_text_does_not_pass_a_sink_of_bytes() -> None:
    b = texts()
    b.stream("in").to("out", value_serde=serdes.BYTES)
    with pytest.raises(NodeFailed, match="value is str but its serde is BYTES"):
        Wired(b).push("in", ("a", "x", 5))


class ToNamed:
    def __init__(self, context: ProcessorContext) -> None:
        self.context = context

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record, to=record.value)

    def close(self) -> None:
        CLOSED.append(self)


CLOSED: list[ToNamed] = []


@pytest.mark.parametrize("children", [1, 2])
def test_forwarding_to_a_child_that_is_not_there_names_those_that_are(children: int) -> None:
    b = texts()
    stream = b.stream("in").process(ToNamed, name="p")
    for topic in ("out", "other")[:children]:
        stream.to(topic, name=f"to-{topic}")
    wired = Wired(b)
    wired.push("in", ("a", "to-out", 5), ("b", None, 6))
    assert wired.sent() == [(b"a", b"to-out", 5), (b"b", None, 6)]
    assert wired.sent("other") == ([(b"b", None, 6)] if children > 1 else [])
    with pytest.raises(UnknownStore, match="node p has no child 'ghost'; it has: to-out"):
        wired.push("in", ("a", "ghost", 5))


def test_processors_are_closed_once_last_made_first() -> None:
    b = texts()
    b.stream("in").process(ToNamed).process(ToNamed)
    wired = Wired(b)
    CLOSED.clear()
    wired.context.close()
    wired.context.close()
    assert len(CLOSED) == 2


def test_a_store_the_task_does_not_have_is_refused_naming_those_it_has() -> None:
    b = texts()
    b.stream("in").group_by_key().count("c")
    with pytest.raises(UnknownStore, match="task 0_0 has no store 'ghost'; it has: c"):
        Wired(b).context.table("ghost")

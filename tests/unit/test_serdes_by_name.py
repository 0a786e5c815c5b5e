"""A user's serde is what it does, not what it is called (INTERFACE rule 3)."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import SerdeMismatch
from statestore.model.records import Serde
from statestore.testing import TopologyTestDriver
from statestore.topology.dsl.builder import StreamsBuilder

BUILT_IN: list[Serde[Any]] = [
    serdes.BYTES,
    serdes.STRING,
    serdes.INT64,
    serdes.INT32,
    serdes.INT16,
    serdes.FLOAT64,
    serdes.FLOAT32,
    serdes.BOOLEAN,
    serdes.UUID,
    serdes.VOID,
    serdes.JSON,
    serdes.MSGPACK,
]


def own(name: str) -> Serde[str]:
    """Text, backwards."""

    def write(text: str) -> bytes:
        return text[::-1].encode()

    def read(data: bytes) -> str:
        return data.decode()[::-1]

    return Serde(name, write, read)


@pytest.mark.parametrize("name", [serde.name for serde in BUILT_IN])
def test_a_users_serde_is_used_whatever_its_name(name: str) -> None:
    serde = own(name)
    b = StreamsBuilder(key_serde=serde, value_serde=serde)
    seen: list[tuple[Any, Any]] = []

    def noted(key: Any, value: Any) -> None:
        seen.append((key, value))

    stream = b.stream("in").peek(noted)
    stream.map(lambda k, v: (k + "!", v + "?")).to("out")
    table = stream.group_by_key().reduce(lambda old, new: old + new, "joined")
    table.map_values(str.upper, "upper").to_stream().to("table")
    stream.join(table, lambda left, right: f"{left}|{right}").to("joins")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "ab", "cd", 1)
        driver.pipe("in", "ab", "ef", 2)
        assert seen == [("ab", "cd"), ("ab", "ef")]
        assert [(r.key, r.value) for r in driver.read("out")] == [("ab!", "cd?"), ("ab!", "ef?")]
        raw = driver._broker.records("out")[0]
        assert (raw.key, raw.value) == (b"!ba", b"?dc")
        assert driver.store("joined").get("ab") == "cdef"
        assert driver.store("upper").get("ab") == "CDEF"
        assert [r.value for r in driver.read("joins")] == ["cd|cd", "ef|cdef"]


@pytest.mark.parametrize("verb", ["join", "left_join"])
def test_keys_under_two_serdes_of_one_name_do_not_meet(verb: str) -> None:
    b = StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    table = b.table("table", key_serde=own("STRING"))
    with pytest.raises(SerdeMismatch, match="STRING"):
        getattr(b.stream("in"), verb)(table, lambda left, right: left)
    with pytest.raises(SerdeMismatch, match="STRING"):
        getattr(b.table("other"), verb)(table, lambda left, right: left)


def test_a_serde_made_anew_for_each_use_meets_itself() -> None:
    b = StreamsBuilder(key_serde=own("OWN"), value_serde=serdes.STRING)
    table = b.table("table", key_serde=own("OWN"), materialized=ss.Materialized("t"))
    b.stream("in").join(table, lambda left, right: left + right).to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("table", "k", "1", 1)
        driver.pipe("in", "k", "2", 2)
        assert [r.value for r in driver.read("out")] == ["21"]

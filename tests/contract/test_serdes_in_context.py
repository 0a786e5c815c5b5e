"""Serdes that see the topic, the side and the headers of what they convert."""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.testing import TopologyTestDriver
from tests.contract.operator_cases import CASES, follow_table, topology


def marking(serde: ss.Serde[Any]) -> ss.Serde[Any]:
    """Write the place before the bytes; read only what was written for the same place."""

    def write(value: Any, context: ss.SerdeContext) -> bytes:
        return mark(context) + serde.serialize(value)

    def read(data: bytes, context: ss.SerdeContext) -> Any:
        expected = mark(context)
        if not data.startswith(expected):
            raise ValueError(f"expected {expected!r}, found {data!r}")
        return serde.deserialize(data.removeprefix(expected))

    return ss.Serde(f"MARKED({serde.name})", write, read)


def mark(context: ss.SerdeContext) -> bytes:
    return f"{context.topic}/{context.side}:".encode()


KEYS, VALUES = marking(serdes.STRING), marking(serdes.JSON)


@pytest.mark.parametrize("name", CASES)
def test_every_operator_converts_bytes_for_the_place_where_they_are(name: str) -> None:
    follow_table(name, topology(name, key_serde=KEYS, value_serde=VALUES))


def counting(serde: ss.Serde[Any]) -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)


def test_rows_of_a_store_are_converted_for_its_changelog() -> None:
    builder = counting(VALUES)
    store = ss.persistent_key_value_store("kept", key_serde=KEYS, value_serde=VALUES)

    class Keeping:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self._store = context.store(store)

        def process(self, record: ss.Record[str, Any]) -> None:
            self._store.put(record.key, record.value)
            assert self._store.get(record.key) == record.value

    builder.stream("in").process(Keeping, store)
    with TopologyTestDriver(builder.build(), {"application.id": "app"}) as driver:
        driver.pipe("in", "a", 1)
        assert driver.store(store).get("a") == 1
        assert [(r.key, r.value) for r in driver.read("app-kept-changelog")] == [("a", 1)]
        driver.crash()
        assert list(driver.store(store).all()) == [("a", 1)]


def test_a_serializer_adds_headers_and_a_deserializer_reads_them() -> None:
    def write(value: int, context: ss.SerdeContext) -> bytes:
        if context.headers is not None:
            context.headers.append(("unit", b"cent"))
            return b"%d" % (value * 100)
        return b"%d" % value

    def read(data: bytes, context: ss.SerdeContext) -> int:
        in_cents = ("unit", b"cent") in (context.headers or ())
        return int(data) // (100 if in_cents else 1)

    builder = counting(ss.Serde("MONEY", write, read))
    stream = builder.stream("in")
    stream.to("out")
    stream.to_table(ss.Materialized("kept"))
    with TopologyTestDriver(builder.build()) as driver:
        driver.pipe_bytes("in", b"a", b"7", headers=(("other", b"x"),))
        driver.pipe_bytes("in", b"b", b"700", headers=(("unit", b"cent"),))
        plain, cents = driver.read("out")
        assert (plain.value, plain.headers) == (7, (("other", b"x"), ("unit", b"cent")))
        assert cents.value == 7


def test_a_serde_finds_out_once_whether_its_functions_take_a_context() -> None:
    def with_option(value: str, encoding: str = "utf-8") -> bytes:
        return value.encode(encoding)

    for plain in (serdes.STRING, serdes.INT64, serdes.JSON, ss.Serde("X", with_option, bytes.hex)):
        assert not plain.contextual
        assert plain.at("topic", "value") is plain
    for functions in ((lambda v, _c: v, lambda d: d), (lambda v: v, lambda d, _c: d)):
        assert ss.Serde("X", *functions).contextual


def test_a_serde_is_the_same_object_wherever_its_place_is_the_same() -> None:
    placed = VALUES.at("topic", "value")
    assert placed is VALUES.at("topic", "value")
    assert placed.at("other", "key").serialize(1) == b"other/key:1"
    assert placed.name == VALUES.name


def test_a_serde_that_needs_a_topic_says_so() -> None:
    for call in (VALUES.serialize, VALUES.deserialize):
        with pytest.raises(Misuse, match=r"call serde\.at\(topic, 'key'\)"):
            call(b"1")


def test_a_schema_that_wrote_bytes_decides_how_they_are_read() -> None:
    now, before = ss.Schema("AVRO", "2"), ss.Schema("AVRO", "1")
    serde = ss.Serde(
        "X",
        str.encode,
        bytes.decode,
        schema=now,
        resolve=lambda writer: lambda data: f"{writer.text}:{data.decode()}",
    )
    assert serde.reading(now)(b"a") == "a"
    assert serde.reading(before)(b"a") == "1:a"
    assert serdes.STRING.reading(before)(b"a") == "a"

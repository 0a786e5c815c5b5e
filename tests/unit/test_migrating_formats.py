"""Migrations without a function between serdes whose bytes lie otherwise around the same schema.

The bytes are Confluent's wire format, written here by hand, so that no registry is asked.
"""

from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.operations.deployed import DeployedSchema, DeployedStore, DeployedWriter
from statestore.operations.start.kept_serdes import values_unread
from statestore.serdes import composed
from statestore.stores.migration import migrating

FEW, MORE = "n", "n count"


def avro(names: str) -> ss.Serde[Any]:
    fields = [{"name": name, "type": "long", "default": 3} for name in names.split()]
    return serdes.avro({"type": "record", "name": "Sum", "fields": fields})


def of_registry(registry: str, schema_id: int, names: str) -> ss.Serde[Any]:
    """A serde of a registry that knows schemas by ids of its own."""
    plain = avro(names)

    def write(value: Any) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + plain.serialize(value)

    def read(data: bytes) -> Any:
        if data[:5] != b"\0" + schema_id.to_bytes(4, "big"):
            raise ValueError(f"{registry} knows no such id")
        return plain.deserialize(data[5:])

    made: ss.Serde[Any] = ss.Serde("CONFLUENT_AVRO(Sum)", write, read, schema=plain.schema)
    return made.made_by(of_registry, registry, schema_id, names)


PLAIN, HERE, THERE = avro(FEW), of_registry("here", 7, FEW), of_registry("there", 8, FEW)


@pytest.mark.parametrize(
    ("was", "then"),
    [(PLAIN, HERE), (HERE, PLAIN), (HERE, THERE), (THERE, HERE), (PLAIN, PLAIN), (HERE, HERE)],
)
def test_bytes_are_read_by_the_format_and_the_registry_that_wrote_them(
    was: ss.Serde[Any], then: ss.Serde[Any]
) -> None:
    windows = [composed.CountWindow(2, 1, 0, {"n": 5})]
    pairs: list[tuple[Any, Any, Any]] = [
        (was, then, {"n": 5}),
        (composed.count_windows(was), composed.count_windows(then), windows),
    ]
    for old, new, value in pairs:
        both = migrating(new, ss.Migration(old))
        assert both.deserialize(old.serialize(value)) == value
        assert both.deserialize(both.serialize(value)) == value


def test_bytes_of_one_format_are_read_by_the_newest_of_two_schemas() -> None:
    old = avro(FEW)
    both = migrating(avro(MORE), ss.Migration(old))
    assert both.deserialize(old.serialize({"n": 5})) == {"n": 5, "count": 3}


def known(was: ss.Serde[Any]) -> DeployedStore:
    writers = [DeployedWriter(0, was.name, DeployedSchema.of(was.schema))]
    return DeployedStore(0, "STRING", was.name, persistent=True, value_writers=writers)


def spec(serde: ss.Serde[Any]) -> ss.KeyValueSpec[Any, Any]:
    return ss.persistent_key_value_store("kept", key_serde=serdes.STRING, value_serde=serde)


@pytest.mark.parametrize("wrapped", [lambda serde: serde, composed.count_windows])
def test_another_format_around_the_same_schema_needs_a_migration(wrapped: Any) -> None:
    plain, framed = wrapped(PLAIN), wrapped(HERE)
    assert values_unread(known(plain), spec(plain)) is None
    for was, then in ((plain, framed), (framed, plain)):
        unlike = values_unread(known(was), spec(then))
        assert unlike is not None
        assert unlike.what.endswith(f"written as {was.name} and would be read as {then.name}")
        assert values_unread(known(was), spec(migrating(then, ss.Migration(was)))) is None


def test_another_format_and_another_schema_need_a_function() -> None:
    then = of_registry("here", 9, MORE)
    unlike = values_unread(known(PLAIN), spec(migrating(then, ss.Migration(PLAIN))))
    assert unlike is not None
    assert "has no function, and they have other schemas" in unlike.what
    change = ss.Migration(PLAIN, lambda old: {**old, "count": 0})
    assert values_unread(known(PLAIN), spec(migrating(then, change))) is None

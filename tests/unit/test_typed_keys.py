"""Keys as they are typed on a command line, by the serde of the store."""

import uuid
from typing import Any

import pytest

from statestore import serdes
from statestore.commands.typed_keys import serialized
from statestore.model.records import Serde

ID = uuid.UUID(int=10)
TYPED: list[tuple[Serde[Any], str, Any]] = [
    (serdes.BYTES, r"a\x00b", b"a\x00b"),
    (serdes.STRING, "7", "7"),
    (serdes.INT32, "7", 7),
    (serdes.INT16, "-7", -7),
    (serdes.FLOAT32, "1.5", 1.5),
    (serdes.BOOLEAN, "true", True),
    (serdes.UUID, str(ID), ID),
    (serdes.UUID, str(ID).upper(), ID),
    (serdes.list_of(serdes.STRING), '["a",null]', ["a", None]),
    (serdes.JSON, "ann", "ann"),
]


@pytest.mark.parametrize(("serde", "text", "key"), TYPED, ids=repr)
def test_a_typed_key_is_that_of_the_serde(serde: Serde[Any], text: str, key: object) -> None:
    assert serialized(text, serde) == serde.serialize(key)


@pytest.mark.parametrize(
    ("serde", "text"), [(serdes.UUID, "seven"), (serdes.BOOLEAN, "yes"), (serdes.INT16, "40000")]
)
def test_a_text_that_is_no_such_key_is_refused(serde: Serde[Any], text: str) -> None:
    with pytest.raises(Exception, match=r"UUID|malformed|format"):
        serialized(text, serde)

"""The serdes that come with statestore."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import Misuse, SerdeMismatch
from statestore.model.records import Serde
from statestore.stores import serdes

INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BYTES": st.binary(),
    "STRING": st.text(),
    "INT64": INT64,
    "FLOAT64": st.floats(allow_nan=False),
    "JSON": NESTED,
    "MSGPACK": NESTED,
}
MISFITS = [
    (serdes.BYTES, "text"),
    (serdes.BYTES, 3),
    (serdes.BYTES, bytearray(b"mutable")),
    (serdes.STRING, b"bytes"),
    (serdes.STRING, 3),
    (serdes.INT64, "3"),
    (serdes.INT64, 3.5),
    (serdes.INT64, 2**63),
    (serdes.FLOAT64, "3"),
    (serdes.JSON, 1 + 2j),
    (serdes.MSGPACK, 1 + 2j),
]


@pytest.mark.parametrize("name", VALUES)
def test_every_serde_gives_back_what_it_was_given(name: str) -> None:
    serde = serdes.by_name(name)

    @given(VALUES[name])
    def gives_back(value: object) -> None:
        data = serde.serialize(value)
        assert isinstance(data, bytes)
        assert serde.deserialize(data) == value

    gives_back()


def test_int64_and_float64_are_kafkas_eight_bytes_big_endian() -> None:
    assert serdes.INT64.serialize(1) == bytes([0, 0, 0, 0, 0, 0, 0, 1])
    assert serdes.INT64.serialize(-1) == b"\xff" * 8
    assert serdes.FLOAT64.serialize(1.5) == struct.pack(">d", 1.5)


@pytest.mark.parametrize("name", ["BYTES", "STRING"])
def test_ordered_serdes_sort_bytes_as_values(name: str) -> None:
    serde = serdes.by_name(name)
    assert serde.ordered

    @given(VALUES[name], VALUES[name])
    def sorts(left: Any, right: Any) -> None:
        assert (left < right) == (serde.serialize(left) < serde.serialize(right))

    sorts()


@pytest.mark.parametrize("name", ["INT64", "FLOAT64", "JSON", "MSGPACK"])
def test_serdes_whose_bytes_sort_otherwise_do_not_claim_order(name: str) -> None:
    assert not serdes.by_name(name).ordered


@pytest.mark.parametrize("serde", [serdes.JSON, serdes.MSGPACK], ids=repr)
def test_equal_values_give_equal_bytes_so_that_a_dict_may_be_a_key(serde: Serde[Any]) -> None:
    assert serde.serialize({"a": 1, "b": 2}) == serde.serialize({"b": 2, "a": 1})


@pytest.mark.parametrize(("serde", "value"), MISFITS, ids=repr)
def test_a_value_of_another_type_is_refused_not_converted(serde: Serde[Any], value: object) -> None:
    with pytest.raises((TypeError, ValueError, struct.error, OverflowError)):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (serdes.STRING.deserialize, b"\xff"),
        (serdes.INT64.deserialize, b"short"),
        (serdes.FLOAT64.deserialize, b""),
        (serdes.JSON.deserialize, b"{"),
        (serdes.MSGPACK.deserialize, b"\xc1"),
    ],
)
def test_bytes_of_another_serde_are_refused(decode: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode(data)


def test_an_unknown_name_lists_the_known_ones() -> None:
    # Other tests of this process may have registered more of them.
    with pytest.raises(
        Misuse, match=r"known: BYTES,.* FLOAT64,.* INT64,.* JSON,.* MSGPACK,.* STRING"
    ):
        serdes.by_name("AVRO")


def test_a_registered_serde_is_found_by_name_and_its_name_is_taken() -> None:
    mine: Serde[str] = Serde("UPPER", lambda s: s.upper().encode(), bytes.decode)
    assert serdes.register(mine) is mine
    assert serdes.register(mine) is mine
    assert serdes.by_name("UPPER") is mine
    with pytest.raises(Misuse, match="'UPPER' is taken"):
        serdes.register(Serde("UPPER", str.encode, bytes.decode))


def test_a_mismatch_names_node_side_type_serde_and_the_keyword() -> None:
    error = serdes.mismatch(
        where="node sink",
        side="value",
        value=3,
        serde=serdes.STRING,
        keyword="value_serde",
        cause=TypeError("no text"),
    )
    assert isinstance(error, SerdeMismatch)
    for part in ("node sink", "value", "int", "STRING", "no text", "value_serde="):
        assert part in str(error)


def test_the_repr_of_a_serde_is_its_name() -> None:
    assert repr(serdes.STRING) == "Serde(STRING)"

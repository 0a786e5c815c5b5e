"""The serdes that come with statestore."""

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore import serdes
from statestore.errors import Misuse, SerdeMismatch
from statestore.model.records import Serde, Windowed
from statestore.serdes import composed

INT64 = st.integers(-(2**63), 2**63 - 1)
PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BYTES": st.binary(),
    "STRING": st.text(),
    "INT64": INT64,
    "INT32": st.integers(-(2**31), 2**31 - 1),
    "INT16": st.integers(-(2**15), 2**15 - 1),
    "FLOAT64": st.floats(allow_nan=False),
    "FLOAT32": st.floats(allow_nan=False, width=32),
    "BOOLEAN": st.booleans(),
    "UUID": st.uuids(),
    "LIST(INT32)": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)),
    "LIST(STRING)": st.lists(st.none() | st.text()),
    "LIST(UUID)": st.lists(st.none() | st.uuids()),
    "LIST(LIST(BOOLEAN))": st.lists(st.none() | st.lists(st.none() | st.booleans())),
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
    (serdes.INT32, 2**31),
    (serdes.INT16, -(2**15) - 1),
    (serdes.INT16, 1.0),
    (serdes.FLOAT64, "3"),
    (serdes.FLOAT32, 1e39),
    (serdes.BOOLEAN, 1),
    (serdes.BOOLEAN, "true"),
    (serdes.UUID, "550e8400-e29b-41d4-a716-446655440000"),
    (serdes.UUID, 7),
    (serdes.VOID, b""),
    (serdes.list_of(serdes.STRING), "text"),
    (serdes.list_of(serdes.STRING), [b"bytes"]),
    (serdes.list_of(serdes.INT64), {1: 2}),
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


ID = uuid.UUID("550e8400-e29b-41d4-a716-446655440000")
# What the serializers of org.apache.kafka.common.serialization write for the same values.
IN_JAVA: list[tuple[Serde[Any], Any, str]] = [
    (serdes.STRING, "é", "c3a9"),
    (serdes.INT64, 1, "0000000000000001"),
    (serdes.INT64, -1, "ffffffffffffffff"),
    (serdes.INT32, 258, "00000102"),
    (serdes.INT32, -2, "fffffffe"),
    (serdes.INT16, 258, "0102"),
    (serdes.INT16, -(2**15), "8000"),
    (serdes.FLOAT64, 1.5, "3ff8000000000000"),
    (serdes.FLOAT64, float("-inf"), "fff0000000000000"),
    (serdes.FLOAT32, 1.5, "3fc00000"),
    (serdes.FLOAT32, -0.0, "80000000"),
    (serdes.BOOLEAN, True, "01"),
    (serdes.BOOLEAN, False, "00"),
    (serdes.UUID, ID, str(ID).encode().hex()),
    (serdes.list_of(serdes.INT32), [], "00" + "00000000" + "00000000"),
    (serdes.list_of(serdes.INT32), [7, -1], "00" + "00000000" + "00000002" + "00000007ffffffff"),
    (
        serdes.list_of(serdes.INT16),
        [None, 7, None],
        "00" + "00000002" + "00000000" + "00000002" + "00000003" + "0007",
    ),
    (
        serdes.list_of(serdes.UUID),
        [ID],
        "00" + "00000000" + "00000001" + str(ID).encode().hex(),
    ),
    (serdes.list_of(serdes.STRING), [], "01" + "00000000"),
    (
        serdes.list_of(serdes.STRING),
        ["ab", None, ""],
        "01" + "00000003" + "00000002" + "6162" + "ffffffff" + "00000000",
    ),
    (serdes.list_of(serdes.BOOLEAN), [True], "01" + "00000001" + "00000001" + "01"),
    (
        serdes.list_of(serdes.list_of(serdes.INT16)),
        [[5]],
        "01" + "00000001" + "0000000b" + "00" + "00000000" + "00000001" + "0005",
    ),
    (
        serdes.windowed(serdes.STRING, 60_000),
        Windowed("k", 60_000, 120_000),
        "6b" + "000000000000ea60",
    ),
    (
        composed.session_windowed(serdes.STRING),
        Windowed("k", 1, 258),
        "6b" + "0000000000000102" + "0000000000000001",
    ),
]


@pytest.mark.parametrize(("serde", "value", "written"), IN_JAVA, ids=repr)
def test_bytes_are_those_of_kafkas_serdes_in_java(
    serde: Serde[Any], value: object, written: str
) -> None:
    assert serde.serialize(value).hex() == written
    assert serde.deserialize(bytes.fromhex(written)) == value
    same: Serde[Any] = serdes.by_name(serde.name)
    assert same.deserialize(bytes.fromhex(written)) == value


def test_a_list_is_made_once_and_meets_itself() -> None:
    assert serdes.list_of(serdes.INT32) is serdes.list_of(serdes.INT32)


def test_a_list_of_a_users_serde_has_its_bytes_whatever_its_name() -> None:
    own: Serde[int] = Serde("INT32", serdes.INT64.serialize, serdes.INT64.deserialize)
    eight = "0000000000000001"
    assert serdes.list_of(own).serialize([1]).hex() == "01" + "00000001" + "00000008" + eight


def test_text_of_a_uuid_in_upper_case_is_read() -> None:
    assert serdes.UUID.deserialize(str(ID).upper().encode()) == ID


@pytest.mark.parametrize(
    "data",
    [
        "",
        "02",
        "00",
        "0000000000",
        "00" + "ffffffff" + "00000000",
        "00" + "7fffffff" + "00000000",
        "00" + "00000000" + "00000001",
        "00" + "00000000" + "00000001" + "000000",
        "00" + "00000000" + "00000001" + "00000001" + "00",
        "01" + "00000001",
        "01" + "00000001" + "00000004" + "000001",
        "01" + "00000001" + "fffffffe",
        "01" + "7fffffff" + "00000004" + "00000001",
    ],
)
def test_bytes_of_no_list_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"want|follow"):
        serdes.list_of(serdes.INT32).deserialize(bytes.fromhex(data))


def test_items_of_one_size_are_refused_by_a_serde_whose_items_have_none() -> None:
    data = serdes.list_of(serdes.INT16).serialize([1])
    with pytest.raises(ValueError, match="have one size"):
        serdes.list_of(serdes.STRING).deserialize(data)


@pytest.mark.parametrize("name", ["BYTES", "STRING", "BOOLEAN"])
def test_ordered_serdes_sort_bytes_as_values(name: str) -> None:
    serde = serdes.by_name(name)
    assert serde.ordered

    @given(VALUES[name], VALUES[name])
    def sorts(left: Any, right: Any) -> None:
        assert (left < right) == (serde.serialize(left) < serde.serialize(right))

    sorts()


@pytest.mark.parametrize(
    "name", ["INT64", "INT32", "FLOAT32", "UUID", "FLOAT64", "JSON", "MSGPACK"]
)
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
    ("serde", "data"),
    [
        (serdes.STRING, b"\xff"),
        (serdes.INT64, b"short"),
        (serdes.FLOAT64, b""),
        (serdes.INT32, b"short"),
        (serdes.INT16, b""),
        (serdes.FLOAT32, bytes(8)),
        (serdes.BOOLEAN, b"\x02"),
        (serdes.BOOLEAN, b""),
        (serdes.UUID, ID.bytes),
        (serdes.UUID, b"x" * 36),
        (serdes.VOID, b""),
        (serdes.JSON, b"{"),
        (serdes.MSGPACK, b"\xc1"),
    ],
    ids=repr,
)
def test_bytes_of_another_serde_are_refused(serde: Serde[Any], data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        serde.deserialize(data)


def test_an_unknown_name_lists_the_known_ones() -> None:
    # Other tests of this process may have registered more of them.
    with pytest.raises(
        Misuse, match=r"known: BOOLEAN,.* BYTES,.* FLOAT64,.* INT64,.* JSON,.* STRING,.* UUID, VOID"
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

"""The grammar of serdes' names: what is made of others is found again by its name alone."""

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse
from statestore.model.records import Serde, Subscription, Windowed
from statestore.serdes import composed
from statestore.serdes.serde_names import head_of, inside_of, parsed

ODD = serdes.register(Serde("a,b (of mine", str.encode, bytes.decode))
ATOMS = st.sampled_from([serdes.STRING, serdes.INT64, serdes.BYTES, serdes.JSON])
NESTED = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(composed.windowed, inner, st.integers(1, 10**12)),
        *(
            st.builds(make, inner)
            for make in (
                composed.session_windowed,
                composed.key_at_time,
                composed.timer,
                composed.count_windows,
                serdes.list_of,
            )
        ),
        st.builds(composed.subscription, inner, inner),
    ),
    max_leaves=6,
)


@given(NESTED)
def test_every_serde_made_of_others_is_found_by_its_name(serde: Serde[object]) -> None:
    assert serdes.by_name(serde.name).name == serde.name


@pytest.mark.parametrize(
    "made",
    [
        composed.session_windowed(ODD),
        composed.windowed(ODD, 5),
        composed.timer(ODD),
        serdes.list_of(ODD),
    ],
    ids=lambda serde: serde.name,
)
def test_the_last_argument_may_have_anything_in_its_name(made: Serde[object]) -> None:
    assert serdes.by_name(made.name) is made


def test_a_name_tells_where_keys_are_placed_however_deep() -> None:
    inner = composed.windowed(serdes.STRING, 10)
    serde = composed.timer(composed.subscription(inner, serdes.INT64))
    foreign = inner.serialize(Windowed("é", 20, 30))
    row = composed.timer_id(composed.subscription_row(foreign, b"12345678"), "wake")
    place = composed.placed_by(serde.name)
    assert place is not None
    assert place(b"k" + row) == "é".encode()
    assert composed.placed_by("STRING") is None
    assert composed.placed_by(composed.count_windows(serdes.STRING).name) is None
    written = composed.subscription(serdes.STRING, serdes.STRING).serialize(Subscription("a", "b"))
    assert composed.placing(composed.subscription(serdes.STRING, serdes.STRING), [written]) == [
        b"a"
    ]


@pytest.mark.parametrize(
    "name",
    [
        "WINDOWED(STRING)",
        "WINDOWED(1.5,STRING)",
        "WINDOWED(5,)",
        f"WINDOWED({'9' * 5000},STRING)",
        "SESSION()",
        "SESSION",
        "x(",
    ],
)
def test_a_name_that_no_constructor_made_is_looked_up_as_it_is(name: str) -> None:
    assert parsed(name) is None
    with pytest.raises(Misuse, match="no serde named"):
        serdes.by_name(name)


def test_a_typed_json_is_read_as_json_and_migrated_rows_are_not_read() -> None:
    assert serdes.by_name("JSON(Order)") is serdes.JSON
    assert serdes.by_name("JSON(dict[str, (int)])") is serdes.JSON
    with pytest.raises(Misuse, match="several serdes"):
        serdes.by_name("MIGRATED[2](JSON,STRING)")


def test_heads_and_insides() -> None:
    assert (head_of("AVRO(a.B)"), inside_of("AVRO(a.B)")) == ("AVRO", "a.B")
    assert (head_of("STRING"), inside_of("STRING")) == ("STRING", None)


def test_the_package_of_serdes_is_imported_by_its_public_name() -> None:
    module = importlib.import_module("statestore.serdes")
    assert module is ss.serdes
    assert module.STRING is serdes.STRING

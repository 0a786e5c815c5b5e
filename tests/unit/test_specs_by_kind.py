"""A function per kind of store describes the same stores as the two names of Kafka Streams."""

from datetime import timedelta
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import Misuse

SERDES: dict[str, Any] = {"key_serde": serdes.STRING, "value_serde": serdes.INT64}
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
PAIRS = [
    (
        ss.key_value_store("s", ttl=DAY, **SERDES),
        ss.persistent_key_value_store("s", ttl=DAY, **SERDES),
    ),
    (ss.key_value_store("s", in_memory=True), ss.in_memory_key_value_store("s")),
    (
        ss.versioned_key_value_store("s", DAY, segment_interval=HOUR, **SERDES),
        ss.persistent_versioned_key_value_store("s", DAY, HOUR, **SERDES),
    ),
    (
        ss.versioned_key_value_store("s", history_retention=9, in_memory=True),
        ss.in_memory_versioned_key_value_store("s", 9),
    ),
    (
        ss.window_store("s", HOUR, DAY, **SERDES),
        ss.persistent_window_store("s", HOUR, DAY, **SERDES),
    ),
    (
        ss.window_store("s", size=1, retention=9, in_memory=True),
        ss.in_memory_window_store("s", 1, 9),
    ),
    (ss.session_store("s", DAY, **SERDES), ss.persistent_session_store("s", DAY, **SERDES)),
    (ss.session_store("s", retention=9, in_memory=True), ss.in_memory_session_store("s", 9)),
]


@pytest.mark.parametrize(("by_kind", "by_kafkas_name"), PAIRS)
def test_both_names_describe_one_store(by_kind: object, by_kafkas_name: object) -> None:
    assert by_kind == by_kafkas_name


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (ss.key_value_store, {"ttl": 0}),
        (ss.versioned_key_value_store, {"history_retention": -1}),
        (ss.window_store, {"size": 2, "retention": 1}),
        (ss.session_store, {"retention": timedelta(seconds=-1)}),
    ],
)
def test_spans_that_make_no_store_are_refused(function: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="store 's'"):
        function("s", **arguments)


def test_serdes_that_wrote_values_before_are_kept_by_every_kind() -> None:
    before = ss.Migration(serdes.STRING, int)
    migrating: dict[str, Any] = {**SERDES, "migrate": before}
    assert (
        ss.key_value_store("s", **migrating).value_serde.name
        == ss.persistent_key_value_store("s", **migrating).value_serde.name
        == ss.versioned_key_value_store("s", 9, **migrating).value_serde.name
        == ss.window_store("s", 1, 9, **migrating).value_serde.name
        == ss.session_store("s", 9, **migrating).value_serde.name
        != serdes.INT64.name
    )

"""Spans have names without a unit; the keywords that they had before work, and warn."""

import functools
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest

import statestore as ss

SECOND = timedelta(seconds=1)
OLD: list[tuple[Callable[..., Any], Mapping[str, Any]]] = [
    (ss.TumblingWindows, {"size_ms": 9, "grace_ms": 1, "retention_ms": 10}),
    (ss.HoppingWindows, {"size_ms": 9, "advance_ms": 3, "grace_ms": SECOND}),
    (ss.SessionWindows, {"gap_ms": SECOND, "grace_ms": 1, "retention_ms": 2000}),
    (ss.SlidingWindows, {"difference_ms": 5, "grace_ms": SECOND}),
    (ss.JoinWindows, {"before_ms": 5, "after_ms": 6, "grace_ms": 7}),
    (functools.partial(ss.Materialized, "m"), {"history_retention_ms": SECOND}),
    (ss.Suppressed.until_window_closes, {"close_idle_ms": 5}),
    (ss.Suppressed.until_time_limit, {"limit_ms": SECOND}),
    (functools.partial(ss.persistent_key_value_store, "s"), {"ttl_ms": 5}),
    (functools.partial(ss.in_memory_key_value_store, "s"), {"ttl_ms": SECOND}),
    (
        functools.partial(ss.persistent_versioned_key_value_store, "s"),
        {"history_retention_ms": 9, "segment_interval_ms": 3},
    ),
    (
        functools.partial(ss.in_memory_versioned_key_value_store, "s"),
        {"history_retention_ms": SECOND, "segment_interval_ms": 3},
    ),
    (functools.partial(ss.persistent_window_store, "s"), {"size_ms": 5, "retention_ms": SECOND}),
    (functools.partial(ss.in_memory_window_store, "s"), {"size_ms": 5, "retention_ms": 9}),
    (functools.partial(ss.persistent_session_store, "s"), {"retention_ms": SECOND}),
    (functools.partial(ss.in_memory_session_store, "s"), {"retention_ms": 5}),
]


@pytest.mark.parametrize(("make", "before"), OLD)
def test_the_old_keywords_make_the_same_and_name_the_new_ones(
    make: Callable[..., Any], before: Mapping[str, Any]
) -> None:
    now = {name.removesuffix("_ms"): value for name, value in before.items()}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = make(**before)
    assert made == make(**now)
    assert {str(one.message).split(": ")[1] for one in told} == {
        f"{old}= is called {old.removesuffix('_ms')}= now, and takes milliseconds or a timedelta "
        "as before"
        for old in before
    }
    assert {one.filename for one in told} == {__file__}


@pytest.mark.filterwarnings("ignore:.*grace_ms= is called:DeprecationWarning")
def test_joins_and_groups_take_the_old_keywords() -> None:
    def topology(grace: str, close_idle: str) -> ss.Topology:
        b = ss.StreamsBuilder()
        table = b.table("t", materialized=ss.Materialized("rows", history_retention=9), name="t")
        terms: Any = {grace: 5}
        joined = b.stream("in").join(table, lambda left, _: left, **terms, name="join")
        windows = ss.TumblingWindows(5)
        closed: Any = joined.group_by_key().windowed_by(
            windows, emit="on_window_close", **{close_idle: SECOND}
        )
        closed.count("counts")
        return b.build()

    with pytest.warns(
        DeprecationWarning, match="windowed_by: close_idle_ms= is called close_idle="
    ):
        before = topology("grace_ms", "close_idle_ms")
    assert before.fingerprint() == topology("grace", "close_idle").fingerprint()


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(TypeError, match=r"TumblingWindows\(\) got size= and size_ms="):
        ss.TumblingWindows(size=5, size_ms=5)  # type: ignore[call-arg]

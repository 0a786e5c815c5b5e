"""The bytes of versioned stores: round trips, order, segments apart, keys that begin alike."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore.stores.versioned import layout
from statestore.stores.versioned.layout import TIME_MAX, TIME_MIN

TIMES = st.integers(TIME_MIN, TIME_MAX) | st.integers(-50, 50)
INTERVALS = st.integers(1, 10) | st.integers(1, 10**12)
# Kin: one a prefix of the other, with bytes that look like lengths, times and segments.
KEYS = st.binary(max_size=12) | st.sampled_from(
    [b"", b"k", b"key", b"key2", b"k\x00", b"k\x80\x00\x00\x00\x00\x00\x00\x00", b"k\xff\xff"]
)


@given(value=st.none() | st.binary(max_size=20), time=TIMES)
@example(value=b"", time=0)
@example(value=None, time=0)
def test_a_version_comes_back_with_an_empty_value_told_from_a_tombstone(
    value: bytes | None, time: int
) -> None:
    row = layout.version_row(value, time)
    assert layout.read_version(row) == (time, value)
    assert layout.valid_from(row) == time
    assert layout.is_tombstone(row) == (value is None)


@given(versions=st.lists(st.tuples(st.none() | st.binary(max_size=20), TIMES), max_size=9))
def test_many_versions_are_the_bytes_of_each_and_come_back(
    versions: list[tuple[bytes | None, int]],
) -> None:
    values, times = [value for value, _ in versions], [time for _, time in versions]
    rows = layout.version_rows(values, times)
    assert rows == [layout.version_row(value, time) for value, time in versions]
    assert layout.read_versions(rows) == (values, times)
    assert [row[layout.STAMP] for row in rows] == [layout.stamp_of(time) for time in times]
    assert layout.tombstones_in(values) == values.count(None)


@given(ended=st.lists(st.tuples(KEYS, TIMES), min_size=1, max_size=9), interval=INTERVALS)
@example(ended=[(b"a", 5), (b"b", 15)], interval=10)
@example(ended=[(b"a", 5), (b"bb", 5)], interval=10)
def test_many_places_in_history_are_the_place_of_each(
    ended: list[tuple[bytes, int]], interval: int
) -> None:
    keys, ends = [key for key, _ in ended], [layout.stamp_of(time) for _, time in ended]
    places = layout.history_keys(keys, ends, interval)
    assert places == [layout.history_key(key, time, interval) for key, time in ended]


@given(key=KEYS, time=TIMES, interval=INTERVALS)
def test_a_place_in_history_says_whose_it_is_and_when_it_ends(
    key: bytes, time: int, interval: int
) -> None:
    place = layout.history_key(key, time, interval)
    assert (layout.key_of(place), layout.valid_to(place)) == (key, time)
    assert place.startswith(layout.history_prefix(key, time // interval))
    assert place[:1] not in layout.NOT_VERSIONS


@given(one=st.tuples(KEYS, TIMES), other=st.tuples(KEYS, TIMES), interval=INTERVALS)
def test_segments_do_not_overlap_and_are_in_the_order_of_time(
    one: tuple[bytes, int], other: tuple[bytes, int], interval: int
) -> None:
    first, second = (layout.history_key(*each, interval) for each in (one, other))
    if one[1] // interval < other[1] // interval:
        assert first < second
        lo, beyond = layout.versions_below(other[1] // interval)
        assert lo <= first < beyond <= second


@given(
    keys=st.tuples(KEYS, KEYS),
    times=st.tuples(TIMES, TIMES, TIMES),
    interval=INTERVALS,
)
def test_no_row_of_another_key_lies_between_those_of_one_key_and_segment(
    keys: tuple[bytes, bytes], times: tuple[int, int, int], interval: int
) -> None:
    key, other = keys
    early, late = sorted(times[:2])
    first, last = (layout.history_key(key, time, interval) for time in (early, late))
    assert first <= last
    stranger = layout.history_key(other, times[2], interval)
    if early // interval == late // interval and key != other:
        assert not first <= stranger <= last
    assert (key == other and times[2] // interval == early // interval) == stranger.startswith(
        layout.history_prefix(key, early // interval)
    )


@given(key=KEYS, time=TIMES, interval=INTERVALS, segment=TIMES)
def test_a_forgotten_delete_is_found_below_its_segments_end_and_not_among_versions(
    key: bytes, time: int, interval: int, segment: int
) -> None:
    row = layout.tombstone_key(key, time, interval)
    assert layout.tombstone_of(row) == (time // interval, key)
    lo, hi = layout.tombstones_below(segment)
    if time // interval < segment:
        assert lo <= row <= hi
    if time // interval > segment:
        assert row > hi
    assert row < layout.history_key(key, time, interval)
    assert row > layout.CLOCK_KEY


@given(now=TIMES, bound=TIMES, limit=TIMES | st.none())
def test_the_clock_comes_back(now: int, bound: int, limit: int | None) -> None:
    assert layout.read_clock(layout.clock_row(now, bound, limit)) == (now, bound, limit)


@given(bound=st.integers(-(10**6), 10**6), interval=st.integers(1, 1000), end=st.integers())
def test_a_segment_expires_when_the_last_version_it_can_hold_has(
    bound: int, interval: int, end: int
) -> None:
    segment = layout.expired_below(bound, interval)
    last_end_of_expired = segment * interval - 1
    assert last_end_of_expired <= bound < last_end_of_expired + interval
    if end // interval < segment:
        assert end <= bound


@pytest.mark.parametrize(
    ("retention", "interval"),
    [
        (0, 2_000),
        (6_000, 2_000),
        (6_003, 2_001),
        (60_000, 20_000),
        (60_001, 20_000),
        (300_000, 60_000),
        (300_001, 60_000),
        (3_600_000, 300_000),
        (3_600_001, 300_000),
        (7_200_000, 300_000),
        (86_400_000, 3_600_000),
        (366 * 86_400_000, 366 * 3_600_000),
    ],
)
def test_the_default_interval_goes_by_the_retention(retention: int, interval: int) -> None:
    assert layout.default_segment_interval_ms(retention) == interval

"""What fails behind a repartition names the inputs that people know, not the internal topic alone.

Shows I12.
"""

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import RecordFailed
from statestore.testing import TopologyTestDriver

DEAD = {
    "processing.exception.handler": "dead_letter",
    "errors.dead.letter.queue.topic.name": "dead",
}


def failing(_key: str, _value: object) -> object:
    raise ValueError("no")


def regrouped() -> ss.Topology:
    """Two inputs in one stream, behind a repartition a function that takes nothing."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    both = b.stream("clicks").merge(b.stream("views"))
    b.stream("others").to("elsewhere")
    grouped = both.group_by(lambda _key, value: value, name="by-value")
    counted = grouped.count("counts")
    counted.to_stream().map_values(lambda value: failing("", value), name="say").to("out")
    return b.build()


def closing() -> ss.Topology:
    """A window whose result nobody takes."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    windows = (
        b.stream("clicks")
        .group_by_key()
        .windowed_by(ss.TumblingWindows(10), emit="on_window_close")
    )
    windows.count("windows").to_stream().map_values(lambda n: failing("", n), name="say").to("out")
    return b.build()


class Ticking:
    """Fails when stream time passes."""

    def __init__(self, context: ss.ProcessorContext) -> None:
        context.schedule(10, "stream_time", self._tick)

    def process(self, record: ss.Record[str, int]) -> None:
        """Take every record."""

    def _tick(self, _time_ms: int) -> None:
        raise ValueError("no")


def ticking() -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    by_value = b.stream("clicks").group_by(lambda _key, value: value, name="by-value")
    by_value.count("counts").to_stream().process(Ticking, name="tick")
    return b.build()


def dead_letter(driver: TopologyTestDriver) -> dict[str, str]:
    (dead,) = driver.read("dead")
    begins = "__streams.errors."
    return {
        name.removeprefix(begins): (value or b"").decode()
        for name, value in dead.headers
        if name.startswith(begins)
    }


def test_a_record_behind_a_repartition_says_key_time_and_inputs() -> None:
    with TopologyTestDriver(regrouped()) as driver, pytest.raises(RecordFailed) as raised:
        driver.pipe("views", "k", "tea", 7)
    told = str(raised.value)
    assert (
        "by-value-repartition-0 offset 0 (key b'tea' and time 7, which came from clicks, views)"
        in told
    )
    assert "others" not in told


def test_its_dead_letter_has_the_inputs_beside_the_internal_topic() -> None:
    with TopologyTestDriver(regrouped(), DEAD) as driver:
        driver.pipe("clicks", "k", "tea", 7)
        place = dead_letter(driver)
    assert place["topic"].endswith("by-value-repartition")
    assert place["inputs"] == "clicks,views"


def test_a_record_of_an_input_says_no_more_than_its_place() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("clicks").map_values(lambda value: failing("", value), name="say").to("out")
    with TopologyTestDriver(b.build(), DEAD) as driver:
        driver.pipe("clicks", "k", "tea", 7)
        place = dead_letter(driver)
    assert place["topic"] == "clicks"
    assert "inputs" not in place


def test_the_result_of_a_window_names_what_feeds_it() -> None:
    with TopologyTestDriver(closing()) as driver:
        driver.pipe("clicks", "k", "tea", 7)
        with pytest.raises(RecordFailed) as raised:
            driver.pipe("clicks", "k", "tea", 30)
    told = str(raised.value)
    where = "the result of key b'k' in the window from 0, up to 7, in store 'windows' (from clicks)"
    assert where in told


def test_a_punctuation_names_what_its_node_gets() -> None:
    with TopologyTestDriver(ticking()) as driver, pytest.raises(RecordFailed) as raised:
        driver.pipe("clicks", "k", "tea", 7)
    assert "(its node gets records from clicks)" in str(raised.value)

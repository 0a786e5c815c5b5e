"""Poison records in every operator, under every handler (SEMANTICS E9)."""

import pytest

from statestore.errors import RecordFailed
from statestore.testing import TopologyTestDriver
from tests.unit.poison_rig import (
    GUARANTEES,
    OPERATORS,
    POISON,
    dropped,
    good_and_bad,
    last_of,
    letters,
    settings,
    stored,
    topology,
)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
def test_an_operator_does_without_the_records_its_function_raises_for(
    operator: str, handler: str
) -> None:
    poison = [25, 26, 39]
    good = [record for record in good_and_bad(poison) if record.value != POISON]
    with TopologyTestDriver(topology(operator), settings("fail")) as clean:
        clean.pipe_all("in", good)
        counts = list(clean.store("counts").all())
        counted, out = last_of(clean.read("counted")), last_of(clean.read("out"))
    with TopologyTestDriver(topology(operator), settings(handler)) as driver:
        driver.pipe_all("in", good_and_bad(poison))
        assert list(driver.store("counts").all()) == counts, "nothing of a poison record stays"
        assert last_of(driver.read("counted")) == counted
        assert last_of(driver.read("out")) == out
        assert POISON not in stored(driver)
        assert dropped(driver) == len(poison)
        dead = letters(driver)
        assert sorted(dead) == (poison if handler == "dead_letter" else [])
        for key, value, headers in dead.values():
            assert (key[:1], value) == (b"k", POISON.encode())
            assert headers["__streams.errors.exception"] == b"ValueError"


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_with_fail_the_error_names_the_one_record(operator: str, guarantee: str) -> None:
    message = (
        r"node .*in-0 offset 25: ValueError: no poison here \(\S+\.py:\d+\); correct .*continue"
    )
    with (
        TopologyTestDriver(topology(operator), settings("fail", guarantee)) as driver,
        pytest.raises(RecordFailed, match=message.replace("continue", "processing.exception")),
    ):
        driver.pipe_all("in", good_and_bad([25, 30]))

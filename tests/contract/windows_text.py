"""Windows and sessions of tests as short texts: what is piped in, and what a store shows."""

from typing import Any

from statestore.testing.driver import TopologyTestDriver


def pipe(driver: TopologyTestDriver, text: str) -> None:
    """`a1 b12`: a record of key a at 1, one of b at 12; one commit."""
    driver.pipe_all("in", [(word[0], 0, int(word[1:])) for word in text.split()])


def shown(pairs: Any) -> list[str]:
    """`a@0-10=2`: key, start, end and value of each window, in their order; closes the scan."""
    with pairs as scan:
        return [f"{of.key}@{of.start_ms}-{of.end_ms}={value}" for of, value in scan]

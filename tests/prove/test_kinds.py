"""What must come of each kind of operator, said by plain code, is what the library does."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from statestore.testing import TopologyTestDriver
from tests.prove import kinds
from tests.prove.kinds import KINDS, OTHERS, PARTITIONS, PREFIX, START_MS, key_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("produced", [2, 331])
def test_a_pipeline_puts_out_what_plain_code_says(
    kind: str, produced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX, kind)
    topology = getattr(kinds, kind)()
    read = topology.describe()
    with TopologyTestDriver(topology, partitions=PARTITIONS) as driver:
        if f"{kind}-users" in read:
            for at in range(kinds.KEYS):
                user = key_of(at), f"user of {key_of(at)}", START_MS - 1, at % PARTITIONS
                driver.pipe(f"{kind}-users", *user)
        for number in range(produced):
            told = (key_of(number), number, START_MS + number, number % PARTITIONS)
            driver.pipe(f"{kind}-in", *told)
            if f"{kind}-others" in read and number % OTHERS == 0:
                driver.pipe(f"{kind}-others", *told)
        out = [(record.key, record.value) for record in driver.read(f"{kind}-out")]
    wanted = list(KINDS[kind].out(produced))
    assert produced < 331 or len(wanted) > 10
    if KINDS[kind].ordered:
        assert _by_key(out) == _by_key(wanted)
    assert Counter(map(msgspec.json.encode, out)) == Counter(map(msgspec.json.encode, wanted))


def _by_key(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found

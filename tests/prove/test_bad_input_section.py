"""The section `bad-input`, with little time: it tries both, finds nothing, and both defects."""

from tests.prove import bad_input
from tests.prove.section import Deadline, Verdict


def test_it_catches_what_is_planted_and_nothing_else() -> None:
    result = bad_input.run(31, Deadline(0.0))
    assert result.findings == ()
    assert result.missed == []
    assert min(result.tried["documents"], result.tried["runs"]) >= 1
    assert result.verdict is Verdict.HELD

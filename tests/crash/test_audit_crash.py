"""An audit killed while it keeps its verdict leaves the verdicts before it, or all of them."""

import signal
from pathlib import Path

import pytest

from statestore.faults import VARIABLE, CrashPoint
from statestore.layout.audits import KEPT, AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from tests.builders import DEADLINE_S, child

KEEPING = """
import sys
from pathlib import Path
from statestore.faults import arm_from_environment
from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
arm_from_environment()
record = AuditRecord(application_id="shop", time_ms=1000, verdict=AuditVerdict.WRONG)
Audits(StateLayout(Path(sys.argv[1]), "shop")).keep(record)
"""


@pytest.mark.parametrize(
    ("point", "last"),
    [(CrashPoint.AUDIT_JUDGED, AuditVerdict.RIGHT), (CrashPoint.AUDIT_KEPT, AuditVerdict.WRONG)],
)
def test_a_kill_leaves_whole_records_and_the_next_audit_clears_up(
    tmp_path: Path, point: CrashPoint, last: AuditVerdict
) -> None:
    layout = StateLayout(tmp_path, "shop")
    audits = Audits(layout)
    for time_ms in range(KEPT):
        audits.keep(AuditRecord(application_id="shop", time_ms=time_ms, verdict=AuditVerdict.RIGHT))
    with child(KEEPING, tmp_path, env={VARIABLE: point}) as killed:
        _, err = killed.communicate(timeout=DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL, err
    found = audits.last()
    assert found is not None
    assert found.verdict is last
    audits.keep(AuditRecord(application_id="shop", time_ms=2000, verdict=AuditVerdict.RIGHT))
    files = sorted((layout.application_dir / "audits").iterdir())
    assert len([path for path in files if path.suffix == ".json"]) == KEPT


def test_a_record_nobody_can_read_is_passed_over(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path, "shop")
    audits = Audits(layout)
    assert audits.last() is None
    kept = audits.keep(AuditRecord(application_id="shop", time_ms=5, verdict=AuditVerdict.RIGHT))
    kept.with_name("9.json").write_text("{")
    found = audits.last()
    assert found is not None
    assert found.time_ms == 5

"""StateStoreCommandOperator: what it makes of a command that says nothing."""

from pathlib import Path
from typing import cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from statestore import errors
from statestore.airflow import StateStoreCommandOperator
from statestore.airflow.retries import JobFailed, RetryLater

pytestmark = pytest.mark.airflow


def test_a_command_that_says_nothing_but_a_code_is_retried_by_its_code(tmp_path: Path) -> None:
    kinds: list[type[errors.StateStoreError]] = [errors.StateStoreError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    raised = {
        errors.Action.FAIL: AirflowFailException,
        errors.Action.RETRY: JobFailed,
        errors.Action.RETRY_LATER: RetryLater,
    }
    assert len({kind.exit_code for kind in kinds}) > 15
    for kind in kinds:
        (tmp_path / "job.py").write_text(f"raise SystemExit({kind.exit_code})", encoding="utf-8")
        task = StateStoreCommandOperator(
            task_id="call",
            command="status",
            application_id="flights",
            job=str(tmp_path / "job.py"),
        )
        with pytest.raises(AirflowException, match=f"exit code {kind.exit_code}") as caught:
            task.execute(cast("Context", {}))
        assert caught.type is raised[kind.action], kind


@pytest.mark.parametrize("stream", [1, 2])
def test_a_command_may_say_bytes_that_are_no_text(stream: int, tmp_path: Path) -> None:
    said = f"import os; os.write({stream}, b'\\xff\\n'); print('{{\"a\": 1}}')"
    (tmp_path / "job.py").write_text(said, encoding="utf-8")
    task = StateStoreCommandOperator(
        task_id="call", command="status", application_id="flights", job=str(tmp_path / "job.py")
    )
    assert task.execute(cast("Context", {})) == {"a": 1}

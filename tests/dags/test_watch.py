"""The DAG watch: what it allows, what it finds wrong, and whom it tells."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from statestore.airflow.retries import JobFailed
from statestore.airflow.watching import LIMITS, StatusOperator, found, limits_of
from statestore.commands.status import status_command
from statestore.layout import owners
from statestore.layout.audits import AuditRecord, Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from tests.builders import ManualClock
from tests.dags.project_rig import ROOT, loaded, params_of

pytestmark = pytest.mark.airflow

# Of two applications one may be behind; nobody says anything of the third.
THREE = """
[applications.strict.alerts]
records_behind = 0
seconds_behind = 1.5
not_run_for = "2h"
audit_age = "3d"
[applications.lenient.alerts]
records_behind = 10_000_000
[applications.silent]
"""
AUDIT = {"verdict": "right", "age_seconds": 60.0, "link": "file:///page"}
WELL: dict[str, Any] = {
    "application_id": "strict",
    "state": "stopped",
    "broker": None,
    "lag_records": 0,
    "lag_seconds": 0.0,
    "last_start_age_seconds": 60.0,
    "audit": AUDIT,
}
STRICT = {"records_behind": 0, "seconds_behind": 1.5, "not_run_for": "2h", "audit_age": "3d"}


@pytest.fixture
def dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DAG:
    return loaded(tmp_path, THREE, monkeypatch).dags["watch"]


@pytest.mark.parametrize(
    ("changed", "findings"),
    [
        ({}, []),
        ({"lag_records": 1}, ["1 records behind, 0 are allowed"]),
        ({"lag_seconds": 1.5}, []),
        ({"lag_seconds": 2.0}, ["2.0 s of event time behind, 1.5 are allowed"]),
        (
            {"lag_records": None, "lag_seconds": None, "state": "new"},
            [
                "how many records it is behind is not known: it never ran",
                "how many s of event time it is behind is not known: it never ran",
            ],
        ),
        (
            {"lag_records": None, "problems": ["cannot read f"]},
            ["how many records it is behind is not known: cannot read f"],
        ),
        ({"last_start_age_seconds": 7200.0}, []),
        (
            {"last_start_age_seconds": 7300.0},
            ["stopped: last started 2 h ago, 2h are allowed"],
        ),
        ({"last_start_age_seconds": 7300.0, "state": "running"}, []),
        (
            {"last_start_age_seconds": 9e6, "state": "crashed"},
            ["crashed: last started 104 d ago, 2h are allowed"],
        ),
        ({"last_start_age_seconds": None, "state": "new"}, ["it never ran"]),
        ({"audit": None}, ["it was never audited"]),
        (
            {"audit": {**AUDIT, "age_seconds": 300_000.0}},
            ["last audited 3 d ago, 3d are allowed"],
        ),
        (
            {"audit": {**AUDIT, "verdict": "wrong"}},
            ["the audit of 60 s ago found wrong stores: file:///page"],
        ),
        (
            {"audit": {**AUDIT, "verdict": "nothing checked"}},
            ["the audit of 60 s ago is no pass: nothing checked"],
        ),
        (
            {"lag_records": 2_000_000, "audit": None, "state": "crashed"},
            ["2,000,000 records behind, 0 are allowed", "it was never audited"],
        ),
    ],
    ids=str,
)
def test_all_that_is_wrong_is_told_and_nothing_else(
    changed: dict[str, Any], findings: list[str]
) -> None:
    assert list(found({**WELL, **changed}, STRICT)) == findings


def test_without_limits_only_wrong_stores_are_wrong() -> None:
    bad = {**WELL, "lag_records": 9, "lag_seconds": None, "last_start_age_seconds": None}
    assert list(found({**bad, "audit": None}, {})) == []
    wrong = {**bad, "audit": {**AUDIT, "verdict": "wrong"}}
    assert len(list(found(wrong, {}))) == 1


def test_every_application_is_looked_at_by_what_its_file_allows(dag: DAG) -> None:
    chosen: Any = dag.get_task("chosen")
    everyone = ["strict", "lenient", "silent"]
    assert chosen.python_callable(params=params_of(dag)) == everyone
    assert str(dag.schedule) == "*/15 * * * *"
    look: Any = dag.get_task("look")
    assert look.partial_kwargs["limits"] == {
        "strict": STRICT,
        "lenient": {"records_behind": 10_000_000},
        "silent": {},
    }
    DagSerialization.to_dict(dag)


@pytest.mark.parametrize(
    "conf",
    [
        {"applications": []},
        {"applications": ["other"]},
        {"records_behind": -1},
        {"records_behind": "many"},
        {"not_run_for": "soon"},
        {"not_run_for": "2h\n"},
        {"audit_age": 7},
        {"audit_age": "0d"},
    ],
    ids=str,
)
def test_the_form_refuses_what_no_limit_is(dag: DAG, conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dag, **conf)
    assert set(LIMITS) < set(params_of(dag))


@pytest.mark.parametrize(
    "wrong",
    [{"records": 1}, {"records_behind": "1"}, {"records_behind": True}, {"audit_age": 7}],
    ids=str,
)
def test_a_wrong_limit_in_the_file_is_named_and_stops_no_other_dag(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"\[applications\.a\.alerts\]") as caught:
        limits_of(wrong, "a")
    ((name, value),) = wrong.items()
    text = f"[applications.a.alerts]\n{name} = {json.dumps(value)}\n"
    config = tmp_path / "statestore.toml"
    config.write_text(text, encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    bag = DagBag(str(ROOT / "dags"))
    (error,) = bag.import_errors.values()
    assert str(caught.value) in error
    assert "a__micro_batches" in bag.dags


# On the command as it is, in folders as they are.


class TaskInstance:
    """The part of Airflow's task instance an operator sees here."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


def look(limits: dict[str, Any], instance: TaskInstance, **params: object) -> dict[str, Any]:
    task = StatusOperator(task_id="look", application_id="shop", limits={"shop": limits})
    return task.execute(cast("Context", {"ti": instance, "params": params}))


def test_what_status_says_is_judged_by_file_and_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text(
        '[applications.shop]\nstate_dir = "state"\n[applications.shop.alerts]\n', encoding="utf-8"
    )
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    layout = StateLayout(tmp_path / "state", "shop")
    owners.claim(layout.application_dir, what="", wait_ms=0, clock=ManualClock(5_000)).release()
    record = AuditRecord(application_id="shop", time_ms=9_000, verdict=AuditVerdict.RIGHT)
    Audits(layout).keep(record)
    instance = TaskInstance()
    assert look({}, instance)["state"] == "stopped"
    assert instance.pushed["findings"] == []
    with pytest.raises(AirflowFailException, match=r"last started \d+ d ago, 2h .*; last audited"):
        look({"not_run_for": "2h", "audit_age": "1d"}, instance)
    assert len(instance.pushed["findings"]) == 2
    years = "90000d"
    look({"not_run_for": "2h", "audit_age": "1d"}, instance, not_run_for=years, audit_age=years)
    with pytest.raises(JobFailed, match=r"its lag is not known: no bootstrap\.servers"):
        look({"records_behind": 5}, instance)


def test_the_command_takes_what_the_operator_gives() -> None:
    names = {name for parameter in status_command.params for name in parameter.opts}
    assert {"--application-id", "--config", "--json"} <= names


def test_whom_to_tell_is_told_by_every_task_of_every_dag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_alerts.py").write_text("def tell(context):\n    pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = '[alerts]\non_failure = "shop_alerts:tell"\n' + THREE
    for dag in loaded(tmp_path, text, monkeypatch).dags.values():
        DagSerialization.to_dict(dag)
        for task in dag.tasks:
            told: Any = task.on_failure_callback
            assert [one.__name__ for one in told] == ["tell"], task.task_id


@pytest.mark.parametrize("named", ["shop_alerts", "no_such_module:tell", "json:nothing", "a:b:c"])
def test_nobody_to_tell_is_named_with_the_way_out(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "statestore.toml"
    config.write_text(f'[alerts]\non_failure = "{named}"\n[applications.a]\n', encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    errors = DagBag(str(ROOT / "dags")).import_errors.values()
    assert errors
    assert all(f"on_failure = '{named}' of [alerts]" in error for error in errors)

"""The DAG consistency_check: its shape and its form; red and green in Airflow, on a real broker."""

import html
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.exceptions import ParamValidationError

from statestore.layout.audits import Audits, AuditVerdict
from statestore.layout.folders import StateLayout
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import PIPELINE, Audited, audited, missing_key
from tests.dags.project_rig import ROOT, DagRun, Project, loaded, params_of

pytestmark = pytest.mark.airflow


@pytest.fixture(scope="module")
def dag() -> DAG:
    return DagBag(str(ROOT / "dags")).dags["consistency_check"]


def test_an_audit_follows_the_choice_and_its_report_is_published_whatever_it_says(dag: DAG) -> None:
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "chosen": {"audit"},
        "audit": {"publish"},
        "publish": set(),
    }
    publish: Any = dag.get_task("publish")
    assert publish.is_teardown
    assert not publish.on_failure_fail_dagrun
    assert dag.max_active_runs == 1
    assert dag.tags
    assert dag.doc_md


def audited_by(dag: DAG, **conf: object) -> list[str]:
    """The applications a run triggered with `conf` audits, one mapped task each."""
    chosen: Any = dag.get_task("chosen")
    found: list[str] = chosen.python_callable(params=params_of(dag, **conf))
    return found


def test_the_daily_run_audits_every_application_and_the_form_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"shop-{number}" for number in range(40)]
    text = "".join(f"[applications.{name}]\n" for name in names)
    dag = loaded(tmp_path, text, monkeypatch).dags["consistency_check"]
    assert str(dag.schedule) == "@daily"
    assert audited_by(dag) == names
    assert audited_by(dag, applications=["shop-7", "shop-39"]) == ["shop-7", "shop-39"]
    assert audited_by(dag, applications=names) == names


@pytest.mark.parametrize(
    "conf",
    [
        {"applications": ["nobody's"]},
        {"applications": []},
        {"applications": None},
        {"applications": "flights"},
        {"stores": ["../etc"]},
        {"stores": "counts"},
    ],
    ids=str,
)
def test_the_form_refuses_what_the_job_would(dag: DAG, conf: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dag, **conf)


# In Airflow, on a real broker and Spark.


def checked(folder: Path, one: Audited, **conf: object) -> DagRun:
    """A run of the DAG in a project of its own."""
    folder.mkdir()
    applications = f"""[applications.checked]
pipeline = "{PIPELINE}"
bootstrap_servers = "{one.app.kafka.bootstrap_servers}"
state_dir = "{one.app.state_dir}"
"""
    return Project.copied(folder, applications).run("consistency_check", **conf)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_run_is_green_on_sound_stores_and_red_with_the_key_on_others(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    one = audited(kafka, "checked", tmp_path / "state")
    layout = StateLayout(one.app.state_dir, one.app.name)
    green = checked(tmp_path / "green", one)
    assert green.code == 0, green.log[-6000:]
    last = Audits(layout).last()
    assert last is not None
    assert last.passed
    (shown,) = green.xcoms["publish", "reports"].values()
    assert shown.startswith("/statestore/reports/consistency_check/manual__")
    assert shown.endswith("/audit/0")
    assert shown == green.xcoms["audit", "_link_report"]
    for address in (last.link, last.data_docs):
        assert address is not None
        assert Path(unquote(urlparse(address).path)).is_file()
    key, _ = missing_key(one)
    red = checked(tmp_path / "red", one, applications=["checked"], stores=["counts"])
    assert red.code == 12, red.log[-6000:]
    assert "no key missing: store 'counts' of task 1_1: " in red.log
    assert key in red.log
    assert "not retried" in red.log
    (told,) = red.xcoms["publish", "return_value"]
    assert told["verdict"] == "wrong"
    assert [store["store"] for store in told["stores"]] == ["counts"]
    last = Audits(layout).last()
    assert last is not None
    assert last.verdict is AuditVerdict.WRONG
    assert red.xcoms["publish", "reports"] == {"checked": red.xcoms["audit", "_link_report"]}
    page = red.xcoms["audit", "report"]
    assert page.startswith("<!doctype html>")
    assert key in html.unescape(page)

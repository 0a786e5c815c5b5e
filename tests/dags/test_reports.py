"""Reports of tasks in a real Airflow: who sees them, and that what is in them does nothing."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from tests.builders import DEADLINE_S
from tests.dags.airflow_rig import Api, airflow_up
from tests.dags.project_rig import Project

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(900)]

APPLICATIONS = "[applications.one]\n[applications.two]\n[applications.none]\n"
SCRIPT = "<script>document.title = 'taken over'</script>"

DAG_FILE = """\
from statestore.airflow import consistency_check

dag = consistency_check(job="jobs/audit.py")
"""

# In place of the audit: the page of `one` is hostile, `two` is wrong, `none` has no page.
JOB = f"""\
import json, sys
from pathlib import Path
def given(flag):
    return sys.argv[sys.argv.index(flag) + 1]
name = given("--application-id")
page = Path(__file__).with_name("page of " + name + ".html")
page.write_text("<!doctype html><p>audit of " + name + {SCRIPT!r})
error = dict(message="a key is gone", exit_code=12, action="fail") | {{"class": "AuditFailed"}}
told = dict(
    application_id=name, verdict="wrong" if name == "two" else "right",
    link=None if name == "none" else page.as_uri(),
    data_docs="file:///state dir/" + name + "/audits/1700/index.html",
    error=error if name == "two" else None,
)
Path(given("--summary-file")).write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    project = Project.copied(tmp_path_factory.mktemp("project"), APPLICATIONS)
    (project.folder / "jobs" / "audit.py").write_text(JOB, encoding="utf-8")
    (project.folder / "dags" / "consistency_check.py").write_text(DAG_FILE, encoding="utf-8")
    users = "admin:admin,reader:viewer,outsider:"
    variables = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": users,
        "STATESTORE_SPARK_UI": "http://spark.example:8081",
        "STATESTORE_DATA_DOCS": "https://docs.example/state/",
    }
    with airflow_up(project, **variables) as api:
        api.switch_on("consistency_check")
        yield api


def test_a_report_is_a_button_of_its_task_and_for_those_who_are_logged_in(airflow: Api) -> None:
    run = airflow.ended("consistency_check")
    tasks = airflow.tasks(run)
    states = [tasks["audit", index]["state"] for index in range(3)]
    assert (run["state"], states) == ("failed", ["success", "failed", "success"])
    names = [tasks["audit", index]["rendered_map_index"] for index in range(3)]
    assert names == ["one", "two", "none"]
    buttons = [airflow.links(run, "audit", index) for index in range(3)]
    assert {button["Spark UI"] for button in buttons} == {"http://spark.example:8081"}
    docs = "https://docs.example/state/two/audits/1700/index.html"
    assert buttons[1]["Data Docs"] == docs
    assert buttons[2]["Report"] is None

    for index, name in ((0, "one"), (1, "two")):
        address = buttons[index]["Report"]
        for user in ("admin", "reader"):
            with airflow.as_user(user) as client:
                page = client.get(address)
            assert (page.status_code, page.text) == (
                200,
                f"<!doctype html><p>audit of {name}{SCRIPT}",
            )
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert policy.endswith("sandbox")
            assert page.headers["x-content-type-options"] == "nosniff"

    with airflow.as_user("outsider") as client:
        assert client.get(buttons[0]["Report"]).status_code == 403
    with httpx.Client(base_url=airflow.url, trust_env=False, timeout=DEADLINE_S) as stranger:
        address = buttons[0]["Report"]
        assert stranger.get(address).status_code == 401
        assert "audit of" not in stranger.get(address).text
        wrong = {"Authorization": "Bearer nonsense"}
        assert stranger.get(address, headers=wrong).status_code in {401, 403}
        sent = stranger.get(address, headers={"Accept": "text/html"})
        assert sent.status_code == 303
        assert urlsplit(sent.headers["location"]).path == "/api/v2/auth/login"
        (back,) = parse_qs(urlsplit(sent.headers["location"]).query)["next"]
        assert urlsplit(back).path == unquote(address)
        assert stranger.get(sent.headers["location"]).is_redirect, "the login takes it"

    with airflow.as_user("reader") as client:
        nothing = client.get(address.removesuffix("/0") + "/2")
        assert nothing.status_code == 404
        assert "left no report" in nothing.json()["detail"]
        assert client.get(address.removesuffix("/0") + "/x").status_code == 422
        for other in ("nobodys_dag", "..%2f..", "%00"):
            found = client.get(address.replace("consistency_check", other))
            assert found.is_client_error, other


@pytest.mark.parametrize(
    ("dag_id", "conf"),
    [
        ("consistency_check", {"applications": []}),
        ("consistency_check", {"applications": ["three"]}),
        ("consistency_check", {"applications": None}),
        ("checkpoint_export", {}),
        ("checkpoint_export", {"applications": []}),
        ("state_relocation", {}),
        ("crash_drill", {}),
        ("crash_drill", {"application": "one", "moments": 1000}),
    ],
    ids=str,
)
def test_airflow_refuses_a_run_whose_params_the_form_would(
    airflow: Api, dag_id: str, conf: dict[str, object]
) -> None:
    answer = airflow.trigger(dag_id, **conf)
    assert (answer.status_code, "Invalid input" in answer.text) == (400, True), answer.text


def test_one_application_chosen_is_one_audit(airflow: Api) -> None:
    run = airflow.ended("consistency_check", applications=["one"])
    tasks = airflow.tasks(run)
    assert {key: one["state"] for key, one in tasks.items()} == {
        ("chosen", -1): "success",
        ("audit", 0): "success",
        ("publish", -1): "success",
    }


def test_the_page_of_a_run_that_is_gone_is_gone(airflow: Api, tmp_path: Path) -> None:
    run = airflow.ended("consistency_check", applications=["one"])
    address = airflow.links(run, "audit", 0)["Report"]
    assert airflow.client.get(address).is_success
    path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}"
    airflow.client.delete(path).raise_for_status()
    assert airflow.client.get(address).status_code == 404

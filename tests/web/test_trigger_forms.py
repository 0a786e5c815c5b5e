"""Airflow as `make up` starts it, in a browser: DAGs are triggered from their forms.

Screenshots go to .scratch/screenshots. Needs Debian's chromium and chromium-driver, which root gets
by apt.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from tests.dags.airflow_rig import RUN_S, Api, airflow_up, eventually
from tests.dags.project_rig import ROOT, Project

pytestmark = [pytest.mark.slow, pytest.mark.airflow, pytest.mark.kafka]

SHOTS = ROOT / ".scratch" / "screenshots"

DAG_FILES = {
    "micro_batches": """\
from statestore.airflow import load_applications, micro_batches

dags = [micro_batches(one, job="jobs/process.py") for one in load_applications()]
""",
    "consistency_check": """\
from statestore.airflow import consistency_check

dag = consistency_check(job="jobs/audit.py")
""",
}

# In place of the audit: its page would take over the browser if it could.
AUDIT = """\
import json, sys
from pathlib import Path
page = Path(__file__).with_name("page.html")
page.write_text(
    "<!doctype html><title>An audit</title><p>all is right"
    "<script>document.title = 'taken over'</script><img src=x onerror=\\"document.title='img'\\">"
)
told = dict(application_id="flights", verdict="right", link=page.as_uri(), error=None)
Path(sys.argv[sys.argv.index("--summary-file") + 1]).write_text(json.dumps(told))
"""

# In place of the job that processes: says what it was called with, and that all went well.
JOB = """\
import json, sys
from pathlib import Path
Path(__file__).with_name("called.json").write_text(json.dumps(sys.argv[1:]))
summary = {"application_id": "flights", "records_in": 7, "error": None}
Path(sys.argv[sys.argv.index("--summary-file") + 1]).write_text(json.dumps(summary))
"""


class Airflow:
    """A running Airflow, its API and a browser that is logged in."""

    def __init__(self, api: Api, browser: WebDriver) -> None:
        self.browser = browser
        self.rest = api
        self.api = api.client
        self._url = api.url
        browser.get(self._url)
        self.log_in()

    def log_in(self) -> None:
        """By the form Airflow shows now."""
        eventually(lambda: self.browser.find_elements(By.NAME, "username"))
        for name, text in (("username", "admin"), ("password", self.rest.passwords["admin"])):
            self.browser.find_element(By.NAME, name).send_keys(text)
        self._button("Sign in", self.browser).click()
        eventually(lambda: "/auth/login" not in self.browser.current_url)

    def open_details(self, run: dict[str, Any], task: str) -> None:
        """The page of a task instance that has its buttons."""
        path = f"/dags/{run['dag_id']}/runs/{quote(run['dag_run_id'])}/tasks/{task}/details"
        self.browser.get(f"{self._url}{path}")

    def form(self, dag_id: str) -> WebElement:
        """The trigger form of a DAG, open."""
        eventually(lambda: self.api.get(f"/api/v2/dags/{dag_id}").is_success)
        self.browser.get(f"{self._url}/dags/{dag_id}")
        self._button("Trigger", self.browser).click()
        form: WebElement = eventually(
            lambda: [
                found
                for found in self.browser.find_elements(By.CSS_SELECTOR, "[role=dialog]")
                if "Run Parameters" in found.text and found.find_elements(By.NAME, "dagRunId")
            ]
        )[0]
        return form

    def fill(self, form: WebElement, **fields: str) -> None:
        """Type into fields by the name of their Param."""
        for name, text in fields.items():
            field = form.find_element(By.NAME, f"element_{name}")
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(text, Keys.TAB)

    def trigger(self, form: WebElement) -> None:
        """Press the form's own button."""
        self._button("Trigger", form).click()

    def end_of_run(self, dag_id: str) -> dict[str, Any]:
        """The one run somebody triggered, once it has ended; a schedule may make others."""
        runs = f"/api/v2/dags/{dag_id}/dagRuns"

        def ended() -> Any:
            found = self.api.get(runs).json()["dag_runs"]
            mine = [run for run in found if run["run_type"] == "manual"]
            return [run for run in mine if run["state"] in {"success", "failed"}]

        (run,) = eventually(ended, RUN_S)
        found: dict[str, Any] = run
        return found

    def shoot(self, name: str) -> None:
        """A screenshot, for people to look at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        assert self.browser.save_screenshot(str(SHOTS / f"{name}.png"))

    def _button(self, text: str, where: WebDriver | WebElement) -> WebElement:
        def found() -> list[WebElement]:
            buttons = where.find_elements(By.TAG_NAME, "button")
            return [button for button in buttons if button.text.strip() == text]

        button: WebElement = eventually(found)[-1]
        return button


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project.copied(tmp_path_factory.mktemp("project"))
    (project.folder / "jobs" / "process.py").write_text(JOB, encoding="utf-8")
    for name, text in DAG_FILES.items():
        (project.folder / "dags" / f"{name}.py").write_text(text, encoding="utf-8")
    return project


@pytest.fixture(scope="module")
def airflow(project: Project, browser: WebDriver) -> Iterator[Airflow]:
    with airflow_up(project, STATESTORE_RETRIES="0") as api:
        yield Airflow(api, browser)


def test_a_run_is_triggered_from_its_form_and_gets_what_was_typed(
    airflow: Airflow, project: Project
) -> None:
    export = "/api/v2/dags/checkpoint_export"
    eventually(lambda: airflow.api.patch(export, json={"is_paused": False}).is_success)
    form = airflow.form("micro_batches")
    # The scheduler knows a new DAG's assets a moment after the DAG.
    eventually(lambda: airflow.api.get("/api/v2/assets").json()["total_entries"])
    airflow.fill(form, until="2013-07-01T06:00Z")
    airflow.shoot("micro_batches-form")
    airflow.trigger(form)
    run = airflow.end_of_run("micro_batches")
    airflow.shoot("micro_batches-run")
    assert run["state"] == "success"
    assert run["conf"]["until"] == "2013-07-01T06:00Z"
    called = json.loads((project.folder / "jobs" / "called.json").read_text(encoding="utf-8"))
    assert called[called.index("--until") + 1] == "2013-07-01T06:00Z"
    # Its success is what exports wait for.
    eventually(
        lambda: [
            run
            for run in airflow.api.get(f"{export}/dagRuns").json()["dag_runs"]
            if run["run_type"] == "asset_triggered"
        ]
    )


def test_a_drill_is_triggered_from_its_form_and_its_verdict_is_green(
    airflow: Airflow, project: Project
) -> None:
    form = airflow.form("crash_drill")
    airflow.fill(form, points="commit.log-done", moments="0", specials="none", seed="7")
    airflow.shoot("crash_drill-form")
    airflow.trigger(form)
    run = airflow.end_of_run("crash_drill")
    assert run["state"] == "success", run
    airflow.open_details(run, "drill")
    (button,) = eventually(lambda: airflow.browser.find_elements(By.LINK_TEXT, "Report"))
    airflow.shoot("crash_drill-run")
    airflow.browser.get(button.get_attribute("href"))
    airflow.shoot("crash_drill-report")
    shown = airflow.browser.find_element(By.TAG_NAME, "body").text
    assert "1 green, 0 red, 0 not drilled" in shown


def test_a_report_runs_nothing_and_is_read_after_a_login(
    airflow: Airflow, project: Project
) -> None:
    job = project.folder / "jobs" / "audit.py"
    job.write_text(AUDIT, encoding="utf-8")
    airflow.rest.switch_on("consistency_check")
    run = airflow.rest.ended("consistency_check")
    assert run["state"] == "success"
    airflow.open_details(run, "audit/mapped/0")
    (button,) = eventually(lambda: airflow.browser.find_elements(By.LINK_TEXT, "Report"))
    airflow.shoot("consistency_check-audit")
    address = button.get_attribute("href")
    airflow.browser.delete_all_cookies()
    airflow.browser.get(address)
    airflow.log_in()
    eventually(lambda: "all is right" in airflow.browser.page_source)
    airflow.shoot("consistency_check-report")
    assert unquote(airflow.browser.current_url) == unquote(address or "")
    assert airflow.browser.title == "An audit"


def test_every_dag_offers_its_form(airflow: Airflow) -> None:
    for file in sorted((ROOT / "dags").glob("*.py")):
        form = airflow.form(file.stem)
        airflow.shoot(f"form-of-{file.stem}")
        assert form.find_elements(By.CSS_SELECTOR, "[name^=element_]"), file.stem

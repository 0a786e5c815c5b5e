"""The page of applications in a browser: by itself, and in Airflow's frame under its login.

Screenshots go to .scratch/screenshots.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from statestore.layout.activity_files import Activities, Unit
from statestore.runtime import SystemClock
from tests.builders import DEADLINE_S
from tests.contract.test_ui_command import ui
from tests.dags.airflow_rig import Api, airflow_up, eventually
from tests.dags.project_rig import ROOT, Project
from tests.ui_rig import branched, misplaced, told_of

pytestmark = [pytest.mark.slow]
SHOTS = ROOT / ".scratch" / "screenshots"
WIDTHS = {"desktop": 1280, "phone": 390}


def shoot(browser: WebDriver, name: str) -> None:
    """A screenshot, for people to look at."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(SHOTS / f"{name}.png"))


def as_on(browser: WebDriver, *, width: int, scheme: str) -> None:
    """Look as on a screen of that width, light or dark."""
    command: Any = browser
    size = {"width": width, "height": 1800, "deviceScaleFactor": 1, "mobile": width < 600}
    command.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    command.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    told_of(folder / "state", "orders")
    branched(folder / "state", "shop")
    (folder / "statestore.toml").write_text(
        "".join(
            f'[applications.{name}]\nstate_dir = "state"\n' for name in ("orders", "shop", "fresh")
        )
    )
    activities = Activities(folder / "state" / "orders", SystemClock())
    with activities.underway("export", Unit.BYTES) as told, ui(folder) as (found, _):
        told.expect(4_200_000_000)

        def moved_on() -> bool:
            told.done(300_000_000)
            return activities.seen()[0].note.done > 0

        eventually(moved_on)
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", WIDTHS)
def test_every_page_fits_its_screen_and_is_light_or_dark(
    browser: WebDriver, address: str, screen: str, scheme: str
) -> None:
    as_on(browser, width=WIDTHS[screen], scheme=scheme)
    paths = {
        "overview": "",
        "application": "applications/orders",
        "branched": "applications/shop",
        "never-ran": "applications/fresh",
        "store": "applications/orders/stores/names?prefix=n0-00",
    }
    for name, path in paths.items():
        browser.get(address + path)
        eventually(lambda: "looking …" not in browser.page_source)
        shoot(browser, f"page-{name}-{screen}-{scheme}")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= WIDTHS[screen], f"{name} is {wide} wide"
        dark = browser.execute_script(
            "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g)"
            ".reduce((sum, part) => sum + Number(part), 0) < 384"
        )
        assert dark is (scheme == "dark")
        log: Any = browser
        assert log.get_log("browser") == [], "the browser refused nothing of it"


def test_the_keyboard_alone_goes_from_the_overview_to_a_row(
    browser: WebDriver, address: str
) -> None:
    as_on(browser, width=1280, scheme="light")
    browser.get(address)

    def follow(text: str) -> None:
        for _ in range(40):
            browser.switch_to.active_element.send_keys(Keys.TAB)
            if browser.switch_to.active_element.text == text:
                outline = browser.switch_to.active_element.value_of_css_property("outline-style")
                assert outline != "none", f"nobody sees that {text} has the focus"
                browser.switch_to.active_element.send_keys(Keys.ENTER)
                return
        raise AssertionError(f"Tab does not reach {text}")

    eventually(lambda: browser.find_elements(By.LINK_TEXT, "orders"))
    follow("orders")
    eventually(lambda: browser.find_elements(By.LINK_TEXT, "names"))
    follow("names")
    eventually(lambda: browser.find_elements(By.ID, "key"))
    while browser.switch_to.active_element.get_attribute("id") != "key":
        browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys("n1-007", Keys.ENTER)
    eventually(lambda: '{"is":7}' in browser.find_element(By.TAG_NAME, "main").text)


def test_the_page_looks_again_by_itself_and_keeps_what_has_the_focus(
    browser: WebDriver, address: str
) -> None:
    as_on(browser, width=1280, scheme="light")
    browser.get(f"{address}applications/orders")
    eventually(lambda: browser.find_elements(By.LINK_TEXT, "names"))
    detail = browser.find_element(By.CSS_SELECTOR, "details summary")
    detail.send_keys(Keys.ENTER)

    def looked_at() -> str:
        return browser.find_element(By.CSS_SELECTOR, ".facts div:last-child dd").text

    first = looked_at()
    eventually(lambda: looked_at() != first)
    assert browser.find_elements(By.CSS_SELECTOR, "details[open]")
    assert browser.switch_to.active_element == detail


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    project = Project.copied(
        tmp_path_factory.mktemp("project"),
        "".join(f'[applications.{name}]\nstate_dir = "state"\n' for name in ("orders", "moved")),
    )
    told_of(project.folder / "state", "orders")
    misplaced(project.folder / "state", "moved")
    users = "admin:admin,reader:viewer,outsider:"
    with airflow_up(project, AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=users) as api:
        yield api


@pytest.mark.airflow
def test_airflow_shows_the_page_to_those_whom_it_lets_see_it(airflow: Api) -> None:
    paths = ("", "applications/orders", "applications/orders/stores/names", "static/style.css")
    with httpx.Client(base_url=airflow.url, trust_env=False, timeout=DEADLINE_S) as stranger:
        for path in paths:
            assert stranger.get(f"/statestore/{path}").status_code == 401, path
        sent = stranger.get("/statestore/", headers={"Accept": "text/html"})
        assert (sent.status_code, "/auth/login" in sent.headers["location"]) == (303, True)
    with airflow.as_user("outsider") as client:
        for path in paths:
            assert client.get(f"/statestore/{path}").status_code == 403, path
    with airflow.as_user("reader") as client:
        eventually(lambda: "Stream tasks" in client.get("/statestore/applications/orders").text)
        rows = client.get("/statestore/applications/orders/stores/names", params={"key": "n1-007"})
        assert "n1-007" in rows.text
        assert 'href="/statestore/applications/orders"' in rows.text
        assert "frame-ancestors 'self'" in rows.headers["content-security-policy"]
        assert client.post("/statestore/").status_code == 405


def log_in(airflow: Api, browser: WebDriver, user: str) -> None:
    """As that user, whoever was logged in before."""
    browser.get(airflow.url)
    browser.delete_all_cookies()
    browser.get(f"{airflow.url}/plugin/statestore")
    eventually(lambda: browser.find_elements(By.NAME, "username"))
    for name, text in (("username", user), ("password", airflow.passwords[user])):
        browser.find_element(By.NAME, name).send_keys(text)
    for button in browser.find_elements(By.TAG_NAME, "button"):
        if button.text.strip() == "Sign in":
            button.click()
            break
    eventually(lambda: "/auth/login" not in browser.current_url)


def approved(airflow: Api, browser: WebDriver, user: str) -> str:
    """Approve the relocation in Airflow's frame as that user; what the page says then."""
    log_in(airflow, browser, user)
    browser.get(f"{airflow.url}/plugin/statestore")
    frame = eventually(lambda: browser.find_elements(By.TAG_NAME, "iframe"))[0]
    browser.switch_to.frame(frame)
    eventually(lambda: browser.find_elements(By.LINK_TEXT, "moved"))[0].click()
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "form.approve summary"))[0].click()
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "form.approve button"))[0].click()

    def said() -> str:
        text = browser.find_element(By.CSS_SELECTOR, "form.approve output").text
        return "" if text == "asking Airflow …" else text

    eventually(said)
    told = said()
    form = browser.find_element(By.CSS_SELECTOR, "form.approve")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", form)
    shoot(browser, f"page-approved-by-{user}")
    browser.switch_to.default_content()
    return told


@pytest.mark.airflow
def test_a_relocation_is_approved_with_the_permissions_of_the_user(
    airflow: Api, browser: WebDriver
) -> None:
    as_on(browser, width=1400, scheme="light")
    runs = "/api/v2/dags/state_relocation/dagRuns"
    eventually(lambda: airflow.client.get("/api/v2/dags/state_relocation/details").is_success)
    assert approved(airflow, browser, "reader") == "Airflow does not let you do this."
    assert airflow.client.get(runs).json()["dag_runs"] == []
    told = approved(airflow, browser, "admin")
    (run,) = airflow.client.get(runs).json()["dag_runs"]
    assert f"Approved: run {run['dag_run_id']} of state_relocation" in told
    assert "The DAG is switched off" in told
    assert (run["conf"]["application"], run["conf"]["approve"]) == ("moved", True)
    assert run["triggering_user_name"] == "admin"


@pytest.mark.airflow
def test_the_page_stands_in_airflows_own_frame(airflow: Api, browser: WebDriver) -> None:
    as_on(browser, width=1400, scheme="light")
    log_in(airflow, browser, "admin")
    browser.get(f"{airflow.url}/plugin/statestore")
    frame = eventually(lambda: browser.find_elements(By.TAG_NAME, "iframe"))[0]
    browser.switch_to.frame(frame)
    eventually(lambda: browser.find_elements(By.LINK_TEXT, "orders"))[0].click()
    eventually(lambda: "Stream tasks" in browser.find_element(By.TAG_NAME, "main").text)
    shoot(browser, "page-in-airflow")
    browser.switch_to.default_content()

"""What the scripts of the page draw in a browser: the topology, the charts, and what is folded.

Screenshots go to .scratch/screenshots.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from statestore.layout.folders import StateLayout
from statestore.tasks.dead_letters import error_headers
from statestore.testing.local_kafka import LocalKafka
from tests.contract.test_ui_command import ui
from tests.dags.airflow_rig import eventually
from tests.ui_rig import HOSTILE, branched, branching
from tests.web.test_page import as_on, shoot

pytestmark = [pytest.mark.slow]
SHOP = "applications/shop"
PHONE_PX = 3000
"""A phone's page is no longer, with 21 stream tasks and seven sub-topologies."""

# Points along each arrow that lie within a box, by a pixel at least.
CROSSINGS = """
const boxes = [...document.querySelectorAll("svg.topology .box")].map((box) => {
  const { left, right, top, bottom } = box.querySelector("rect").getBoundingClientRect();
  return { id: box.dataset.id, left, right, top, bottom };
});
const found = [];
for (const edge of document.querySelectorAll("svg.topology .edge")) {
  const path = edge.querySelector("path");
  const matrix = path.getScreenCTM();
  for (let at = 0; at <= path.getTotalLength(); at += 1) {
    const { x, y } = path.getPointAtLength(at).matrixTransform(matrix);
    for (const box of boxes) {
      if (x > box.left + 1 && x < box.right - 1 && y > box.top + 1 && y < box.bottom - 1) {
        found.push(`${edge.dataset.begin} to ${edge.dataset.end} in ${box.id}`);
      }
    }
  }
}
return [...new Set(found)];
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("drawings")
    branched(folder / "state", "shop")
    (folder / "statestore.toml").write_text('[applications.shop]\nstate_dir = "state"\n')
    with ui(folder) as (found, _):
        yield found


def opened(browser: WebDriver, address: str, *, width: int = 1280) -> WebElement:
    """The application's page; the canvas of its topology."""
    as_on(browser, width=width, scheme="light")
    browser.get(address + SHOP)
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "svg.topology .box"))
    return browser.find_element(By.CSS_SELECTOR, "#graph .canvas")


def boxes(browser: WebDriver) -> list[dict[str, float]]:
    """Where the boxes of the topology are on the screen."""
    found: list[dict[str, float]] = browser.execute_script(
        "return [...document.querySelectorAll('svg.topology .box > rect')]"
        ".map((box) => box.getBoundingClientRect().toJSON())"
    )
    return found


def drawn_scale(browser: WebDriver) -> float:
    """How large the topology is drawn."""
    moved = browser.find_element(By.CSS_SELECTOR, "svg.topology .moved")
    return float((moved.get_attribute("transform") or "").rpartition("scale(")[2].rstrip(")"))


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_a_topology_of_seven_parts_fits_and_no_arrow_crosses_a_box(
    browser: WebDriver, address: str, width: int
) -> None:
    canvas = opened(browser, address, width=width)
    area: dict[str, float] = browser.execute_script(
        "return arguments[0].getBoundingClientRect().toJSON()", canvas
    )
    found = boxes(browser)
    assert len(found) == 7 + 4 + 5 + 4, "sub-topologies, inputs, outputs and topics in between"
    for box in found:
        assert area["left"] <= box["left"] < box["right"] <= area["right"]
        assert area["top"] <= box["top"] < box["bottom"] <= area["bottom"]
    for number, one in enumerate(found):
        for other in found[number + 1 :]:
            beside = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert beside or one["bottom"] <= other["top"] or other["bottom"] <= one["top"]
    assert browser.execute_script(CROSSINGS) == []
    assert 0 < area["width"] <= width


def test_an_arrow_through_a_box_would_be_seen(browser: WebDriver, address: str) -> None:
    opened(browser, address)
    browser.execute_script(
        "for (const path of document.querySelectorAll('svg.topology .edge path')) {"
        "  path.setAttribute('d', 'M0,0 L2000,2000');"
        "}"
    )
    assert browser.execute_script(CROSSINGS) != []


def test_the_topology_zooms_by_buttons_keys_and_wheel_and_moves(
    browser: WebDriver, address: str
) -> None:
    canvas = opened(browser, address)
    whole = drawn_scale(browser)

    def press(name: str) -> None:
        browser.find_element(By.CSS_SELECTOR, f'[data-zoom="{name}"]').click()

    press("in")
    assert drawn_scale(browser) == pytest.approx(whole * 1.25)
    press("out")
    press("out")
    assert drawn_scale(browser) == pytest.approx(whole / 1.25)
    press("fit")
    assert drawn_scale(browser) == pytest.approx(whole)

    before = browser.execute_script("return scrollY")
    middle = ActionChains(browser).move_to_element(canvas)
    wheel = browser.execute_script
    turned = (
        "arguments[0].dispatchEvent(new WheelEvent('wheel', "
        "{deltaY: -200, clientX: 400, clientY: 400, bubbles: true, cancelable: true}))"
    )
    wheel(f"return {turned}", canvas)
    assert drawn_scale(browser) == pytest.approx(whole), "it scrolls the page until it is chosen"
    canvas.send_keys("+")
    assert drawn_scale(browser) == pytest.approx(whole * 1.25)
    wheel(turned, canvas)
    assert drawn_scale(browser) > whole * 1.25
    canvas.send_keys("0")
    assert drawn_scale(browser) == pytest.approx(whole)

    left = boxes(browser)[0]["left"]
    canvas.send_keys(Keys.ARROW_LEFT)
    assert boxes(browser)[0]["left"] == pytest.approx(left + 60)
    canvas.send_keys("0")
    middle.click_and_hold().move_by_offset(40, 0).move_by_offset(40, 0).release().perform()
    assert boxes(browser)[0]["left"] == pytest.approx(left + 80, abs=2)
    assert browser.current_url.endswith(SHOP), "who drags a box does not follow its link"
    assert browser.execute_script("return scrollY") >= before


def legend(browser: WebDriver, chart: str) -> list[str]:
    """The values of a chart's legend: the time first."""
    found = browser.find_elements(By.CSS_SELECTOR, f"#chart-{chart} .u-legend .u-value")
    return [value.text for value in found]


def test_charts_tell_the_value_under_the_pointer_at_one_time(
    browser: WebDriver, address: str
) -> None:
    opened(browser, address)
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "#chart-rate .u-over"))
    assert not legend(browser, "rate")[0]
    over = browser.find_element(By.CSS_SELECTOR, "#chart-rate .u-over")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
    ActionChains(browser).move_to_element_with_offset(over, 60, 0).perform()
    eventually(lambda: legend(browser, "rate")[1].endswith("a second"))
    at, rate = legend(browser, "rate")
    assert len(at) == len("06:10:00")
    assert 210 <= float(rate.split()[0]) <= 249, "21 tasks with 600 to 710 records a minute"
    assert legend(browser, "lag")[0] == at, "all charts show the same time"
    assert legend(browser, "lag")[1].endswith(" behind")
    commit, process, poll, restore = map(float, legend(browser, "phases")[1:])
    assert (commit, poll, restore) == pytest.approx((1.4, 7.0, 0.0), abs=0.01)
    assert 5.2 <= process <= 6.7
    shoot(browser, "page-chart-hover")


def test_a_chosen_span_changes_the_axis_and_stays_while_the_page_looks_again(
    browser: WebDriver, address: str
) -> None:
    opened(browser, address)

    def times() -> list[float]:
        text = browser.find_element(By.ID, "work").get_attribute("data-charts")
        found: list[float] = json.loads(text or "{}")["times"]
        return found

    def labels() -> str:
        """The canvas of the chart, in which the axis is."""
        found: str = browser.execute_script(
            "return document.querySelector('#chart-rate canvas').toDataURL()"
        )
        return found

    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "#chart-rate .u-over"))
    before, picture = times(), labels()
    assert before[-1] - before[0] == pytest.approx(6 * 3600, rel=0.02)
    browser.find_element(By.LINK_TEXT, "15 minutes").click()
    eventually(lambda: len(times()) == 15)
    eventually(lambda: labels() != picture)
    assert times()[-1] - times()[0] == pytest.approx(14 * 60)
    current = browser.find_element(By.CSS_SELECTOR, ".spans [aria-current]")
    assert current.text == "15 minutes"
    assert "span=15m" in browser.current_url
    first = times()
    eventually(lambda: times()[0] != first[0], 60)
    assert len(times()) == 15, "it is the span that was chosen"


def test_a_phone_shows_all_of_it_folded(browser: WebDriver, address: str) -> None:
    opened(browser, address, width=390)
    eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "#chart-phases .u-over"))
    assert browser.find_elements(By.CSS_SELECTOR, "details.fold[open]") == []
    height = browser.execute_script("return document.documentElement.scrollHeight")
    assert height <= PHONE_PX
    tasks = browser.find_element(By.CSS_SELECTOR, "#tasks > summary")
    assert "21 new" in tasks.text
    tasks.send_keys(Keys.ENTER)
    eventually(lambda: browser.find_element(By.ID, "tasks-list").is_displayed())
    opened(browser, address, width=1280)
    assert browser.find_element(By.ID, "tasks-list").is_displayed(), "a wide screen shows them"


@pytest.mark.kafka
def test_hostile_dead_letters_are_text_in_the_browser(
    browser: WebDriver, kafka: LocalKafka, tmp_path: Any
) -> None:
    script = "<script>document.title = 'taken over'</script>"
    layout = StateLayout(tmp_path / "state", "shop")
    layout.application_dir.mkdir(parents=True)
    layout.topology_file.write_text(json.dumps(branching().deployed()))
    for topic in ("orders", "shop-letters"):
        kafka.create_topic(topic, 1)
    (tmp_path / "statestore.toml").write_text(
        "[applications.shop]\n"
        f'state_dir = "state"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        'settings = { "errors.dead.letter.queue.topic.name" = "shop-letters" }\n'
    )
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", value=b'{"product": "tea"}', key=b"k")
    place = {"topic": "orders", "partition": "0", "offset": "0", "node": HOSTILE}
    headers = [("trace", script), *error_headers(ValueError(script), place)]
    producer.produce("shop-letters", value=script.encode(), key=HOSTILE.encode(), headers=headers)
    assert producer.flush(60) == 0
    as_on(browser, width=1280, scheme="light")
    with ui(tmp_path) as (found, _):
        browser.get(found + SHOP)
        eventually(lambda: browser.find_elements(By.LINK_TEXT, "shop-letters"))[0].click()
        eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "table.records td"))
        for summary in browser.find_elements(By.CSS_SELECTOR, "table.records summary"):
            summary.click()
        text = browser.find_element(By.CSS_SELECTOR, "table.records").text
        for told in (script, HOSTILE, "ValueError"):
            assert told in text
        assert browser.find_elements(By.CSS_SELECTOR, "main script, main img") == []
        assert browser.title.startswith("shop-letters")
        shoot(browser, "page-dead-letters")
        browser.find_element(By.LINK_TEXT, "orders, partition 0, offset 0").click()
        eventually(lambda: '{"product": "tea"}' in browser.find_element(By.TAG_NAME, "main").text)
        log: Any = browser
        assert log.get_log("browser") == []

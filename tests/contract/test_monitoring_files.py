"""The dashboard and the alert rules: each metric in them is one that a scrape has."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from statestore.serving.prometheus import metrics_port
from tests.builders import DEADLINE_S
from tests.contract.task_rig import TaskRig
from tests.contract.test_left_out import MINUTE_MS, World, by_key
from tests.contract.test_serve_http import filled, pipeline
from tests.serving_rig import LONG_LEASE, serving

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "monitoring"
METRIC = re.compile(r"\bstatestore_[a-z_]+")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in scrapes of a run, and of servers beside it and after another run."""
    rig = TaskRig(pipeline(), tmp_path_factory.mktemp("state"), settings=LONG_LEASE)
    with metrics_port("shop", "127.0.0.1", 0) as port:
        filled(rig)
        texts = [httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S).text]
        with serving(rig.runtime) as server:
            assert server.client.get("/health").is_success
            texts.append(server.client.get("/metrics").text)
        rig.end()
    world = World(tmp_path_factory.mktemp("of-runs"), by_key())
    world.click("ann", 10 * MINUTE_MS, 1, 2, 3)
    world.run()
    with world.runtime() as runtime, serving(runtime) as server:
        texts.append(server.client.get("/metrics").text)
    names = set()
    for text in texts:
        for family in text_string_to_metric_families(text):
            names |= {family.name} | {sample.name for sample in family.samples}
    return names


@pytest.mark.parametrize("file", ["alerts.yaml", "alerts.test.yaml", "dashboard.json"])
def test_every_metric_is_one_that_is_scraped(scraped: set[str], file: str) -> None:
    named = set(METRIC.findall((FOLDER / file).read_text(encoding="utf-8")))
    assert len(named) > 3
    assert named - {"statestore_"} <= scraped


def test_the_panels_of_the_dashboard_stand_beside_each_other() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        places = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not places & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= places


def test_every_alert_is_planted_once_and_is_silent_once() -> None:
    rules = msgspec.yaml.decode((FOLDER / "alerts.yaml").read_bytes())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = msgspec.yaml.decode((FOLDER / "alerts.test.yaml").read_bytes())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


def test_no_alert_goes_by_an_average_over_the_life_of_a_run() -> None:
    """`rate` and `increase` look at a window; a figure whose name ends so does not."""
    rules = msgspec.yaml.decode((FOLDER / "alerts.yaml").read_bytes())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert [one for one in expressions if re.search(r"_(avg|rate|max)\b", one)] == []


@pytest.mark.slow
def test_promtool_accepts_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None and os.geteuid() == 0 and shutil.which("apt-get"):
        # The package is unpacked here: installed, it would start a server.
        subprocess.run(["apt-get", "-qq", "update"], check=False, capture_output=True)
        for command in ("apt-get -qq download prometheus", "dpkg -x prometheus_*.deb ."):
            subprocess.run(command, shell=True, cwd=tmp_path, check=False, capture_output=True)
        promtool = shutil.which(tmp_path / "usr" / "bin" / "promtool")
    if promtool is None:
        pytest.skip("no promtool: apt-get install prometheus")
    for arguments in (
        ["check", "rules", "alerts.yaml"],
        ["check", "config", "prometheus.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ):
        done = subprocess.run(
            [promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

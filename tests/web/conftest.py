"""A browser without a window: Debian's chromium, which root gets by apt."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.remote_connection import RemoteConnection
from selenium.webdriver.remote.webdriver import WebDriver

PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "chromium", "chromium-driver"]):
            subprocess.run(["apt-get", "-qq", *command], check=False, capture_output=True)
        missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)}: apt-get install chromium chromium-driver")
    chromium, driver = (shutil.which(name) or "" for name in PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    wanted = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server")
    for argument in (*wanted, "--window-size=1400,1600"):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()
    if isinstance(started.command_executor, RemoteConnection):
        started.command_executor.close()  # type: ignore[no-untyped-call]  # library gap

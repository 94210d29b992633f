"""A headless Chromium, one for all tests; each opens pages of its own. It is driven through the
driver that comes with it, so nothing is fetched, and the pages are files."""

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.fail("Chromium and its driver are not installed; `make browser` says how.")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Root, as in a container, has no sandbox; a small /dev/shm is no place for a page.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()

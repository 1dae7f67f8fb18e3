"""The report in a real headless Chromium, from ``file://``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (apt-get install chromium-driver)",
)
AXE = Path(__file__).parents[2] / "imageevalkit/report/page/node_modules/axe-core/axe.min.js"
needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason="needs axe-core (npm ci in imageevalkit/report/page)"
)
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1280,900", "--lang=en-US",
)  # fmt: skip


class Browser:
    """A page in a browser; ``file`` is what :meth:`open` opens."""

    def __init__(self, driver: webdriver.Chrome, file: Path) -> None:
        self.driver = driver
        self.file = file

    def open(self, place: str = "") -> None:
        """Load the page anew at ``place`` (``#/benchmark/wise``), and wait for its heading."""
        self.driver.get("about:blank")
        self.driver.get(self.file.as_uri() + place)
        self.wait(lambda: self.all("h1"))

    def wait(self, condition: Any, seconds: float = 15) -> Any:
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        """Returns the shown text of each element, read at once, because the page may redraw meanwhile.

        A lone surrogate, which no driver accepts, becomes another character.
        """
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText.trim().toWellFormed())"
        return list(self.driver.execute_script(script, css))

    def choose(self, css: str, choice: str) -> None:
        """The option with that text, of the select ``css``."""
        Select(self.one(css)).select_by_visible_text(choice)

    def press(self, *keys: str) -> None:
        """Type ``keys`` wherever the focus is."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self) -> str:
        """The text of what has the focus."""
        return str(self.driver.execute_script("return document.activeElement.innerText"))

    def address(self) -> str:
        """Returns the part of the address after the file's name."""
        return str(self.driver.execute_script("return location.hash"))

    def width(self, pixels: int) -> None:
        """Give the page so many, as a phone's screen has."""
        size = {"width": pixels, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def console(self) -> list[str]:
        """Errors and warnings since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that pages asked for since the last call, but for what is in the browser itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = (e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [url for url in sent if not url.startswith(("data:", "chrome:", "about:"))]

    def faults(self, *rules: str) -> list[str]:
        """Returns the serious and critical findings of axe-core on the page, by these rules or all."""
        self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        # its preload would fetch style sheets, which a page from a file may not
        script = (
            "const [rules, done] = arguments; const only = rules.length ? {runOnly: rules} : {};"
            "axe.run({preload: false, ...only}).then((r) => done(r.violations"
            ".filter((v) => ['serious', 'critical'].includes(v.impact))"
            ".map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 200)} ${v.nodes[0].failureSummary}`)))"
        )
        return list(self.driver.execute_async_script(script, rules))


@contextmanager
def browser(folder: Path, file: Path) -> Iterator[Browser]:
    """A Chromium with its profile in ``folder``, to open ``file``."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield Browser(driver, file)
    finally:
        driver.quit()

"""What a person does with a page: look, hover, click, type; and what the page then says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import shardvar as sv
from shardvar.cli import main

SECONDS = 30
"""No page takes so long; a loaded machine may."""


@dataclass(frozen=True)
class Page:
    """A page that is open."""

    browser: Chrome

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        # In one step: a row that was found may be drawn anew before it is asked.
        return (
            self.browser.execute_script(
                "return document.querySelector(arguments[0]).textContent", selector
            )
            or ""
        )

    def until(self, script: str) -> Any:
        """Wait until an expression is true; what it is then."""
        return WebDriverWait(self.browser, SECONDS, 0.05).until(
            lambda _: self.run(f"return {script}")
        )

    def search(self, text: str) -> None:
        field = self.find("#query")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE, text)
        self.until(f"state.query === {text!r} && table.length === lines.length")

    def keys(self) -> list[str]:
        """The keys that the table holds, in its order."""
        found: list[str] = self.run("return shown.map((item) => item.key)")
        return found

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    def point(self, selector: str, x: float, y: float, click: bool = False) -> None:
        """Move the mouse to a place of an element, as shares of its width and height, and perhaps
        click."""
        target = self.find(selector)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", target)
        size = target.size
        across, down = int((x - 0.5) * size["width"]), int((y - 0.5) * size["height"])
        actions = ActionChains(self.browser).move_to_element_with_offset(target, across, down)
        (actions.click() if click else actions).perform()

    def complaints(self) -> list[str]:
        """What the browser says of errors, refused scripts and styles, and requests."""
        return [each["message"] for each in self.browser.get_log("browser")]

    def colour_at(self, selector: str, x: float, y: float) -> list[int]:
        """Red, green and blue of a canvas at a place, as shares of its width and height."""
        script = f"""const canvas = document.querySelector({selector!r});
            const at = [Math.floor(canvas.width * {x}), Math.floor(canvas.height * {y})];
            return [...canvas.getContext('2d').getImageData(...at, 1, 1).data].slice(0, 3)"""
        found: list[int] = self.run(script)
        return found


def show(
    browser: Chrome, page: Path, width: int = 1300, height: int = 1000, scheme: str = "light"
) -> Page:
    """Open a page in a window of a size and in a colour scheme."""
    device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser")
    browser.get(page.as_uri())
    shown = Page(browser)
    shown.until("document.documentElement.dataset.ready === 'true' && maps[0].boxes.length >= 0")
    shown.run("maps.forEach((map) => map.drawNow())")
    return shown


def view(directory: Path, arrays: dict[str, Any], *words: str, **options: Any) -> Path:
    """Save arrays, and the page of them."""
    sv.save(directory / "model", arrays, **options)
    assert main(["view", str(directory / "model"), *words]) == 0
    return directory / "model.html"


def compared(
    directory: Path,
    one: dict[str, Any],
    two: dict[str, Any],
    *words: str,
    code: int = 1,
    **options: Any,
) -> Path:
    """Save two checkpoints, and the page of their differences."""
    sv.save(directory / "a", one, **options)
    sv.save(directory / "b", two, **options)
    return page_of_diff(directory, *words, code=code)


def page_of_diff(directory: Path, *words: str, a: str = "a", b: str = "b", code: int = 1) -> Path:
    """Write the page of the differences of two checkpoints that are there."""
    paths = [str(directory / name) for name in (a, b, "d.html")]
    assert main(["diff", *paths[:2], "--html", paths[2], *words]) == code
    return directory / "d.html"


TAB, ENTER, ESCAPE, DOWN, RIGHT, END = (
    Keys.TAB,
    Keys.ENTER,
    Keys.ESCAPE,
    Keys.ARROW_DOWN,
    Keys.ARROW_RIGHT,
    Keys.END,
)
LEFT = Keys.ARROW_LEFT

"""Write docs/images/view.png, a page of ``shardvar view``: ``make picture``.

1. Save a small model of 24 equal layers, one of which has a NaN, in several files.
2. Write its page with the statistics of its values, from the folder that holds it, so that no path
   is in the page.
3. Serve it on this machine alone, open it in headless Chromium with a tensor chosen, and take its
   picture.

The model is the same in every run. The picture differs with the fonts of the machine, so no test
compares it.
"""

import shutil
import tempfile
from contextlib import chdir
from functools import partial
from http.server import SimpleHTTPRequestHandler

import numpy as np
from numpy.typing import NDArray

import shardvar as sv
from shardvar.cli.main import main
from spec_tests.helpers import paths
from spec_tests.helpers.range_server import answering

PICTURE = paths.DOCS / "images" / "view.png"

NAME, CHOSEN = "translator", "model/embed/tokens"
NUM_LAYERS, WIDTH, NUM_ROWS = 24, 128, 8000
PIXELS = 1360, 1240


class Silent(SimpleHTTPRequestHandler):
    """A server of the files of a folder that prints nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def model() -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a small model."""
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("q/kernel", "k/kernel", "v/kernel", "o/kernel"), (WIDTH, WIDTH))
    shapes |= {"up/kernel": (WIDTH, 4 * WIDTH), "down/kernel": (4 * WIDTH, WIDTH)}
    tensors = {CHOSEN: rng.normal(0, 0.02, (NUM_ROWS, 2 * WIDTH))}
    tensors["model/head/kernel"] = rng.normal(0, 0.02, (256, 4000))
    for layer in range(NUM_LAYERS):
        for name, shape in shapes.items():
            tensors[f"model/layers/{layer}/{name}"] = rng.normal(0, 0.04 / (1 + layer / 4), shape)
        tensors[f"model/layers/{layer}/norm/scale"] = rng.normal(1, 0.1, WIDTH)
    tensors["model/layers/17/norm/scale"][3] = np.nan
    return {key: value.astype(np.float32) for key, value in tensors.items()}


def photograph(address: str) -> None:
    """Open a page and store its picture."""
    # A package of the group "browser" alone, while doctests import every helper.
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    # Root, as in a container, has no sandbox; a small /dev/shm has no room for a page.
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": PIXELS[0], "height": PIXELS[1], "deviceScaleFactor": 1, "mobile": False},
        )
        browser.get(address)
        browser.save_screenshot(str(PICTURE))
    finally:
        browser.quit()


def write() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        sv.save(NAME, model(), policy=sv.MaxShardSizePolicy(8_000_000))
        main(["view", NAME, "--stats"])
        with answering(partial(Silent, directory=folder)) as address:
            photograph(f"{address}/{NAME}.html#t={CHOSEN}")


if __name__ == "__main__":
    write()

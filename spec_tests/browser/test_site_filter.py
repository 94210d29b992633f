"""The filter of the site's long tables, docs/_static/filter.js, on a page of the site's
structure."""

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from spec_tests.helpers import paths

PAGE = """<!doctype html><meta charset="utf-8"><article><section><h1>Specification</h1>
<table><tbody><tr><td>totals</td></tr></tbody></table>
<section id="one"><h2>RFC 000</h2><table><tbody><tr><td>rule-1 contiguous</td></tr>
<tr><td>rule-2 <b>even</b> <a href="#b-1">broken</a></td></tr>
</tbody></table></section>
<section id="two"><h2>RFC 001</h2><table><tbody><tr><td>policy-1</td></tr></tbody></table></section>
<section id="prose"><h2>About</h2><p>text</p></section>
<section id="breaches"><h2>Breaches</h2><section id="of"><h3>NumPy</h3>
<section id="b-1"><h4>first</h4><p>case</p></section>
<section id="b-2"><h4>second</h4><p>policy</p></section></section></section>
</section></article><script src="filter.js"></script>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a page that is filtered, the same one under a name that is not, and the
    script."""
    script = (paths.DOCS / "_static" / "filter.js").read_text(encoding="utf-8")
    (tmp_path / "filter.js").write_text(script, encoding="utf-8")
    for name in ("rules.html", "format.html"):
        (tmp_path / name).write_text(PAGE, encoding="utf-8")
    return tmp_path


def shown(chromium: Chrome, selector: str) -> list[str]:
    return [
        each.text
        for each in chromium.find_elements(By.CSS_SELECTOR, selector)
        if each.is_displayed()
    ]


def test_rows_with_all_words_stay_and_sections_without_rows_go(
    chromium: Chrome, folder: Path
) -> None:
    chromium.get((folder / "rules.html").as_uri())
    assert len(shown(chromium, "tr")) == 4
    field = chromium.find_element(By.CSS_SELECTOR, "input[type=search]")
    field.send_keys("RULE even")
    assert shown(chromium, "tr") == ["totals", "rule-2 even broken"] and shown(
        chromium, "output"
    ) == ["1 of 3"]
    assert shown(chromium, "h2") == ["RFC 000", "About", "Breaches"]
    field.clear()
    field.send_keys("contiguous")
    assert shown(chromium, "h2") == ["RFC 000", "About"] and shown(chromium, "h3, h4") == []
    field.clear()
    field.send_keys(" ")
    assert len(shown(chromium, "tr")) == 4 and len(shown(chromium, "h2, h3, h4")) == 7


def test_the_breaches_stay_that_a_row_links_to_or_that_have_the_words(
    chromium: Chrome, folder: Path
) -> None:
    chromium.get((folder / "rules.html").as_uri() + "?filter=broken")
    assert shown(chromium, "h4") == ["first"]
    chromium.get((folder / "rules.html").as_uri() + "?filter=policy")
    assert shown(chromium, "h4") == ["second"]


def test_the_words_may_be_in_the_address_and_are_never_markup(
    chromium: Chrome, folder: Path
) -> None:
    chromium.get((folder / "rules.html").as_uri() + "?filter=policy")
    assert shown(chromium, "tr") == ["totals", "policy-1"]
    chromium.get((folder / "rules.html").as_uri() + "?filter=%3Cimg%20src%3Dx%3E")
    assert shown(chromium, "tr") == ["totals"] and shown(chromium, "img") == []


def test_other_pages_have_no_field(chromium: Chrome, folder: Path) -> None:
    chromium.get((folder / "format.html").as_uri())
    assert shown(chromium, "input") == []

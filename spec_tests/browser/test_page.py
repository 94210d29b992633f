"""The page of ``shardvar view`` in a browser: searching, clicking, hovering, keys; damage,
differences, odd names."""

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import Chrome

import shardvar as sv
from shardvar.cli import main
from shardvar.verbs.parameters import reading_key
from spec_tests.browser.looking import (
    DOWN,
    END,
    ENTER,
    ESCAPE,
    RIGHT,
    Page,
    page_of_diff,
    show,
    view,
)
from spec_tests.helpers import paths
from spec_tests.helpers.view_pages import HOSTILE_KEYS

GOLDEN = paths.GOLDEN


def model() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "embedding": rng.standard_normal((1000, 16), dtype=np.float32),
        "dense/kernel": rng.standard_normal((60, 100), dtype=np.float32),
        "dense/bias": np.zeros(1000, np.float32),
        "head/weights": rng.integers(0, 99, (40, 50)),
        "step": np.array(1200, np.int64),
    }


@pytest.fixture
def page(chromium: Chrome, tmp_path: Path) -> Page:
    return show(chromium, view(tmp_path, model(), "--stats", partition=3))


def test_searching_leaves_what_contains_the_text(page: Page) -> None:
    page.search("ker")
    assert page.keys() == ["dense/kernel"] and page.text("#found") == "1 of 5 tensors, 24.0 kB"
    page.search("")
    assert len(page.keys()) == 5
    page.search("nonesuch")
    assert page.keys() == [] and page.find("#table .none").is_displayed()


GLOBS = (
    "dense/*",
    "*e?",
    "[!de]*",
    "[sh]*",
    "ste?",
    "*[a-k]el",
    "[]x]*",
    "[x",
    "*.*",
    "?*[!l]",
    "[z-a]*",
    "*[/]*",
    "[^s]*",
)


def test_a_glob_means_what_it_means_on_the_command_line(page: Page) -> None:
    for glob in GLOBS:
        page.search(glob)
        assert page.keys() == [
            key for key in sorted(model(), key=reading_key) if fnmatchcase(key, glob)
        ], glob


def test_dtypes_are_picked_by_buttons(page: Page) -> None:
    chip = next(each for each in page.all("#chips button") if each.text.startswith("int64"))
    chip.click()
    assert page.keys() == ["step", "head/weights"]
    assert page.find("#chips [aria-pressed=true]").text.startswith("int64")


def odd_values() -> dict[str, np.ndarray]:
    values = {
        "n10": [np.nan, 1],
        "n9": [np.inf, 0],
        "zeros": [0, 0],
        "same": [3, 3],
        "plain": [1, 2],
    }
    return {key: np.array(each, np.float32) for key, each in values.items()}


def test_odd_values_are_named_marked_and_filtered(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, odd_values(), "--stats"))
    told = "1 tensor with NaN, 1 tensor with infinity, 1 tensor of zeros only, 1 constant tensor."
    assert page.text("header .health").endswith(told)
    chips = {each.text.split()[0]: each for each in page.all("#chips button")}
    assert list(chips) == ["float32", "NaN", "infinity", "all", "constant"]
    chips["NaN"].click()
    assert page.keys() == ["n10"] and page.text("#table .mark.flag") == "NaN"


def test_values_that_were_not_read_are_not_called_healthy(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, odd_values()))
    assert page.text("header .health").startswith(
        "? Not checked Values and checksums were not read. "
    )
    told = {
        each.text.splitlines()[0]: each.text.splitlines()[1]
        for each in page.all("header .cards > div")
    }
    assert told == {
        "Parameters": "10",
        "Size": "40 B",
        "Tensors": "5",
        "Dtypes": "float32",
        "Storage": "1 file",
    }


def test_keys_are_in_natural_order_both_ways(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, odd_values()))
    assert page.keys() == ["n9", "n10", "plain", "same", "zeros"]
    page.find("#table .head button").click()
    assert page.keys() == ["zeros", "same", "plain", "n10", "n9"]


def test_a_click_on_an_area_chooses_its_tensor_and_tells_all_of_it(page: Page) -> None:
    page.point(".map", 0.2, 0.5, click=True)
    assert page.text("#detail-title") == "embedding"
    told = page.text("#detail")
    assert (
        "float32 [1000, 16]" in told
        and "64.0 kB" in told
        and "[334:667, 0:16]" in told
        and "elements16,000" in told
    )
    assert page.run("return state.item.key") == "embedding"
    assert page.find(".histogram").is_displayed()
    assert page.text("#said").startswith("embedding; float32 [1000, 16]; 64.0 kB")


def test_areas_are_in_proportion_to_bytes(page: Page) -> None:
    areas = page.run(
        "return maps[0].boxes.filter((b) => b.node.item).map((b) => [b.node.nbytes, b.width * "
        "b.height])"
    )
    large = [(nbytes, area) for nbytes, area in areas if nbytes > 5000]
    rates = [area / nbytes for nbytes, area in large]
    assert len(large) == 3 and max(rates) / min(rates) < 1.4  # headers of folders take a little


def test_hovering_tells_of_areas_files_and_gaps(page: Page) -> None:
    page.point(".map", 0.2, 0.5)
    assert "embedding" in page.text("#tip") and page.find("#tip").is_displayed()
    page.point(".strip", 0.3, 0.5)
    assert "float32 [" in page.text("#tip") and "bytes " in page.text("#tip")
    page.point("h1", 0.5, 0.5)
    assert not page.find("#tip").is_displayed()


def test_folders_open_and_close(page: Page) -> None:
    page.run("actions.open('dense/')")
    assert page.text("#crumbs .here") == "dense/"
    page.run("maps[0].drawNow()")
    assert set(page.run("return maps[0].boxes.map((b) => b.node.label)")) == {"kernel", "bias"}
    page.find("#crumbs button").click()
    assert not page.all("#crumbs .here")


def test_the_keyboard_reaches_everything(page: Page) -> None:
    page.press("/")
    assert page.run("return document.activeElement.id") == "query"
    page.run("document.querySelector('.map .box[tabindex=\"0\"]').focus()")
    first = page.run("return document.activeElement.dataset.name")
    page.press(RIGHT)
    assert page.run("return document.activeElement.dataset.name") != first
    page.press(ENTER)
    assert page.run("return state.item !== null || state.prefix !== ''")
    page.press(ESCAPE)
    page.run("document.querySelector('#table .row[tabindex=\"0\"]').focus()")
    page.press(DOWN, DOWN)
    chosen = page.run("return state.item.key")
    assert chosen == page.run("return document.activeElement.title")
    page.press(END)
    assert page.run("return state.item.key") == "head/weights"


def test_screen_readers_are_told_names_and_places(page: Page) -> None:
    assert page.find(".map").get_attribute("role") == "group" and "Arrow keys" in page.find(
        ".map"
    ).get_attribute("aria-label")
    labels = [each.get_attribute("aria-label") for each in page.all(".map .box")]
    assert any(label.startswith("embedding: float32 [1000, 16]; 64.0 kB") for label in labels)
    assert any(label.startswith("Folder dense/: 2 tensors") for label in labels)
    grid = page.find("#table [role=grid]")
    assert grid.get_attribute("aria-rowcount") == "6"
    unnamed = page.run("""return [...document.querySelectorAll('button, input, [tabindex="0"]')].filter((each) =>
        !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length)).length""")
    assert unnamed == 0


def test_a_column_sorts_both_ways(page: Page) -> None:
    button = next(each for each in page.all("#table .head button") if each.text.startswith("size"))
    button.click()
    assert page.keys()[0] == "embedding"
    next(each for each in page.all("#table .head button") if each.text.startswith("size")).click()
    assert page.keys()[0] == "step"
    assert page.find("#table [aria-sort=ascending]").text.startswith("size")


def test_numbers_of_the_table_are_not_more_exact_than_they_look_nor_cut(
    chromium: Chrome, tmp_path: Path
) -> None:
    """A count of 123,456 is not shown as 123000, and 2**62 not as its first digits; a long dtype is
    whole."""
    arrays = {
        "count": np.array([7, 123_456]),
        "large": np.array([1, 2**62]),
        "w": np.array([0.00012, 1234.56]),
    }
    page = show(chromium, view(tmp_path, arrays | {"z": np.zeros(2, "complex128")}, "--stats"))
    cells = page.run("""const columns = ['min', 'max'].map((name) => COLUMNS.find((column) => column.name === name));
        return lines.map(({ item }) => [item.key, ...columns.map((column) => column.text(item))])""")
    assert cells[:3] == [
        ["count", "7", "123456"],
        ["large", "1", "4.6e+18"],
        ["w", "1.2e-4", "1235"],
    ]
    assert (
        page.run("""const cells = [...document.querySelectorAll("#table .row > :not(.key)")];
        return cells.filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)""")
        == []
    )


def test_a_file_is_drawn_byte_by_byte_and_zoomed(page: Page) -> None:
    page.until("fileMaps[0].bytes.high > 1000")
    page.find("[aria-label='Zoom in']").click()
    low, high, all_ = page.run(
        "const b = fileMaps[0].bytes; return [b.low, b.high, extentOf(b.side, 0)]"
    )
    assert high - low == pytest.approx(all_ / 2)
    page.find("details summary").click()
    page.until("document.querySelectorAll('details tbody tr').length > 0")
    page.find("details tbody button").click()
    assert page.run("return state.item !== null")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1800])
def test_no_width_needs_scrolling_sideways(
    chromium: Chrome, tmp_path: Path, width: int, scheme: str
) -> None:
    page = show(chromium, view(tmp_path, model(), "--stats"), width=width, scheme=scheme)
    page.run("actions.choose(ITEMS[0])")
    assert page.run("return document.documentElement.scrollWidth") <= width
    dark = (
        sum(
            int(part)
            for part in page.find("body").value_of_css_property("background-color")[5:-4].split(",")
        )
        < 300
    )
    assert dark == (scheme == "dark") and page.complaints() == []


def test_a_change_of_the_scheme_repaints(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, model()))
    light = page.colour_at(".map canvas", 0.2, 0.5)
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    page.until("theme.paper !== '#fbfbfa'")
    page.run("maps.forEach((map) => map.drawNow())")
    assert sum(page.colour_at(".map canvas", 0.2, 0.5)) < sum(light)


def test_hostile_names_are_shown_and_run_nothing(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {key: np.ones(8) for key in HOSTILE_KEYS}
    page = show(
        chromium, view(tmp_path, arrays, "--stats", metadata={HOSTILE_KEYS[0]: HOSTILE_KEYS[1]})
    )
    assert page.run("return ITEMS.length") == len(HOSTILE_KEYS)
    for number in range(len(HOSTILE_KEYS)):
        page.run(f"actions.choose(ITEMS[{number}])")
    assert (
        page.run("return document.querySelectorAll('img, svg[onload], script:not([type])').length")
        == 1
    )
    assert "\u202e" not in page.text("body > main") and "a\\u202eevil" in page.text("#table")
    page.search("<img")
    assert page.keys() == [HOSTILE_KEYS[0]] and page.complaints() == []


def test_the_policy_stops_a_script_that_would_have_come_in(
    chromium: Chrome, tmp_path: Path
) -> None:
    """The second line of defence holds alone."""
    path = view(tmp_path, model())
    page = show(chromium, path)
    page.run("""const script = document.createElement('script'); script.textContent = 'window.broken = true';
        document.body.append(script)""")
    assert page.run("return window.broken") is None


@pytest.mark.parametrize(
    ("case", "kind", "word"),
    [
        ("bad_overlap", "OverlappingSlices", "overlapping"),
        ("bad_hole", "IncompleteCheckpoint", "incomplete"),
        ("bad_data_missing", "MissingFile", "file missing"),
    ],
)
def test_damage_is_named_and_shown_in_its_place(
    chromium: Chrome, tmp_path: Path, case: str, kind: str, word: str
) -> None:
    target = tmp_path / "page.html"
    assert main(["view", str(GOLDEN / "native" / case), "-o", str(target)]) == 0
    page = show(chromium, target)
    assert page.text(".verdict") == "✗ Damaged"
    # A line for each cause, in words.
    assert word in page.text("#alerts li") and kind not in page.text("#alerts")
    page.find("#alerts button").click()
    page.run("actions.choose(shown[0])")
    assert kind in page.text("#detail") and page.all("#table .mark")
    if case == "bad_data_missing":
        assert "missing" in page.text("#files")
    page.point(".drawing canvas", 0.375 if case == "bad_hole" else 0.1, 0.5)
    assert ("not stored" in page.text("#tip")) == (case == "bad_hole")


def test_two_checkpoints_stand_side_by_side(chromium: Chrome, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", model(), partition=2)
    changed = model() | {"extra": np.ones(100)}
    changed["embedding"][3, 2] += 1
    del changed["step"]
    sv.save(tmp_path / "b.npz", changed)
    page = show(chromium, page_of_diff(tmp_path, b="b.npz"))
    assert (
        page.text("h1") == "3 equal, 1 changed, 1 only in A, 1 only in B"
        and len(page.all(".map")) == 1
    )
    # What has no number comes first, then values by their change, then what is equal.
    assert page.keys()[:3] == ["step", "extra", "embedding"]
    page.run("actions.choose(shown[2])")
    told = page.text("#detail")
    assert (
        "elements that differ1" in told
        and "[3, 2]" in told
        and "A: a" in told
        and "B: b.npz" in told
    )
    assert page.complaints() == []


def test_a_plan_with_a_map_shows_what_each_tensor_is_made_of(
    chromium: Chrome, tmp_path: Path
) -> None:
    pair = {f"{layer}.{name}.w": np.ones((4, 6)) for layer in range(2) for name in ("gate", "up")}
    sv.save(tmp_path / "a", pair | {"<b>norm": np.ones(3)})
    page = tmp_path / "page.html"
    words = ["reshard", tmp_path / "a", tmp_path / "b", "--dry-run", "--html", page]
    words += ["--rule", "{l}.{s:gate|up}.w[o i] -> {l}.both[(o s) i]"]
    words += ["--rule", "<b>norm[h] plus 1 -> norm[h]"]
    assert main([str(word) for word in words]) == 0
    shown = show(chromium, page)
    shown.run("actions.choose(ITEMS.find(({ key }) => key === '1.both'))")
    told = shown.text("#detail")
    assert "Made of 2 tensors" in told and "1.gate.w[0:4, 0:6][0:7:2, 0:6]" in told
    assert "1.up.w[0:4, 0:6][1:8:2, 0:6]" in told and "both[(o s) i]" in told
    shown.run("actions.choose(ITEMS.find(({ key }) => key === '0.up.w'))")
    assert "Used for 1 tensor" in shown.text("#detail") and "0.both" in shown.text("#detail")
    shown.run("actions.choose(ITEMS.find(({ key }) => key === 'norm'))")
    assert "<b>norm" in shown.text("#detail") and "Made of one tensor" in shown.text("#detail")
    assert shown.complaints() == []
    shown.run("actions.choose(ITEMS.find(({ key }) => key === '1.both'))")
    # The rows of the drawing take turns.
    drawings = "[...document.querySelectorAll('#detail .drawing canvas')]"
    shown.run(f"{drawings}.at(-1).id = 'drawn'")
    shown.until("document.getElementById('drawn').height > 100")
    colours = [shown.colour_at("#drawn", 0.9, (row + 0.5) / 8) for row in range(8)]
    assert colours[::2] == [colours[0]] * 4 and colours[1::2] == [colours[1]] * 4
    assert colours[0] != colours[1]


def test_a_hundred_thousand_tensors_are_drawn_and_searched(
    chromium: Chrome, tmp_path: Path
) -> None:
    names = {
        f"model/block_{i // 100}/expert_{i % 100}/kernel": np.zeros(2 + i % 7, np.int8)
        for i in range(100_000)
    }
    page = show(chromium, view(tmp_path, names))
    assert page.run("return [ITEMS.length, maps[0].boxes.length > 100]") == [100_000, True]
    assert (
        len(page.all("#table .row")) < 60
        and page.run("return document.querySelectorAll('*').length") < 1500
    )
    page.search("block_77/expert_5/")
    assert page.keys() == ["model/block_77/expert_5/kernel"]
    page.search("model/block_9?/*")
    assert len(page.keys()) == 1000
    page.search("")
    # Sizes repeat after seven tensors, so that of each seven blocks none are alike.
    assert page.run("return lines.length") == 7 and page.text("#table .group .start").startswith(
        "model/block_{0,7,"
    )
    page.run("document.querySelectorAll('#fold button')[1].click()")
    page.run("document.querySelector('#table .list').scrollTop = 1e9")
    page.until(
        "[...document.querySelectorAll('#table .row')].some((row) => row.dataset.row === '99999')"
    )
    assert page.complaints() == []

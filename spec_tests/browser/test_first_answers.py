"""What a page answers first: in words of its reader, with colours that mean something, and once."""

import json
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import Chrome

import shardvar as sv
from shardvar.cli import main
from spec_tests.browser.looking import Page, compared, page_of_diff, show, view
from spec_tests.helpers.paths import GOLDEN

Arrays = dict[str, np.ndarray]

CELLS = """const rows = [...document.querySelectorAll(arguments[0])];
    return rows.map((row) => [...row.cells].map((cell) => cell.textContent))"""


def whole_layers(number: int = 4, spread: float = 0.0) -> Arrays:
    """Layers of equal shapes, whose values grow with their number by a share in all."""
    line = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    grown = [1 + spread * n / (number - 1) for n in range(number)]
    made = {f"layers.{n}.{name}": line * grown[n] for n in range(number) for name in ("q", "up")}
    return made | {"embed": np.linspace(-1, 1, 640, dtype=np.float32)}


def safetensors(folder: Path, arrays: Arrays, **options: object) -> Path:
    """Save whole tensors in a set of files, as Hugging Face does."""
    folder.mkdir()
    sv.save(
        folder / "model.safetensors",
        arrays,
        policy=sv.MaxShardSizePolicy(1500),
        **options,
    )
    return folder


def seen(page: Page) -> str:
    """The text of the page with a tensor chosen, and of the tips of its maps and files."""
    page.run("actions.choose(ITEMS[1])")
    page.point(".map", 0.5, 0.5)
    tips = page.text("#tip")
    page.point(".files canvas", 0.5, 0.5)
    return f"{page.run('return document.body.innerText')} {tips} {page.text('#tip')}"


def test_a_page_of_whole_tensors_has_no_word_for_slices(chromium: Chrome, tmp_path: Path) -> None:
    """Nor for shards, regions or payloads: a reader of a model of Hugging Face knows none of them."""
    folder = safetensors(tmp_path / "tiny", whole_layers(spread=1))
    for words in (["--stats"], []):
        assert main(["view", str(folder), *words, "-o", str(tmp_path / "p.html")]) == 0
        page = show(chromium, tmp_path / "p.html")
        # What the writer of the files noted is in its own words, and commands have their names.
        page.run("document.querySelectorAll('.written').forEach((each) => each.remove())")
        text = seen(page).replace("shardvar", "").replace("reshard", "").lower()
        assert not [word for word in ("slice", "shard", "region", "payload") if word in text]
        assert "where it is stored" in text and page.complaints() == []
    cut = show(chromium, view(tmp_path, whole_layers(), partition=2))
    assert "slice" in seen(cut)


def test_a_spread_below_a_tenth_has_one_colour_and_its_range(
    chromium: Chrome, tmp_path: Path
) -> None:
    page = show(chromium, view(tmp_path, whole_layers(spread=0.05), "--stats"))
    colours = """const colour = ({ cells }) =>
            measureColour(layerMap.measure(), cells[0][0], layerMap.range());
        return new Set(layerMap.stack.rows.map(colour)).size"""
    assert page.run(colours) == 1 and not page.all("#stacks .legend .ramp")
    low, high = (np.linspace(-1, 1, 64).std() * scale for scale in (1, 1.05))
    assert page.text("#stacks .legend").startswith(f"{low:.3} to {high:.3}")
    assert "one colour because the range is below 10" in page.text("#stacks .legend")
    page = show(chromium, view(tmp_path, whole_layers(spread=0.2), "--stats"))
    assert page.run(colours) == 4 and page.all("#stacks .legend .ramp")


def test_a_ramp_is_whole_only_from_a_factor_of_four(chromium: Chrome, tmp_path: Path) -> None:
    """Changes of 4 and 5 % are neighbours on the ramp, so that neither looks like no change."""
    page = show(chromium, view(tmp_path, {"a": np.ones(2)}))
    place = "return placeOnRamp(arguments[0], { low: arguments[1], high: arguments[2] })"
    ends = [
        [page.browser.execute_script(place, value, low, high) for value in (low, high)]
        for low, high in ((1, 1.09), (1, 2), (1, 4), (1e-30, 1e-3), (1e-200, 1e200), (3, 3))
    ]
    assert ends[0] == ends[-1] == [0.5, 0.5]
    for found, told in zip(ends[1:5], ([0.25, 0.75], [0, 1], [0, 1], [0, 1]), strict=True):
        assert found == pytest.approx(told)


def test_layers_are_drawn_only_if_something_differs_between_them(
    chromium: Chrome, tmp_path: Path
) -> None:
    """Bytes of equal layers do not; the size map then has the place, and says what they have in common."""
    path = view(tmp_path, whole_layers(), policy=sv.MaxShardSizePolicy(600))
    page = show(chromium, path)
    told = "4 layers have the same shapes: 2 tensors and 512 B each"
    assert not page.find("#layers").is_displayed() and page.text("#legend + .note") == told
    assert page.run(
        "return maps[0].element.clientWidth > 0.6 * document.querySelector('main').clientWidth"
    )
    assert "4 layers of 2, same shapes" in page.text("header .cards")
    next(tmp_path.glob("model.svdata-*-00002-*")).unlink()
    assert main(["view", str(tmp_path / "model")]) == 0
    damaged = show(chromium, path)
    assert damaged.find("#layers").is_displayed() and "cannot be read completely" in damaged.text(
        "#layers .note"
    )


def test_layers_of_one_shape_are_not_called_identical(chromium: Chrome, tmp_path: Path) -> None:
    one = whole_layers()
    two = one | {"layers.2.q": one["layers.2.q"] + 1}
    page = show(chromium, compared(tmp_path, one, two))
    told = "4 layers have the same shapes: 2 tensors and 512 B each · 1 has values that differ"
    assert page.text("#layers .note") == told


def test_the_largest_are_groups_and_no_ranking_of_ties(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {
        f"block{n:03}/unit_{m}/w": np.ones(32, np.float32) for n in range(40) for m in range(9)
    }
    page = show(chromium, view(tmp_path, arrays | {"embed[0]*": np.ones(320, np.float32)}))
    rows = page.browser.execute_script(CELLS, ".overview tr")
    times = "\N{MULTIPLICATION SIGN}"
    assert rows == [
        ["block*/unit_*/w", f"360 {times} 128 B", "97 %"],
        ["embed[0]*", "1.28 kB", "2.7 %"],
    ]
    page.find(".overview button").click()
    assert len(page.keys()) == 360 and "block*" in page.run("return state.query")
    page = show(chromium, view(tmp_path, {f"{name}x": np.ones(9) for name in "abcdefghijkl"}))
    assert (
        len(page.all(".overview tr")) == 8
        and page.text("#detail .note") == "and 4 more of this size"
    )


def test_metadata_of_two_has_a_column_for_each(chromium: Chrome, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.ones(2)}, metadata={"format": "pt", "step": "10"})
    sv.save(tmp_path / "b", {"w": np.zeros(2)}, metadata={"format": "pt"})
    page = show(chromium, page_of_diff(tmp_path))
    rows = page.browser.execute_script(CELLS, "#detail table:last-of-type tr")
    assert rows == [["", "A", "B"], ["format", "pt", "pt"], ["step", "10", "—"]]


def test_a_remedy_is_said_once(chromium: Chrome, tmp_path: Path) -> None:
    path = view(tmp_path, whole_layers(), policy=sv.MaxShardSizePolicy(600))
    first, second, *_ = sorted(tmp_path.glob("model.svdata-*"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:100])
    assert main(["view", str(tmp_path / "model")]) == 0
    page = show(chromium, path)
    assert (
        len(page.all("#alerts li")) == 2 and page.text("#alerts").count("Copy the file again") == 1
    )
    assert page.text("#alerts p").startswith("Copy the file again")


def test_totals_take_less_than_a_quarter_of_the_screen_of_a_telephone(
    chromium: Chrome, tmp_path: Path
) -> None:
    page = show(chromium, view(tmp_path, whole_layers(), "--stats"), width=390, height=844)
    assert page.find("header .cards").size["height"] < 844 / 4
    assert page.run("return document.documentElement.scrollWidth") <= 390


def test_low_folders_have_their_numbers(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {
        f"block{n:03}/unit_{m:02}/w": np.full(2, n, np.int16) for n in range(200) for m in range(20)
    }
    page = show(chromium, view(tmp_path, arrays), width=1280)
    written = json.loads(
        page.run("""const told = [], write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
            told.push(text);
            return write.call(this, text, ...rest);
        };
        maps[0].drawNow();
        CanvasRenderingContext2D.prototype.fillText = write;
        return JSON.stringify(told)""")
    )
    assert [
        f"{n:03}" in text for n in range(200) for text in written if text.endswith(f"{n:03}")
    ] == [True] * 200


def test_settings_and_scalars_have_their_values_and_are_not_counted_as_tensors(
    chromium: Chrome, tmp_path: Path
) -> None:
    path = GOLDEN / "torch_pt" / "training_checkpoint" / "x.pt"
    assert main(["view", str(path), "--stats", "-o", str(tmp_path / "p.html")]) == 0
    page = show(chromium, tmp_path / "p.html")
    with sv.open_checkpoint(path) as reader:
        keys = list(reader)
        settings = [key for key in keys if reader[key].dtype == "string"]
    told = {
        each.text.splitlines()[0]: each.text.splitlines()[1:] for each in page.all(".cards > div")
    }
    number = len(keys) - len(settings)
    assert told["Tensors"][:2] == [str(number), f"and {len(settings)} settings"]
    assert told["Dtypes"] == ["float32"]
    rows = dict(page.browser.execute_script(CELLS, ".scalars tr"))
    assert rows["epoch"] == "3" and rows["args.lr"] == "0.001"
    page.search("epoch")
    cells = "[...document.querySelectorAll('#table .row > *')].map((c) => c.textContent)"
    page.until(f"{cells}[0] === 'epoch'")
    assert page.run(f"return {cells}")[:3] == [
        "epoch",
        "setting",
        "= 3",
    ] and "1 of 62 keys" in page.text("#found")
    page.run("actions.choose(shown[0])")
    assert "= 3" in page.text("#detail .facts")
    narrow = show(chromium, tmp_path / "p.html", width=390)
    narrow.search("epoch")
    narrow.until(f"{cells}[0] === 'epoch'")
    assert narrow.run(f"return {cells}")[:2] == ["epoch", "= 3"]


def test_what_is_drawn_first_is_not_zero_everywhere(chromium: Chrome, tmp_path: Path) -> None:
    """The spread of constants is; a legend of zeros has the zero and not "no values"."""
    arrays = {f"layers.{n}.w": np.full(4, n + 1.0) for n in range(4)}
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    assert page.find("[aria-label=Measure] [aria-pressed=true]").text == "Scale"
    page.find("[aria-label=Measure] button").click()
    page.until("document.querySelector('#stacks .legend').textContent.startsWith('0')")
    assert page.text("#stacks .legend") == "0standard deviation"


def test_settings_of_two_have_a_column_for_each(chromium: Chrome, tmp_path: Path) -> None:
    for name, epoch in (("a", 3), ("b", 4)):
        sv.save(tmp_path / name, {"w": np.ones(2), "epoch": np.array(epoch)})
    words = [str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(tmp_path / "d.html")]
    assert main(["diff", *words]) == 1
    page = show(chromium, tmp_path / "d.html")
    rows = page.browser.execute_script(CELLS, ".scalars tr")
    assert rows == [["", "A", "B"], ["epoch", "3", "4"]]

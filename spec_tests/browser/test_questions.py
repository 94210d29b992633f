"""The questions that the page answers: what is in it, how it is sharded, what changed; and links,
Back and copying."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from selenium.webdriver import Chrome

import shardvar as sv
from shardvar.cli import main
from shardvar.cli.serving import PageServer, answers_of
from shardvar.planning.policies import BalancedPolicy
from shardvar.view.collect import choose_keys, describe
from shardvar.view.page import make_page
from spec_tests.browser.looking import (
    DOWN,
    ENTER,
    ESCAPE,
    LEFT,
    RIGHT,
    Page,
    compared,
    page_of_diff,
    show,
    view,
)
from spec_tests.helpers.view_pages import HOSTILE_KEYS


def layers(numbers: range) -> dict[str, np.ndarray]:
    """A model of equal layers, whose spread grows with their number."""
    line = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    made = {
        f"model.layers.{n}.{name}.weight": line * (n + 1)
        for n in numbers
        for name in ("mlp", "attn")
    }
    return made | {"model.embed.weight": line}


@pytest.fixture
def model(chromium: Chrome, tmp_path: Path) -> Page:
    arrays = layers(range(12))
    arrays["model.layers.3.mlp.weight"] = np.full((8, 8), np.nan, np.float32)
    del arrays["model.layers.7.mlp.weight"], arrays["model.layers.7.attn.weight"]
    arrays["model.layers.5.attn.weight"] = np.zeros((2, 2), np.float32)
    return show(
        chromium, view(tmp_path, arrays, "--stats", partition=4, policy=sv.MaxShardSizePolicy(1500))
    )


def test_layers_are_told_by_what_they_have_in_common(model: Page) -> None:
    """Ranges name only layers that exist; what differs and what is left out is named."""
    told = (
        "10 of 11 layers have the same shapes: 2 tensors and 512 B each · other shapes: 5"
        " · missing numbers: 7"
    )
    assert model.text("#layers .note") == told


def test_the_heat_map_has_a_row_for_each_layer_and_a_column_for_each_of_its_tensors(
    model: Page,
) -> None:
    assert model.run("return layerMap.labels()") == ["attn", "mlp"]
    rows = model.run(
        "return layerMap.stack.rows.map((row) => [row.label, row.cells.map((items) => "
        "items.map((i) => i.key))])"
    )
    assert [label for label, _ in rows] == [str(n) for n in range(12) if n != 7]
    assert rows[2][1] == [["model.layers.2.attn.weight"], ["model.layers.2.mlp.weight"]]


def test_colours_of_the_heat_map_are_in_the_order_of_the_values(model: Page) -> None:
    """In the light, a larger spread is darker; the scale is monotonous in grey."""
    colours = model.run(
        """return layerMap.stack.rows.map(({cells}) => measureColour(layerMap.measure(), cells[0][0]))"""
    )
    told = [
        sum(map(int, colour[4:-1].split())) for number, colour in enumerate(colours) if number != 5
    ]
    assert told == sorted(told, reverse=True) and len(set(told)) == len(told)


def test_the_heat_map_is_walked_by_keys(model: Page) -> None:
    model.run("layerMap.holder.focus()")
    model.press(DOWN, DOWN, RIGHT)
    assert model.text("#said").startswith("model.layers.2.mlp.weight; Spread ")
    model.press(ENTER)
    assert model.run("return state.item.key") == "model.layers.2.mlp.weight"
    assert (
        model.find("svg.curve")
        .get_attribute("aria-label")
        .startswith("Spread over the layers, from ")
    )


def test_more_layers_than_rows_share_them_and_keep_the_worst(
    chromium: Chrome, tmp_path: Path
) -> None:
    arrays = {f"block_{n}/expert_{e}/w": np.arange(2.0) for n in range(200) for e in range(50)}
    arrays["block_150/expert_9/w"] = np.array([np.nan, 1.0])
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    rows, columns, seen = page.run("""const { rows, modules } = layerMap.stack;
        const worst = rows.flatMap(({cells}) => cells.map((items) => worstOf(items, MEASURES[0])));
        const odd = worst.filter((item) => flagMark(item) === 'NaN').map((item) => item.key);
        return [rows.length, modules.length, odd]""")
    assert rows <= 64 and columns <= 40 and seen == ["block_150/expert_9/w"]
    assert (
        page.run("return layerMap.stack.rows.flatMap(({cells}) => cells.flat()).length") == 10_000
    )


def test_regions_are_drawn_in_the_size_map_in_the_colours_of_their_files(
    chromium: Chrome, tmp_path: Path
) -> None:
    array = np.zeros((90, 10), np.float32)
    page = show(chromium, view(tmp_path, {"w": array}, partition=3, policy=BalancedPolicy(3)))
    assert page.find("#colours [aria-pressed=true]").text == "File"
    files = page.run("return SIDES[0].slices.file.slice()")
    told = [page.run(f"return fileColour({file})") for file in files]
    seen = [
        "#{:02x}{:02x}{:02x}".format(*page.colour_at(".map canvas", 0.5, (n + 0.6) / 3))
        for n in range(3)
    ]
    assert len(set(files)) == 3 and seen == told


def test_the_largest_file_and_the_mean_are_told_with_the_command_that_evens_them(
    chromium: Chrome, tmp_path: Path
) -> None:
    arrays = {"a": np.zeros(1000, np.int8), "b": np.zeros(10, np.int8), "c": np.zeros(10, np.int8)}
    page = show(chromium, view(tmp_path, arrays, policy=sv.MaxShardSizePolicy(1000)))
    sizes = page.run("return SIDES[0].file_nbytes")
    above = round((max(sizes) / (sum(sizes) / len(sizes)) - 1) * 100)
    assert page.text(".balance").startswith(
        "Largest: file 0, 1.0"
    ) and f"{above} % above the mean" in page.text(".balance")
    command = page.text("#files .copy code").split()
    assert main([*command[1:], "--dry-run"]) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_any_colour_has_a_contrast_of_four_and_a_half(
    chromium: Chrome, tmp_path: Path, scheme: str
) -> None:
    page = show(chromium, view(tmp_path, {"w": np.zeros(9)}), scheme=scheme)
    colours = page.run("""const canvas = document.createElement('canvas').getContext('2d');
        const seen = [];
        const marks = Object.keys(KIND_COLOURS).map((kind) => KIND_COLOURS[kind]());
        const ramps = ['scale', 'change'].flatMap((name) => [0, 0.5, 1].map((at) => rampColour(name, at)));
        for (const colour of [...FILE_COLOURS, ...DTYPE_HUES.map((hue) => tint(hue)), ...ramps, ...marks]) {
            canvas.fillStyle = colour; canvas.fillRect(0, 0, 60, 20);
            tag(canvas, '\u2588', 0, 0, 60);
            seen.push([...canvas.getImageData(2, 2, 1, 1).data]);
        }
        canvas.fillStyle = theme.ink; canvas.fillRect(0, 0, 1, 1);
        return [[...canvas.getImageData(0, 0, 1, 1).data], seen]""")
    ink, grounds = colours
    assert len(grounds) > 20 and min(contrast(ink, ground) for ground in grounds) >= 4.5


def contrast(one: list[int], other: list[int]) -> float:
    """The contrast of two colours as WCAG 2 defines it."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: list[int]) -> float:
    parts = [
        (c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
        for c in colour[:3]
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_a_link_shows_the_same_and_back_goes_one_step(chromium: Chrome, tmp_path: Path) -> None:
    path = view(tmp_path, layers(range(4)), "--stats")
    page = show(chromium, path)
    page.run("actions.choose(ITEMS[2])")
    page.find("#chips button").click()
    page.run("document.querySelectorAll('#colours button')[1].click()")
    page.run("actions.open('model.layers.')")
    state = "return [state.item && state.item.key, state.prefix, state.by, [...state.dtypes]]"
    before, link = page.run(state), chromium.current_url
    chromium.get("about:blank")
    chromium.get(link)
    page.until("document.documentElement.dataset.ready === 'true'")
    assert page.run(state) == before and all(before)
    chromium.get("about:blank")
    again = show(chromium, path)
    # By clicks: of a full history, Chromium drops first the entries that nothing but a script made.
    for row in (1, 3):
        again.run("return new Promise(requestAnimationFrame)")  # rows that are to be drawn anew are
        again.find(f'#table [data-row="{row}"]').click()
        again.until(f"state.item === ITEMS[{row}]")
    again.run("history.back()")
    again.until("state.item === ITEMS[1]")
    again.run("history.back()")
    again.until("state.item === null")
    assert again.complaints() == []


def test_an_address_of_what_is_not_there_is_left_out(chromium: Chrome, tmp_path: Path) -> None:
    path = view(tmp_path, layers(range(4)))
    chromium.get("about:blank")
    chromium.get(path.as_uri() + "#t=nonesuch&in=%3Cb%3E&by=x&only=zz&measure=constructor&q=attn")
    page = Page(chromium)
    page.until("document.documentElement.dataset.ready === 'true'")
    assert (
        page.run("return state.item") is None and len(page.keys()) == 4 and page.complaints() == []
    )


def test_the_link_that_skips_to_the_table_keeps_the_address_and_a_page_opened_with_it_is_whole(
    chromium: Chrome, tmp_path: Path
) -> None:
    path = view(tmp_path, layers(range(4)))
    page = show(chromium, path)
    page.run("actions.choose(ITEMS[0])")
    before = page.run("return location.hash")
    page.run("document.querySelector('.skip').focus()")
    page.press(ENTER)
    assert page.run("return [document.activeElement.id, location.hash]") == ["tensors", before]
    chromium.get("about:blank")
    page.browser.get(path.as_uri() + "#tensors")
    page.until("document.documentElement.dataset.ready === 'true' && maps[0].boxes.length")
    assert "Select a tensor" in page.text("#detail") and page.keys()


def test_what_is_copied_works_as_pasted_whatever_the_name_is(
    chromium: Chrome, tmp_path: Path
) -> None:
    """The shell and Python are the oracles: a quoted name is one word that is the name."""
    show(chromium, view(tmp_path, {"a": np.ones(2)}))
    names = [
        *(key for key in HOSTILE_KEYS if key.isprintable() or "\u202e" in key),
        "$(touch x) `id` !! 'it''s'",
        "-v",
        "tab\tnew\nline",
        "x" * 3000,
    ]
    for name in names:
        shell, python = chromium.execute_script(
            "return [quoted(arguments[0]), literal(arguments[0])]", name
        )
        ran = subprocess.run(
            ["bash", "-c", f"printf %s {shell}"], capture_output=True, cwd=tmp_path, check=True
        )
        assert ran.stdout.decode() == name and ast.literal_eval(python) == name
        assert shell.isprintable() and python.isprintable()


def test_copying_puts_the_text_on_the_clipboard(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, {"dense/kernel": np.ones(2)}))
    page.run(
        "window.copied = []; navigator.clipboard.writeText = async (text) => "
        "copied.push(text);actions.choose(ITEMS[0])"
    )
    for button in page.all("#detail .copy button"):
        button.click()
    page.until("copied.length === 4")
    key, command, python, link = page.run("return copied")
    assert key == "dense/kernel" and link == chromium.current_url
    assert main(command.split()[1:]) == 0
    assert eval(python, {"sv": sv}).tolist() == [1, 1]  # noqa: S307  # what the page says is what is tested
    # In one step: the word stays for a second, which a loaded machine may take between two.
    told = page.run("""const button = document.querySelector('#detail .copy button');
        button.click();
        return new Promise((done) => setTimeout(() => done(button.textContent)))""")
    assert told == "Copied"


def test_copied_commands_and_python_print_the_tensor_of_any_name(
    chromium: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasted into a shell, whatever keys and paths begin with, and whichever bytes they are of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shardvar").write_text(f'#!/bin/sh\nexec {sys.executable} -m shardvar "$@"\n')
    (tmp_path / "shardvar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    keys = ["-v", "--help", "bytes\udcff", "it's \n$x", "a\u202eb", "אבג/דהו", "x" * 3000]
    for path in ("-dash", "it's $x"):
        sv.save(f"./{path}", {key: np.full(1, float(n)) for n, key in enumerate(keys)})
        assert main(["view", "-o", "p.html", "--", path]) == 0
        page = show(chromium, tmp_path / "p.html")
        page.run(
            "window.copied = []; navigator.clipboard.writeText = async (text) => copied.push(text)"
        )
        for row in range(len(keys)) if path == "-dash" else range(1):
            page.run(f"""actions.choose(ITEMS[{row}]);
                document.querySelectorAll('#detail .copy button').forEach((button) => button.click())""")
            key, command, python, _ = json.loads(
                page.run("return JSON.stringify(copied.splice(0))")
            )
            ran = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False
            )
            assert (ran.returncode, ran.stdout.splitlines()[1:]) == (
                0,
                [f"[{keys.index(key)}.]"],
            ), ran.stderr
            assert eval(python, {"sv": sv}).tolist() == [keys.index(key)]  # noqa: S307  # what the page says


def test_equal_layers_fold_into_lines_that_open_by_keys(chromium: Chrome, tmp_path: Path) -> None:
    """Right opens and enters, Left closes and leaves; the order is that of the keys."""
    arrays = layers(range(12)) | {"model.layers.5.attn.weight": np.zeros((2, 2), np.float32)}
    arrays["model.layers.7.mlp.weight"] = np.full((8, 8), np.nan, np.float32)
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    told = (
        "return [...document.querySelectorAll('#table .row')].map((row) => "
        "row.querySelector('.key').textContent)"
    )
    folded = ["model.embed.weight", "▸! 1model.layers.{0..4,6..11}"]
    five = ["model.layers.5.attn.weight", "model.layers.5.mlp.weight"]
    assert page.run(told) == [*folded, *five] and page.find("#table [role=treegrid]")
    page.run("document.querySelector('#table .row[tabindex=\"0\"]').focus()")
    page.press(DOWN, RIGHT, RIGHT, DOWN, RIGHT)
    assert page.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    rows = page.run(told)
    assert rows[1:6] == [
        *(
            "▾! 1model.layers.{0..4,6..11}",
            "▸model.layers.0",
            "▾model.layers.1",
            "attn.weight",
            "mlp.weight",
        )
    ]
    page.press(RIGHT)
    assert page.run("return state.item.key") == "model.layers.1.attn.weight"
    page.press(LEFT, LEFT, LEFT, LEFT)
    assert page.run(told) == ["model.embed.weight", *folded[1:], *five]
    page.run("actions.choose(ITEMS.find(({ key }) => key === 'model.layers.7.mlp.weight'))")
    assert page.text("#table [aria-selected=true]").startswith("NaNmlp.weight")
    page.find("#fold [aria-pressed=false]").click()
    assert (
        page.run("return lines.map(({ item }) => item.key)") == page.keys()
        and "fold=no" in chromium.current_url
    )
    assert page.complaints() == []


def test_the_sum_of_the_lines_is_every_tensor(chromium: Chrome, tmp_path: Path) -> None:
    """Each tensor has one line, and choosing it opens that: hostile names, both separators, numbers
    of any width."""
    names = [f"a/{n}/w" for n in range(5)] + [f"a.{n:02}.{m}.v" for n in range(4) for m in range(3)]
    names += [f"a.1.x/{n}" for n in (1, 2, "03", "3", "9" * 400, "8" * 400)] + [
        "a.",
        "a/",
        "0",
        "1",
        "2",
        "/",
        ".",
    ]
    arrays = {key: np.zeros(2) for key in [*names, *HOSTILE_KEYS]}
    page = show(chromium, view(tmp_path, arrays))
    told = page.run("""const items = (each) => each.item ? [each.item] : itemsOf(each.group);
        const numbers = lines.flatMap(items).map((item) => item.number);
        return [isFolded(), lines.length < ITEMS.length, numbers.sort((a, b) => a - b)]""")
    assert told == [True, True, list(range(len(arrays)))]
    assert (
        page.run("return ITEMS.filter((item) => (actions.choose(item), rowOf(item) < 0)).length")
        == 0
    )
    assert page.run("return lines.filter(({ item }) => item).length") == len(arrays)


def test_in_a_narrow_window_the_panel_is_a_sheet(chromium: Chrome, tmp_path: Path) -> None:
    """One line at the bottom, pulled up by a click or Enter, and closed by Escape, then by Escape
    for good."""
    page = show(chromium, view(tmp_path, layers(range(4)), "--stats"), width=390, height=844)
    assert not page.find("aside").is_displayed()
    page.run("actions.choose(ITEMS[2])")
    line, detail = page.find("#pull"), page.find("#detail")
    top = "return document.querySelector('aside').getBoundingClientRect().top"
    assert line.is_displayed() and not detail.is_displayed() and page.run(top) > 750
    assert "float32 [8, 8] · 256 B" in line.text
    page.run("document.getElementById('pull').focus()")
    page.press(ENTER)
    assert (
        detail.is_displayed()
        and line.get_attribute("aria-expanded") == "true"
        and page.run(top) >= 100
    )
    assert page.run("return document.documentElement.scrollWidth") <= 390
    page.press(ESCAPE)
    assert not detail.is_displayed() and page.run("return document.activeElement.id") == "pull"
    page.press(ESCAPE)
    assert page.run("return state.item") is None and not page.find("aside").is_displayed()
    wide = show(chromium, tmp_path / "model.html")
    wide.run("actions.choose(ITEMS[2])")
    assert wide.find("#detail").is_displayed() and not wide.find("#pull").is_displayed()


def test_each_finding_is_a_filter(model: Page) -> None:
    finding = next(each for each in model.all("header .health button") if "NaN" in each.text)
    finding.click()
    assert model.keys() == ["model.layers.3.mlp.weight"]


def test_sizes_are_whole_in_a_narrow_window(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {f"w{n}": np.zeros(538_100, np.int8) for n in range(3)}
    page = show(chromium, view(tmp_path, arrays, policy=BalancedPolicy(3)), width=390)
    page.until("document.querySelectorAll('.files .row').length === 3")
    cells = page.run(
        "const cells = [...document.querySelectorAll('.files .row .num')];"
        "return cells.map((cell) => [cell.textContent, cell.scrollWidth <= cell.clientWidth])"
    )
    assert len(cells) == 3 and all(text.endswith("538 kB") and is_whole for text, is_whole in cells)


def test_a_page_of_changes_is_one_layout_coloured_and_sorted_by_change(
    chromium: Chrome, tmp_path: Path
) -> None:
    one = layers(range(8))
    two = {key: value.copy() for key, value in one.items()}
    for n in range(4, 8):
        two[f"model.layers.{n}.mlp.weight"] *= 1 + 0.01 * n
    two["model.embed.weight"] = two["model.embed.weight"].astype(np.float64)
    two["model.layers.1.attn.weight"] = np.ones((3, 8), np.float32)
    page = show(chromium, compared(tmp_path, one, two))
    report = sv.diff(tmp_path / "a", tmp_path / "b").by_change()
    changed = [
        each.key for each in report.differences if each.values and each.dtype_a == each.dtype_b
    ]
    assert page.keys()[:6] == ["model.layers.1.attn.weight", "model.embed.weight", *changed]
    rows = page.run("return shown.map((item) => whatDiffers(item).join(', '))")
    assert rows[:3] == ["shape [8, 8] → [3, 8]", "dtype float32 → float64, same values", "values"]
    colours = page.run("return shown.slice(2, 7).map((item) => itemColour(item))")
    assert len(set(colours)) == 5 and colours[4] == page.run("return theme.same")
    assert (
        page.text("#layers .note").startswith("7 of 8 layers have the same shapes")
        and len(page.all(".map")) == 1
    )
    page.run("actions.choose(shown[2])")
    told, (first, *_) = (
        page.text("#detail"),
        [each for each in report.differences if each.key == changed[0]],
    )
    assert (
        first.values and first.values.relative_norm and "relative norm" in told and "cosine" in told
    )
    assert f"at [{', '.join(map(str, first.values.max_absolute_at or ()))}]" in told
    assert page.complaints() == []


def test_a_served_page_reads_values_and_statistics_when_asked(
    chromium: Chrome, tmp_path: Path
) -> None:
    sv.save(tmp_path / "model", {"a": np.zeros(3), "dense/kernel": np.arange(24.0).reshape(4, 6)})
    with sv.open_checkpoint(tmp_path / "model") as reader:
        keys = choose_keys(reader)
        with PageServer(
            make_page([describe(reader, keys, [0])], served=True), answers_of(reader, keys)
        ) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            try:
                chromium.get_log("browser")
                chromium.get(f"{server.url}#t=dense/kernel")
                page = Page(chromium)
                page.until("document.documentElement.dataset.ready === 'true'")
                page.find(".ask input").send_keys("1, ::2", ENTER)
                page.until("!document.querySelector('.values').hidden")
                assert page.text(".values").splitlines()[1] == "[ 6.,  8., 10.]"
                page.find(".ask button[type=button]").click()
                page.until("document.querySelectorAll('#detail dl dd').length === 8")
                assert "mean11.5" in page.text("#detail dl")
                page.find(".ask input").send_keys(", 9", ENTER)
                page.until(
                    "document.querySelector('.values').textContent.includes('dense/kernel[') === "
                    "false"
                )
                assert [
                    each
                    for each in page.complaints()
                    if "favicon" not in each and "400" not in each
                ] == []
            finally:
                server.shutdown()
                thread.join()


def test_a_plan_is_drawn_before_and_after_with_its_command(
    chromium: Chrome, tmp_path: Path
) -> None:
    sv.save(tmp_path / "old", layers(range(4)), partition=4)
    words = [
        "reshard",
        str(tmp_path / "old"),
        str(tmp_path / "new"),
        "--shards",
        "*mlp*=2",
        "--files",
        "2",
    ]
    assert main([*words, "--dry-run", "--html", str(tmp_path / "plan.html")]) == 0
    page = show(chromium, tmp_path / "plan.html")
    assert page.text("h1").startswith("Preview of a reshard: ") and page.text("h1").endswith(
        "nothing written yet"
    )
    assert page.text("header .copy code").split()[1:] == words or "'*mlp*=2'" in page.text(
        "header .copy code"
    )
    rows = page.run(
        "const slices = (item) => SIDES.map((side, number) => side.num_slices[item.rows[number]]);"
        "return shown.map((item) => [item.key, statusText(item), slices(item)])"
    )
    assert [row for row in rows if "mlp" in row[0]] == [
        [f"model.layers.{n}.mlp.weight", "cut differently", [4, 2]] for n in range(4)
    ]
    assert all(
        told == "same slices" and before == after
        for key, told, (before, after) in rows
        if "mlp" not in key
    )
    assert [each.text for each in page.all("#colours button")] == ["After", "Before", "Slices"]
    page.run("actions.choose(shown[0])")
    assert "Before: old" in page.text("#detail") and "After: new" in page.text("#detail")
    assert page.complaints() == []


def test_slices_are_coloured_by_the_device_that_the_layout_tells(
    chromium: Chrome, tmp_path: Path
) -> None:
    """In one file, where the file tells nothing, the devices are what is shown first."""
    page = show(chromium, view(tmp_path, {"w": np.zeros((90, 10), np.float32)}, partition=3))
    assert page.find("#colours [aria-pressed=true]").text == "Device"
    told = [page.run(f"return fileColour({device})") for device in range(3)]
    seen = [
        "#{:02x}{:02x}{:02x}".format(*page.colour_at(".map canvas", 0.5, (n + 0.6) / 3))
        for n in range(3)
    ]
    assert (
        seen == told
        and "device 2" in page.text("#legend")
        and "device 0 held the most" in page.text("#files")
    )
    page.run("actions.choose(ITEMS[0])")
    assert "coloured by device" in page.text("#detail")


def test_regions_are_parted_by_lines_where_values_colour(chromium: Chrome, tmp_path: Path) -> None:
    page = show(
        chromium, view(tmp_path, {"w": np.ones((90, 10), np.float32)}, "--stats", partition=3)
    )
    page.run("state.by = 'Spread'; maps[0].drawNow()")
    colours = page.run("""const canvas = document.querySelector('.map canvas'), box = maps[0].boxes[0];
        const [x, top, bottom] = [box.x + box.width / 2, box.y + box.height * 0.3, box.y + box.height * 0.4];
        const seen = new Set(), context = canvas.getContext('2d');
        for (let y = Math.ceil(top); y < bottom; y++) seen.add(String(context.getImageData(x, y, 1, 1).data));
        return seen.size""")
    assert colours > 1
    many = show(
        chromium, view(tmp_path, {"w": np.ones((3000, 10), np.float32)}, "--stats", partition=1000)
    )
    assert many.run("return areRegionsSeen(SIDES[0], 0, 300, 300)") is False


def test_histograms_of_both_are_drawn_over_each_other(chromium: Chrome, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    one = {"w": rng.standard_normal((40, 40)), "equal": np.ones(3)}
    page = show(chromium, compared(tmp_path, one, one | {"w": one["w"] * 2}, "--stats"))
    page.run("actions.choose(ITEMS.find(({ key }) => key === 'w'))")
    tops = page.run("""return [...document.querySelectorAll('.overlay polyline')].map((line) =>
        Math.min(...line.getAttribute('points').split(' ').map((point) => Number(point.split(',')[1]))))""")
    # The wider distribution has the lower top: both are on one scale.
    assert len(tops) == 2 and tops[0] < tops[1] and "Values of A and B" in page.text("#detail")
    page.run("actions.choose(ITEMS.find(({ key }) => key === 'equal'))")
    assert page.all(".overlay") == [] and page.complaints() == []
    page = show(chromium, page_of_diff(tmp_path))
    page.run("actions.choose(ITEMS.find(({ key }) => key === 'w'))")
    assert page.all(".overlay") == [] and "--stats" in page.text("#detail")


def test_a_long_command_needs_no_scrolling_sideways(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {"a": np.zeros(1000, np.int8), "b": np.zeros(10, np.int8), "c": np.zeros(10, np.int8)}
    folder = tmp_path / ("a-name-that-is-long-" * 9)
    page = show(chromium, view(folder, arrays, policy=sv.MaxShardSizePolicy(1000)), width=390)
    assert len(page.text("#files .copy code")) > 180
    assert page.run(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )


def test_what_was_read_is_called_healthy_only_where_checksums_match(
    chromium: Chrome, tmp_path: Path
) -> None:
    page = show(chromium, view(tmp_path, {"w": np.arange(3.0)}, "--stats"))
    assert page.text("header .health").startswith(
        "✓ Healthy All values were read. Every checksum matches. No NaN"
    )
    sv.save(tmp_path / "bare.safetensors", {"w": np.arange(3.0)})
    assert (
        main(
            [
                "view",
                str(tmp_path / "bare.safetensors"),
                "--stats",
                "-o",
                str(tmp_path / "bare.html"),
            ]
        )
        == 0
    )
    page = show(chromium, tmp_path / "bare.html")
    assert page.text("header .health").startswith(
        "? No checksums All values were read. There are no checksums to compare."
    )


def test_keys_of_two_checkpoints_are_in_natural_order_in_the_table_and_the_map(
    chromium: Chrome, tmp_path: Path
) -> None:
    arrays = layers(range(12))
    sv.save(tmp_path / "a", arrays)
    sv.save(tmp_path / "b", arrays | {"model.layers.9.extra": np.ones(3)})
    assert (
        main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(tmp_path / "d.html")])
        == 1
    )
    page = show(chromium, tmp_path / "d.html")
    numbers = [
        int(key.split(".")[2])
        for key in page.run("return ITEMS.map(({ key }) => key)")
        if "layers" in key
    ]
    assert numbers == sorted(numbers) and len(set(numbers)) == 12


def test_a_key_of_three_thousand_letters_is_cut_with_a_way_to_see_it_whole(
    chromium: Chrome, tmp_path: Path
) -> None:
    page = show(chromium, view(tmp_path, {"x" * 3000: np.ones(9), " ": np.ones(1)}))
    assert len(page.text("#detail")) < 400 and '" "' in page.text("#table")
    page.run("actions.choose(ITEMS.find(({ key }) => key === ' '))")
    assert page.text("#detail-title") == '" "'
    page.run("actions.choose(ITEMS.find(({ key }) => key.length === 3000))")
    assert len(page.text("#detail-title")) == 300 and page.find("#detail details p").text == ""
    page.find("#detail summary").click()
    assert page.text("#detail details p") == "x" * 3000


def test_the_layers_of_what_is_chosen_come_to_the_front_and_a_mark_tells_of_findings(
    chromium: Chrome, tmp_path: Path
) -> None:
    arrays = {
        f"{stack}/{n}/w": np.arange(4.0) for stack in ("decoder", "encoder") for n in range(5)
    }
    arrays["encoder/3/w"] = np.array([np.nan, 1.0])
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    tabs = "return layerMap.stacks.map((stack) => [stack.prefix, stack === layerMap.stack])"
    assert dict(page.run(tabs)) == {"decoder/": True, "encoder/": False}
    assert [
        each.text for each in page.all("#stacks .segments")[0].find_elements("tag name", "button")
    ] == [
        "decoder/",
        "encoder/ !",
    ]
    page.run("actions.choose(ITEMS.find(({ key }) => key === 'encoder/3/w'))")
    assert dict(page.run(tabs)) == {"decoder/": False, "encoder/": True}
    assert page.text("#detail dd.odd") == "1"


def test_a_comparison_names_what_it_could_not_read(chromium: Chrome, tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"w": np.arange(999.0), "v": np.ones(3)})
    sv.save(tmp_path / "b", {"w": np.arange(999.0), "v": np.ones(3)})
    (file,) = tmp_path.glob("b.svdata-*")
    file.write_bytes(file.read_bytes().replace(np.arange(999.0).tobytes(), bytes(7992)))
    page = show(chromium, page_of_diff(tmp_path, code=3))
    assert page.text("h1") == "1 equal, 1 unreadable"
    assert page.text(
        "#alerts b"
    ).strip() == "B: 1 tensor cannot be read:" and "1 tensor, corrupt: " in page.text("#alerts li")
    assert page.text("#legend").startswith("no values that differ")


def test_what_is_searched_and_filtered_is_taken_back_by_one_button(
    chromium: Chrome, tmp_path: Path
) -> None:
    """It is there while something is left out, also where nothing matches."""
    page = show(chromium, view(tmp_path, layers(range(4)), "--stats"))
    number = len(page.keys())
    assert not [each for each in page.all(".all") if each.is_displayed()]
    page.find("#chips .chip").click()
    page.search("nothing like this")
    assert (
        "No tensor matches." in page.text("#table .none")
        and page.find("#table .none .all").is_displayed()
    )
    page.find(".bar .all").click()
    assert len(page.keys()) == number and page.run("return [state.query, location.hash]") == [
        "",
        "",
    ]
    assert not [each for each in page.all(".all") if each.is_displayed()]
    assert page.run("return document.activeElement.id") == "query"


def test_a_title_breaks_between_the_parts_of_its_key(chromium: Chrome, tmp_path: Path) -> None:
    key = "model.layers.31.mlp.experts.77.up_proj.weight"
    page = show(chromium, view(tmp_path, {key: np.arange(3.0)}))
    page.run("actions.choose(ITEMS[0])")
    parts = page.run("""const range = document.createRange();
        const nodes = [...document.getElementById('detail-title').childNodes].filter((node) => node.nodeType === 3);
        return nodes.map((node) => (range.selectNodeContents(node), [node.data, range.getClientRects().length]))""")
    assert "".join(part for part, _ in parts) == key == page.text("#detail-title")
    assert {lines for _, lines in parts} == {1}


def test_a_mean_of_files_says_that_some_are_missing(chromium: Chrome, tmp_path: Path) -> None:
    path = view(
        tmp_path, {f"w{n}": np.zeros(500, np.int8) for n in range(3)}, policy=BalancedPolicy(3)
    )
    assert "missing" not in show(chromium, path).text(".balance")
    next(tmp_path.glob("model.svdata-*-00001-*")).unlink()
    assert main(["view", str(tmp_path / "model")]) == 0
    assert show(chromium, path).text(".balance").endswith(", without the missing files.")

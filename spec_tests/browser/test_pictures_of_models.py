"""Pages of models as people have them: layers in their order, experts, optimizers, names of any
kind."""

from collections import Counter
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from selenium.webdriver import Chrome

import shardvar as sv
from shardvar.cli.serving import PageServer, answers_of
from shardvar.view.collect import choose_keys, describe
from shardvar.view.page import make_page
from spec_tests.browser.looking import END, ESCAPE, RIGHT, Page, compared, show, view


@pytest.mark.parametrize("number", [8, 12, 23])
def test_layers_of_one_size_stand_in_rows_in_their_order(
    chromium: Chrome, tmp_path: Path, number: int
) -> None:
    arrays = {
        f"model.layers.{n}.{name}.weight": np.ones((40, 40))
        for n in range(number)
        for name in ("mlp", "attn")
    }
    page = show(chromium, view(tmp_path, arrays | {"model.embed.weight": np.ones(4000)}))
    boxes = page.run("""return maps[0].boxes.filter(({ node }) => /^\\d+\\.$/.test(node.label))
        .map((box) => [Math.round(box.y), Math.round(box.x), boxLabel(box), box.width * box.height])""")
    assert [label for *_, label, _ in sorted(boxes)] == [str(n) for n in range(number)]
    areas = [area for *_, area in boxes]
    assert max(areas) / min(areas) < 1.01
    # What all have at the end tells none from another.
    assert {"mlp", "attn"} == set(
        page.run("return maps[0].boxes.filter((b) => b.depth > 2 && b.node.item).map(boxLabel)")
    )


@pytest.mark.parametrize(("number", "width"), [(32, 1300), (32, 1700), (24, 1300), (24, 900)])
def test_equal_layers_are_drawn_alike(
    chromium: Chrome, tmp_path: Path, number: int, width: int
) -> None:
    """As many stand in each row, so that all have one shape, where that makes none too long."""
    arrays = {
        f"model.layers.{n}.{name}": np.ones((40, 40))
        for n in range(number)
        for name in ("mlp", "q", "k")
    }
    page = show(chromium, view(tmp_path, arrays | {"model.embed": np.ones(9000)}), width=width)
    boxes = page.run("""return maps[0].boxes.filter(({ node }) => /^\\d+\\.$/.test(node.label))
        .map(({ y, width, height }) => [Math.round(y), Math.round(width), Math.round(height)])""")
    rows = Counter(y for y, *_ in boxes)
    assert len(boxes) == number and len(set(rows.values())) == 1 and len(rows) > 1
    assert all(max(w, h) <= 3.1 * min(w, h) for _, w, h in boxes)


def test_slots_of_tensorflow_are_a_stack_of_their_own_and_its_ends_of_keys_are_left_out(
    chromium: Chrome, tmp_path: Path
) -> None:
    """Slots have another scale than weights. What is copied, and what is searched for, is the whole
    key."""
    end, slot = "/.ATTRIBUTES/VARIABLE_VALUE", "/.OPTIMIZER_SLOT/optimizer/"
    names = [f"model/layer-{n}/{name}" for n in range(4) for name in ("kernel", "bias")]
    arrays = {name + end: np.linspace(-1, 1, 9 + at) for at, name in enumerate(names)}
    arrays |= {
        f"{name}{slot}{each}{end}": np.linspace(0, 1e-6, 9) for name in names for each in ("m", "v")
    }
    page = show(
        chromium,
        view(tmp_path, arrays | {"step" + end: np.array(1)}, "--stats", format="tensorflow"),
    )
    assert page.run("return [...layerMap.tabs.children].map((tab) => tab.textContent)") == [
        "model/layer-",
        "model/layer- slots",
    ]
    assert page.run("return layerMap.labels()") == ["bias", "kernel"] and page.run(
        "return layerMap.range().low > 0.1"
    )
    page.all("#stacks .segments button")[1].click()
    assert page.run("return layerMap.labels()") == ["bias.m", "bias.v", "kernel.m", "kernel.v"]
    assert page.run("return layerMap.range().high") < 1e-5
    assert (
        end not in page.text("#table .body")
        and end not in page.text("#detail")
        and end in page.text("#table .note")
    )
    page.search(f"layer-1/kernel{end}")
    assert page.keys() == [f"model/layer-1/kernel{end}"]
    page.run("actions.choose(shown[0])")
    assert (
        page.text("#detail-title")
        == page.text("#detail .copy code")
        == f"model/layer-1/kernel{end}"
    )


def test_an_end_of_keys_is_shown_where_it_tells_two_of_them_apart(
    chromium: Chrome, tmp_path: Path
) -> None:
    page = show(
        chromium, view(tmp_path, {"a": np.ones(2), "a/.ATTRIBUTES/VARIABLE_VALUE": np.ones(3)})
    )
    assert page.run("return ITEMS.map(({ name }) => name)") == page.keys() and not page.all(
        "#table .note"
    )


def test_a_comparison_marks_what_is_not_finite_on_one_side(
    chromium: Chrome, tmp_path: Path
) -> None:
    """In its first lines, in the maps and in the table; a filter shows it. Texts that differ are
    not meant."""
    a = {f"layers.{n}.w": np.arange(4.0) for n in range(3)} | {
        "text": np.array([b"a"], object),
        "both": np.array([np.nan, 1]),
    }
    b = {key: value.copy() for key, value in a.items()}
    b["layers.0.w"][1], b["layers.1.w"][2], b["layers.2.w"][0] = np.nan, np.inf, 5
    b["text"][0], b["both"][1] = b"b", 2
    page = show(chromium, compared(tmp_path, a, b))
    assert page.text("header .health").startswith("! NaN or Inf") and "2 tensors" in page.text(
        "header .health"
    )
    assert page.run("return layerMap.stack.rows.map(({ cells }) => flagMark(cells[0][0]))") == [
        "!",
        "!",
        "",
    ]
    page.find("header .health button").click()
    assert (
        page.keys() == ["layers.0.w", "layers.1.w"]
        and page.text("#table .mark.flag") == "NaN or Inf"
    )
    # The norm is that of the elements that have a distance, and no sign that nothing changed.
    page.run("actions.choose(shown[0])")
    assert "with NaN1" in page.text("#detail") and "relative norm of the others0 %" in page.text(
        "#detail"
    )


def test_a_cell_without_room_for_its_mark_is_not_empty(chromium: Chrome, tmp_path: Path) -> None:
    """Constants are grey there, as in the size map, and not of the colour of a cell that is not
    there."""
    arrays = {f"layers.{n}.{name}": np.full(4, 1.0) for n in range(60) for name in ("a", "b")}
    arrays["layers.0.a"] = np.arange(4.0)  # of layers that all are alike, there is no heat map
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    assert page.run("return layerMap.rowHeight() < LEAST_MARKED")
    grey = page.run("return theme.same")
    middle = page.run(
        "return (layerMap.top() + 30 * layerMap.rowHeight() + 3) / layerMap.holder.clientHeight"
    )
    assert "#{:02x}{:02x}{:02x}".format(*page.colour_at(".layers canvas", 0.6, middle)) == grey


def test_columns_that_experts_share_name_them(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {
        f"layers.{n}.experts.{e}.{w}.weight": np.arange(4.0)
        for n in range(4)
        for e in range(16)
        for w in ("w1", "w2", "w3")
    }
    page = show(
        chromium, view(tmp_path, arrays | {f"layers.{n}.norm.weight": np.ones(2) for n in range(4)})
    )
    labels = page.run("return layerMap.labels()")
    assert (
        labels[:3] == [f"experts.{first}\u2013{first + 1}.w1" for first in (0, 2, 4)]
        and len(labels) == 8 * 3 + 1
    )
    assert labels[-1] == "norm" and len(set(labels)) == len(labels)


def test_names_above_columns_differ(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {
        f"state.{n}.{layer}.{part}.{slot}": np.arange(3.0)
        for n in range(3)
        for layer in ("attn", "mlp")
        for part in ("bias", "weight")
        for slot in ("exp_avg", "step")
    }
    labels = show(chromium, view(tmp_path, arrays)).run("return layerMap.labels()")
    assert len(set(labels)) == 8 and "attn.bias.exp_avg" in labels


def test_the_heat_map_has_the_scale_of_its_own_layers(chromium: Chrome, tmp_path: Path) -> None:
    arrays = {f"layers/{n}/w": np.linspace(-1, 1, 9) * (n + 1) for n in range(4)} | {
        "far": np.array([0.0, 1e9])
    }
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    ends = page.run("return [layerMap.range().low, layerMap.range().high, layerMap.measure().high]")
    assert ends[0] == pytest.approx(np.std(arrays["layers/0/w"]), rel=1e-5)
    assert ends[1] == pytest.approx(np.std(arrays["layers/3/w"]), rel=1e-5) and ends[2] == 5e8
    assert page.text("#stacks .legend").startswith("0.645")


def test_a_long_key_is_cut_before_its_end(chromium: Chrome, tmp_path: Path) -> None:
    page = show(chromium, view(tmp_path, {"a." * 1500 + "deep": np.ones(9), "b": np.ones(2)}))
    text, whole = page.run("""const last = document.querySelector('.key .last');
        return [last.textContent, last.scrollWidth <= last.clientWidth]""")
    assert text.endswith("a.deep") and whole


def test_statistics_that_a_served_page_reads_mark_what_is_not_finite(
    chromium: Chrome, tmp_path: Path
) -> None:
    sv.save(tmp_path / "model", {"a": np.array([1.0, np.nan]), "b": np.ones(2)})
    with sv.open_checkpoint(tmp_path / "model") as reader:
        keys = choose_keys(reader)
        with PageServer(
            make_page([describe(reader, keys, [0])], served=True), answers_of(reader, keys)
        ) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            try:
                for key, odd in (("a", ["1"]), ("b", [])):
                    chromium.get("about:blank")
                    chromium.get(f"{server.url}#t={key}")
                    page = Page(chromium)
                    page.until("document.documentElement.dataset.ready === 'true'")
                    page.find(".ask button[type=button]").click()
                    page.until("document.querySelectorAll('#detail dl dd').length === 8")
                    assert [each.text for each in page.all("#detail dd.odd")] == odd
            finally:
                server.shutdown()
                thread.join()


def test_a_question_mark_lists_the_keys_of_the_page(chromium: Chrome, tmp_path: Path) -> None:
    """Each key of the list does something, Escape closes the list alone, and a question mark in the
    search is text."""
    page = show(chromium, view(tmp_path, {"a": np.ones(9), "b": np.ones(2)}))
    page.run("actions.choose(ITEMS[0])")
    page.press("?")
    assert page.find("#keys").is_displayed() and page.text("#keys-title") == "Keys"
    page.press(ESCAPE)
    page.until("!document.getElementById('keys').open")
    assert page.run("return state.item.key") == "a"
    page.find("#help").click()
    page.find("#keys button").click()
    assert (
        not page.find("#keys").is_displayed()
        and page.run("return document.activeElement.id") == "help"
    )
    page.press("/", "?")
    page.until("state.query === '?'")
    assert not page.find("#keys").is_displayed() and page.keys() == ["a", "b"]
    assert page.complaints() == []


def test_a_model_is_listed_before_its_optimizer_and_embeddings_before_layers(
    chromium: Chrome, tmp_path: Path
) -> None:
    model = {f"model.h.{n}.w": np.ones((2, n + 1)) for n in range(3)} | {
        "model.wte": np.ones(9),
        "model.head": np.ones(9),
    }
    slots = {
        f"optimizer.h.{n}.{slot}": np.ones(3)
        for n in range(3)
        for slot in ("exp_avg", "exp_avg_sq", "step")
    }
    page = show(chromium, view(tmp_path, model | slots))
    assert page.keys()[:5] == [
        "model.wte",
        "model.h.0.w",
        "model.h.1.w",
        "model.h.2.w",
        "model.head",
    ]
    assert page.run("return layerMap.stacks.map(({ prefix }) => prefix)") == [
        "model.h.",
        "optimizer.h.",
    ]


def test_parts_of_a_key_are_shown_from_left_to_right_whatever_their_script(
    chromium: Chrome, tmp_path: Path
) -> None:
    """A number behind an Arabic name would stand before it; what is selected is the key, without
    marks of direction."""
    key = "layer/\u0637\u0628\u0642\u0629/0/weight"
    page = show(chromium, view(tmp_path, {key: np.ones(9), "layer/b": np.ones(2)}))
    page.run(f"actions.choose(ITEMS.find((item) => item.key === '{key}'))")
    for place in ("#detail-title", "#table .row [role=gridcell].key:has(bdi)"):
        lefts = page.run(f"""const texts = document.createTreeWalker(document.querySelector('{place}'), 4), found = [];
            while (texts.nextNode()) {{
                const range = document.createRange();
                range.selectNodeContents(texts.currentNode);
                found.push([texts.currentNode.data, range.getBoundingClientRect().left]);
            }}
            return found""")
        assert "".join(text for text, _ in lefts) == key
        assert [left for _, left in lefts] == sorted(left for _, left in lefts)
    assert page.run("return keyText('a/\u0628/0')") == "a\u200e/\u200e\u0628\u200e/\u200e0"


def test_a_box_has_a_name_only_if_more_than_its_beginning_is_seen(
    chromium: Chrome, tmp_path: Path
) -> None:
    """In small boxes names would hide colours; a mark of what is not finite stays."""
    arrays = {
        f"a.{n}.{name}_of_a_layer": np.arange(9.0)
        for n in range(42)
        for name in ("first", "second")
    }
    arrays["a.7.first_of_a_layer"] = np.full(9, np.nan)
    page = show(chromium, view(tmp_path, arrays, "--stats"), width=1280)
    names = page.run("""const told = [], write = tag;
        tag = (context, text, ...rest) => { told.push(text); return write(context, text, ...rest); };
        maps[0].drawNow();
        tag = write;
        return told""")
    assert names == ["NaN"]


def test_above_an_open_folder_the_whole_checkpoint_is_a_strip(
    chromium: Chrome, tmp_path: Path
) -> None:
    """Segments are in reading order and to scale; arrow keys open the folders beside, Back and
    Escape go back."""
    arrays = {f"m.layers.{n}.{name}": np.arange(100.0) for n in range(12) for name in ("a", "b")}
    arrays |= {
        "m.layers.7.a": np.full(100, np.nan),
        "m.embed": np.ones(600),
        "m.norm": np.ones(2),
        "head": np.ones(400),
    }
    page = show(chromium, view(tmp_path, arrays, "--stats"))
    strip = page.find(".whole")
    assert not strip.is_displayed()
    page.run("actions.open('m.layers.3.')")
    page.run("return new Promise(requestAnimationFrame)")
    assert strip.is_displayed() and strip.get_attribute("aria-valuetext").startswith(
        "m.layers.3.: 2 tensors"
    )
    labels, places = page.run(
        "const { segments, places } = maps[0].strip; return [segments.map(({ label }) => label), "
        "places]"
    )
    assert labels == ["embed", *(f"{n}." for n in range(12)), "norm", "head"]
    whole = sum(array.nbytes for array in arrays.values())
    widths = np.diff([0, *places]) / places[-1] * whole
    assert widths.round().astype(int).tolist() == [4800, *[1600] * 12, 16, 3200]
    page.run("document.querySelector('.whole').focus()")
    page.press(RIGHT)
    assert (
        page.run("return state.prefix") == "m.layers.4."
        and "in=m.layers.4." in chromium.current_url
    )
    page.run("history.back()")
    page.until("state.prefix === 'm.layers.3.'")
    page.run("return new Promise(requestAnimationFrame)")
    page.point(".whole", (4800 + 7.5 * 1600) / whole, 0.3)
    assert "m.layers.7." in page.text("#tip")
    page.point(".whole", (4800 + 7.5 * 1600) / whole, 0.3, click=True)
    assert page.run("return state.prefix") == "m.layers.7."
    page.point(".whole", 0.05, 0.3, click=True)
    assert page.run("return state.item.key") == "m.embed"
    page.run("document.querySelector('.whole').focus()")
    page.press(END)
    assert page.run("return state.prefix") == "m.layers.11."
    page.press(ESCAPE, ESCAPE)
    page.until("state.prefix !== 'm.layers.11.'")
    assert page.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_chosen_has_an_outline_that_is_seen_on_any_colour(
    chromium: Chrome, tmp_path: Path, scheme: str
) -> None:
    """Ink and card lie side by side, so that one of them differs from the cell below, the palest
    and the darkest."""
    arrays = {f"a.{n}.w": np.linspace(-1, 1, 9) * 10.0**n for n in range(4)}
    page = show(chromium, view(tmp_path, arrays, "--stats"), scheme=scheme)
    for number in range(4):
        page.run(f"actions.choose(ITEMS[{number}]); layerMap.drawNow(); maps[0].mark()")
        for canvas in (".layers canvas", ".map .marks"):
            seen, ink, card = (
                page.run(f"""const canvas = document.querySelector('{canvas}'), seen = new Set();
                const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
                for (let at = 0; at < data.length; at += 4) seen.add(String(data.slice(at, at + 3)));
                const rgb = (name) => String(theme[name].match(/[0-9a-f]{{2}}/g).map((part) => parseInt(part, 16)));
                return [[...seen], rgb('ink'), rgb('card')]""")
            )
            assert ink in seen and card in seen


def test_a_list_of_variables_is_no_stack_of_layers(chromium: Chrome, tmp_path: Path) -> None:
    """Keras numbers what it trains: nothing follows these numbers but TensorFlow's end of a key,
    which is left out."""
    arrays = {f"vars/{n}/.ATTRIBUTES/VARIABLE_VALUE": np.arange(3.0) for n in range(4)}
    page = show(chromium, view(tmp_path, arrays, format="tensorflow"))
    assert not page.find("#layers").is_displayed() and len(page.keys()) == 4

"""The page of ``shardvar view``: it says what the index says, trusts no name, and replaces no file
but a page.

How it looks and answers in a browser is ``spec_tests/browser``'s to say.
"""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.verbs.compare.blocks import NUM_BINS, Statistics, bin_counts
from shardvar.view.collect import (
    HEIGHTS,
    MARK,
    bar_heights,
    describe,
    embedded_json,
    front_coded,
    gaps,
    make_page,
    packed,
    statistics_that_fit,
    unpacked,
)
from spec_tests.helpers.command_line import Run, run, saved
from spec_tests.helpers.hypothesis_strategies import ODD_KEYS
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.view_pages import HOSTILE_KEYS, columns_of, keys_of, slices_of, tensors_of

__all__ = ["run"]  # the fixture

KEYS = st.one_of(st.sampled_from(HOSTILE_KEYS + ODD_KEYS), st.text(max_size=8))


def page_of(run: Run, path: Path, *words: str) -> str:
    target = path.parent / "out.html"
    assert run("view", path, "-o", target, *words).code == 0
    return target.read_text(encoding="utf-8")


def assert_says_what_the_index_says(page: str, path: Path) -> None:
    (columns,) = columns_of(page)["checkpoints"]
    with sv.open_checkpoint(path) as reader:
        assert sorted(keys_of(columns)) == sorted(reader.keys())
        assert columns["files"] == list(reader.index.files)
        entries = reader.entries()
        tensors, slices = entries.slices.tensors, entries.slices
        nbytes = {
            key: int(slices.nbytes[slices.tensor == row].sum())
            for row, key in enumerate(tensors.keys)
        }
        assert tensors_of(columns) == {
            key: (tensors.dtype(row), tensors.shape(row), nbytes[key])
            for row, key in enumerate(tensors.keys)
        }
        assert not any(
            n for n, dtype in zip(columns["nbytes"], columns["dtype"], strict=True) if dtype < 0
        )
        listed = [
            (entries.entry(row, reader.index.files), bool(entries.plain[row]))
            for row in range(len(entries))
        ]
        assert sorted(slices_of(columns)) == sorted(
            (
                e.slice.key,
                e.slice.region.offset,
                e.slice.region.shape,
                e.file,
                e.start,
                e.slice.nbytes,
                plain,
            )
            for e, plain in listed
        )
        faults = {
            keys_of(columns)[row]: (kind, message) for row, kind, message in columns["faults"]
        }
        assert faults == {
            key: (type(error).__name__, str(error).replace(f"{key!r}: ", "", 1))
            for key, error in reader.faults.items()
        }


@pytest.mark.smoke
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_the_page_says_what_the_index_says(form: str, tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path, form, **({"partition": 3} if form in ("shardvar", "tensorflow") else {}))
    assert_says_what_the_index_says(page_of(run, path), path)


@pytest.mark.parametrize(
    "case",
    ["native/bad_overlap", "native/bad_hole", "native/bad_data_missing", "tensorflow/slices_overlap",
     "tensorflow/slices_with_hole", "tensorflow/bad_shard_missing", "tensorflow/keras_adam", "native/grid",
     "huggingface/bad_offsets_gone"],
)  # fmt: skip
def test_the_page_of_a_damaged_checkpoint_names_each_fault(
    case: str, tmp_path: Path, run: Run
) -> None:
    target = tmp_path / "out.html"
    assert run("view", GOLDEN / case, "-o", target).code == 0
    assert_says_what_the_index_says(target.read_text(encoding="utf-8"), GOLDEN / case)


@given(st.lists(KEYS, unique=True))
def test_keys_come_back_from_what_they_share(keys: list[str]) -> None:
    assert keys_of({"keys": front_coded(keys)}) == keys


def test_no_name_becomes_markup(tmp_path: Path, run: Run) -> None:
    """Two scripts begin and end in the page, its data and its own, whatever the names are."""
    names = {key: np.ones(3) for key in HOSTILE_KEYS}
    path = tmp_path / "<img src=x onerror=1>"
    sv.save(path, names, metadata={HOSTILE_KEYS[0]: HOSTILE_KEYS[1]})
    page = page_of(run, path)
    assert "<title>&lt;img src=x onerror=1&gt; · shardvar</title>" in page
    tags = ("<script", "</script>", "<style>", "</style>")
    assert list(map(page.count, tags)) == [2, 2, 1, 1]
    assert "<img" not in page and "<svg" not in page and "<!--<" not in page
    (columns,) = columns_of(page)["checkpoints"]
    assert sorted(keys_of(columns)) == sorted(HOSTILE_KEYS)


def test_the_page_asks_for_nothing_over_a_network(tmp_path: Path, run: Run) -> None:
    """No address but that of SVG's namespace, and a policy that would forbid any."""
    page = page_of(run, saved(tmp_path))
    assert set(re.findall(r"https?://[^\"'\s]*", page)) == {"http://www.w3.org/2000/svg"}
    assert re.search(r"\b(src|href|action)=(?!\"#)", page.split("<script", 1)[0]) is None
    assert (
        "fetch(" not in page
        and "import(" not in page
        and "innerHTML" not in page
        and "eval(" not in page
    )


def test_the_policy_allows_the_script_and_the_style_of_the_page_alone(
    tmp_path: Path, run: Run
) -> None:
    page = page_of(run, saved(tmp_path))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy


def test_statistics_and_histograms_are_those_of_numpy(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(3)
    values = {
        "normal": rng.standard_normal(5000),
        "integers": rng.integers(-9, 9, (40, 7)),
        "same": np.full(8, 2.5),
    }
    odd = {"nothing": np.zeros((0, 2)), "nan": np.array([np.nan]), "text": np.array([b"x"], object)}
    sv.save(tmp_path / "model", values | odd)
    (columns,) = columns_of(page_of(run, tmp_path / "model", "--stats"))["checkpoints"]
    stats, keys = columns["stats"], keys_of(columns)
    place = {keys[row]: number for number, row in enumerate(stats["row"])}
    assert place.keys() == {*values, "nothing", "nan"}
    for key, array in values.items():
        counts = (
            np.histogram(array, NUM_BINS, range=(array.min(), array.max()))[0]
            if key != "same"
            else [8] + [0] * 23
        )
        assert stats["histogram"][place[key]] == bar_heights(np.asarray(counts))
        assert stats["peak"][place[key]] == max(counts)
        assert stats["mean"][place[key]] == pytest.approx(array.mean(), rel=1e-5)
    assert [stats["histogram"][place[key]] for key in ("nothing", "nan")] == ["", ""]


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint64", "complex64", "bool", "float16"])
def test_every_finite_element_is_in_a_bin(dtype: str) -> None:
    array = (np.arange(100) % 7).astype(dtype)
    low, high = float(np.abs(array).min()), float(np.abs(array).max())
    assert bin_counts(array, low, high).sum() == 100
    most = np.finfo(np.float64).max
    assert bin_counts(np.array([-most, 0.0, most, np.inf]), -most, most, 4).tolist() == [1, 0, 1, 1]


def test_a_histogram_of_a_large_tensor_is_that_of_its_blocks(tmp_path: Path, run: Run) -> None:
    array = np.random.default_rng(5).standard_normal(1_500_000).astype(np.float32)
    sv.save(tmp_path / "model", {"large": array}, partition=3)
    (columns,) = columns_of(page_of(run, tmp_path / "model", "--stats"))["checkpoints"]
    assert columns["stats"]["histogram"] == [
        bar_heights(bin_counts(array, float(array.min()), float(array.max())))
    ]


def test_only_an_empty_bin_has_no_height() -> None:
    heights = bar_heights(np.array([0, 1, 10**12]))
    assert [HEIGHTS.index(height) > 0 for height in heights] == [False, True, True]


def test_the_page_stands_beside_the_checkpoint_where_nothing_else_is_said(
    tmp_path: Path, run: Run
) -> None:
    for form, name in (("shardvar", "model"), ("safetensors", "weights.safetensors")):
        path = saved(tmp_path, form, name)
        page = tmp_path / f"{name.partition('.')[0]}.html"
        assert run("view", path).out.startswith("wrote ") and page.read_text(
            encoding="utf-8"
        ).startswith(MARK)
    assert run("verify", tmp_path / "model").code == 0


def test_nothing_is_replaced_but_a_page(tmp_path: Path, run: Run) -> None:
    path = saved(tmp_path)
    mine = tmp_path / "mine.html"
    mine.write_text("<p>my own</p>")
    outcome = run("view", path, "-o", mine)
    assert (
        outcome.code == 3
        and "not written by shardvar" in outcome.err
        and mine.read_text() == "<p>my own</p>"
    )
    assert [run("view", path, "-o", tmp_path / "page.html").code for _ in range(2)] == [0, 0]
    assert run("view", path, "-o", tmp_path / "model.svindex").code == 2
    (tmp_path / "folder.html").mkdir()
    assert run("view", path, "-o", tmp_path / "folder.html").code in (2, 3)
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(".shardvar")]


def test_a_page_that_would_be_too_large_is_refused_with_a_way_out() -> None:
    """The largest has fifteen million characters."""
    rest = 15_000_000 - len(make_page([{"path": "", "name": "model"}]))
    assert len(make_page([{"path": rest * "p", "name": "model"}])) == 15_000_000
    with pytest.raises(sv.errors.ArgumentError, match="--filter"):
        make_page([{"path": rest * "p" + "p", "name": "model"}])


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 1.1])
def test_a_page_has_statistics_of_as_many_tensors_as_it_has_room_for(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Every share of the room gives a page within the limit; remarkable tensors come first, then
    the largest."""
    rng = np.random.default_rng(7)
    arrays = {f"w{n}": rng.standard_normal(n + 2) for n in range(300)}
    arrays |= {
        "w3": np.array([np.nan, 1.0, 2.0]),
        "w8": np.array([1.0, 2.0, np.inf]),
        "w9": np.zeros(3),
        "w11": np.full(3, 2.0),
    }
    sv.save(tmp_path / "model", arrays)
    plain, whole = (len(page_of(run, tmp_path / "model", *words)) for words in ((), ("--stats",)))
    limit = plain + int(share * (whole - plain)) + 500
    monkeypatch.setattr("shardvar.view.collect.MOST_NBYTES", limit)
    page = page_of(run, tmp_path / "model", "--stats")
    (columns,) = columns_of(page)["checkpoints"]
    keys, stats = keys_of(columns), columns["stats"]
    told = [keys[row] for row in (range(300) if stats["row"] is None else stats["row"])]
    assert (
        len(page) <= limit
        and stats["num_left_out"] == 300 - len(told)
        and (len(told) == 300) == (share > 1)
    )
    plainest = sorted(arrays.keys() - {"w3", "w8", "w9", "w11"}, key=lambda key: -arrays[key].size)
    if share > 0.001:
        assert set(told) == {"w3", "w8", "w9", "w11", *plainest[: len(told) - 4]} and len(
            page
        ) >= min(limit - 1500, whole)


@pytest.mark.parametrize("share", [0.01, 0.5, 1.4])
def test_a_page_of_two_has_histograms_of_as_many_tensors_as_it_has_room_for(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Every share of the room gives a page within the limit; both sides have those of the same
    tensors."""
    rng = np.random.default_rng(7)
    one = {f"w{n}": rng.standard_normal(n + 2) for n in range(200)}
    sv.save(tmp_path / "a", one)
    sv.save(tmp_path / "b", {key: value * 2 for key, value in one.items()} | {"more": np.ones(3)})
    words = ["diff", tmp_path / "a", tmp_path / "b", "--html", tmp_path / "page.html"]

    def page(*more: str) -> tuple[str, str]:
        outcome = run(*words, *more)
        assert outcome.code == 1
        return (tmp_path / "page.html").read_text(), outcome.err

    (plain, _), (whole, told) = page(), page("--stats")
    assert "room" not in told
    limit = len(plain) + int(share * (len(whole) - len(plain))) + 1500
    monkeypatch.setattr("shardvar.view.collect.MOST_NBYTES", limit)
    text, told = page("--stats")
    sides = columns_of(text)["checkpoints"]
    rows = [side["stats"]["row"] or list(range(200)) for side in sides]
    keys = [[keys_of(side)[row] for row in some] for side, some in zip(sides, rows, strict=True)]
    left = sides[0]["stats"]["num_left_out"]
    assert (
        len(text) <= limit and keys[0] == keys[1] and ("room" in told) == (left > 0) == (share < 1)
    )
    assert left == 200 - len(keys[0])


def test_a_page_of_two_has_the_tensors_that_were_compared(tmp_path: Path, run: Run) -> None:
    """What a map and new names make, and not the stored ones; a tensor that was left out of the
    comparison would look equal."""
    sv.save(tmp_path / "a", {"h.0.w": np.ones((2, 3)), "h.1.w": np.ones((2, 3)), "n": np.ones(4)})
    sv.save(tmp_path / "b", {"w": np.ones((3, 2, 2)), "m": np.zeros(4)})
    page = tmp_path / "page.html"
    rules = ["--rule", "h.{l}.w[a b] -> x[b l a]", "--rule", "n -> n", "--rename", "x=w"]
    for words, keys in (
        (rules, ["m", "w"]),
        (["--filter", "m"], ["m"]),
        (["--filter", "[mw]", "--exclude", "w"], ["m"]),
    ):
        words = ["--rename", "n=m", *words, "--html", page, "--stats"]
        assert run("diff", tmp_path / "a", tmp_path / "b", *words).code == 1
        columns = columns_of(page.read_text(encoding="utf-8"))
        assert [sorted(keys_of(side)) for side in columns["checkpoints"]] == [keys] * 2
        (differing,) = columns["diff"]["differences"]
        assert keys_of(columns["checkpoints"][0])[differing[0]] == "m"


def test_a_hundred_thousand_tensors_fit_in_a_page(tmp_path: Path, run: Run) -> None:
    """On a sample: a page has room for 80 bytes a tensor."""
    names = {
        f"model/decoder/block_{i // 100}/expert_{i % 100}/kernel": np.zeros(2, np.int8)
        for i in range(5_000)
    }
    sv.save(tmp_path / "many", names)
    page = page_of(run, tmp_path / "many")
    assert len(page) < len(page_of(run, saved(tmp_path))) + 80 * len(names)
    # The names were made in natural order: block_9 comes before block_10.
    assert keys_of(columns_of(page)["checkpoints"][0]) == list(names)


def test_statistics_of_a_hundred_thousand_tensors_fit_in_ten_megabytes(tmp_path: Path) -> None:
    """Weights as models have them, with full histograms, on a sample: the page is linear in the
    tensors."""
    number = 2000
    keys = [f"model/decoder/block_{i // 100}/expert_{i % 100}/kernel" for i in range(number)]
    sv.save(tmp_path / "many", {key: np.zeros(2, np.int8) for key in keys})
    one = Statistics(
        10**6,
        10**6,
        minimum=-0.0314159265,
        maximum=0.0314159265,
        mean=-0.000271828182,
        m2=141.421356,
    )
    counts = np.arange(1, NUM_BINS + 1)
    with sv.open_checkpoint(tmp_path / "many") as reader:
        columns = describe(reader, keys, [0], dict.fromkeys(keys, one), dict.fromkeys(keys, counts))
        plain = describe(reader, keys, [0])
        many = {
            key: replace(one, count=10**6 + row, nan=row + 1, inf=3 * row + 2, zero=5 * row + 7)
            for row, key in enumerate(keys)
        }
        heights = {key: counts * (row + 1) for row, key in enumerate(keys)}
        grown = len(embedded_json(describe(reader, keys, [0], many, heights)))
    assert len(embedded_json(columns)) / number * 100_000 < 10_000_000
    # What fits is foreseen: never too much, and too little by a few bytes a tensor.
    grown -= len(embedded_json(plain))
    assert len(statistics_that_fit(keys, many, grown)) < number
    assert len(statistics_that_fit(keys, many, grown + 60 * number)) == number


def test_numbers_that_json_lacks_never_reach_a_page() -> None:
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            embedded_json([number])
    assert embedded_json({"é": [1.5, None]}) == '{"\\u00e9":[1.5,null]}'
    assert embedded_json(["a&b", "<c>"]) == '["a\\u0026b","\\u003cc\\u003e"]'


def test_open_shows_the_page_in_a_browser(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(shown.append(address)))
    outcome = run("view", saved(tmp_path), "--open")
    assert outcome.code == 0 and shown == [(tmp_path / "model.html").as_uri()]
    assert "no browser was found" in outcome.err


def test_a_page_has_the_path_as_it_was_typed(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are sent to others: no folder of this machine is in them unless it was typed, in
    messages neither."""
    saved(tmp_path, "shardvar")
    data = next(tmp_path.glob("model.svdata-*"))
    inside = tmp_path / "runs" / "deep"
    inside.mkdir(parents=True)
    for cwd, path in (
        (tmp_path, "model"),
        (inside, "../../model"),
        (tmp_path, "./runs/../model.svindex"),
    ):
        monkeypatch.chdir(cwd)
        assert run("view", path, "-o", "out.html").code == 0
        page = Path("out.html").read_text(encoding="utf-8")
        (columns,) = columns_of(page)["checkpoints"]
        assert columns["path"] == path and columns["name"] == "model" and str(tmp_path) not in page
    data.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(inside)
    assert run("view", "../../model", "-o", "out.html").code == 0
    page = Path("out.html").read_text(encoding="utf-8")
    assert str(tmp_path) not in page and f"../../{data.name}" in page
    monkeypatch.chdir(tmp_path)
    assert run("diff", "model", "model", "--html", "d.html").code == 3
    assert str(tmp_path) not in Path("d.html").read_text(encoding="utf-8")


def test_the_number_of_the_schema_stands_for_these_columns(tmp_path: Path, run: Run) -> None:
    """Whoever takes a column away, or gives one another meaning, raises the number; programs read
    pages."""
    page = columns_of(page_of(run, saved(tmp_path, "shardvar", partition=3), "--stats"))
    assert page["schema"] == 4
    (columns,) = page["checkpoints"]
    words = "path name format writer description metadata num_parameters files file_nbytes faults "
    words += "causes stats dtypes shapes keys dtype shape nbytes num_slices slices holder"
    assert columns.keys() >= {*words.split()}
    assert columns["slices"].keys() >= {"file", "gap", "nbytes", "encoded", "cut", "device"}
    words = "row min max mean std count nan inf zero histogram bins peak"
    assert columns["stats"].keys() >= {*words.split()}


@given(st.lists(st.tuples(st.integers(-1, 2**53), st.integers(1, 40)), max_size=30))
def test_a_packed_column_is_the_column_and_no_longer(runs: list[tuple[int, int]]) -> None:
    column = [value for value, length in runs for _ in range(length)]
    short = packed(column)
    assert unpacked(short) == column
    assert len(json.dumps(short)) <= len(json.dumps(column)) + len('{"runs": }')


def test_a_start_beyond_the_numbers_of_javascript_is_told_as_text() -> None:
    """An index may claim any start; those that follow are counted from what a browser can count."""
    files, starts, sizes = [0, 0, 0, 1, 0], [64, 2**53 + 1, 100, 7, 2**53 - 2], [36, 5, 1, 2, 9]
    assert gaps(files, starts, sizes) == [64, str(2**53 + 1), 0, 7, 2**53 - 2 - 101]


def test_histograms_of_both_sides_have_the_same_bins(tmp_path: Path, run: Run) -> None:
    """The oracle is NumPy's histogram over the range of both; tensors that are equal are not read
    again."""
    rng = np.random.default_rng(5)
    a = {"w": rng.standard_normal(900), "same": np.ones(4), "odd": np.array([np.nan, np.nan])}
    b = {"new": a["w"] * 3 + 1, "same": np.ones(4), "odd": np.array([1.0, 2.0])}
    sv.save(tmp_path / "a", a)
    sv.save(tmp_path / "b", b)
    html = tmp_path / "d.html"
    words = ("--rename", "w=new", "--html", html)
    assert run("diff", tmp_path / "a", tmp_path / "b", *words).code == 1
    assert all(
        each["stats"] is None
        for each in columns_of(html.read_text(encoding="utf-8"))["checkpoints"]
    )
    assert run("diff", tmp_path / "a", tmp_path / "b", *words, "--stats").code == 1
    both = [*a["w"], *b["new"]]
    for columns, values in zip(
        columns_of(html.read_text(encoding="utf-8"))["checkpoints"], (a["w"], b["new"]), strict=True
    ):
        stats, keys = columns["stats"], keys_of(columns)
        place = {keys[row]: number for number, row in enumerate(stats["row"])}
        assert place.keys() == {"new", "odd"}
        counts = np.histogram(values, NUM_BINS, range=(min(both), max(both)))[0]
        assert (
            stats["histogram"][place["new"]] == bar_heights(counts)
            and stats["peak"][place["new"]] == counts.max()
        )
        assert stats["min"][place["new"]] == pytest.approx(values.min(), rel=1e-5)
    refused = run("diff", tmp_path / "a", tmp_path / "b", "--stats")
    assert refused.code == 2 and "--html" in refused.err


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("view model --stats", "--serve"),
        ("reshard model new --dry-run --html page.html", "Leave out --html"),
        ("diff model model --html page.html --stats", "diff A B --filter"),
    ],
)
def test_a_page_too_large_without_statistics_is_refused_before_a_value_is_read(
    words: str, remedy: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shardvar.view.collect.MOST_NBYTES", 1000)
    if not words.startswith("reshard"):
        for file in tmp_path.glob("model.svdata-*"):
            file.write_bytes(b"")  # a value that is read would be an error of another kind
    outcome = run(*words.split())
    assert outcome.code == 2 and "The page would have" in outcome.err and remedy in outcome.err


def test_diff_with_a_page_answers_as_without_it(tmp_path: Path, run: Run) -> None:
    one, two = saved(tmp_path), tmp_path / "two.npz"
    sv.save(two, {"dense/kernel": np.zeros((8, 5), np.float32)})
    plain, page = run("diff", one, two), run("diff", one, two, "--html", tmp_path / "both.html")
    assert (page.code, page.out) == (plain.code, plain.out) == (1, plain.out)
    assert "wrote " in page.err and run("diff", one, two, "--html", two).code == 2


def test_a_long_text_is_cut_and_a_tensor_without_settings_has_none(
    tmp_path: Path, run: Run
) -> None:
    """A string of a checkpoint of TensorFlow is a tensor."""
    text = np.array(b"x" * 900, object)
    sv.save(tmp_path / "model", {"text": text, "step": np.array(7), "w": np.ones(2)})
    (columns,) = columns_of(page_of(run, tmp_path / "model"))["checkpoints"]
    keys = keys_of(columns)
    values = {keys[row]: text for row, text in columns["values"]}
    assert values["step"] == "7" and len(values["text"]) == 200 and values["text"].endswith("…")
    assert columns["settings"] == [] and values.keys() == {"step", "text"}

"""Tests of the overview that ``inspect`` prints: the tree is exact, it fits the terminal, and what
is odd is named."""

import io
import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.output import progress
from shardvar.cli.tree import Line, fold_keys, tree_lines
from spec_tests.helpers.braces import expanded
from spec_tests.helpers.command_line import Run, run, terminal
from spec_tests.helpers.hypothesis_strategies import ODD_KEYS

__all__ = ["run"]


def drawn(keys: list[str], kinds: str | None = None) -> list[str]:
    """The lines of a tree, each with its guide."""
    return [line.guide + line.label for line in tree_lines(keys, kinds)]


def whole_keys(lines: list[Line]) -> list[str]:
    """All keys that a tree stands for."""
    path: list[str] = []
    keys: list[str] = []
    for line in lines:
        path[line.level - 1 :] = [line.label]
        if line.leaf is not None:
            keys.extend(expanded("".join(path)))
    return keys


@given(st.lists(st.from_regex(r"[ab]\.[0-9]{1,2}(\.[ab#][0-9]?)?", fullmatch=True), unique=True))
def test_folded_keys_are_the_keys_and_no_others(keys: list[str]) -> None:
    """Each label stands for exactly the keys that share it."""
    found: list[str] = []
    for label, shared in fold_keys(keys):
        assert sorted(expanded(label)) == sorted(shared)
        found += shared
    assert sorted(found) == sorted(keys)


@given(st.lists(st.one_of(st.sampled_from(ODD_KEYS), st.text("a/.", max_size=60)), unique=True))
def test_the_tree_has_every_key_once_and_spells_it(names: list[str]) -> None:
    path: list[str] = []
    seen: dict[int, str] = {}
    for line in tree_lines(names):
        path[line.level - 1 :] = [line.label]
        if line.leaf is not None:
            seen[line.leaf] = "".join(path)
    assert seen == dict(enumerate(names))


@given(
    st.lists(
        st.from_regex(
            r"(l_?[0-9]{1,2}|h[0-9]_w[0-9]|[qkx]_w[0-2]?)(/[wb][0-2]?|/[ab]_w)?", fullmatch=True
        ),
        unique=True,
        max_size=40,
    ),
    st.randoms(use_true_random=False),
)
def test_a_folded_tree_stands_for_exactly_the_keys(keys: list[str], random: object) -> None:
    """Expanding the ranges as a shell does gives every key once, and none that does not exist."""
    kinds = [random.choice("fffi") for _ in keys]  # type: ignore[attr-defined]
    lines = list(tree_lines(keys, kinds))
    assert sorted(whole_keys(lines)) == sorted(keys)
    assert sorted(leaf for line in lines if line.level == 1 for leaf in line.leaves) == list(
        range(len(keys))
    )
    for line in lines:
        assert (
            line.leaf is None
            or len({kinds[leaf] for leaf in line.leaves if "/" not in keys[leaf]}) <= 1
        )


def test_a_range_names_exactly_the_numbers_that_exist() -> None:
    """Gaps, padding, steps, several numbers in a name, and odd ones out."""
    assert drawn(["l0", "l1", "l2", "l9"], "ffff") == ["└─ l{0..2,9}"]
    assert drawn([f"{n:02}" for n in range(12)], "f" * 12) == ["└─ {00..11}"]
    assert drawn([f"b{n}" for n in range(0, 70, 7)], "f" * 10) == ["└─ b{0..63..7}"]
    assert drawn([f"layer_{n}" for n in range(6)], "abaaba") == [
        "├─ layer_{0,2,3,5}",
        "├─ layer_1",
        "└─ layer_4",
    ]
    assert drawn([f"conv2d_{n}.w" for n in range(3)], "fff") == ["└─ conv2d_{0..2}.w"]
    both = [f"h{a}_w{b}" for a in range(2) for b in range(3)]
    assert drawn(both, "f" * 6) == ["├─ h0_w{0..2}", "└─ h1_w{0..2}"]


def test_siblings_that_differ_in_one_word_share_a_line() -> None:
    """The line lists the words, in the order that they have by custom; all must have equal tensors
    below them."""
    attention = [
        f"h.{n}.attn.{word}_proj.weight" for n in range(4) for word in ("k", "o", "q", "v")
    ]
    assert drawn(attention, "w" * 16) == ["└─ h.{0..3}.attn.{q,k,v,o}_proj.weight"]
    assert drawn(attention[:4], "wwxw") == [
        "└─ h.0.attn.",
        "   ├─ {k,v,o}_proj.weight",
        "   └─ q_proj.weight",
    ]
    mlp = [f"mlp.{word}_proj" for word in ("down", "gate", "up")]
    assert drawn(mlp, "dww") == ["└─ mlp.", "   ├─ down_proj", "   └─ {gate,up}_proj"]
    assert drawn(["bias", "weight"], "ff") == ["├─ bias", "└─ weight"]
    assert drawn(["w_1", "w_2"], "ff") == ["├─ w_1", "└─ w_2"]
    assert drawn(["a,b_w", "c_w", "{_w"], "fff") == ["├─ a,b_w", "├─ c_w", "└─ {_w"]
    assert drawn(["a_b", "a_c.x"], "ff") == ["├─ a_b", "└─ a_c.x"]
    (line,) = tree_lines(["k_w", "q_w"], "ff")
    assert (line.num_alike, line.leaves) == (1, (1, 0))
    assert drawn([f"{word}_w" for word in "abcdefghi"], "f" * 9) == drawn(
        [f"{word}_w" for word in "abcdefghi"]
    )


def test_a_missing_number_is_a_gap_and_a_sibling_that_differs_is_not() -> None:
    missing = [f"l{n}" for n in range(8) if n != 5]
    assert [line.gaps for line in tree_lines(missing, "f" * 7)] == [(5,)]
    assert [line.gaps for line in tree_lines([f"l{n}" for n in range(8)], "fffffiff")] == [(), ()]


def saved_layers(path: Path, without: int | None = None) -> Path:
    """A checkpoint of twelve layers with two tensors each, an embedding and a step."""
    layers = [number for number in range(12) if number != without]
    tensors: dict[str, np.ndarray] = {
        f"layers.{n}.{part}": np.ones((4, 8), "f4") for n in layers for part in "wb"
    }
    sv.save(path, {"embed.weight": np.zeros((10, 4), "f4"), "step": np.int64(7), **tensors})
    return path


def test_an_interrupted_reshard_says_that_it_can_be_continued(tmp_path: Path, run: Run) -> None:
    path = saved_layers(tmp_path / "model")
    with patch("shardvar.cli.reshard.reshard", side_effect=KeyboardInterrupt):
        assert (
            run("reshard", path, tmp_path / "x").err == "interrupted; the same command continues\n"
        )
        assert run("reshard", path, tmp_path / "x", "--dry-run").err == "interrupted\n"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_progress_is_one_line_whatever_the_width(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    for name, value in (
        ("COLUMNS", str(columns)),
        ("LINES", "24"),
        ("TERM", "xterm"),
        ("NO_COLOR", "1"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr", screen)
    with progress("resharding", lambda: 9_100_000) as advance:
        advance(4_500_000)
        advance(4_800_000)
    # Between the codes that move the cursor, each frame is one line that fits.
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", screen.getvalue()).split("\r")
    assert any("resharding" in frame for frame in frames)
    assert not any("9.3/" in frame or "102%" in frame for frame in frames)
    assert all(
        "\n" not in frame.rstrip("\n") and len(frame.rstrip()) <= columns for frame in frames
    )


def test_statistics_of_equal_layers_share_a_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds what NumPy says of all their elements together."""
    rng = np.random.default_rng(0)
    layers = {
        f"layers.{n}.{name}": rng.normal(size=(8, 3)).astype("f4")
        for n in range(4)
        for name in ("q", "up.w")
    }
    layers["layers.2.q"][0, 0] = np.nan
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model"
    sv.save(path, layers)
    with terminal(120):
        out = run("inspect", path, "--stats").out
    values = np.concatenate([layers[f"layers.{n}.q"].ravel() for n in range(4)])
    (row,) = [line.split() for line in out.splitlines() if re.search("[├└]─ q ", line)]
    told = [float(text) for text in row[-5:]]
    finite = values[~np.isnan(values)].astype(float)
    assert np.allclose(
        told, [finite.min(), finite.max(), finite.mean(), finite.std(), 1], rtol=1e-2
    )
    assert "layers.{0..3}. (x4)" in out and "! 1 tensor with NaN: layers.2.q (1)" in out

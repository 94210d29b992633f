"""Keys of a reshard: which are taken, what they are called, and mistakes that are noticed before
anything is read."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.verbs.renaming import new_names, select_keys
from spec_tests.helpers.command_line import Outcome, Run, run

__all__ = ["run"]

KEYS = ["model.layers.0.w", "model.layers.1.w", "model.norm", "step"]


NEW_NAMES: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    ({}, {}, KEYS),
    ({}, {"strip_prefix": "model."}, ["layers.0.w", "layers.1.w", "norm", "step"]),
    ({}, {"add_prefix": "m/"}, [f"m/{key}" for key in KEYS]),
    ({"layers.*.*": "h.*.ln_*"}, {"strip_prefix": "model."}, ["h.0.ln_w", "h.1.ln_w", "norm", "step"]),
    ({"*.*.w": "*-*"}, {}, ["model-layers.0", "model-layers.1", "model.norm", "step"]),
    ({r"re:model\.layers\.(?P<n>\d+)\.(\w+)": r"\2_\g<n>"}, {}, ["w_0", "w_1", "model.norm", "step"]),
    ({"step": "*"}, {"add_prefix": "a*"}, [*(f"a*{key}" for key in KEYS[:3]), "a**"]),
    ({"model*": "x*", "step": "x"}, {}, ["x.layers.0.w", "x.layers.1.w", "x.norm", "x"]),
]  # fmt: skip


@pytest.mark.parametrize(("rename", "prefixes", "expected"), NEW_NAMES)
def test_names_are_those_of_the_table(
    rename: dict[str, str], prefixes: dict[str, str], expected: list[str]
) -> None:
    assert new_names(KEYS, rename, **prefixes) == expected


@given(st.lists(st.text("ab./*", min_size=1), min_size=1, unique=True), st.text("ab.", min_size=1))
def test_what_is_undone_changes_nothing(keys: list[str], prefix: str) -> None:
    """A prefix that is added and stripped, and a star that is renamed to a star."""
    added = new_names(keys, {}, add_prefix=prefix)
    assert new_names(added, {}, strip_prefix=prefix) == keys
    assert new_names(keys, {"*": "*"}) == keys == new_names(keys, {"re:(.*)": r"\1"})


def test_stars_take_what_a_lazy_regular_expression_takes() -> None:
    """All old names and keys of two letters and stars, up to a length. A hostile key costs no more than
    its length."""
    olds = ["".join(text) for length in range(1, 6) for text in product("ab*", repeat=length)]
    keys = ["".join(text) for length in range(6) for text in product("ab", repeat=length)]
    for old in (text for text in olds if "*" in text):
        pattern = re.compile("(.*?)".join(map(re.escape, old.split("*"))))
        new = "-".join("*" * old.count("*"))
        for key in keys[1::3]:
            if found := pattern.fullmatch(key):
                assert new_names([key], {old: new}) == ["-".join(found.groups())]
            else:
                with pytest.raises(ArgumentError, match="none is renamed.*Match a key"):
                    new_names([key], {old: new})
    with pytest.raises(ArgumentError, match="none is renamed"):
        new_names(["." * 60_000], {"*.*.*.*.*.w": "w"})


@pytest.mark.parametrize(
    ("rename", "prefix", "message"),
    [
        ({"bias": "b"}, "", "No tensor is named 'bias'"),
        (
            {"*.layers.*.w": "w"},
            "",
            "2 tensors would be named 'w': 'model.layers.0.w', 'model.layers.1.w'",
        ),
        ({"step": "model.norm"}, "", "2 tensors would be named 'model.norm': 'model.norm', 'step'"),
        ({"m*": "*/*"}, "", "has more [*]"),
        ({"re:(": "x"}, "", "not a regular expression"),
        ({"re:step": r"\3"}, "", "not a regular expression"),
        ({}, "module.", "No key begins with 'module.'"),
        ({}, "step", "'step' is a key itself"),
    ],
)
def test_a_name_that_means_nothing_or_is_claimed_twice_is_named(
    rename: dict[str, str], prefix: str, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        new_names(KEYS, rename, strip_prefix=prefix)


def test_globs_take_and_leave_out() -> None:
    assert select_keys(KEYS, None, None) == set(KEYS)
    assert select_keys(KEYS, "model.*", ["*.w"]) == {"model.norm"}
    for wanted, unwanted, message in [
        ("x*", None, "No tensor matches x"),
        (None, ["x*"], "so none is left out"),
        (None, ["*"], "none is left"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            select_keys(KEYS, wanted, unwanted)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {key: np.full(3, row, np.float32) for row, key in enumerate(KEYS[:3])}
    sv.save(tmp_path / "m", tensors | {"step": np.array(7)})
    return tmp_path / "m"


@pytest.fixture
def reshard(model: Path, run: Run) -> Callable[..., Outcome]:
    """Runs the command on the model."""
    return lambda *words: run("reshard", model, model.with_name("out"), *words)


@pytest.mark.smoke
def test_one_command_strips_renames_excludes_and_casts(
    model: Path, reshard: Callable[..., Outcome]
) -> None:
    """A file of names may begin with the mark of Windows."""
    names = model.with_name("names.toml")
    names.write_text("'layers.*.w' = 'h.*.weight'\r\n", encoding="utf-8-sig")
    words = ["--strip-prefix", "model.", "--rename-file", names, "--exclude", "step"]
    assert reshard(*words, "--add-prefix", "t.", "--cast", "bf16").code == 0
    arrays = sv.load(model.with_name("out"))
    assert sorted(arrays) == ["t.h.0.weight", "t.h.1.weight", "t.norm"]
    assert {array.dtype.name for array in arrays.values()} == {"bfloat16"}
    assert arrays["t.h.1.weight"].tolist() == [1.0, 1.0, 1.0]


def test_a_dtype_alone_casts_the_floating_point_tensors_only(model: Path) -> None:
    sv.reshard(model, model.with_name("half"), cast="fp16")
    assert {key: array.dtype.name for key, array in sv.load(model.with_name("half")).items()} == {
        **dict.fromkeys(KEYS[:3], "float16"),
        "step": "int64",
    }
    with pytest.raises(ArgumentError, match="No tensor has floating-point numbers"):
        sv.reshard(model, model.with_name("none"), filter="step", cast="bf16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cast f2 --cast *.w=bf16", "--cast f2 is for all.*'[*]=f2'"),
        ("--cast model.norm=f2 --strip-prefix model.", "names in the target.*'layers.0.w'"),
        ("--transpose *.w", "No matrix matches.*names in the target"),
        ("--rename model.norm=n --strip-prefix model.", "without the prefix.*'layers.0.w'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_answered_with_a_key(
    options: str, message: str, model: Path, reshard: Callable[..., Outcome]
) -> None:
    done = reshard(*options.split())
    assert done.code == 2 and re.search(message, done.err.replace("\n", " "))
    assert not list(model.parent.glob("out*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b = 'c'", "no new name"),
        ("'a' = 3", "no new name"),
        ("'a' = ''", "no new name"),
        ("a = ", "is not TOML"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ("# a = 'b'", "has no names"),
        (None, "Cannot read"),
    ],
)
def test_a_file_of_names_that_is_wrong_is_refused(
    text: str | None, message: str, model: Path, reshard: Callable[..., Outcome]
) -> None:
    names = model.with_name("names.toml")
    if text is not None:
        names.write_text(text)
    done = reshard("--rename-file", names)
    assert done.code == 2 and message in done.err
    assert not list(model.parent.glob("out*"))

"""Keys of a reshard: which are taken, what they are called, and mistakes that are noticed before
anything is read."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import ArgumentError
from shardvar.verbs.renaming import new_names, select_keys

KEYS = ["model.layers.0.w", "model.layers.1.w", "model.norm", "step"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"rename": {}}, KEYS),
        ({"rename": {}, "strip_prefix": "model."}, ["layers.0.w", "layers.1.w", "norm", "step"]),
        ({"rename": {}, "add_prefix": "m/"}, [f"m/{key}" for key in KEYS]),
        (
            {"rename": {"layers.*.*": "h.*.ln_*"}, "strip_prefix": "model."},
            ["h.0.ln_w", "h.1.ln_w", "norm", "step"],
        ),
        ({"rename": {"*.*.w": "*-*"}}, ["model-layers.0", "model-layers.1", "model.norm", "step"]),
        (
            {"rename": {r"re:model\.layers\.(?P<n>\d+)\.(\w+)": r"\2_\g<n>"}},
            ["w_0", "w_1", "model.norm", "step"],
        ),
        ({"rename": {"step": "*"}, "add_prefix": "a*"}, [*(f"a*{key}" for key in KEYS[:3]), "a**"]),
        (
            {"rename": {"model*": "x*", "step": "x"}},
            ["x.layers.0.w", "x.layers.1.w", "x.norm", "x"],
        ),
    ],
)
def test_names_are_those_of_the_table(arguments: dict[str, Any], expected: list[str]) -> None:
    assert new_names(KEYS, **arguments) == expected


@given(st.lists(st.text("ab./*", min_size=1), min_size=1, unique=True), st.text("ab.", min_size=1))
def test_a_prefix_that_is_added_and_stripped_changes_nothing(keys: list[str], prefix: str) -> None:
    added = new_names(keys, {}, add_prefix=prefix)
    assert new_names(added, {}, strip_prefix=prefix) == keys


@given(st.lists(st.text("ab.", min_size=1), min_size=1, unique=True))
def test_a_star_renamed_to_a_star_changes_nothing(keys: list[str]) -> None:
    assert new_names(keys, {"*": "*"}) == keys == new_names(keys, {"re:(.*)": r"\1"})


def test_stars_take_what_a_lazy_regular_expression_takes() -> None:
    """All old names and keys of two letters and stars, up to a length."""
    texts = [
        "".join(letters) for length in range(1, 6) for letters in product("ab*", repeat=length)
    ]
    keys = ["".join(letters) for length in range(6) for letters in product("ab", repeat=length)]
    for old in (text for text in texts if "*" in text):
        pattern = re.compile("(.*?)".join(map(re.escape, old.split("*"))))
        new = "-".join("*" * old.count("*"))
        for key in keys[1::3]:
            found = pattern.fullmatch(key)
            if found:
                assert new_names([key], {old: new}) == ["-".join(found.groups())]
            else:
                with pytest.raises(ArgumentError, match="none is renamed.*Match a key"):
                    new_names([key], {old: new})


def test_a_hostile_key_costs_no_more_than_its_length() -> None:
    with pytest.raises(ArgumentError, match="none is renamed"):
        new_names(["." * 60_000], {"*.*.*.*.*.w": "w"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rename": {"bias": "b"}}, "No tensor is named 'bias'"),
        (
            {"rename": {"model.layers.*.w": "w"}},
            "2 tensors would be named 'w': 'model.layers.0.w', 'model.layers.1.w'",
        ),
        (
            {"rename": {"step": "model.norm"}},
            "2 tensors would be named 'model.norm': 'model.norm', 'step'",
        ),
        ({"rename": {"m*": "*/*"}}, "has more [*]"),
        ({"rename": {"re:(": "x"}}, "not a regular expression"),
        ({"rename": {"re:step": r"\3"}}, "not a regular expression"),
        ({"rename": {}, "strip_prefix": "module."}, "No key begins with 'module.'"),
        ({"rename": {}, "strip_prefix": "step"}, "'step' is a key itself"),
    ],
)
def test_a_name_that_means_nothing_or_is_claimed_twice_is_named(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        new_names(KEYS, **arguments)


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
    sv.save(
        tmp_path / "m",
        {key: np.full(3, row, np.float32) for row, key in enumerate(KEYS[:3])}
        | {"step": np.array(7)},
    )
    return tmp_path / "m"


@pytest.mark.smoke
def test_one_command_strips_renames_excludes_and_casts(model: Path) -> None:
    out = model.with_name("out.safetensors")
    (model.parent / "names.toml").write_text("'layers.*.w' = 'h.*.weight'\n")
    options = [
        "--strip-prefix",
        "model.",
        "--rename-file",
        str(model.parent / "names.toml"),
        "--exclude",
        "step",
    ]
    assert (
        main(["reshard", str(model), str(out), *options, "--add-prefix", "t.", "--cast", "bf16"])
        == 0
    )
    arrays = sv.load(out)
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
        (["--cast", "f2", "--cast", "*.w=bf16"], "--cast f2 is for all.*'[*]=f2'"),
        (
            ["--cast", "model.norm=f2", "--strip-prefix", "model."],
            "names in the target.*'layers.0.w'",
        ),
        (["--transpose", "*.w"], "No matrix matches.*names in the target"),
        (
            ["--rename", "model.norm=n", "--strip-prefix", "model."],
            "without the prefix.*'layers.0.w'",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_answered_with_a_key(
    options: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reshard", str(model), str(model.with_name("out")), *options]) == 2
    assert re.search(message, capsys.readouterr().err.replace("\n", " "))
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
    text: str | None, message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = model.with_name("names.toml")
    if text is not None:
        names.write_text(text)
    assert (
        main(["reshard", str(model), str(model.with_name("out")), "--rename-file", str(names)]) == 2
    )
    assert message in capsys.readouterr().err
    assert not list(model.parent.glob("out*"))


def test_a_file_of_names_may_begin_with_the_mark_of_windows(model: Path) -> None:
    names = model.with_name("names.toml")
    names.write_text("'step' = 'number'\r\n", encoding="utf-8-sig")
    assert (
        main(["reshard", str(model), str(model.with_name("out")), "--rename-file", str(names)]) == 0
    )
    assert "number" in sv.load(model.with_name("out"))

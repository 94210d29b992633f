"""Tests of the tables of ``diff`` at a terminal: exact, and with nothing in them that a list would
not say."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.changes import _structure, _values
from shardvar.verbs.compare.comparison import DiffReport, TensorDifference, ValueDifference
from spec_tests.helpers.braces import expanded
from spec_tests.helpers.command_line import Run, run, terminal

__all__ = ["run"]


def differing(key: str, kind: str, change: float) -> TensorDifference:
    """Return a tensor of eight floats that differs in some way; a change of 0 is one of signs of
    zero."""
    signs = 0 if change else 1
    values = ValueDifference(1, (0,), change, (0,), change, (0,), 0, signs, 0, 1.0, change)
    dtype = "float16" if "dtype" in kind else "float32"
    shape = (9,) if "shape" in kind else (8,)
    return TensorDifference(
        key, "float32", dtype, (8,), shape, values if "values" in kind else None
    )


KINDS = ("values", "dtype", "dtype and values", "shape", "shape and dtype")
KEYS = st.from_regex(r"[ab]\.[0-9]\.[vw]", fullmatch=True)
CHANGED = st.tuples(st.sampled_from(KINDS), st.sampled_from([0.0, 1e-9, 0.25, 1.5]))


@given(st.dictionaries(KEYS, CHANGED), st.sets(KEYS))
def test_each_tensor_is_in_one_line_with_others_that_differ_alike(
    kinds: dict[str, tuple[str, float]], keys: set[str]
) -> None:
    """A line stands for as many keys as it says, which are of one kind, and its cells are true of
    them."""
    alone = keys.difference(kinds)
    report = DiffReport(
        "a",
        "b",
        tuple(alone),
        (),
        tuple(differing(key, *each) for key, each in kinds.items()),
        (),
        0,
    )
    found: list[str] = []
    for label, number, *_ in _structure(report):
        shared = list(expanded(label))
        assert (
            len(shared) == int(number)
            and len({kinds.get(key, ("alone", 0))[0] for key in shared}) == 1
        )
        found += shared
    for label, number, change, _, dtypes in _values(report, by_change=True):
        shared, kind = list(expanded(label)), "dtype and values" if dtypes else "values"
        assert len(shared) == int(number) and {kinds[key][0] for key in shared} == {kind}
        changes = {kinds[key][1] for key in shared}
        assert changes == {0.0} if change == "only the sign of zero" else min(changes) > 0
        found += shared
    assert sorted(found) == sorted([*kinds, *alone])


def test_all_says_at_a_terminal_what_a_pipe_says_and_a_summary_is_its_first_line(
    tmp_path: Path, run: Run
) -> None:
    layers = {f"layer.{number}.w": np.arange(1.0, 9) for number in range(4)}
    sv.save(
        tmp_path / "a",
        layers | {"left": np.ones(2), "zero": np.zeros(2), "text": np.array([b"x"], object)},
    )
    moved = {
        key: value * (1.01 + number / 100) for number, (key, value) in enumerate(layers.items())
    }
    sv.save(tmp_path / "b", moved | {"zero": -np.zeros(2), "text": np.array([b"y"], object)})
    words = ("diff", tmp_path / "a", tmp_path / "b")
    piped = run(*words).out.splitlines()
    assert piped[0] == "7 of 7 tensors differ: 6 in values, 1 only in A"
    assert run(*words, "--summary").out.splitlines() == piped[:1]
    with terminal(300):
        folded, whole = run(*words).out.splitlines(), run(*words, "--all").out.splitlines()
    assert whole == ["≠ " + piped[0], *piped[1:]]
    rows = [re.split("  +", line.strip()) for line in folded]
    assert rows[rows.index(["values", "tensors", "change", "max |B-A|"]) + 1 :][:4] == [
        ["text", "1", "not numbers"],
        ["layer.{0..3}.w", "4", "0.99 - 3.8 %", "0.32"],
        ["zero", "1", "only the sign of zero"],
        [""],
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_a_table_of_many_lines_says_how_many_are_left_out(
    columns: int, tmp_path: Path, run: Run
) -> None:
    sv.save(tmp_path / "a", {chr(0x3B1 + number) * 9: np.ones(2) for number in range(60)})
    sv.save(tmp_path / "b", {"only": np.ones(2)})
    with terminal(columns):
        lines = run("diff", tmp_path / "a", tmp_path / "b").out.splitlines()
    assert (
        "21 more lines" in lines
        and len(lines) < 100
        and all(len(line) <= columns for line in lines)
    )


def test_names_that_differ_in_a_prefix_alone_are_told_with_the_rename(
    tmp_path: Path, run: Run
) -> None:
    """On either side, and not where a name is in both or most of the others differ; the command
    given then compares."""
    layers = {f"layer.{number}.w": np.arange(1.0, 9) for number in range(4)}
    sv.save(
        tmp_path / "a",
        {f"module.{key}": value for key, value in layers.items()} | {"step": np.array(3)},
    )
    sv.save(tmp_path / "b", layers)
    for first, second, rename in (("a", "b", "module.*=*"), ("b", "a", "*=module.*")):
        err = run("diff", tmp_path / first, tmp_path / second).err
        assert err.startswith(
            "hint: Most names of B " if first == "a" else "hint: Most names of A "
        )
        assert err.rstrip().endswith(f"--rename '{rename}'")
        renamed = run("diff", tmp_path / first, tmp_path / second, "--rename", rename)
        assert renamed.out.startswith("1 of 5 tensors differs: 1 only in ") and not renamed.err
    sv.save(tmp_path / "c", {"w": np.ones(2), "x": np.ones(2), "y": np.ones(2)})
    assert (
        not run("diff", tmp_path / "a", tmp_path / "c").err
        and not run("diff", tmp_path / "b", tmp_path / "b").err
    )

"""Tests of the tables of ``diff`` at a terminal: exact, and with nothing in them that a list would
not say."""

import re
import shlex
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli.diff import _structure, _values
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


def pasted(hint: str) -> list[str]:
    """Return the words of the command in a hint, without the name of the program."""
    (command,) = re.findall("`(.*)`", hint)
    return shlex.split(command)[1:]


def llama(prefix: str) -> dict[str, np.ndarray]:
    """Return a model whose head has no prefix, as all of Hugging Face."""
    keys = [f"layers.{n}.{name}.weight" for n in range(4) for name in ("q_proj", "norm")]
    return {f"{prefix}{key}": np.ones(4) for key in keys} | {"lm_head.weight": np.ones(16)}


def test_a_renaming_is_found_though_some_names_are_the_same(tmp_path: Path, run: Run) -> None:
    """The hint can be pasted, in both orders: ``*=model.*`` would also rename the head."""
    sv.save(tmp_path / "a", llama("model."))
    sv.save(tmp_path / "b", llama(""))
    for first, second in ("ab", "ba"):
        told = run("diff", tmp_path / first, tmp_path / second, "--summary")
        assert told.out == "16 of 17 tensors differ: 8 only in A, 8 only in B\n"
        assert told.err.startswith("hint: Most names of ") and "after 'model.'" in told.err
        again = run(*pasted(told.err))
        assert (again.code, again.out, again.err) == (0, "equal: 9 tensors in both\n", "")
    assert run("diff", tmp_path / "a", tmp_path / "b", "--json").err == ""


def test_siblings_of_other_changes_have_lines_of_their_own(tmp_path: Path, run: Run) -> None:
    """A reader of a fine-tuned model looks for the matrix that changed most."""
    sv.save(tmp_path / "a", {f"attn.{name}_proj": np.ones(8) for name in "qkvo"})
    by = {"q": 1.01, "k": 1.012, "v": 1.2, "o": 1.0}
    sv.save(tmp_path / "b", {f"attn.{name}_proj": np.full(8, by[name]) for name in "qkvo"})
    with terminal(80):
        lines = run("diff", tmp_path / "a", tmp_path / "b").out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("attn")]
    assert names == ["attn.v_proj", "attn.{q,k}_proj"]

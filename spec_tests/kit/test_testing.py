"""``shardvar.testing``: what is drawn is what it says, small cases are found, and the machine
catches a wrong twin."""

import glob
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

import shardvar as sv
import shardvar.testing as t
from shardvar.extras import install_command
from shardvar.layout import Partition
from shardvar.layout.dtypes import numpy_dtype
from shardvar.testing.arrays import NUMBERS
from shardvar.testing.operations import norms_of
from spec_tests.helpers.programs import ENVIRONMENT

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
FINDING = settings(
    QUICK, max_examples=500, derandomize=True, database=None, phases=[Phase.generate]
)
"""Without shrinking: that a mistake is found is enough, and takes a tenth of the time."""


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in t.__all__ if not (getattr(t, name).__doc__ or "").strip()] == []


def test_defaults_are_those_of_the_docstrings() -> None:
    wrong = [
        f"{name}({parameter})"
        for name in t.__all__
        if inspect.isfunction(function := getattr(t, name))
        for parameter in inspect.signature(function).parameters.values()
        if type(parameter.default) in (int, bool)
        and f"{parameter.name} : {type(parameter.default).__name__}, default {parameter.default}\n"
        not in (function.__doc__ or "")
    ]
    assert wrong == []


@given(t.shapes(), st.data())
def test_tilings_tile_and_partitions_are_proven(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    assert isinstance(data.draw(t.partitions(shape)), Partition)
    whole = np.zeros(shape, int)
    for part in data.draw(t.tilings(shape)):
        whole[part.slices] += 1
    assert (whole == 1).all()


@given(t.shapes(min_rank=1), st.data())
def test_slices_are_legal(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = t.counting(shape)
    assert isinstance(array[data.draw(t.slices(shape, new_axes=True))], np.ndarray | np.generic)


@given(st.integers(0, 9), st.data())
def test_ids_are_rows(length: int, data: st.DataObject) -> None:
    rows = data.draw(t.ids(length, max_rank=2))
    assert rows.dtype == np.int64 and ((rows >= 0) & (rows < length)).all()
    bags = data.draw(t.sparse_ids(length))
    assert isinstance(bags, t.SparseIds)
    assert bags.weights is None or list(map(len, bags.bags)) == list(map(len, bags.weights))


@QUICK
@given(t.checkpoints(strings=True), t.policies(), st.integers(1, 4))
def test_checkpoints_can_be_saved_under_every_policy(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, Any],
    policy: t.Policy,
    num_shards: int,
) -> None:
    path = tmp_path_factory.mktemp("c") / "model"
    sv.save(path, tensors, policy=policy, partition=num_shards)
    assert sv.load(path).keys() == tensors.keys()


@given(st.data(), st.sampled_from(NUMBERS))
def test_updates_are_what_a_sharded_variable_does(data: st.DataObject, name: str) -> None:
    """In every dtype: nothing that a variable must refuse is drawn, such as an integer by zero."""
    dtype = numpy_dtype(name)
    sharded, full = data.draw(t.sharded_variables(dtype))
    for update in data.draw(t.update_sequences(full.shape, dtype)):
        if update.ids is None:
            verb = update.op if update.op == "assign" else f"assign_{update.op}"
            getattr(sharded, verb)(update.values)
        else:
            getattr(sharded, f"scatter_{update.op}")(sv.IndexedSlices(update.values, update.ids))
        full = t.updated(full, update)
        t.assert_matches_oracle(sharded, full)


@QUICK
@given(st.data())
def test_what_must_be_refused_is_refused_and_changes_nothing(data: st.DataObject) -> None:
    sharded, full = data.draw(t.sharded_variables())
    refused = t.every_refused_update(full.shape)
    assert data.draw(t.refused_updates(full.shape)).op in {update.op for update in refused}
    for update in refused:
        with pytest.raises(sv.errors.ShardvarError):
            if update.ids is None:
                verb = update.op if update.op == "assign" else f"assign_{update.op}"
                getattr(sharded, verb)(update.values)
            else:
                rows = sv.IndexedSlices(update.values, update.ids)
                getattr(sharded, f"scatter_{update.op}")(rows)
    t.assert_matches_oracle(sharded, full)


def test_a_value_of_every_wrong_shape_is_among_those_to_refuse() -> None:
    for shape, wrong in (
        ((3, 2), {(1, 2), (3, 1), (2,), (4, 2), (6, 2), (3, 3)}),
        ((3,), {(1,), (), (4,), (6,)}),
        ((0, 2), {(1, 2), (2,), (3, 2)}),
    ):
        dense = [each for each in t.every_refused_update(shape) if each.ids is None]
        assert {each.values.shape for each in dense} == wrong
        assert {each.op for each in dense} == {"assign", "add", "sub"}


@given(t.variables_and_updates(), st.sampled_from([np.int32, np.float64]))
def test_a_write_is_drawn_with_the_variable_that_it_fits(drawn: Any, dtype: Any) -> None:
    sharded, full, update = drawn
    t.assert_matches_oracle(sharded, full)
    assert t.updated(full, update).shape == full.shape
    rows = len(full) if update.ids is None else len(update.ids)
    assert update.values.shape == (rows, *full.shape[1:]) and update.values.dtype == full.dtype
    with pytest.raises(sv.errors.ShardvarError, match=r"Give the shape .* variable\.shape"):
        t.updates(sharded, dtype)
    with pytest.raises(sv.errors.ShardvarError, match="shape"):
        t.every_refused_update(sharded, dtype)
    for wrong in (len(full), (), "ab", (2.5,)):
        with pytest.raises(sv.errors.ShardvarError):
            t.updates(wrong)  # type: ignore[arg-type]


@given(st.data())
def test_limits_of_norms_are_below_at_and_above(data: st.DataObject) -> None:
    sharded, full = data.draw(t.sharded_variables(row_shapes=((2,), (3, 2))))
    limit, rows = data.draw(t.max_norms(full)), data.draw(t.ids(len(full)))
    assert limit > 0
    t.assert_matches_oracle(
        sv.nn.embedding_lookup(sharded, rows, limit), t.clipped(full[rows], limit), ulps=4
    )


@QUICK
@given(t.sharded_checkpoints())
def test_checkpoints_of_many_shards_are_saved_and_loaded(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[dict[str, Any], dict[str, list[int]]]
) -> None:
    tensors, sizes = drawn
    path = tmp_path_factory.mktemp("c") / "model"
    cuts = {
        key: sv.PartitionSpec(splits=[some, *([n] for n in tensors[key].shape[1:])])
        for key, some in sizes.items()
    }
    sv.save(path, tensors, partition={glob.escape(key): cut for key, cut in cuts.items()})
    for key, value in sv.load(path).items():
        t.assert_matches_oracle(value, tensors[key])


def test_a_snapshot_shows_a_later_write_and_what_is_overwritten() -> None:
    memory = np.array([1.0, 2.0])
    view, copy = t.Snapshot.of(memory[:1]), t.Snapshot.of(memory[:1].copy())
    memory += 1
    assert (view.value != view.copy).all() and (copy.value == copy.copy).all()
    assert view.scribble() and memory[0] == 0
    memory.flags.writeable = False
    assert not t.Snapshot.of(memory[:1]).scribble()


FAILS = """
from shardvar.testing import assert_matches_oracle
def test_fails():
    assert_matches_oracle([1.0, 2.0], [1.0, 3.0])
"""


def test_a_failure_shows_the_line_of_the_test_and_nothing_of_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "test_fails.py").write_text(FAILS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fails.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "assert_matches_oracle([1.0, 2.0], [1.0, 3.0])" in done.stdout
    assert "The answer is 2.0 at [1], where the oracle says 3.0." in done.stdout
    assert "compare.py" not in done.stdout and ">>>" not in done.stdout


@pytest.mark.parametrize(
    ("actual", "expected", "told"),
    [
        (np.zeros(2), np.zeros(3), r"has the shape \(2,\), where the oracle says \(3,\)"),
        (
            np.zeros(2, np.float32),
            np.zeros(2),
            "has the dtype float32, where the oracle says float64",
        ),
        (
            np.array([1.0, 2.0]),
            np.array([1.0, 3.0]),
            r"is 2.0 at \[1\], where the oracle says 3.0\.",
        ),
        (np.array(1), np.array(2), r"is 1 at \[\(\)\]"),
        (
            np.array([[1, 2], [3, 4]]),
            np.array([[1, 0], [0, 0]]),
            r"at \[0, 1\], .* \(2 more differ\)",
        ),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), r"at \[1\]"),
        (np.array([np.nan]), np.array([1.0]), "is nan"),
        (
            np.zeros(2, "M8[s]"),
            np.zeros(2, "m8[s]"),
            r"has the dtype datetime64\[s\], .* timedelta64\[s\]",
        ),
    ],
)
def test_the_first_difference_is_named(actual: Any, expected: Any, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        t.assert_matches_oracle(actual, expected)


def test_what_is_equal_is_equal() -> None:
    t.assert_matches_oracle(np.array([np.nan, 1.0]), [np.nan, 1.0])
    t.assert_matches_oracle(np.array([1.0], ">f8"), np.array([1.0]))
    t.assert_matches_oracle(np.array([1], ">M8[s]"), np.array([1], "<M8[s]"))
    t.assert_matches_oracle(np.array(["a"], "T"), np.array(["a"], "T"))
    t.assert_matches_oracle(np.array([b"a"], object), np.array([b"a"], object))
    assert t.difference(np.zeros((2, 0)), np.zeros((2, 0))) is None


@pytest.mark.parametrize("name", [name for name in NUMBERS if "float" in name or "complex" in name])
def test_floats_may_differ_by_as_many_units_as_are_given(name: str) -> None:
    one = np.ones(1, numpy_dtype(name))
    unit = float(np.spacing(np.abs(one))[0])
    for count in (number for number in range(4) if 1 + number * unit < 2):
        other = np.array([1 + count * unit]).astype(one.dtype)
        allowed = [n for n in range(6) if t.difference(other, one, ulps=n) is None]
        assert allowed == list(range(count, 6))


class Lossy(t.ShardedVariableMachine):
    """A list of arrays that adds a row once, however often it comes."""

    def make(self, full: Any, sizes: list[int]) -> Any:
        return [part.copy() for part in np.split(full, np.cumsum(sizes)[:-1])]

    def read(self) -> Any:
        return np.concatenate(self.variable)

    def lookup(self, ids: Any) -> Any:
        if (ids < 0).any():
            raise IndexError("no such row")
        return self.read()[ids]

    def index(self, key: Any) -> Any:
        raise NotImplementedError

    def check(self, update: t.Update) -> None:
        """``ValueError`` for a write that does not fit."""
        full = self.read()
        rows = full if update.ids is None else np.empty((len(update.ids), *full.shape[1:]))
        if update.values.shape != rows.shape:
            raise ValueError("another shape")
        if update.ids is not None and ((update.ids < 0) | (update.ids >= len(full))).any():
            raise ValueError("no such row")

    def write(self, update: t.Update) -> Any:
        self.check(update)
        if update.ids is None or update.op != "add":
            return [t.updated(self.read(), update)]
        whole = self.read()
        whole[update.ids] += update.values
        return [whole]


def test_the_machine_passes_shardvar_and_catches_a_lost_row() -> None:
    run_state_machine_as_test(
        t.ShardedVariableMachine, settings=settings(QUICK, stateful_step_count=8)
    )
    with pytest.raises(AssertionError, match="The variable is"):
        run_state_machine_as_test(Lossy, settings=FINDING)


class Views(Lossy):
    """A list of arrays whose single shard is read as it lies in memory."""

    def read(self) -> Any:
        return self.variable[0] if len(self.variable) == 1 else np.concatenate(self.variable)

    def write(self, update: t.Update) -> Any:
        self.check(update)
        whole = t.updated(self.read(), update)
        for shard, part in zip(
            self.variable,
            np.split(whole, np.cumsum(list(map(len, self.variable)))[:-1]),
            strict=True,
        ):
            shard[...] = part
        return None


class Lenient(Lossy):
    """A list of arrays that drops rows which are not there."""

    def write(self, update: t.Update) -> Any:
        if update.ids is not None:
            inside = (update.ids >= 0) & (update.ids < len(self.read()))
            update = t.Update(update.op, update.ids[inside], update.values[: len(inside)][inside])
        return [t.updated(self.read(), update)]


@pytest.mark.parametrize(("machine", "told"), [(Views, "is"), (Lenient, "must be refused")])
def test_the_machine_catches_views_and_writes_that_ought_to_be_refused(
    machine: Any, told: str
) -> None:
    with pytest.raises(Exception, match=told):
        run_state_machine_as_test(machine, settings=FINDING)


WITHOUT = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "hypothesis" else found(name, *rest)
import shardvar.testing
"""


def without_hypothesis(statement: str) -> "subprocess.CompletedProcess[str]":
    path = str(Path(sv.__file__).parent.parent)
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}){WITHOUT}{statement}"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_hypothesis_the_remedy_is_told() -> None:
    done = without_hypothesis("from shardvar.testing import ids")
    assert done.returncode == 1
    assert (
        "shardvar.testing.ids needs Hypothesis, which is not installed. "
        f"Install it: {install_command('testing')}" in done.stderr
    )


def test_the_assertions_need_no_hypothesis() -> None:
    done = without_hypothesis(
        "from shardvar.testing import assert_checkpoints_equal, assert_matches_oracle\n"
        "assert 'hypothesis' not in sys.modules and not hasattr(shardvar.testing, 'nothing')"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_checkpoints_that_are_equal_are_not_named(tmp_path: Path) -> None:
    """Within the tolerances, names, dtypes and keys that are asked for."""
    x = np.linspace(1, 2, 9, dtype=np.float32)
    sv.save(tmp_path / "a", {"m.x": x, "other": x}, partition=2)
    sv.save(tmp_path / "b.npz", {"x": x.astype(np.float64) * (1 + 1e-6)})
    names = {"rename": {"m.*": "*"}, "exclude": "other"}
    t.assert_checkpoints_equal(
        tmp_path / "a", tmp_path / "b.npz", **names, rtol=1e-5, ignore_dtype=True
    )
    t.assert_checkpoints_equal(
        tmp_path / "a", tmp_path / "b.npz", **names, close=True, ignore_dtype=True
    )
    for options, what in (
        ({"rtol": 1e-5}, "only in dtype, float32 to float64, values within rtol=1e-05, atol=0"),
        ({"ignore_dtype": True}, "1 in "),
        ({"atol": 1e-9, "ignore_dtype": True}, "1 in "),
    ):
        with pytest.raises(AssertionError, match=f"1 of 1 tensor differs: {what}"):
            t.assert_checkpoints_equal(tmp_path / "a", tmp_path / "b.npz", **names, **options)


def test_checkpoints_that_differ_are_named_the_largest_change_first(tmp_path: Path) -> None:
    x = np.arange(1.0, 5.0)
    sv.save(tmp_path / "a", {f"k{i:02d}": x for i in range(30)})
    sv.save(tmp_path / "b", {f"k{i:02d}": x * (1 + i) for i in range(30)})
    with pytest.raises(AssertionError) as caught:
        t.assert_checkpoints_equal(tmp_path / "a", tmp_path / "b")
    title, *lines = str(caught.value).splitlines()
    assert title.startswith("Of the checkpoints A = ") and title.endswith(
        "29 of 30 tensors differ: 29 in values."
    )
    assert lines[0].startswith(
        "differs: k29: 4 of 4 elements, first at [0], by at most 116 at [3] (relative 0.967)"
    )
    assert [line.split(": ")[1] for line in lines[:20]] == [f"k{i:02d}" for i in range(29, 9, -1)]
    assert lines[20:] == ["... and 9 more"]


def test_a_tensor_that_cannot_be_read_is_not_equal(tmp_path: Path) -> None:
    for name in "ab":
        sv.save(tmp_path / name, {"x": np.ones(4), "y": np.zeros(4)})
    file = next(
        path for path in tmp_path.iterdir() if path.name.startswith("b.") and "data-" in path.name
    )
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    with pytest.raises(AssertionError, match="unreadable in B: x: CorruptCheckpoint"):
        t.assert_checkpoints_equal(tmp_path / "a", tmp_path / "b")


def test_the_oracle_allows_a_tolerance() -> None:
    """As ``numpy.allclose``; without one, values differ by nothing."""
    came, must = np.array([1.001, 0.0], np.float32), np.array([1.0, 1e-9], np.float32)
    t.assert_matches_oracle(came, must, rtol=1e-2, atol=1e-6)
    t.assert_matches_oracle(came[:1], must[:1], rtol=1e-2)
    t.assert_matches_oracle(came[1:], must[1:], atol=1e-6)
    for tolerance in ({}, {"rtol": 1e-2}, {"atol": 1e-6}, {"rtol": 1e-4, "atol": 1e-6}):
        with pytest.raises(AssertionError, match=r"is .* where the oracle says"):
            t.assert_matches_oracle(came, must, **tolerance)
    with pytest.raises(AssertionError, match="has the dtype"):
        t.assert_matches_oracle(came, must.astype(np.float64), rtol=1.0)
    for wrong in (-1.0, np.nan, np.inf, "much"):
        for name in ("ulps", "rtol", "atol"):
            options: dict[str, Any] = {name: wrong}
            with pytest.raises(sv.errors.ArgumentError, match=f"{name} is"):
                t.assert_matches_oracle(came, came, **options)


def test_norms_keep_their_axes_so_that_rows_can_be_divided_by_them() -> None:
    for shape in ((3, 2), (3, 2, 2), (1, 4)):
        rows = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
        norms = norms_of(rows)
        assert norms.shape == (shape[0], *[1] * (len(shape) - 1))
        unit = rows / norms
        assert np.allclose((unit * unit).reshape(shape[0], -1).sum(axis=1), 1)

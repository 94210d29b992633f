"""diff as a judgement: tolerances, names, dtypes and keys that are compared."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.layout.region import Region
from shardvar.storage.local import LocalStorage
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.compare.distances import Tolerance
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.native_checkpoints import Piece, assignment_of
from spec_tests.helpers.tensor_bundles import write_payloads

__all__ = ["run"]

floats = st.floats(allow_nan=True, allow_infinity=True, width=32)
tolerances = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(floats, floats), min_size=1), tolerances, tolerances)
def test_elements_are_beyond_where_numpy_says_that_they_are_not_close(
    pairs: list[tuple[float, float]], rtol: float, atol: float
) -> None:
    a, b = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        right = ~np.isclose(a.astype(np.float64), b.astype(np.float64), rtol, atol, equal_nan=True)
    assert Tolerance(rtol, atol).beyond(a, b).tolist() == right.tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_without_a_tolerance_are_the_same_only_if_they_are_equal(
    values: list[int],
) -> None:
    a = np.array(values)
    assert not Tolerance(0.0, 0.0).beyond(a, a).any()
    assert Tolerance(0.0, 0.0).beyond(a, a ^ 1).all()


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [("float32", 1e-6, 1e-4), ("float64", 1e-8, 1e-5), ("float16", 5e-4, 1e-2),
     (ml_dtypes.bfloat16, 8e-3, 0.1)],
)  # fmt: skip
def test_close_has_the_tolerances_of_pytorch(dtype: Any, near: float, far: float) -> None:
    one, close, apart = (np.array([1.0 + by]).astype(dtype) for by in (0, near, far))
    assert not Tolerance().beyond(one, close).any() and Tolerance().beyond(one, apart).all()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return two checkpoints that differ in a millionth, in a dtype, and in a prefix of keys."""
    large, step = np.linspace(1, 2, 2_000_000, dtype=np.float32), np.array(3)
    a = {"m.large": large, "m.small": large[:5], "m.step": step}
    b = {"large": large * np.float32(1 + 1e-6), "small": large[:5].astype(np.float64), "step": step}
    sv.save(tmp_path / "a", a, partition=3)
    sv.save(tmp_path / "b.safetensors", b)
    return tmp_path / "a", tmp_path / "b.safetensors"


@pytest.mark.smoke
def test_checkpoints_are_equal_under_the_names_tolerance_and_dtypes_that_are_asked_for(
    pair: tuple[Path, Path], run: Run
) -> None:
    assert not sv.diff(*pair).equal
    for options, keys, tolerance in (
        ({}, ["large", "small"], None),
        ({"ignore_dtype": True}, ["large"], None),
        ({"ignore_dtype": True, "close": True}, [], "the tolerances of the dtypes"),
        ({"exclude": "small", "rtol": 1e-5}, [], "rtol=1e-05, atol=0"),
        ({"filter": "large", "rtol": 1e-7}, ["large"], "rtol=1e-07, atol=0"),
    ):
        report = sv.diff(*pair, rename={"m.*": "*"}, **options)
        assert [each.key for each in report.differences] == keys and not report.only_in_a
        assert report.equal == (not keys) and report.tolerance == tolerance
    for wrong in (
        {"rtol": -1.0},
        {"rtol": "1"},
        *({"atol": float(each)} for each in ("nan", "inf")),
        {"atol": 10**400},
    ):
        with pytest.raises(ArgumentError, match="finite number >= 0"):
            sv.diff(*pair, **wrong)
    words = ("diff", *pair, "--rename", "m.*=*")
    done = run(*words, "--ignore-dtype", "--close")
    assert done.code == 0 and "equal: 3 tensors in both, within the tolerances" in done.out
    done = run(*words, "--summary")
    told = "2 of 3 tensors differ: 1 in values, 1 only in dtype (same values)\n"
    assert (done.code, done.out) == (1, told)
    assert run(*words, "--rtol", "x").code == 2


def files(tmp_path: Path, a: Any, b: Any) -> list[Path]:
    for name, array in (("a", a), ("b", b)):
        sv.save(tmp_path / name, {"x": array} if isinstance(array, np.ndarray) else array)
    return [tmp_path / "a", tmp_path / "b"]


NAN = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("a", "b", "only"),
    [
        ([0.0, 1.0], [-0.0, 1.0], "sign of zero"),
        ([NAN[0], 1.0], [NAN[1], 1.0], "bits of NaN"),
        ([NAN[0], 0.0], [NAN[1], -0.0], "sign of zero and bits of NaN"),
        ([NAN[0], 0.0], [NAN[1], 1.0], None),
        ([NAN[0]], [1.0], None),
    ],
)
def test_differences_without_another_value_are_called_by_their_bits(
    tmp_path: Path, run: Run, a: Any, b: Any, only: str | None
) -> None:
    pair = files(tmp_path, np.array(a, np.float32), np.array(b, np.float32))
    values = sv.diff(*pair).differences[0].values
    assert values is not None
    assert (values.only, values.to_json()["only"]) == (only, only)
    done = run("diff", *pair)
    assert done.code == 1 and (f"only in the {only}\n" in done.out) == (only is not None)


def test_the_largest_change_comes_first(tmp_path: Path, run: Run) -> None:
    """Tensors that cannot be compared as numbers first, those without another value last."""
    x, text = np.arange(1.0, 5.0), np.array([b"x"], object)
    a = dict.fromkeys(("little", "much", "shape", "cast", "same", "inf"), x) | {
        "zero": x * 0,
        "text": text,
    }
    b = a | {"little": x * 1.5, "zero": x * -0.0, "much": -x, "shape": x[1:], "cast": x.astype("f4"),
             "inf": np.array([1, 2, 3, np.inf]), "text": np.array([b"y"], object)}  # fmt: skip
    pair = files(tmp_path, a, b)
    report = sv.diff(*pair).by_change()
    order = ["inf", "shape", "text", "much", "little", "cast", "zero"]
    changes = ["inf", "inf", "inf", 2.0, pytest.approx(1 / 3), 0.0, 0.0]
    assert [each.key for each in report.differences] == order
    assert [each.change for each in report.differences][3:] == changes[3:]
    done = run("diff", *pair, "--sort", "change", "--json")
    told = json.loads(done.out)["differences"]
    assert done.code == 1
    assert [(each["key"], each["change"]) for each in told] == [*zip(order, changes, strict=True)]
    done = run("diff", *pair, "--sort", "change")
    assert done.out.splitlines()[4].startswith("differs: much: 4 of 4 elements")
    assert run("diff", *pair, "--sort", "size").code == 2


@pytest.mark.parametrize("dtypes", [("f8", "f4"), ("f4", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("count", [1000, 3_000_001])
def test_elements_that_rounding_makes_equal_are_counted(
    dtypes: tuple[Any, Any], count: int, tmp_path: Path
) -> None:
    """On either side, in small tensors and in large ones, which are compared in stretches. One
    element that is no rounding is not counted."""
    exact = np.random.default_rng(count).standard_normal(count).astype(dtypes[0])
    rounded = exact.astype(dtypes[1])
    other = rounded.copy()
    other[7] += 1
    num_changed = int(np.count_nonzero(rounded.astype(dtypes[0]) != exact))
    for name, array in {"exact": exact, "rounded": rounded, "other": other}.items():
        sv.save(tmp_path / name, {"w": array})
    for one, two in (("exact", "rounded"), ("rounded", "exact"), ("exact", "other")):
        (each,) = sv.diff(tmp_path / one, tmp_path / two).differences
        is_rounding = two != "other"
        assert each.only_dtype == ("same values when rounded" if is_rounding else None)
        assert each.values is not None and each.values.num_rounded > 0
        assert each.values.num_rounded == each.values.count - (not is_rounding)
        assert each.values.count == num_changed or not is_rounding


Pieces = tuple[str, tuple[int, ...], bytes]
"""A dtype, a shape and a payload."""


def diff_of_payloads(directory: Path, a: Pieces, b: Pieces, **options: Any) -> DiffReport:
    """Return the difference of two tensors of TensorFlow that only exist as bytes."""
    storage = LocalStorage(str(directory))
    for name, (dtype, shape, payload) in zip("ab", (a, b), strict=True):
        whole = Piece("t", dtype, shape, Region((0,) * len(shape), shape), payload)
        write_payloads(storage, name, assignment_of([whole]), [payload])
    return sv.diff(directory / "a", directory / "b", **options)


@pytest.mark.parametrize("dtype", ["qint8", "quint8", "qint16", "quint16", "qint32"])
def test_quantized_elements_have_no_tolerance(tmp_path: Path, dtype: str) -> None:
    """They are compared as bytes, whatever numbers these would be."""
    size = int(dtype.removeprefix("q").removeprefix("uint").removeprefix("int")) // 8
    old, new = bytes(3 * size), bytes(size) + b"\x01" + bytes(2 * size - 1)
    report = diff_of_payloads(tmp_path, (dtype, (3,), old), (dtype, (3,), new), atol=1e9, rtol=1.0)
    (found,) = report.differences
    assert found.values is not None
    assert (found.values.count, found.values.first, found.values.max_absolute) == (1, (1,), None)


def test_the_longer_of_two_variants_has_bytes_that_differ(tmp_path: Path) -> None:
    """They are counted alike, whichever side is the longer one."""
    short, long = (
        ("variant", (), bytes([len(text)]) + text + bytes(4)) for text in (b"hi", b"hi" + bytes(5))
    )
    counts = []
    for a, b in ((short, long), (long, short)):
        (found,) = diff_of_payloads(tmp_path, a, b, atol=1e9).differences
        assert found.values is not None
        counts.append(found.values.count)
    # The length differs, and five bytes have no partner.
    assert counts == [6, 6]

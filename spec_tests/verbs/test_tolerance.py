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
from shardvar.cli import main
from shardvar.errors import ArgumentError
from shardvar.layout.region import Region
from shardvar.storage.local import LocalStorage
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.compare.distances import Tolerance
from spec_tests.helpers.native_checkpoints import Piece, assignment_of
from spec_tests.helpers.tensor_bundles import write_payloads

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
    [
        ("float32", 1e-6, 1e-4),
        ("float64", 1e-8, 1e-5),
        ("float16", 5e-4, 1e-2),
        (ml_dtypes.bfloat16, 8e-3, 0.1),
    ],
)
def test_close_has_the_tolerances_of_pytorch(dtype: Any, near: float, far: float) -> None:
    one = np.array([1.0]).astype(dtype)
    assert not Tolerance().beyond(one, (1.0 + np.array([near])).astype(dtype)).any()
    assert Tolerance().beyond(one, (1.0 + np.array([far])).astype(dtype)).all()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Return two checkpoints that differ in a millionth, in a dtype, and in a prefix of keys."""
    values = np.linspace(1, 2, 2_000_000, dtype=np.float32)
    sv.save(
        tmp_path / "a",
        {"m.large": values, "m.small": values[:5], "m.step": np.array(3)},
        partition=3,
    )
    b = {
        "large": values * np.float32(1 + 1e-6),
        "small": values[:5].astype(np.float64),
        "step": np.array(3),
    }
    sv.save(tmp_path / "b.safetensors", b)
    return tmp_path / "a", tmp_path / "b.safetensors"


def test_checkpoints_are_equal_under_the_names_tolerance_and_dtypes_that_are_asked_for(
    pair: tuple[Path, Path],
) -> None:
    names = {"m.*": "*"}
    assert not sv.diff(*pair).equal
    strict = sv.diff(*pair, rename=names)
    assert [each.key for each in strict.differences] == ["large", "small"] and not strict.only_in_a
    assert [each.key for each in sv.diff(*pair, rename=names, ignore_dtype=True).differences] == [
        "large"
    ]
    report = sv.diff(*pair, rename=names, ignore_dtype=True, close=True)
    assert (
        report.equal
        and report.num_equal == 3
        and report.tolerance == "the tolerances of the dtypes"
    )
    assert sv.diff(*pair, rename=names, exclude="small", rtol=1e-5).equal
    far = sv.diff(*pair, rename=names, filter="large", rtol=1e-7)
    assert not far.equal and far.tolerance == "rtol=1e-07, atol=0"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rtol": -1.0},
        {"atol": float("nan")},
        {"atol": float("inf")},
        {"rtol": "1"},
        {"atol": 10**400},
    ],
)
def test_a_tolerance_is_a_number_from_0_on(wrong: dict[str, Any], pair: tuple[Path, Path]) -> None:
    with pytest.raises(ArgumentError, match="finite number >= 0"):
        sv.diff(*pair, **wrong)


@pytest.mark.smoke
def test_the_command_judges_within_the_tolerance(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    both = [str(path) for path in pair]
    assert main(["diff", *both, "--rename", "m.*=*", "--ignore-dtype", "--close"]) == 0
    assert "equal: 3 tensors in both, within the tolerances" in capsys.readouterr().out
    assert main(["diff", *both, "--rename", "m.*=*", "--summary"]) == 1
    assert (
        capsys.readouterr().out
        == "2 of 3 tensors differ: 1 in values, 1 only in dtype (same values)\n"
    )
    assert main(["diff", *both, "--rtol", "x"]) == 2


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], a: Any, b: Any, only: str | None
) -> None:
    pair = files(tmp_path, np.array(a, np.float32), np.array(b, np.float32))
    values = sv.diff(*pair).differences[0].values
    assert values is not None
    assert (values.only, values.to_json()["only"]) == (only, only)
    assert main(["diff", *map(str, pair)]) == 1
    assert (f"only in the {only}\n" in capsys.readouterr().out) == (only is not None)


def test_the_largest_change_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensors that cannot be compared as numbers first, those without another value last."""
    x = np.arange(1.0, 5.0)
    a = {
        "little": x,
        "zero": x * 0,
        "much": x,
        "shape": x,
        "cast": x,
        "same": x,
        "inf": x,
        "text": np.array([b"x"], object),
    }
    b = a | {
        "little": x * 1.5,
        "zero": x * -0.0,
        "much": -x,
        "shape": x[1:],
        "cast": x.astype(np.float32),
    }
    pair = files(
        tmp_path, a, b | {"inf": np.array([1, 2, 3, np.inf]), "text": np.array([b"y"], object)}
    )
    report = sv.diff(*pair).by_change()
    assert [each.key for each in report.differences] == [
        "inf",
        "shape",
        "text",
        "much",
        "little",
        "cast",
        "zero",
    ]
    assert [each.change for each in report.differences][3:] == [2.0, pytest.approx(1 / 3), 0.0, 0.0]
    assert main(["diff", *map(str, pair), "--sort", "change", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["differences"]
    assert [(each["key"], each["change"]) for each in told[:4]] == [
        ("inf", "inf"), ("shape", "inf"), ("text", "inf"), ("much", 2.0),
    ]  # fmt: skip
    assert main(["diff", *map(str, pair), "--sort", "change"]) == 1
    assert capsys.readouterr().out.splitlines()[4].startswith("differs: much: 4 of 4 elements")
    assert main(["diff", *map(str, pair), "--sort", "size"]) == 2


def test_figures_of_large_tensors_count_elements_that_are_the_same(tmp_path: Path) -> None:
    """The first blocks are the same, then one element differs, then blocks that are the same
    again."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1500, 2100)).astype(np.float32)
    b = a.copy()
    b[1001, 7] += 1000
    values = sv.diff(*files(tmp_path, a, b)).differences[0].values
    x, y = (array.astype(np.float64).ravel() for array in (a, b))
    norms = [float(np.linalg.norm(each)) for each in (x, y, y - x)]
    assert values is not None
    assert values.first == values.max_absolute_at == values.max_relative_at == (1001, 7)
    assert values.cosine == pytest.approx(float(x @ y) / norms[0] / norms[1], rel=1e-12)
    assert values.relative_norm == pytest.approx(norms[2] / max(norms[:2]), rel=1e-12)


@pytest.mark.parametrize("dtypes", [("f8", "f4"), ("f4", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("count", [1000, 3_000_001])
def test_elements_that_rounding_makes_equal_are_counted(
    dtypes: tuple[Any, Any], count: int, tmp_path: Path
) -> None:
    """On either side, in small tensors and in large ones, which are compared in stretches. One
    element that is no rounding is not counted."""
    wide, narrow = dtypes
    exact = np.random.default_rng(count).standard_normal(count).astype(wide)
    rounded = exact.astype(narrow)
    other = rounded.copy()
    other[7] += 1
    num_changed = int(np.count_nonzero(rounded.astype(wide) != exact))
    for name, array in {"exact": exact, "rounded": rounded, "other": other}.items():
        sv.save(tmp_path / name, {"w": array})
    for one, two in (("exact", "rounded"), ("rounded", "exact")):
        (each,) = sv.diff(tmp_path / one, tmp_path / two).differences
        assert each.values is not None and each.only_dtype == "same values when rounded"
        assert each.values.count == each.values.num_rounded == num_changed > 0
    (each,) = sv.diff(tmp_path / "exact", tmp_path / "other").differences
    assert each.values is not None and each.only_dtype is None
    assert each.values.num_rounded == each.values.count - 1


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

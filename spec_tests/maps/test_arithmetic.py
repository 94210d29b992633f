"""Rules that compute: bit for bit by their definition, in any cuts, and as the libraries do."""

import json
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import arithmetic, mapped
from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import numpy_dtype
from spec_tests.helpers.map_arrays import assert_same, map_arrays
from spec_tests.helpers.nearest import nearest
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.plain_arithmetic import expressions

CASES = sorted(path.parent.name for path in (GOLDEN / "arithmetic").glob("*/case.json"))


def golden(name: str) -> tuple[dict[str, Any], list[Path], Any]:
    folder = GOLDEN / "arithmetic" / name
    sources = sorted(path for path in folder.iterdir() if path.is_dir())
    case = json.loads((folder / "case.json").read_text())
    return case, sources, np.load(folder / "expected.npz")


@pytest.mark.parametrize("name", CASES)
def test_a_rule_computes_what_a_library_does(name: str, tmp_path: Path) -> None:
    """Bit for bit the definition, and so the library's values up to the library's own rounding."""
    case, sources, expected = golden(name)
    rules = case["rules"]
    if name == "rope_freqs_llama3":
        rules = [*rules, "rest {x:**} -> {x}"]
    given_map = sv.Map(rules, sizes=case["sizes"])
    source = sources if len(sources) > 1 else sources[0]
    sv.reshard(source, tmp_path / "made.safetensors", map=given_map)
    made = sv.load(tmp_path / "made.safetensors")
    for key, about in case["targets"].items():
        assert made[key].dtype == numpy_dtype(about["dtype"])
        values = made[key].astype(np.float64)
        assert np.array_equal(values, expected[f"rounded/{key}"]), key
        off = np.abs(values - expected[f"library/{key}"]).max()
        most = 6e-3 if about["dtype"] == "bfloat16" else 2e-7
        assert off <= most * np.abs(values).max()
    report = sv.reshard(source, tmp_path / "dry.safetensors", map=given_map, dry_run=True).map
    assert report is not None and report.is_exact == (case.get("exactness") == "moved")


@given(st.data(), expressions())
@settings(max_examples=60)
def test_an_expression_is_its_definition_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, drawn: Any
) -> None:
    """In any portions, cuts and chunks."""
    rule, arrays, whole, dtype = drawn
    with np.errstate(all="ignore"):
        expected = nearest(whole, numpy_dtype(dtype))
    path = tmp_path_factory.mktemp("computed") / "a"
    counts = data.draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    sv.save(
        path,
        arrays,
        partition=lambda shape, _: [min(n, c) for n, c in zip(shape, counts, strict=False)],
    )
    with (
        patch.object(mapped, "PORTION", data.draw(st.sampled_from([1, 5, 1 << 16]))),
        patch.object(arithmetic, "_MOST_HELD", data.draw(st.sampled_from([1, 12, 1 << 18]))),
        patch.object(arithmetic, "_MOST_KEPT", data.draw(st.sampled_from([0, 1 << 16]))),
    ):
        if np.isfinite(expected.astype(np.float64)).all():
            made = sv.load(path, map=[rule])["out"]
            assert made.dtype == expected.dtype and made.shape == expected.shape
            assert made.tobytes() == expected.tobytes()
        else:
            with pytest.raises(UnsupportedError):
                sv.load(path, map=[rule])


def test_the_names_in_a_value_are_its_own() -> None:
    """Whatever the rule that uses a ``$`` calls its indices."""
    arrays = {"x": np.arange(6.0).reshape(2, 3), "w": np.arange(8.0).reshape(2, 4)}
    for inner, outer in product(permutations(("a", "b", "b_"), 2), repeat=2):
        (i, j), (n, m) = inner, outer
        rules = [f"sum({j}: x[{i} {j}]) -> $s[{i}]", f"w[{n} {m}] * $s[{n}] -> y[{n} {m}]"]
        sums = arrays["x"].sum(axis=1, keepdims=True)
        assert_same(map_arrays(sv.Map(rules), arrays), {"y": sums * arrays["w"]})


@given(st.lists(st.floats(-745, 709), min_size=1), st.lists(st.floats(1e-320, 1e308), min_size=1))
def test_exp_and_log_are_within_one_unit_in_the_last_place(
    xs: list[float], ys: list[float]
) -> None:
    from decimal import Context

    exact = Context(prec=60, Emax=9999, Emin=-9999)
    for function, numbers, twin in (
        (arithmetic.exp, xs, exact.exp),
        (arithmetic.log, ys, exact.ln),
    ):
        for x, found in zip(numbers, function(np.array(numbers)).tolist(), strict=True):
            wanted = Fraction(twin(exact.create_decimal_from_float(x)))
            assert abs(Fraction(found) - wanted) <= Fraction(np.spacing(abs(float(wanted))))


def test_special_numbers_have_their_own_exp_and_log() -> None:
    with np.errstate(all="ignore"):
        found = arithmetic.exp(np.array([np.inf, -np.inf, np.nan, 0.0, 710, -800]))
        assert found[[0, 1, 3, 5]].tolist() == [np.inf, 0, 1, 0] and np.isnan(found[2])
        found = arithmetic.log(np.array([np.inf, 0.0, -1.0, np.nan, 1.0]))
    assert found[[0, 1, 4]].tolist() == [np.inf, -np.inf, 0] and np.isnan(found[[2, 3]]).all()


@pytest.mark.parametrize("form", ["npz", "torch", "zarr", "shardvar"])
def test_workers_and_formats_do_not_change_a_bit(tmp_path: Path, form: str) -> None:
    """Averages of sliced sources, and a product that is summed over its inner index."""
    from concurrent.futures import ProcessPoolExecutor

    rng = np.random.default_rng(0)
    paths = []
    for number in range(3):
        shapes = {"a.w": (40, 30), "b": (40, 7), "c": (7, 30)}
        arrays = {key: rng.standard_normal(shape, np.float32) for key, shape in shapes.items()}
        sliced = {"a.w": [4, 2], "b": 3} if form in ("torch", "shardvar") else None
        paths.append(sv.save(tmp_path / f"{number}", arrays, format=form, partition=sliced).path)
    rules = [
        "mean(n: {n}/a.{x:**}) -> {x}",
        "0/b[i r] 1/c[r j] / 3 -> p[i j]",
        "rest {n}/{x:**} -> {n}.{x}",
    ]
    made = []
    for number, executor in enumerate((None, ProcessPoolExecutor(2))):
        sv.reshard(
            paths, tmp_path / f"made{number}", format="shardvar", map=rules, executor=executor
        )
        made.append(sv.load(tmp_path / f"made{number}"))
        if executor is not None:
            executor.shutdown()
    sources = [sv.load(path) for path in paths]
    total = sum(each["a.w"].astype(np.float64) for each in sources)
    for found in made:
        assert np.array_equal(found["w"], (total / 3).astype(np.float32))
        assert found["p"].tobytes() == made[0]["p"].tobytes()
        assert np.allclose(found["p"], sources[0]["b"] @ sources[1]["c"] / 3, rtol=1e-6, atol=1e-6)


def test_a_rule_is_switched_by_the_configuration(tmp_path: Path) -> None:
    sv.save(tmp_path / "model.safetensors", {"w": np.float32([1, 2])})
    (tmp_path / "config.json").write_text('{"rope": {"kind": "yarn"}, "long": [0.5, 4]}')
    rules = [
        "w[d] * f(d) -> v[d] if config:rope.kind = yarn",
        "w[d] * 9 -> v[d] if config:rope.kind != yarn",
        "index(d) / 2 -> g[d] as float64 if config:none|rope.kind = yarn",
    ]
    found = sv.load(tmp_path, map=sv.Map(rules, sizes={"f": "config:long", "d": 2}))
    assert found["v"].tolist() == [0.5, 8] and found["g"].tolist() == [0, 0.5]


def test_an_infinite_result_is_refused_with_its_place(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"x": np.float32([1, 2, np.inf, 0])})
    with pytest.raises(
        UnsupportedError, match=r"Element \[3\] of 'y' is inf, computed of 0.0 of 'x'"
    ):
        sv.load(tmp_path / "a", map=["1 / x[i] -> y[i]"])
    found = sv.load(tmp_path / "a", map=["exp(clip(x[i], 0, 1)) ** -2 * log(2) -> y[i] as float64"])
    assert found["y"][3] == float(np.log(2))

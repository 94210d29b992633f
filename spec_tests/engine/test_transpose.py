"""Transposed matrices: ``reshard`` gives NumPy's transpose, whatever the cuts, formats and dtypes
are."""

from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.engine import lattices
from shardvar.errors import ArgumentError
from shardvar.verbs.reshard import Conversions
from spec_tests.helpers.hypothesis_strategies import NUMBERS, values

cuts = st.one_of(
    st.none(), st.integers(1, 5), st.tuples(st.integers(1, 3), st.integers(1, 3)).map(list)
)
small_tiles = st.fixed_dictionaries(
    {"_TILE_ROWS": st.integers(1, 4), "_TILE_COLUMNS": st.integers(1, 4)}
)


@given(st.data(), st.sampled_from(NUMBERS), st.integers(0, 9), st.integers(0, 9))
def test_a_transposed_matrix_is_that_of_numpy(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    dtype: str,
    rows: int,
    columns: int,
) -> None:
    """Bits, whatever the cuts of source and target are; the tensors beside it stay as they are."""
    from shardvar.layout.dtypes import numpy_dtype

    matrix = data.draw(values(numpy_dtype(dtype), rows * columns)).reshape(rows, columns)
    directory = tmp_path_factory.mktemp("transposed")
    sv.save(
        directory / "a",
        {"m": matrix, "v": np.arange(3), "n": matrix},
        partition={"m": data.draw(cuts)},
    )
    with patch.multiple(lattices, **data.draw(small_tiles)):
        sv.reshard(
            directory / "a", directory / "b", transpose="[mv]", partition={"m": data.draw(cuts)}
        )
    found = sv.load(directory / "b")
    assert found["m"].tobytes() == np.ascontiguousarray(matrix.T).tobytes() and found[
        "m"
    ].shape == (columns, rows)
    assert found["n"].tobytes() == matrix.tobytes() and np.array_equal(found["v"], np.arange(3))
    sv.reshard(directory / "b", directory / "c", transpose="m")
    assert sv.diff(directory / "a", directory / "c").equal


@given(st.lists(st.integers(1, 5), max_size=4), small_tiles, st.integers(1, 64), st.data())
def test_any_axes_are_copied_to_any_others(
    shape: list[int], tiles: dict[str, int], most: int, data: st.DataObject
) -> None:
    """Whatever the order of the axes on both sides, the tiles and the bands are."""
    array = np.arange(int(np.prod(shape)), dtype=data.draw(st.sampled_from(["u1", "<u4", "<u8"])))
    from_axes, into_axes = (data.draw(st.permutations(range(len(shape)))) for _ in range(2))
    read = array.reshape([shape[axis] for axis in from_axes]).transpose(np.argsort(from_axes))
    out = np.zeros_like(array)
    into = out.reshape([shape[axis] for axis in into_axes]).transpose(np.argsort(into_axes))
    copy = lattices.Strided(tuple(shape), 0, read.strides, 0, into.strides, array.itemsize)
    with patch.multiple(lattices, _LEAST_TILE=4, **tiles):
        for band in copy.merged().in_words().bands(most):
            assert band.span <= max(most, band.itemsize)
            band.copy(memoryview(array).cast("B"), memoryview(out).cast("B"))
    assert np.array_equal(into, read)


LARGE = np.random.default_rng(0).standard_normal((1700, 1300)).astype(np.float32)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz", "torch", "pt"])
def test_matrices_larger_than_a_block_are_transposed_in_every_format(
    tmp_path: Path, form: str
) -> None:
    sv.save(tmp_path / "a", {"w": LARGE, "b": np.ones(3)}, partition={"w": [3, 2]})
    path = sv.reshard(tmp_path / "a", tmp_path / "b", format=form, transpose="w").path
    with sv.open_checkpoint(path) as reader:
        assert np.array_equal(reader.read("w"), LARGE.T)
    back = sv.reshard(
        path, tmp_path / "c", format="shardvar", transpose="w", partition={"w": [2, 3]}
    ).path
    assert np.array_equal(sv.load(back)["w"], LARGE)


def test_a_matrix_that_must_be_decoded_is_transposed(tmp_path: Path) -> None:
    """Deflated arrays go by way of a temporary file."""
    np.savez_compressed(
        tmp_path / "a.npz", w=LARGE, e=np.zeros((0, 4)), f=np.asfortranarray(LARGE[:5])
    )
    sv.reshard(
        tmp_path / "a.npz",
        tmp_path / "b",
        format="shardvar",
        transpose="*",
        partition={"w": [2, 3]},
    )
    found = sv.load(tmp_path / "b")
    assert np.array_equal(found["w"], LARGE.T) and found["e"].shape == (4, 0)
    assert np.array_equal(found["f"], LARGE[:5].T)


@pytest.mark.smoke
def test_a_transpose_is_cast_after_it(tmp_path: Path) -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    sv.save(tmp_path / "a", {"m.kernel": matrix})
    sv.reshard(
        tmp_path / "a",
        tmp_path / "b",
        rename={"m.kernel": "m.weight"},
        transpose="m.weight",
        cast="f16",
    )
    found = sv.load(tmp_path / "b")["m.weight"]
    assert found.dtype == np.float16 and np.array_equal(found, matrix.T)


def test_a_square_matrix_is_not_taken_from_a_run_without_transpose(tmp_path: Path) -> None:
    """The files that an interrupted run finished are reused by the same command alone."""
    reshard = import_module("shardvar.verbs.reshard")
    square = np.arange(9.0).reshape(3, 3)
    sv.save(tmp_path / "a", {"m": square})
    seen = []
    generation = reshard.digest_of_reshard
    with patch.object(
        reshard, "digest_of_reshard", lambda *words: seen.append(generation(*words)) or seen[-1]
    ):
        for name, globs in (("b", None), ("b", "m"), ("b", "m")):
            sv.reshard(tmp_path / "a", tmp_path / name, transpose=globs, dry_run=True)
    assert seen[0] != seen[1] == seen[2]


@pytest.mark.parametrize(
    ("globs", "words"),
    [
        ("x*", "No matrix matches 'x\\*'"),
        ("v", "No matrix matches 'v'"),
        (["m", "c"], "'c' has the shape \\[2, 3, 4\\]"),
        ("s", "'s' is of dtype string"),
        (7, "globs"),
    ],
)
def test_what_has_no_transpose_is_refused_before_anything_is_written(
    tmp_path: Path, globs: Any, words: str
) -> None:
    tensors = {
        "m": np.ones((2, 3)),
        "v": np.ones(3),
        "c": np.ones((2, 3, 4)),
        "s": np.array([[b"x"]], object),
    }
    sv.save(tmp_path / "a", tensors)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match=words):
        sv.reshard(tmp_path / "a", tmp_path / "b", transpose=globs)
    assert sorted(tmp_path.iterdir()) == before


def test_blocks_of_quantised_numbers_are_not_transposed(tmp_path: Path) -> None:
    """Their bytes would mean nothing."""
    sv.save(tmp_path / "a", {"q": np.ones((2, 34), np.uint8)})
    with (
        sv.open_checkpoint(tmp_path / "a") as reader,
        pytest.raises(ArgumentError, match="Dequantize first"),
    ):
        Conversions({}, "q").of(reader.source, reader.entries(), ["q"], {"q": "Q8_0"})

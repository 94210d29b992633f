"""Files that Flax writes, read by shardvar and by Flax."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv

pytest.importorskip("flax")

import ml_dtypes  # after the skip
from flax import serialization, traverse_util

DTYPES = [np.dtype(name) for name in "bool int8 uint32 int64 float16 float32 complex64".split()]
DTYPES += [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e5m2)]


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    found = rng.integers(0, 2, shape).astype(draw(st.sampled_from(DTYPES)))
    return found if found.ndim or draw(st.booleans()) else found[()]


NAMES = st.text("abc_0123", min_size=1, max_size=5)
TREES = st.recursive(
    arrays() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.none() | st.text(max_size=9),
    lambda below: st.dictionaries(NAMES, below, min_size=1, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(
    tree=st.dictionaries(NAMES, TREES, min_size=1, max_size=4), most=st.sampled_from([16, 1 << 30])
)
def test_arrays_are_those_that_flax_restores(
    tree: dict[str, Any], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With chunks of 16 bytes too: Flax cuts larger arrays."""
    path: Path = tmp_path_factory.mktemp("flax") / "m.msgpack"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serialization, "MAX_CHUNK_SIZE", most)
        path.write_bytes(serialization.msgpack_serialize(tree))
    restored = serialization.msgpack_restore(path.read_bytes())
    expected = traverse_util.flatten_dict(restored, sep=".")
    found = sv.load(path)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray | np.generic):
            assert found[key].dtype == value.dtype and found[key].shape == value.shape
            assert found[key].tobytes() == value.tobytes()
        else:
            assert found[key].item() == repr(value).encode()

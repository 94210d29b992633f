"""What the benchmarks compare with does the same work: each library gives back what it saved, and
names it."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("benchmarks", reason="the benchmarks stand in the tree, not in the wheel")

from benchmarks.peers import PEERS, find_peer  # after the skip


@pytest.mark.parametrize("name", PEERS)
def test_a_library_loads_what_it_saved(name: str, tmp_path: Path) -> None:
    peer = find_peer(name)
    if peer is None:
        pytest.skip(f"{name} is not installed")
    arrays = {
        "first": np.arange(12, dtype=np.float32).reshape(3, 4),
        "second": np.ones(16, np.float32),
    }
    state = peer.prepare(arrays)
    peer.save(tmp_path, state)
    loaded = peer.load(tmp_path, state)
    if name == "TensorFlow":  # fills the variables that it saved
        loaded = {key: getattr(state, key).numpy() for key in arrays}
    elif name == "TensorFlow kernels":
        loaded = dict(zip(arrays, loaded, strict=True))
    assert sorted(loaded) == sorted(arrays)
    assert all(np.array_equal(np.asarray(loaded[key]), array) for key, array in arrays.items())
    assert all(any(key in each for each in peer.names(tmp_path)) for key in arrays)

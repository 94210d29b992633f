"""Saves in parts: whether a folder is one, by the index of torch_checkpointing and by its names."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from shardvar.errors import MalformedCheckpoint
from shardvar.formats.parts import kind_of_parts
from shardvar.formats.torch.shares import share_of
from shardvar.storage.local import LocalStorage
from shardvar.wire.pickle import Global
from spec_tests.formats.test_torch_ranks import subclass

ALONE, SEVERAL = ("model.pt",), ("model_0.pt", "model_1.pt")


@pytest.mark.parametrize(
    ("index", "names", "is_save"),
    [
        ({"world_size": 1}, ALONE, False),
        ({"world_size": 1}, SEVERAL, False),
        ({"world_size": 2}, ALONE, True),
        ({"world_size": 2}, SEVERAL, True),
        ({"world_size": "2"}, ALONE, False),
        ({}, SEVERAL, True),
        ([], ALONE, False),
        (None, SEVERAL, False),
    ],
)
def test_the_index_says_how_many_ranks_wrote_and_else_the_names_do(
    index: Any, names: tuple[str, ...], is_save: bool, tmp_path: Path
) -> None:
    """None is a folder without an index."""
    if index is not None:
        (tmp_path / "metadata.pkl").write_bytes(pickle.dumps(index))
    for name in names:
        (tmp_path / name).write_bytes(b"")
    kind = kind_of_parts(LocalStorage(str(tmp_path)), ())
    assert (kind is not None) == is_save


@pytest.mark.parametrize(
    "about",
    [None, (), (Global("X"),), (Global("X"), Global("torch.float32")), (Global("X"), "f4", (2,))],
)
def test_a_share_without_a_dtype_or_a_shape_is_malformed(about: Any) -> None:
    call = subclass("torch.distributed.tensor.DTensor", (2,), None)
    function, kind, _, state = call.args
    call = type(call)(call.name, (function, kind, about, state))
    with pytest.raises(MalformedCheckpoint, match="no dtype or no shape"):
        share_of(call, 0, lambda tensor: tensor)

"""Files of torch.save that shardvar writes; ``spec_tests/peers`` lets torch itself read them."""

import codecs
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import UnsupportedError
from shardvar.formats.torch import saved
from shardvar.formats.torch.archive import open_archive, tensor_call
from shardvar.formats.torch.values import DTYPES, tensor_of
from shardvar.wire.opcode_writer import Call, build_pickle
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import Node
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.torch_files import write_torch

TENSORS: dict[str, Any] = {
    "layer.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer": np.arange(5, dtype=np.uint16),
    "naïve ✓": np.array(7, np.int64),
    "": np.zeros((0, 3), np.bool),
}
READABLE = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.storage.UntypedStorage",
}
"""The names, with those of dtypes and their storages, that ``torch.load(weights_only=True)``
takes."""


class _Inert(pickle.Unpickler):
    """Python's own reader of pickles, with None in the place of every tensor."""

    def find_class(self, module: str, name: str) -> Any:
        return codecs.encode if (module, name) == ("_codecs", "encode") else lambda *_: None

    def persistent_load(self, pid: Any) -> None:
        return None


def test_plain_objects_of_a_distributed_checkpoint_are_values_of_the_file(tmp_path: Path) -> None:
    """As Python's pickle gives them back."""
    source = GOLDEN / "torch_dcp" / "nested_and_objects" / "ckpt"
    sv.reshard(source, tmp_path / "x.pt")
    assert sv.diff(source, tmp_path / "x.pt").equal
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        values = _Inert(archive.open("archive/data.pkl")).load()
    assert values["epoch"] == 3 and values["name"] == "naïve ✓" and values["raw"] == b"\x00\xff"
    assert (
        values["optim.groups.0.betas"] == (0.9, 0.99)
        and values["nothing"] is None
        and values["big"] == 2**70
    )
    assert "model.weight" not in values or values["model.weight"] is None
    # Without a tensor, a file is its frame alone.
    write_torch(tmp_path / "set.pt", {"kept": -math.inf, "seen": Call("builtins.range", (1, 2, 1))})
    sv.reshard(tmp_path / "set.pt", tmp_path / "y.pt", filter="kept")
    assert sv.load(tmp_path / "y.pt")["kept"][()] == b"-inf"


def test_pythons_zipfile_reads_the_file_and_agrees_with_every_checksum(tmp_path: Path) -> None:
    sv.save(tmp_path / "x.pt", TENSORS)
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert archive.testzip() is None
        folder = "archive/"
        assert [name.removeprefix(folder) for name in archive.namelist()] == [
            "data.pkl",
            "byteorder",
            *(f"data/{number}" for number in range(len(TENSORS))),
            "version",
        ]
        assert archive.read(folder + "data/0") == TENSORS["layer.0.weight"].tobytes()
        assert (archive.read(folder + "version"), archive.read(folder + "byteorder")) == (
            b"3\n",
            b"little",
        )


@pytest.mark.parametrize("name", ["x.pt", "folder"])
def test_payloads_begin_at_multiples_of_64_and_are_mapped(name: str, tmp_path: Path) -> None:
    sv.save(tmp_path / name, TENSORS, format="torch" if name == "folder" else None)
    with sv.open_checkpoint(tmp_path / name) as reader:
        entries = reader.entries()
        assert entries.plain.all() and not (entries.start % 64).any()


def test_the_pickle_names_nothing_but_tensors(tmp_path: Path) -> None:
    dtypes = {name: np.zeros(2, name) for name in DTYPES.values() if hasattr(np, name)}
    sv.save(tmp_path / "x.pt", dtypes)
    octets = (tmp_path / "x.pt").read_bytes()
    names: list[str] = []
    pickle = open_archive(
        lambda start, nbytes: octets[start : start + nbytes], 0, len(octets)
    ).content("data.pkl", 1 << 20)
    parse_pickle(pickle, names.append)
    others = set(names) - READABLE - DTYPES.keys()
    assert (
        all(name.startswith("torch.") and name.endswith("Storage") for name in others)
        and pickle[1] == 2
    )


@given(st.sampled_from(sorted(DTYPES.values())), st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_a_tensor_that_is_described_is_the_one_that_is_read(
    dtype: str, shape: tuple[int, ...]
) -> None:
    """Law: ``tensor_of(tensor_call(dtype, shape, number))`` is contiguous, of that dtype and shape,
    and all of it."""
    node, _ = parse_pickle(build_pickle(tensor_call(dtype, shape, 7)))
    assert type(node) is Node
    tensor = tensor_of(node)
    assert (tensor.dtype, tensor.shape, tensor.offset, tensor.record) == (dtype, shape, 0, "data/7")
    assert tensor.is_contiguous and tensor.storage_nbytes == tensor.count * tensor.itemsize


@pytest.mark.parametrize(
    ("name", "form", "written"),
    [
        ("x.pt", None, "x.pt"),
        ("x.pth", None, "x.pth"),
        ("x", "pt", "x.pt"),
        ("x.bin", "pt", "x.bin"),
    ],
)
def test_a_file_is_named_as_it_was_asked_for(
    name: str, form: str | None, written: str, tmp_path: Path
) -> None:
    for _ in range(2):
        sv.save(tmp_path / name, TENSORS, format=form, force=True)
        assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == [
            written
        ]
    assert sv.load(tmp_path / name).keys() == TENSORS.keys()


def test_the_name_of_an_index_and_more_tensors_than_a_pickle_may_describe_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsupportedError, match="index of a set"):
        sv.save(tmp_path / "x.bin.index.json", TENSORS)
    monkeypatch.setattr(f"{saved.__name__}.MAX_PICKLE_NBYTES", 300)
    with pytest.raises(UnsupportedError, match="MAX_PICKLE_NBYTES"):
        sv.save(tmp_path / "x.pt", TENSORS)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == []

"""The real safetensors reads what is written in its format, and what it writes is read."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

import shardvar as sv
from shardvar.formats.safetensors import FORMAT
from shardvar.layout.dtypes import PACKED_BITS, TORCH_ONLY
from shardvar.storage.local import LocalStorage
from shardvar.wire.safetensors_header import SAFETENSORS_DTYPES, STORED_DTYPES
from spec_tests.helpers.format_protocol import some_arrays, write_arrays

safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed")
real = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")

PLAIN = sorted({*SAFETENSORS_DTYPES} - {*PACKED_BITS, *TORCH_ONLY})
"""The dtypes that NumPy has, or ml_dtypes."""
NUMPYS = [name for name in PLAIN if not name.startswith("float8")]
"""The dtypes that safetensors.numpy reads; the others need torch."""


def written(directory: Path, arrays: dict[str, Any], **how: Any) -> Path:
    write_arrays(FORMAT, LocalStorage(str(directory)), "m", arrays, **how)
    return directory / "m.safetensors"


def native(array: Any) -> Any:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("=")).reshape(array.shape)


@given(arrays=some_arrays([name for name in NUMPYS if name != "bfloat16"]))
def test_a_file_has_the_bytes_of_the_real_library(
    arrays: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Saved, resharded and written by shares: in its order, padded as it does, without texts."""
    folder = tmp_path_factory.mktemp("bytes")
    sv.save(folder / "native", arrays)
    for texts in ({}, {"é": "\n"}):
        sv.save(folder / "a.safetensors", arrays, metadata=texts)
        sv.reshard(folder / "a.safetensors", folder / "b.safetensors", force=True)
        shares = {"process": 0, "num_processes": 1, "metadata": texts, "run": str(texts)}
        sv.save_shards(folder / "c.safetensors", arrays, **shares)
        given = {key: native(array) for key, array in arrays.items()}
        expected = real.save(given, metadata=texts or None)
        for name in "abc" if arrays else "ab":  # a save of no shares keeps its run
            assert (folder / f"{name}.safetensors").read_bytes() == expected
    sv.reshard(folder / "native", folder / "d.safetensors", force=True)
    assert (folder / "d.safetensors").read_bytes() == real.save(given)


def assert_same(read: dict[str, Any], expected: dict[str, Any]) -> None:
    assert read.keys() == expected.keys()
    for key, array in expected.items():
        assert read[key].shape == array.shape and read[key].tobytes() == native(array).tobytes(), (
            key
        )


@pytest.mark.parametrize("name", PLAIN)
def test_torch_reads_every_dtype_even_from_an_odd_place(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import load_file

    octets = np.arange(48, dtype=np.uint8) % 2
    array = octets.view(np.dtype(getattr(ml_dtypes, name, name)))
    path = written(tmp_path, {"a": np.ones(3, np.int8), "b": array})
    found = load_file(path)["b"]
    assert found.contiguous().view(torch.uint8).numpy().tobytes() == array.tobytes()


def test_the_dtypes_are_those_that_the_real_library_knows() -> None:
    """A header of no known dtype makes it list those that it knows."""
    header = b'{"a":{"dtype":"?","shape":[],"data_offsets":[0,0]}}'
    with pytest.raises(safetensors.SafetensorError) as raised:
        safetensors.deserialize(len(header).to_bytes(8, "little") + header)
    known = {word for word in str(raised.value).split("`") if word.isupper() or "_" in word} & {
        *STORED_DTYPES,
        "C128",
        "I4",
    }
    assert known == set(STORED_DTYPES)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_pytorch_reads_a_set_as_one_of_hugging_face(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
    arrays = {
        key: np.arange(number, number + 6, dtype=np.float32).reshape(2, 3)
        for number, key in enumerate("abc")
    }
    sv.save(tmp_path / "model.safetensors", arrays, policy=sv.MaxShardSizePolicy(30))
    state = {key: torch.zeros(2, 3) for key in arrays}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)))
    assert_same({key: tensor.numpy() for key, tensor in state.items()}, arrays)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("is_sharded", [False, True])
def test_what_pytorch_writes_for_hugging_face_is_read(is_sharded: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
    state = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    writer = dcp.HuggingFaceStorageWriter(
        str(tmp_path), fqn_to_index_mapping={"a": 1, "b": 2}, save_distributed=is_sharded
    )
    dcp.save(state, storage_writer=writer)
    loaded = sv.load(tmp_path)
    assert (
        loaded["a"].tolist() == state["a"].tolist()
        and loaded["b"].astype(float).tolist() == [1.0] * 4
    )
    assert sv.verify(tmp_path).ok

"""The golden checkpoints of real libraries: whole, damaged and hostile, read as a careful reader
does."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.zarr import source as decoder_module
from spec_tests.helpers.format_protocol import GOLDEN, golden_cases
from spec_tests.helpers.golden_verdicts import hold_to_verdict

KINDS = (
    *("flax", "gguf", "huggingface", "keras", "npy", "npz", "onnx", "orbax", "safetensors"),
    *("torch_dcp", "torch_pt", "zarr"),
)
CASES = [(kind, case) for kind in KINDS for case in golden_cases(kind)]


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}-{case}" for kind, case in CASES])
def test_a_golden_checkpoint_is_read_as_a_careful_reader_does(
    kind: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-DAMAGE-1 (RFC 001). Nothing that a file holds is run."""
    monkeypatch.chdir(tmp_path)
    hold_to_verdict(kind, case)
    assert list(tmp_path.iterdir()) == [], "something was run"


@pytest.mark.parametrize(
    "path",
    [
        *("gguf/every_type/m.gguf", "keras/weights_mlp/m.weights.h5", "keras/keras_file/m.keras"),
        *("torch_dcp/rows9_ranks2/ckpt", "torch_pt/module_state_dict/x.pt", "npy/c_order/x.npy"),
    ],
)
def test_contiguous_numbers_are_read_in_place(path: str) -> None:
    with sv.open_checkpoint(GOLDEN / path) as reader:
        assert reader.entries().plain.all()


@pytest.mark.parametrize(
    "path",
    [
        *("gguf/every_type/m.gguf", "keras/weights_mlp/m.weights.h5", "keras/keras_file/m.keras"),
        *("npz/scalars_0d/ckpt/arrays.npz", "npy/c_order/x.npy", "torch_pt/tied_weights/x.pt"),
        *("safetensors/scalars_0d/ckpt/model.safetensors", "torch_legacy/small.pt"),
    ],
)
def test_a_file_of_another_name_is_known_by_its_first_bytes(path: str, tmp_path: Path) -> None:
    shutil.copy(GOLDEN / path, tmp_path / "of another name")
    assert sv.load(tmp_path / "of another name").keys() == sv.load(GOLDEN / path).keys()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("keras/legacy_h5/m.h5", "tf_model.h5"),
        ("flax/every_value/m.msgpack", "flax_model.msgpack"),
        ("torch_pt/tied_weights/x.pt", "optimizer.pt"),
        ("onnx/every_type/m.onnx", "model.onnx"),
    ],
)
def test_a_folder_means_its_safetensors_and_other_forms_are_read_by_their_own_path(
    path: str, name: str, tmp_path: Path
) -> None:
    """A repository often has the same model in several forms, and a trainer has other states."""
    shutil.copy(GOLDEN / path, tmp_path / name)
    keys = sv.load(tmp_path / name).keys()
    assert sv.load(tmp_path).keys() == keys
    sv.save(tmp_path / "model.safetensors", {"t": np.arange(3)})
    assert list(sv.load(tmp_path)) == ["t"] and sv.load(tmp_path / name).keys() == keys


UNGUARDED = "not verifiable"


@pytest.mark.parametrize(
    ("path", "outcomes"),
    [
        ("npy/c_order/x.npy", {UNGUARDED}),
        # ``set_crc32_options(False)`` of torch leaves the CRC of every record 0.
        ("torch_dcp/no_checksums/ckpt", {UNGUARDED}),
        ("torch_pt/no_checksums/x.pt", {UNGUARDED}),
        # Nodes of a database are guarded, and its large chunks are not.
        ("orbax/stale_process_files/ckpt", {"ok", UNGUARDED}),
    ],
)
def test_what_no_checksum_guards_is_never_called_compared(path: str, outcomes: set[str]) -> None:
    report = sv.verify(GOLDEN / path)
    assert report.ok and set(report.outcomes.values()) == outcomes
    assert report.unguarded_nbytes > 0
    assert outcomes != {UNGUARDED} or report.unguarded_nbytes == report.read_nbytes


@pytest.mark.parametrize(
    ("path", "lacking", "words"),
    [
        ("keras/weights_mlp/m.weights.h5", "h5py", r"Install it: .*\[keras\]"),
        ("zarr/v3_default/ckpt", "tensorstore", r"Install it: .*\[orbax\]"),
        ("orbax/standard/ckpt", "tensorstore", r"Install it: .*\[orbax\]"),
        ("orbax/standard/ckpt", "zstandard", r"zstandard.*\[orbax\]"),
        # What lies in its file as in memory needs none.
        ("zarr/v3_none/ckpt", "tensorstore", None),
        ("orbax/written_here/ckpt", "tensorstore zstandard", None),
    ],
)
def test_without_a_library_the_error_names_the_extra(
    path: str, lacking: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_module, "_loaded", {})
    for module in lacking.split():
        monkeypatch.setitem(sys.modules, module, None)
    if words is None:
        assert sv.load(GOLDEN / path, None if "orbax" in path else ["s"])
    else:
        with pytest.raises(sv.errors.MissingExtra, match=words):
            sv.load(GOLDEN / path)

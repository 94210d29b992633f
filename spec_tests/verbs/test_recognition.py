"""What shardvar says about a path that means no checkpoint: what is there instead, and what to
do."""

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    AmbiguousPath,
    CheckpointNotFound,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from shardvar.storage.local import LocalStorage, split_path
from shardvar.verbs import locate
from spec_tests.helpers.command_line import Run, run
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.thoroughness import stride
from spec_tests.wire.test_kinds import KINDS, POINTER

__all__ = ["run"]


def error_of(path: Path) -> ShardvarError:
    with pytest.raises(ShardvarError) as caught:
        sv.load(path)
    assert str(path.name) in str(caught.value) and caught.value.remedy
    return caught.value


FILES: list[tuple[str, bytes, type[ShardvarError], str]] = [
    ("model.bin", POINTER, MalformedCheckpoint, "Git LFS pointer"),
    ("model.h5x", KINDS["a web page"], MalformedCheckpoint, "web page"),
    ("model", b"", MalformedCheckpoint, "is empty"),
    ("weights", bytes(1000), MalformedCheckpoint, "filled with zeros"),
    ("model.safetensors.incomplete", b"\x10\0\0\0", MalformedCheckpoint, "unfinished download"),
    ("model.bin2", KINDS["an ONNX model"], UnsupportedError, "an ONNX model"),
    ("model.trt", b"\xfe" * 9, UnsupportedError, "an engine of TensorRT"),
    ("model.pkl", b"\x80\x04}.", UnsupportedError, "a Python pickle"),
    ("model.nemo", KINDS["a tar archive"], UnsupportedError, "a tar archive"),
    ("frozen.pb", KINDS["a TensorFlow graph"], UnsupportedError, "a TensorFlow graph"),
    ("model.ckpt.meta", b"\x0a\xff", UnsupportedError, "the graph of a TensorFlow checkpoint"),
    ("flax_model.flax", b"\x83\xa6params", UnsupportedError, "msgpack"),
    ("docs.zip", KINDS["a zip archive"], MalformedCheckpoint, "cut short at byte"),
    ("model.pt.part-ab", b"\xfe" * 9, MalformedCheckpoint, "one part of a file that was split"),
    ("model.npz.003", b"PK\x03\x04", MalformedCheckpoint, "one part of a file that was split"),
    ("config.json", b'{"model_type": 1}', UnsupportedError, "a JSON text"),
    ("unknown", b"\xfe\xfd\xfc" * 9, CheckpointNotFound, "not in a supported format"),
    ("m.safetensors", (GOLDEN / "torch_legacy" / "small.pt").read_bytes(), MalformedCheckpoint, "torch"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "error", "words"), FILES)
def test_a_file_is_named_for_what_it_is(
    name: str, content: bytes, error: type[ShardvarError], words: str, tmp_path: Path
) -> None:
    """A file of old torch under another ending is read under its own."""
    (tmp_path / name).write_bytes(content)
    raised = error_of(tmp_path / name)
    assert type(raised) is error and words in raised.cause
    assert "no checkpoint at" not in raised.cause
    if name == "m.safetensors":
        assert "(.pt)" in raised.remedy
        (tmp_path / name).rename(tmp_path / "m.pt")
        assert "w" in sv.load(tmp_path / "m.pt")


@pytest.mark.parametrize("name", ["run.zip", "run", "run.pt", "run.npz", "run.pt2"])
def test_a_zip_around_checkpoints_names_them(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for member in ("policy.pth", "policy.optimizer.pth"):
            archive.writestr(member, "x")
    raised = error_of(tmp_path / name)
    assert "a zip archive around 'policy.pth'" in raised.cause and "unzip" in raised.remedy


@pytest.mark.parametrize("name", ["m.pt", "m.npz", "old.pt"])
def test_an_archive_that_is_cut_anywhere_is_called_so_with_the_byte(
    name: str, tmp_path: Path
) -> None:
    if name != "old.pt":
        sv.save(tmp_path / name, {"w": np.ones(40)})
        octets = (tmp_path / name).read_bytes()
    else:
        octets = (GOLDEN / "torch_legacy" / "small.pt").read_bytes()
    for stop in range(4 if name == "m.npz" else 1, len(octets), stride(3)):
        (tmp_path / name).write_bytes(octets[:stop])
        with pytest.raises(ShardvarError) as caught:
            sv.load(tmp_path / name)
        assert re.search("cut (short|off)", caught.value.cause), stop
        assert str(stop) in caught.value.cause, stop


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_index_with_a_byte_order_mark_is_read_without_it(encoding: str, tmp_path: Path) -> None:
    files = [f"m-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for key, file in zip("ab", files, strict=True):
        sv.save(tmp_path / "x.safetensors", {key: np.ones(2)})
        (tmp_path / "x.safetensors").rename(tmp_path / file)
    index = json.dumps({"weight_map": dict(zip("ab", files, strict=True))})
    path = tmp_path / "m.safetensors.index.json"
    path.write_bytes(index.encode(encoding))
    assert "byte order mark" in error_of(path).cause
    path.write_bytes(index.encode("utf-8"))
    assert {*sv.load(path)} == {"a", "b"}


def test_a_header_beyond_the_limit_of_safetensors_is_called_so(tmp_path: Path) -> None:
    with (tmp_path / "m.safetensors").open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little") + b"{")
        file.truncate(100_000_100)
    raised = error_of(tmp_path / "m.safetensors")
    assert type(raised) is UnsupportedError and "allows 100000000" in raised.cause


FOLDERS: list[tuple[str, type[ShardvarError], str]] = [
    ("", CheckpointNotFound, "is empty"),
    ("notes.md data.csv sub/", CheckpointNotFound, "2 files and 1 folder"),
    ("5.orbax-checkpoint-tmp-17/d/x", IncompleteCheckpoint, "not finished"),
    ("iter_0000010/mp_rank_00/x iter_0000010/mp_rank_01/x", UnsupportedError, "Megatron"),
    ("saved_model.pb", IncompleteCheckpoint, "SavedModel without"),
    ("events.out.tfevents.17.host", UnsupportedError, "TensorBoard"),
    ("model_index.json unet/", IncompleteCheckpoint, "diffusers"),
    ("config.json model.data", CheckpointNotFound, "model.data is an ONNX model"),
]


@pytest.mark.parametrize(("names", "error", "words"), FOLDERS)
def test_a_folder_is_named_for_what_it_is(
    names: str, error: type[ShardvarError], words: str, tmp_path: Path
) -> None:
    """By the largest of its files, if nothing else tells."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in names.split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = KINDS["an ONNX model"] + bytes(1000) if name == "model.data" else b""
        (folder / name).write_bytes(content) if name[-1] != "/" else (folder / name).mkdir()
    raised = error_of(folder)
    assert type(raised) is error and words in raised.cause
    assert "no checkpoint at" not in raised.cause


def test_the_ranks_of_llama_are_not_taken_for_steps(tmp_path: Path) -> None:
    for rank in range(2):
        part = {"output.weight": np.full((1, 2), rank, np.float32)}
        sv.save(tmp_path / f"consolidated.0{rank}.pth", part)
    assert sv.load(tmp_path)["output.weight"].tolist() == [[0, 0], [1, 1]]
    assert sv.newest_checkpoint(tmp_path) == str(tmp_path / "consolidated")
    with pytest.raises(UnsupportedError, match="Llama.* each rank"):
        sv.reshard(tmp_path / "consolidated.01.pth", tmp_path / "half.npz")


@pytest.mark.parametrize("named", ["model", "model.svindex", "data", ""])
def test_data_files_without_their_index_are_told_from_nothing(named: str, tmp_path: Path) -> None:
    """Neither is it a checkpoint of the same prefix, of which the index was lost or never
    written. A misspelt folder is told what it may have meant."""
    folder = tmp_path / "run-two"
    sv.save(folder / "model", {"w": [1.0]})
    assert f"Did you mean {folder}?" == error_of(tmp_path / "run-tow").remedy
    (folder / "model.svindex").unlink()
    (data,) = folder.iterdir()
    path = data if named == "data" else folder / named
    raised = error_of(path)
    assert type(raised) is CheckpointNotFound and "Copy the index" in raised.remedy
    told = f"There is no checkpoint at {path}: model.svindex is missing, but its data files exist."
    assert raised.cause == told and "data files" not in error_of(folder / "mode").cause


def test_a_folder_of_pointers_says_how_to_fetch_the_files(tmp_path: Path) -> None:
    """Other files of the folder, which git has itself, are larger than a pointer."""
    for name in ("README.md", "config.json", "merges.txt", "tokenizer.json", "vocab.json"):
        (tmp_path / name).write_text("{} some text\n" * 100)
    (tmp_path / "pytorch_model.bin").write_bytes(POINTER)
    raised = error_of(tmp_path)
    assert type(raised) is MalformedCheckpoint
    assert raised.remedy == "Fetch the content: `git lfs pull`."
    assert "pytorch_model.bin is a Git LFS pointer" in raised.cause


def test_a_folder_of_any_size_costs_the_heads_of_a_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (tmp_path / f"{number}.tflite").write_bytes(KINDS["an ONNX model"])
    opened: list[str] = []
    monkeypatch.setattr(
        locate, "read_first_bytes", lambda storage, name: opened.append(name) or b""
    )
    error = locate.explain(str(tmp_path), *split_path(tmp_path), is_misspelt=False)
    assert isinstance(error, CheckpointNotFound) and len(opened) <= 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert type(error_of(tmp_path / "pipe")) is MalformedCheckpoint
    assert LocalStorage(str(tmp_path)).names() == ["pipe"]


@pytest.mark.parametrize(
    ("model", "other", "is_set"),
    [
        ("model", "consolidated.safetensors", True),
        ("model", "optimizer.safetensors", True),
        ("model", "optimizer.pt", True),
        ("model", "ema.safetensors", True),
        ("diffusion_pytorch_model", "ema.safetensors", True),
        ("model", "consolidated.safetensors", False),
        ("model", "optimizer.safetensors", False),
        ("model", "adapter_model.safetensors", False),
    ],
)
def test_a_model_and_the_index_of_the_hub_speak_for_their_folder(
    model: str, other: str, is_set: bool, tmp_path: Path, run: Run
) -> None:
    """In every command, and a note names what was passed over. An adapter next to it is a question."""
    sv.save(tmp_path / other, {"c": np.ones(5)})
    assert sorted(sv.load(tmp_path)) == ["c"]
    policy = sv.BalancedPolicy(2) if is_set else None
    sv.save(tmp_path / f"{model}.safetensors", {"a": np.ones(3), "b": np.ones(4)}, policy=policy)
    if other.startswith("adapter"):
        with pytest.raises(AmbiguousPath):
            sv.load(tmp_path)
        return
    assert sorted(sv.load(tmp_path)) == ["a", "b"]
    if is_set:
        index = f"{model}.safetensors.index.json"
        for words in (
            ["inspect"],
            ["verify"],
            ["show"],
            ["digest"],
            ["reshard", tmp_path / "o.npz"],
        ):
            outcome = run(words[0], tmp_path, *words[1:])
            assert outcome.code == 0
            assert other in (outcome.out if words == ["verify"] else outcome.err)
            assert words[0] not in ("inspect", "verify") or index in outcome.out
    assert sorted(sv.load(tmp_path / other)) == ["c"]

"""Folders as Hugging Face's libraries leave them, and PyTorch's writer for these: variants,
neighbours, shards."""

import json
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import AmbiguousPath, ArgumentError, TargetExists, UnsupportedError
from shardvar.formats.safetensors import FORMAT
from shardvar.planning.policies import BalancedPolicy
from shardvar.planning.slices import TensorTable
from shardvar.storage.local import LocalStorage
from shardvar.wire.safetensors_header import build_header


def file_of(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] = {}) -> bytes:
    rows = [(key, str(array.dtype), array.shape) for key, array in arrays.items()]
    return build_header(rows, metadata) + b"".join(array.tobytes() for array in arrays.values())


def write_shard(path: Path, slices: Mapping[str, tuple[tuple[int, ...], np.ndarray]]) -> None:
    info = json.dumps({key: {"saved_offsets": list(offset)} for key, (offset, _) in slices.items()})
    arrays = {key: np.ascontiguousarray(array) for key, (_, array) in slices.items()}
    texts = {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0", "format": "pt"}
    path.write_bytes(file_of(arrays, texts))


@given(cuts=st.lists(st.integers(0, 7), max_size=3), other=st.integers(0, 5))
def test_shards_are_joined_wherever_they_were_cut(
    cuts: list[int], other: int, tmp_path_factory
) -> None:
    """Empty slices are among them."""
    folder = tmp_path_factory.mktemp("shards")
    rows, table = np.arange(7, dtype=np.int16), np.arange(35, dtype=np.float32).reshape(7, 5)
    bounds = [0, *sorted(cuts), 7]
    for rank, (start, stop) in enumerate(pairwise(bounds), 1):
        slices = {"rows": ((start,), rows[start:stop])}
        if rank <= 2:
            left, right = ((0, other), (other, 5))[rank - 1] if len(bounds) > 2 else (0, 5)
            slices["table"] = ((0, left), table[:, left:right])
        write_shard(folder / f"shard-{rank:05}-model-00001-of-00001.safetensors", slices)
    loaded = sv.load(folder)
    assert (loaded["rows"].tolist(), loaded["table"].tolist()) == (rows.tolist(), table.tolist())
    assert sv.verify(folder).ok


def test_what_the_numbers_of_shards_cannot_show_is_said(tmp_path: Path) -> None:
    for key, at, rank, file in (("a", 0, 1, 1), ("a", 2, 2, 1), ("b", 0, 1, 2)):
        name = f"shard-{rank:05}-model-{file:05}-of-00003.safetensors"
        write_shard(tmp_path / name, {key: ((at,), np.ones(2))})
    report = sv.verify(tmp_path)
    notes = " ".join(report.notes)
    assert "a lost last shard cannot be noticed" in notes
    assert "1 of 2 shards have a file 2 of 3" in notes
    assert ["imply 3 files" in each.message for each in report.damages] == [True]


def test_a_name_of_a_shard_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"model\.safetensors"):
        sv.save(tmp_path / "shard-00001-model-00001-of-00001.safetensors", {"w": np.ones(2)})
    assert list(tmp_path.iterdir()) == []


def write_set(folder: Path, index: str, part: str) -> None:
    names = [part.format(number) for number in (1, 2)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(file_of({f"w{number}": np.full(2, number, np.float32)}))
    weight_map = {f"w{number}": name for number, name in enumerate(names)}
    (folder / index).write_text(
        json.dumps({"metadata": {"total_size": 16}, "weight_map": weight_map})
    )


VARIANTS = [
    ("model.safetensors.index.fp16.json", "model.fp16-{:05}-of-00002.safetensors"),
    (
        "diffusion_pytorch_model.safetensors.index.fp16.json",
        "diffusion_pytorch_model.fp16-{:05}-of-00002.safetensors",
    ),
    ("model.safetensors.fp16.index.json", "model-{:05}-of-00002.fp16.safetensors"),
    ("model.fp16.safetensors.index.json", "model.fp16-{:05}-of-00002.safetensors"),
]


@pytest.mark.parametrize(("index", "part"), VARIANTS)
def test_a_variant_is_a_set_of_its_own(index: str, part: str, tmp_path: Path) -> None:
    """Alone by its folder, and beside the set that it is a variant of by its own names."""
    write_set(tmp_path, index, part)
    storage = LocalStorage(str(tmp_path))
    assert FORMAT.locate(storage, "") == [index] and sorted(sv.load(tmp_path)) == ["w0", "w1"]
    assert sv.verify(tmp_path).ok and sv.verify(tmp_path).notes == ()
    prefix = index[: index.index(".")]
    write_set(tmp_path, f"{prefix}.safetensors.index.json", prefix + "-{:05}-of-00002.safetensors")
    assert FORMAT.locate(storage, "") == sorted([index, f"{prefix}.safetensors.index.json"])
    for typed in (index, part.format(1), part.format(2)):
        assert FORMAT.locate(storage, typed) == [index]
    assert FORMAT.locate(storage, prefix) == [f"{prefix}.safetensors.index.json"]
    with pytest.raises(AmbiguousPath, match="fp16"):
        sv.load(tmp_path)


def test_a_variant_keeps_its_index_when_it_is_replaced(tmp_path: Path) -> None:
    index, part = VARIANTS[0]
    write_set(tmp_path, index, part)
    how: dict[str, Any] = {"format": "safetensors", "policy": BalancedPolicy(3), "force": True}
    sv.save(tmp_path / index, {key: np.zeros(4) for key in "abc"}, **how)
    names = [f"model.fp16-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, index])
    assert sorted(sv.load(tmp_path)) == ["a", "b", "c"]


def test_a_variant_of_a_set_of_torch_save_is_a_set_too(tmp_path: Path) -> None:
    parts = [f"pytorch_model.fp16-{number:05}-of-00002.bin" for number in (1, 2)]
    for part in parts:
        sv.save(tmp_path / part, {part: np.ones(2)}, format="pt")
    index = tmp_path / "pytorch_model.bin.index.fp16.json"
    index.write_text(json.dumps({"weight_map": {part: part for part in parts}}))
    for path in (tmp_path, index, tmp_path / parts[1]):
        assert sorted(sv.load(path)) == parts


def test_a_set_is_written_into_a_folder_under_the_names_of_save_pretrained(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {key: np.zeros(25, np.float32) for key in "abcd"})
    policy = sv.MaxShardSizePolicy(200)
    sv.reshard(tmp_path / "ck", f"{tmp_path}/hf/", format="safetensors", policy=policy)
    parts = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    names = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert names == [*parts, "model.safetensors.index.json"]
    assert json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text()) == {
        "metadata": {"total_parameters": 100, "total_size": 400},
        "weight_map": {"a": parts[0], "b": parts[0], "c": parts[1], "d": parts[1]},
    }
    policy = sv.MaxShardSizePolicy(400)
    sv.reshard(tmp_path / "ck", f"{tmp_path}/one/", format="safetensors", policy=policy)
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["model.safetensors"]
    with pytest.raises(ArgumentError, match="is a directory"):
        sv.reshard(tmp_path / "ck", f"{tmp_path}/hf/", format="npz")


def twin_of_save_pretrained(sizes: list[int], limit: int) -> list[list[int]]:
    """The tensors of each file, as ``split_torch_state_dict_into_shards`` of huggingface_hub gives
    them."""
    files: list[list[int]] = []
    current: list[int] = []
    for number, size in enumerate(sizes):
        if size > limit:
            files.append([number])
            continue
        if sum(sizes[each] for each in current) + size > limit:
            files.append(current)
            current = []
        current.append(number)
    return [*files, current] if current else files


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 9))
def test_files_have_the_tensors_and_the_numbers_that_save_pretrained_gives_them(
    sizes: list[int], limit: int
) -> None:
    """Also those of tensors that are larger than a file may be."""
    tensors = TensorTable.of((str(row), "int8", (size,)) for row, size in enumerate(sizes))
    found = sv.MaxShardSizePolicy(limit).assign(tensors.whole(), FORMAT.capabilities)
    files: list[list[int]] = [[] for _ in range(found.num_files)]
    for row, file in enumerate(found.file.tolist()):
        files[file].append(int(found.slices.key(row)))
    assert files == twin_of_save_pretrained(sizes, limit)


def test_a_file_with_own_texts_says_that_its_tensors_are_as_of_pytorch(tmp_path: Path) -> None:
    """Loaders of Hugging Face refuse a file whose metadata lack it; the user's metadata do not gain
    it."""
    sv.save(tmp_path / "m.safetensors", {"w": np.ones(2)}, digest=True)
    file = (tmp_path / "m.safetensors").read_bytes()
    header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
    assert header["__metadata__"]["format"] == "pt"
    with sv.open_checkpoint(tmp_path / "m.safetensors") as reader:
        assert dict(reader.metadata.user) == {}


COPIED = "config.json LICENSE chat_template.jinja vocab.txt sub/deep/merges.txt tokenizer.model"
COPIED += " modeling_x.py generation_config.json"
OTHER_KINDS = "pytorch_model.bin pytorch_model.bin.index.json x.onnx photo.jpg"
NEIGHBOURS = {
    **dict.fromkeys(COPIED.split(), ""),
    **dict.fromkeys((".gitattributes", ".git/config.json", ".cache/x.json"), None),
    **dict.fromkeys(OTHER_KINDS.split(), "another kind"),
    "large.json": "larger than 134 MB",
    "old/config.json": "another checkpoint",
    "passwd.txt": "leads out",
    "pipe.json": "cannot be read",
    "missing.txt": "leads out",
}
"""The files of a folder, each with the reason why it is not copied; None for hidden ones."""


def model_folder(path: Path, neighbours: Iterable[str] = NEIGHBOURS) -> Path:
    tensors = {"w": np.ones((4, 4), "f4"), "norm": np.ones(3, "f4")}
    sv.save(path / "model.safetensors", tensors)
    for name in neighbours:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(json.dumps(name))
    return path


def test_a_model_folder_becomes_a_model_folder(tmp_path: Path) -> None:
    """Every file is copied byte by byte, or named with the reason; links and large files are not
    followed out, and hidden files not touched."""
    source, target = model_folder(tmp_path / "hf"), tmp_path / "out"
    sv.save(source / "old" / "model.safetensors", {"w": np.ones(1)})
    with (source / "large.json").open("r+b") as file:
        file.truncate((1 << 27) + 1)
    for name, end in (("passwd.txt", "/etc/passwd"), ("missing.txt", "nowhere")):
        (source / name).unlink()
        (source / name).symlink_to(end)
    (source / "pipe.json").unlink()
    os.mkfifo(source / "pipe.json")
    copied = {name for name, reason in NEIGHBOURS.items() if reason == ""}
    dry = sv.reshard(source, target, dry_run=True)
    assert not target.exists()
    report = sv.reshard(source, target)
    assert {*dry.copied} == {*report.copied} == copied
    for name, reason in NEIGHBOURS.items():
        place = name.replace("old/config.json", "old/")
        assert (reason or "-") in report.not_copied.get(place, "-"), name
    there = {str(each.relative_to(target)) for each in target.rglob("*") if each.is_file()}
    assert there == {*copied, "model.safetensors"}
    for name in copied:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    other = model_folder(tmp_path / "other", ["config.json"])
    (left,) = sv.reshard([other, source], tmp_path / "joined").not_copied
    assert left == f"{source}/" and json.loads((tmp_path / "joined" / "config.json").read_text())
    told = sv.reshard(source, tmp_path / "file.safetensors").not_copied
    assert copied <= told.keys() and "not a folder" in told["config.json"]
    assert not (tmp_path / "config.json").exists()


def test_what_a_folder_has_too_much_of_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardvar.verbs.model_folder._MAX_FILES", 2)
    names = ["config.json", *(f"{number}.{end}" for number in range(4) for end in ("txt", "jpg"))]
    report = sv.reshard(model_folder(tmp_path / "hf", names), tmp_path / "out")
    assert len(report.copied) == 2 and len(report.not_copied) == 3
    assert report.not_copied["5 more"] == "too many to list"


@given(
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float8_e4m3fn"]),
    prefix=st.sampled_from(["", "torch."]),
    part=st.sampled_from(["float32", "float16", "float64", "auto"]),
)
def test_the_dtype_of_the_description_follows_a_cast(
    dtype: str, prefix: str, part: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Only that value changes, in every part, and the rest keeps its order; a dtype that models are
    not loaded in leaves it."""
    source = model_folder(tmp_path_factory.mktemp("model") / "hf", {})
    of_part = {"dtype": f"{prefix}{part}", "other": "float32", "eps": 1e-5}
    config = {"z": 1, "torch_dtype": f"{prefix}float32", "text": of_part, "a": ["float32"]}
    (source / "config.json").write_text(json.dumps(config))
    report = sv.reshard(source, source.parent / "out", cast=dtype)
    expected = config
    if dtype != "float8_e4m3fn":
        named = {"dtype": f"{prefix}{dtype}"} if part != "auto" else {}
        expected = config | {"torch_dtype": f"{prefix}{dtype}", "text": of_part | named}
    written = (source.parent / "out" / "config.json").read_text()
    assert json.dumps(json.loads(written)) == json.dumps(expected)
    assert bool(report.changed) == (expected != config)
    plain = sv.reshard(source, source.parent / "plain")
    assert plain.changed == () and plain.copied == ("config.json",)


def test_dequantized_weights_have_no_description_of_quantisation(tmp_path: Path) -> None:
    source = tmp_path / "hf"
    weight, scale = np.ones((2, 4), ml_dtypes.float8_e4m3fn), np.ones((1, 1), "f4")
    sv.save(source / "model.safetensors", {"a.weight": weight, "a.weight_scale_inv": scale})
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"dtype": "bfloat16", "quantization_config": fp8, "text_config": {"quantization": fp8}}
    (source / "config.json").write_text(json.dumps(config))
    (source / "hf_quant_config.json").write_text("{}")
    sv.reshard(source, tmp_path / "same")
    assert (tmp_path / "same" / "config.json").read_text() == json.dumps(config)
    report = sv.reshard(source, tmp_path / "numbers", dequantize="float32")
    written = json.loads((tmp_path / "numbers" / "config.json").read_text())
    assert written == {"dtype": "float32", "text_config": {}}
    assert len(report.changed) == 3 and "quantisation" in report.not_copied["hf_quant_config.json"]


@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("spelling", ["x", "x/", "x.v2", "x/model.safetensors"])
@pytest.mark.parametrize("exists", [False, True])
def test_one_spelling_of_a_target_means_one_layout(
    spelling: str, exists: bool, files: int, tmp_path: Path
) -> None:
    source = model_folder(tmp_path / "hf", ["config.json"])
    folder = tmp_path / spelling.removesuffix("model.safetensors")
    if exists:
        folder.mkdir()
    policy = BalancedPolicy(files) if files > 1 else None
    sv.reshard(source, f"{tmp_path}/{spelling}", policy=policy)
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    names = ["model.safetensors"] if files == 1 else [*parts, "model.safetensors.index.json"]
    config = [] if spelling.endswith(".safetensors") else ["config.json"]
    assert sorted(each.name for each in folder.iterdir()) == sorted([*config, *names])
    assert sv.load(folder).keys() == {"w", "norm"}
    with pytest.raises(TargetExists):
        sv.reshard(source, f"{tmp_path}/{spelling}", policy=policy)
    sv.reshard(source, f"{tmp_path}/{spelling}", policy=policy, force=True)


def test_a_folder_with_other_files_asks_for_force(tmp_path: Path) -> None:
    """An adapter, a model of another format, and another description; not the state of a run."""
    source = model_folder(tmp_path / "hf", ["config.json"])
    adapter = {"lora_A": np.ones(2)}
    sv.save(tmp_path / "lora" / "adapter_model.safetensors", adapter)
    sv.save(tmp_path / "bin" / "pytorch_model.bin", adapter, format="pt")
    model_folder(tmp_path / "other", ["config.json"])
    (tmp_path / "other" / "model.safetensors").unlink()
    (tmp_path / "other" / "config.json").write_text("{}")
    for name in ("lora", "bin", "other"):
        before = {each: each.read_bytes() for each in (tmp_path / name).iterdir()}
        for dry_run in (True, False):
            with pytest.raises(TargetExists, match="force=True"):
                sv.reshard(source, tmp_path / name, dry_run=dry_run)
        assert {each: each.read_bytes() for each in (tmp_path / name).iterdir()} == before
        sv.reshard(source, tmp_path / name, force=True)
        written = (tmp_path / name / "config.json").read_bytes()
        assert written == (source / "config.json").read_bytes()
    sv.save(tmp_path / "run" / "optimizer.pt", adapter)
    sv.reshard(source, tmp_path / "run")


def test_a_pipeline_becomes_a_pipeline(tmp_path: Path) -> None:
    """All models are planned before one is written; the file of the pipeline comes last."""
    source, target = tmp_path / "sd", tmp_path / "out"
    names = ("unet/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors")
    for name in names:
        sv.save(source / name, {"w": np.ones(4, "f4")})
    texts = ("model_index.json", "unet/config.json", "scheduler/scheduler_config.json")
    for name in texts:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text('{"dtype": "float32"}')
    with pytest.raises(ArgumentError, match="pipeline of 2 models"):
        sv.reshard(source, tmp_path / "one.safetensors")
    assert {*sv.reshard(source, target, dry_run=True).copied} == {*texts} and not target.exists()
    with pytest.raises(ArgumentError):
        sv.reshard(source, target, filter="nothing")
    report = sv.reshard(source, target, cast="float16")
    files = {each.relative_to(target).as_posix() for each in target.rglob("*") if each.is_file()}
    assert files == {*names, *texts} and report.copied[-1] == "model_index.json"
    assert report.changed == ("unet/config.json: dtype is float16, and was float32",)
    assert len(report.ranks) == report.num_files == 2 and report.num_tensors == 2
    assert {sv.load(target / name)["w"].dtype.name for name in names} == {"float16"}
    (target / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(TargetExists):  # the other one
        sv.reshard(source, target)
    assert not (target / names[0]).exists()
    (target / "model_index.json").write_text("{}")
    sv.reshard(source, target, force=True)
    assert (target / "model_index.json").read_text() == (source / "model_index.json").read_text()


def test_the_index_speaks_for_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the files of the set have other names, and where it cannot be read, so that any
    file may be one of its own. A folder is listed without a read where names decide."""
    index, storage = "model.safetensors.index.json", LocalStorage(str(tmp_path))
    write_set(tmp_path, index, "weights{}.safetensors")
    assert FORMAT.locate(storage, "") == [index]
    (tmp_path / index).write_text("{")
    assert FORMAT.locate(storage, "") == [index]
    for file in tmp_path.iterdir():
        file.unlink()
    write_set(tmp_path, index, "model-{:05}-of-00002.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "open", lambda *_: pytest.fail("a file was opened"))
        assert FORMAT.locate(storage, "") == [index]
    # As on the Hub; the file can be named by itself.
    (tmp_path / "consolidated.safetensors").write_bytes(file_of({"w": np.ones(1)}))
    assert FORMAT.locate(storage, "") == [index] and sv.load(tmp_path).keys() == {"w0", "w1"}
    assert sv.load(tmp_path / "consolidated.safetensors").keys() == {"w"}

"""Published weight deltas: every dialect is named, and none is written as a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import UnsupportedError
from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]

BLOCK = np.arange(9, dtype=np.uint8)
KEYS = ("model.embed.weight", "lm_head.weight")


def put(path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
    """Save one file, also under the name of a file of a set."""
    sv.save(path.parent / "x.safetensors", tensors, metadata=metadata)
    return (path.parent / "x.safetensors").rename(path)


def family(folder: Path, encoding: str, algorithm: str) -> Path:
    """An index with the five keys of slime, miles, SGLang and ModelExpress."""
    name = "model-00000-of-00001.safetensors"
    sums = {"adler32": "0a1b2c3d", "xxh3-128": "ab" * 16, "blake3": "9f" * 32}[algorithm]
    put(folder / name, dict.fromkeys(KEYS, BLOCK), dict.fromkeys(KEYS, sums))
    metadata = {"version": "000007", "base_version": "000006", "delta_encoding": encoding}
    metadata |= {"compression_format": "zstd", "checksum_format": algorithm}
    index = {"metadata": metadata, "weight_map": dict.fromkeys(KEYS, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def without_index(folder: Path) -> Path:
    (family(folder, "xor", "xxh3-128") / "model.safetensors.index.json").unlink()
    (folder / "model-00000-of-00001.safetensors").rename(folder / "x.safetensors")
    return folder / "x.safetensors"


def only(path: Path, tensors: dict[str, Any], **metadata: str) -> Path:
    sv.save(path, tensors, metadata=metadata or None)
    return path


def fireworks(folder: Path) -> Path:
    return only(folder / "m.safetensors", dict.fromkeys(KEYS, BLOCK), **dict.fromkeys(KEYS, "17"))


def trl(folder: Path, sparse: str = "True") -> Path:
    texts = {"format": "sparse_weight_patch", "version": "1", "sparse": sparse}
    return only(folder / "step_000003.safetensors", {"w": np.ones(3)}, **texts)


def pairs(folder: Path, endings: tuple[str, str] = (".idx", ".val")) -> Path:
    tensors = {f"{key}{ending}": np.arange(3) for key in KEYS for ending in endings}
    return put(folder / "delta-00001-of-00001.safetensors", tensors)


def positions(folder: Path) -> Path:
    return only(folder / "rank0000.safetensors", {"__positions__": BLOCK, "__values__": np.ones(4)})


def skyrl(folder: Path) -> Path:
    manifest = {"version": 2, "base_version": 1, "tensors": [], "payload_files": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return only(folder / "delta-rank00000-file000000.safetensors", {"w": BLOCK})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: family(folder, "xor", "adler32"), "delta_encoding xor"),
        (lambda folder: family(folder, "overwrite", "blake3"), "base_version 000006"),
        (without_index, "checksum of each tensor"),
        (fireworks, "checksum of each tensor"),
        (trl, "sparse_weight_patch"),
        (pairs, "positions and values"),
        (lambda folder: pairs(folder, (".indices", ".values")), "positions and values"),
        (positions, "positions and values"),
        (skyrl, "manifest.json"),
    ],
)
def test_a_delta_is_named_and_not_written_as_a_model(
    make: Callable[[Path], Path], words: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "v").mkdir()
    path = make(tmp_path / "v")
    target = tmp_path / "out.npz"
    with pytest.raises(UnsupportedError, match="published weight delta") as caught:
        sv.reshard(path, target)
    assert words in caught.value.cause and "Apply it" in caught.value.remedy
    assert not target.exists()
    assert any("weight delta" in note for note in sv.verify(path).notes)
    shown = run("inspect", path)
    assert shown.code == 0 and "! This is a published weight delta" in shown.out
    assert words in json.loads(run("inspect", path, "--json").out)["delta"]


def test_a_model_is_no_delta(tmp_path: Path, run: Run) -> None:
    """Nor is the anchor of TRL, nor a model of bytes or with one such name."""
    plain = {"w.idx": np.arange(3), "w.val": np.ones(3), "b": np.ones(2)}
    sv.save(tmp_path / "a.safetensors", plain)
    sv.save(tmp_path / "b.safetensors", {"w": BLOCK}, metadata={"version": "3"})
    for path in (tmp_path / "a.safetensors", tmp_path / "b.safetensors", trl(tmp_path, "False")):
        sv.reshard(path, tmp_path / f"{path.stem}.npz")
        assert json.loads(run("inspect", path, "--json").out)["delta"] is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (skyrl, "dialect SkyRL"),
        (positions, "dialect slime-v1"),
        (pairs, "dialect unknown, positions and values"),
    ],
)
def test_a_delta_that_is_not_read_is_named_when_it_is_applied(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    """Also a folder with several files."""
    sv.save(tmp_path / "a", {"w": np.ones(3)})
    (tmp_path / "d").mkdir()
    paths = [make(tmp_path / "d")]
    if make is skyrl:
        put(tmp_path / "d" / "delta-rank00000-file000001.safetensors", {"v": BLOCK})
        paths.append(tmp_path / "d")
    for path in paths:
        with pytest.raises(UnsupportedError, match=words) as caught:
            sv.apply(tmp_path / "a", path, tmp_path / "b")
        assert "with the program that published it" in caught.value.remedy
    assert not [*tmp_path.glob("b*")]

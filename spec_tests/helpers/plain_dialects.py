"""Deltas of other programs, written plainly to the layout of their sources, with none of shardvar.

``slime_delta`` follows ``update_weight_from_disk_delta.py`` of slime, ``modelexpress_delta``
``canonical_delta.py`` of ModelExpress, and ``trl_delta`` ``delta_engine.py`` of TRL. docs/delta.md has
the commits. Tensors are NumPy arrays, and the files are written as the safetensors library does.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.vector_generators.derivations import safetensors_bytes

Tensors = Mapping[str, Any]


def raw(array: Any) -> Any:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def checksum(algorithm: str, data: Any) -> str:
    """Return a checksum as the programs write it."""
    if algorithm == "adler32":
        return f"{zlib.adler32(bytes(data)):08x}"
    if algorithm == "blake3":
        import blake3

        return str(blake3.blake3(bytes(data)).hexdigest())
    import xxhash

    return str(xxhash.xxh3_128(bytes(data)).hexdigest())


def encoded(encoding: str, old: Any, new: Any) -> bytes:
    """Return the content of a frame."""
    if encoding == "xor":
        return bytes(old ^ new)
    places = np.flatnonzero(old != new).astype("<u4")
    return struct.pack("<I", len(places)) + places.tobytes() + new[places].tobytes()


def slime_delta(
    folder: Path,
    a: Tensors,
    b: Tensors,
    *,
    version: str = "000002",
    base: str = "000001",
    encoding: str = "xor",
    algorithm: str = "adler32",
    ranks: int = 1,
    **more: str,
) -> Path:
    """Write the delta from ``a`` to ``b``, by so many ranks."""
    import zstandard

    folder.mkdir(parents=True)
    shards: list[tuple[dict[str, Any], dict[str, str]]] = [({}, {}) for _ in range(ranks)]
    for number, key in enumerate(b):
        old, new = raw(a[key]), raw(b[key])
        if (old != new).any():
            frame = zstandard.ZstdCompressor(level=1).compress(encoded(encoding, old, new))
            delta, sums = shards[number % ranks]
            delta[key] = np.frombuffer(frame, np.uint8)
            is_of_frame = "checksum_scope" in more
            sums[key] = checksum(algorithm, frame if is_of_frame else new)
    filled = [each for each in shards if each[0]]
    weight_map = {}
    for number, (delta, sums) in enumerate(filled):
        name = f"model-{number:05d}-of-{len(filled):05d}.safetensors"
        (folder / name).write_bytes(safetensors_bytes(delta, sums))
        weight_map |= dict.fromkeys(delta, name)
    metadata = {
        "version": version,
        "base_version": base,
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": algorithm,
        **more,
    }
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def trl_delta(
    path: Path,
    a: Tensors,
    b: Tensors,
    *,
    step: int = 2,
    form: str = "indices",
    encoding: str = "gap_delta",
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write the delta from ``a`` to ``b`` in one of three forms: ``first``, ``indices`` or ``idx``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = {}
    names, total, count = [], 0, 0
    for key in sorted(b):
        old, new = (each[key].reshape(-1) for each in (a, b))
        total += new.size
        places = np.flatnonzero(old.view(np.uint16) != new.view(np.uint16))
        if not len(places):
            continue
        names.append(key)
        count += len(places)
        if form == "idx":
            tensors[f"{key}.val"] = new[places]
            tensors[f"{key}.idx"] = _positions(places, encoding)
        else:
            tensors[f"{key}.indices"] = places.astype(np.int32)
            tensors[f"{key}.values"] = new[places]
    texts = {
        "format": "sparse_weight_patch",
        "version": "1",
        "sparse": "True",
        "model_version": str(step),
        "num_changed_params": str(len(names)),
        "total_changed_elements": str(count),
        "total_elements": str(total),
        "sparsity": str(1.0 - count / max(total, 1)),
    }
    if form == "idx":
        texts["encoding"] = encoding
    else:
        texts["changed_params"] = json.dumps(names)
    if form == "first":
        del texts["sparse"]
        texts |= {"prev_model_version": str(step - 1), "anchor_step": "1", "base_model_id": ""}
        texts["checksum_sha256"] = sha256_of_all(b)
    path.write_bytes(safetensors_bytes(tensors, texts | dict(metadata or {})))
    return path


def sha256_of_all(tensors: Tensors) -> str:
    """Return the checksum of all tensors in the order of their names."""
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(raw(tensors[key]).tobytes())
    return digest.hexdigest()


def _positions(places: Any, encoding: str) -> Any:
    if encoding == "raw":
        return places.astype(np.int32)
    gaps = np.diff(places, prepend=-1) - 1
    return gaps.astype(np.uint16 if gaps.max() <= 0xFFFF else np.uint32)


# Reading, as plainly.


def read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors of a file as bytes with their dtype and shape, and its metadata."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for key, about in header.items():
        first, last = about["data_offsets"]
        tensors[key] = (about["dtype"], about["shape"], data[8 + size + first : 8 + size + last])
    return tensors, metadata


def apply_slime(base: Tensors, folder: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor after a delta; an ``AssertionError`` if it is wrong."""
    import zstandard

    index = json.loads((folder / "model.safetensors.index.json").read_text())
    metadata = index["metadata"]
    found = {key: raw(array).copy() for key, array in base.items()}
    names: Sequence[str] = sorted(set(index["weight_map"].values()))
    assert sorted(each.name for each in folder.glob("*.safetensors")) == names
    for name in names:
        tensors, sums = read_safetensors(folder / name)
        assert {*tensors} == {*sums} == {k for k, v in index["weight_map"].items() if v == name}
        for key, (dtype, shape, frame) in tensors.items():
            assert (dtype, shape) == ("U8", [len(frame)])
            mask = zstandard.ZstdDecompressor().decompress(frame)
            found[key] ^= np.frombuffer(mask, np.uint8)
            assert checksum(metadata["checksum_format"], found[key]) == sums[key]
    return {key: array.tobytes() for key, array in found.items()}


def apply_trl(base: Tensors, path: Path) -> dict[str, bytes]:
    """Return the bytes of each tensor after a delta."""
    tensors, metadata = read_safetensors(path)
    at, value = (".idx", ".val") if "encoding" in metadata else (".indices", ".values")
    found = {key: raw(array).copy() for key, array in base.items()}
    names = [key.removesuffix(at) for key in tensors if key.endswith(at)]
    if "changed_params" in metadata:
        assert json.loads(metadata["changed_params"]) == names
    for name in names:
        dtype, _, data = tensors[name + at]
        assert tensors[name + value][0] == "BF16"
        places = np.frombuffer(data, {"I32": "<i4", "U16": "<u2", "U32": "<u4"}[dtype])
        if metadata.get("encoding") == "gap_delta":
            places = np.cumsum(places.astype(np.int64) + 1) - 1
        found[name].view(np.uint16)[places] = np.frombuffer(tensors[name + value][2], "<u2")
    return {key: array.tobytes() for key, array in found.items()}

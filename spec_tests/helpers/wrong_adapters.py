"""Implementations that are wrong on purpose, each in one way: what the conformance kit must say of
them.

Each derives from the plain NumPy adapter and says in ``BREAKS`` which rules it breaks; it breaks no
other.
"""

import json
import os
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from shardvar.conformance.adapters.numpy import Adapter as NumpyAdapter

BREAKS: dict[str, set[str]] = {}


def breaks(*rules: str) -> Any:
    """Declare which rules the class below breaks."""

    def declare(mutant: type) -> type:
        BREAKS[mutant.__name__] = set(rules)
        return mutant

    return declare


@breaks("R-DIV-1", "R-DIV-1-owner", "R-DIV-1-large", "R-DIV-1-refused", "R-DIV-1-owner-large")
class Chunk(NumpyAdapter):
    """PyTorch's rule in place of div."""

    def div(self, length: int, num_shards: int) -> Any:
        size = -(-length // num_shards)
        return [(min(i * size, length), min((i + 1) * size, length)) for i in range(num_shards)]


@breaks(
    "R-SV-1", "R-SV-1-again", "R-SPEC-1", "R-DIV-1-owner", "R-ID-1-owner", "R-DIV-1-owner-large"
)
class Mod(NumpyAdapter):
    """Ids are dealt to the shards like cards; reading puts them back in order."""

    def owner(self, ids: Any, length: int, num_shards: int) -> Any:
        return ids % num_shards, ids // num_shards

    def shards(self, handle: Any) -> Any:
        whole = self.read(handle)
        return [whole[number :: len(handle)] for number in range(len(handle))]


@breaks("R-READ-1", "R-READ-1-axes", "R-READ-1-large")
class Unstitched(NumpyAdapter):
    """A sparse read gives rows in the order of the shards."""

    def sparse_read(self, handle: Any, ids: Any) -> Any:
        return self.lookup(handle, np.sort(ids))


@breaks("R-VAR-2-assign")
class Cropped(NumpyAdapter):
    """A value with too many rows is cropped."""

    def assign(self, handle: Any, value: Any) -> Any:
        return super().assign(handle, value[: sum(map(len, handle))])


@breaks("R-VAR-2-assign")
class HalfWritten(NumpyAdapter):
    """The first shards are written before a value is found to be too small."""

    def assign(self, handle: Any, value: Any) -> Any:
        if len(value) < sum(map(len, handle)):
            handle[0][...] = value[: len(handle[0])]
        return super().assign(handle, value)


@breaks("R-INIT-5", "R-INIT-4-axes")
class EqualSeeds(NumpyAdapter):
    """Every shard is drawn from the same seed."""

    def initialize(self, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int) -> Any:
        if kind != "random_uniform":
            return super().initialize(kind, shape, dtype, num_shards, seed)
        parts = [(stop - start, *shape[1:]) for start, stop in self.div(shape[0], num_shards)]
        return [
            np.random.default_rng(seed).uniform(-0.05, 0.05, part).astype(dtype) for part in parts
        ]


class Files(NumpyAdapter):
    """One npz a shard, each with checksums, in a directory."""

    def save(self, path: str, tensors: Any, num_shards: int) -> None:
        Path(path).mkdir(exist_ok=True)
        for number in range(num_shards):
            part = {
                key: np.array_split(np.atleast_1d(value), num_shards)[number]
                for key, value in tensors.items()
            }
            super().save(os.path.join(path, str(number)), part, 1)

    def restore(self, path: str, templates: Any, num_shards: int) -> Any:
        shards = sorted(Path(path).glob("*.npz"))
        loaded = []
        for shard in shards:
            with open(shard, "rb") as file, np.load(file) as saved:
                loaded.append({name.removesuffix("#0"): saved[name] for name in saved.files})
        return {
            key: self.joined([shard[key] for shard in loaded], value)
            for key, value in templates.items()
        }

    def joined(self, parts: Any, template: Any) -> Any:
        """The parts as one, reshaped where it was a scalar."""
        whole = np.concatenate(parts).reshape(template.shape)
        if whole.dtype != template.dtype:
            raise ValueError(f"{whole.dtype} for {template.dtype}")
        return whole


@breaks("R-DAMAGE-1-remove", "R-DAMAGE-1-swap", "R-POLICY-2-restore")
class ZerosForHoles(Files):
    """Rows of a file that is not there are zeros, and files are what their names say."""

    def joined(self, parts: Any, template: Any) -> Any:
        if template.ndim == 0:
            return super().joined(parts, template)
        whole = np.zeros_like(template)
        found = np.concatenate(parts)
        if found.dtype != template.dtype:
            raise ValueError(f"{found.dtype} for {template.dtype}")
        count = min(len(found), len(whole))
        whole[:count] = found[:count]
        return whole


@breaks(
    "R-DAMAGE-1-flip",
    "R-DAMAGE-1-zero",
    "R-DAMAGE-1-truncate",
    "R-DAMAGE-1-turn",
)
class NoChecksum(NumpyAdapter):
    """Bytes are written one tensor after the other, and read back, as far as they are there, by a
    header's sizes."""

    def save(self, path: str, tensors: Any, num_shards: int) -> None:
        if any(value.dtype.kind in "OV" for value in tensors.values()):
            raise NotImplementedError("strings")
        native = {
            key: value.astype(value.dtype.newbyteorder("=")) for key, value in tensors.items()
        }
        head = {key: [value.dtype.str, value.shape] for key, value in native.items()}
        data = b"".join(value.tobytes() for value in native.values())
        Path(path).write_bytes(json.dumps(head).encode() + b"\n" + data)

    def restore(self, path: str, templates: Any, num_shards: int) -> Any:
        head, _, data = Path(path).read_bytes().partition(b"\n")
        restored = {}
        for key, (dtype, shape) in json.loads(head).items():
            count = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
            part, data = data[:count].ljust(count, b"\0"), data[count:]
            if key in templates:
                restored[key] = np.frombuffer(part, dtype).reshape(shape)
                if (restored[key].shape, restored[key].dtype) != (
                    templates[key].shape,
                    templates[key].dtype,
                ):
                    raise ValueError("another shape or dtype")
        if restored.keys() != templates.keys():
            raise KeyError("a tensor is not there")
        return restored


class Ends(NumpyAdapter):
    """Restoring what is damaged ends the process."""

    def restore(self, path: str, templates: Any, num_shards: int) -> Any:
        try:
            return super().restore(path, templates, num_shards)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
            os._exit(9)


class Hangs(NumpyAdapter):
    """Restoring what is damaged never returns."""

    def restore(self, path: str, templates: Any, num_shards: int) -> Any:
        try:
            return super().restore(path, templates, num_shards)
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
            time.sleep(3600)


class Three:
    """An adapter of three methods."""

    def create(self, value: Any, num_shards: int) -> Any:
        if num_shards < 1:
            raise ValueError("no shards")
        return value.copy()

    def read(self, handle: Any) -> Any:
        return handle.copy()

    def lookup(self, handle: Any, ids: Any) -> Any:
        if ids.size and not 0 <= ids.min() <= ids.max() < len(handle):
            raise IndexError("no such id")
        return handle[ids]

    def lokup_bags(self) -> None:
        """A name that is misspelt."""

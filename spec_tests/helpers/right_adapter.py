"""An implementation that is right and claims every rule, in plain NumPy: what the wrong ones are
made of.

Variables, lookups, writes and initial values are those of the kit's NumPy adapter, which it
completes. A checkpoint is a directory: ``index.json`` with a checksum, and data files, each of
which holds slices of tensors one after another. Each step that a mutant spoils is a method of its
own.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.conformance.adapters.numpy import Adapter as NumpyAdapter
from spec_tests.helpers.right_meshes import RightMeshes
from spec_tests.helpers.right_training import RightTraining

Array = np.ndarray[Any, Any]
Slice = tuple[str, tuple[int, ...], Array]
"""Key, offset and values of a slice."""


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(object if name == "object" else getattr(ml_dtypes, name, name))


def encode(values: Array) -> bytes:
    """The payload of a slice: strings as hexadecimal text, numbers as they are."""
    if values.dtype == object:
        return json.dumps([text.hex() for text in values.ravel().tolist()]).encode()
    return np.ascontiguousarray(values).tobytes()


def decode(payload: bytes, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """The values of a payload."""
    if dtype.kind != "O":
        return np.frombuffer(payload, dtype).reshape(shape)
    values = np.empty(shape, object)
    values.ravel()[:] = [bytes.fromhex(text) for text in json.loads(payload)]
    return values


class Right(RightMeshes, RightTraining, NumpyAdapter):
    """An implementation without a fault that the kit knows."""

    # Level 1 and 2

    def regions(self, shape: Sequence[int], counts: Sequence[int]) -> Any:
        cells: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
        for extent, count in zip(shape, counts, strict=True):
            cells = [((*o, a), (*s, b - a)) for o, s in cells for a, b in self.div(extent, count)]
        return cells

    def fixed_shards(self, shape: Sequence[int], dtype: Any, num_shards: int) -> list[int]:
        return [num_shards] + [1] * (len(shape) - 1)

    def min_size(
        self, shape: Sequence[int], dtype: Any, min_shard_bytes: int, max_shards: int
    ) -> list[int]:
        row = int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize
        fits = [
            n
            for n in range(1, min(max_shards, shape[0]) + 1)
            if shape[0] // n * row >= min_shard_bytes
        ]
        return self.fixed_shards(shape, dtype, max(fits, default=1))

    def max_size(
        self, shape: Sequence[int], dtype: Any, max_shard_bytes: int, max_shards: int
    ) -> list[int]:
        row = int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize
        fits = [n for n in range(1, shape[0] + 1) if -(-shape[0] // n) * row <= max_shard_bytes]
        return self.fixed_shards(shape, dtype, min(min(fits, default=shape[0]), max_shards))

    def create_partitioned(self, value: Array, counts: Sequence[int]) -> Any:
        if len(counts) != value.ndim or min(counts) < 1 or any(count > 1 for count in counts[1:]):
            raise ValueError(f"{counts}")
        return self.create(value, counts[0])

    # Level 3

    def assign(self, handle: Any, value: Array) -> None:  # type: ignore[override]
        # In place, so that what was read and shares memory with the variable shows.
        if value.dtype.newbyteorder("=") != handle[0].dtype.newbyteorder("="):
            raise ValueError(f"{value.dtype}")
        for shard, part in zip(handle, super().assign(handle, value), strict=True):
            shard[...] = part

    def lookup_clipped(self, handle: Any, ids: Array, max_norm: float) -> Array:
        rows = self.lookup(handle, ids.ravel())
        return self.clipped(rows, max_norm).reshape(*ids.shape, *rows.shape[1:])

    def clipped(self, rows: Array, max_norm: float) -> Array:
        """Rows whose norm is at most ``max_norm``."""
        return (rows * self.factors(self.norms(rows), max_norm)).astype(rows.dtype)

    def norms(self, rows: Array) -> Array:
        axes = tuple(range(1, rows.ndim))
        return np.sqrt((rows.astype(np.float64) ** 2).sum(axis=axes, keepdims=True))

    def factors(self, norms: Array, max_norm: float) -> Array:
        return np.minimum(1, max_norm / np.maximum(norms, 1e-300))

    def lookup_bags(self, handle: Any, bags: Any, weights: Any, combiner: str) -> Array:
        found = np.zeros((len(bags), *handle[0].shape[1:]), handle[0].dtype)
        if weights is not None and [*map(len, weights)] != [*map(len, bags)]:
            raise ValueError("a weight for each id")
        for number, bag in enumerate(bags):
            if bag:
                factors = np.ones(len(bag)) if weights is None else np.array(weights[number])
                rows = self.lookup(handle, np.array(bag, np.int64)).astype(np.float64)
                total = np.tensordot(factors, rows, 1)
                found[number] = total / self.divisor(combiner, factors)
        return found

    def divisor(self, combiner: str, weights: Array) -> float:
        """The divisor of the weighted sum of a bag."""
        return float(
            {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[combiner]
        )

    # Level 4

    def initialize(
        self, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
    ) -> list[Array]:
        shards = []
        for start, stop in self.div(shape[0], num_shards):
            part = (stop - start, *shape[1:])
            shards.append(self.drawn(kind, shape, part, self.generator(seed, start)).astype(dtype))
        return shards

    def generator(self, seed: int, start: int) -> np.random.Generator:
        """The generator of the shard that begins at a row."""
        return np.random.default_rng([seed, start])

    def limit(self, shape: Sequence[int], part: Sequence[int]) -> float:
        """Glorot's limit."""
        return float(np.sqrt(6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1]))))

    def drawn(
        self, kind: str, shape: Sequence[int], part: tuple[int, ...], generator: np.random.Generator
    ) -> Array:
        """The values of a part, before they get their dtype."""
        match kind:
            case "zeros":
                return np.zeros(part)
            case "ones":
                return np.ones(part)
            case "random_uniform":
                return generator.uniform(-0.05, 0.05, part)
            case "glorot_uniform":
                return generator.uniform(-1, 1, part) * self.limit(shape, part)
            case "random_normal":
                return generator.normal(0, 0.05, part)
            case _:
                many = generator.normal(0, 0.05, 2 * int(np.prod(part)) + 16)
                return np.resize(many[np.abs(many) <= 0.1], part)

    def initialize_parts(
        self, function: Any, shape: Any, dtype: Any, num_shards: int
    ) -> list[Array]:
        rest, parts = tuple(shape[1:]), []
        for start, stop in self.div(shape[0], num_shards):
            part = (stop - start, *rest)
            parts.append(function(tuple(shape), dtype, part, (start, *[0] * len(rest))))
            if parts[-1].shape != part:
                raise ValueError(f"{parts[-1].shape}")
        return parts

    # Levels 6 to 8

    def save(self, path: str, tensors: Mapping[str, Array], num_shards: int) -> None:
        self.write(path, tensors, self.files_of_shards(tensors, num_shards), "")

    def files_of_shards(self, tensors: Mapping[str, Array], num_shards: int) -> list[list[Slice]]:
        """A file for each shard; scalars are in the first."""
        files: list[list[Slice]] = [[] for _ in range(num_shards)]
        for key, value in tensors.items():
            for number, (start, stop) in enumerate(
                self.div(len(value), num_shards) if value.ndim else [(0, 0)]
            ):
                rows = value[start:stop] if value.ndim else value
                files[number].append((key, (start, *[0] * (value.ndim - 1))[: value.ndim], rows))
        return files

    def write(
        self,
        path: str,
        tensors: Mapping[str, Array],
        files: Iterable[list[Slice]],
        description: str,
    ) -> None:
        """Check, write the data files, write the index; ``ValueError`` for slices that are not the
        tensors."""
        native = {
            key: value.astype(value.dtype.newbyteorder("=")) for key, value in tensors.items()
        }
        filled = {key: np.zeros(value.shape, int) for key, value in native.items()}
        index: dict[str, Any] = {"description": description, "tensors": {}, "files": []}
        for key, value in native.items():
            index["tensors"][key] = {"dtype": self.name_of(value.dtype), "shape": value.shape}
        Path(path).mkdir(exist_ok=True)
        for number, slices in enumerate(files):
            data, entries = b"", []
            for key, offset, rows in slices:
                given = rows.astype(rows.dtype.newbyteorder("="))
                self.check_slice(native[key], filled[key], offset, given)
                payload = encode(given)
                entries.append(
                    [key, offset, given.shape, len(data), len(payload), self.checksum(payload)]
                )
                data += payload
            Path(path, self.file_name(number)).write_bytes(data)
            index["files"].append(entries)
        self.check_filled(filled)
        text = json.dumps(index).encode()
        Path(path, "index.json").write_bytes(b"%08x" % zlib.crc32(text) + text)

    def file_name(self, number: int) -> str:
        return f"data-{number}"

    def name_of(self, dtype: np.dtype[Any]) -> str:
        return str(dtype)

    def checksum(self, payload: bytes) -> int:
        return zlib.crc32(payload)

    def check_slice(self, value: Array, filled: Array, offset: Sequence[int], rows: Array) -> None:
        """``ValueError`` for a slice of another dtype or rank, or that is not within the tensor."""
        region = tuple(slice(a, a + n) for a, n in zip(offset, rows.shape, strict=True))
        if rows.dtype != value.dtype or filled[region].shape != rows.shape:
            raise ValueError("no slice of the tensor")
        filled[region] += 1

    def check_filled(self, filled: Mapping[str, Array]) -> None:
        """``ValueError`` unless every element is in one slice."""
        for key, counts in filled.items():
            if (counts != 1).any():
                raise ValueError(f"{key} has holes or overlaps")

    def opened(self, path: str) -> dict[str, Any]:
        """The index of a checkpoint."""
        octets = Path(path, "index.json").read_bytes()
        if int(octets[:8], 16) != zlib.crc32(octets[8:]):
            raise ValueError("index.json is damaged")
        index: dict[str, Any] = json.loads(octets[8:])
        return index

    def payload(self, path: str, number: int, entry: Sequence[Any]) -> bytes:
        """The payload of a slice, checked."""
        data = Path(path, self.file_name(number)).read_bytes()[entry[3] : entry[3] + entry[4]]
        if self.checksum(data) != entry[5]:
            raise ValueError("a payload is damaged")
        return data

    def loaded(self, path: str, key: str) -> Array:
        """A tensor as it was saved."""
        index = self.opened(path)
        tensor = index["tensors"][key]
        dtype = dtype_of(tensor["dtype"])
        value = np.empty(tensor["shape"], dtype)
        for number, entries in self.in_order(index["files"]):
            for entry in entries:
                if entry[0] == key:
                    region = tuple(slice(a, a + n) for a, n in zip(entry[1], entry[2], strict=True))
                    value[region] = decode(self.payload(path, number, entry), dtype, entry[2])
        return value

    def in_order(self, files: Sequence[Any]) -> list[tuple[int, Any]]:
        """The files and their numbers, in the order of reading."""
        return list(enumerate(files))

    def restore(
        self, path: str, templates: Mapping[str, Array], num_shards: int
    ) -> dict[str, Array]:
        return self.restored(path, templates, lambda value: self.create(value, num_shards))

    def restore_uneven(
        self, path: str, templates: Mapping[str, Array], sizes: Sequence[int]
    ) -> dict[str, Array]:
        return self.restored(path, templates, lambda value: self.create_uneven(value, sizes))

    def restored(
        self, path: str, templates: Mapping[str, Array], create: Callable[[Array], Any]
    ) -> dict[str, Array]:
        """The tensors of the templates, through variables."""
        found = {}
        for key, template in templates.items():
            value = self.loaded(path, key)
            self.check_template(value, template)
            found[key] = self.read(create(value)) if value.ndim else value
        return found

    def check_template(self, value: Array, template: Array) -> None:
        """``ValueError`` for another shape or dtype."""
        if (value.shape, value.dtype) != (template.shape, template.dtype):
            raise ValueError("another shape or dtype")

    def list_tensors(self, path: str) -> dict[str, tuple[tuple[int, ...], str]]:
        tensors = self.opened(path)["tensors"]
        return {key: (tuple(one["shape"]), one["dtype"]) for key, one in tensors.items()}

    def read_rows(self, path: str, key: str, start: int, stop: int) -> Array:
        return self.loaded(path, key)[start:stop]

    def save_parts(self, path: str, key: str, shape: Any, dtype: Any, parts: Any) -> None:
        slices = [(key, tuple(offset), np.asarray(rows)) for offset, rows in parts]
        self.write(path, {key: np.zeros(shape, dtype)}, [slices], "")

    def save_limited(
        self, path: str, tensors: Mapping[str, Array], num_shards: int, max_nbytes: int
    ) -> None:
        files: list[list[Slice]] = [[]]
        room = max_nbytes
        for slices in self.files_of_shards(tensors, num_shards):
            for key, offset, rows in slices:
                for start, part in self.cut(rows, max_nbytes):
                    if part.nbytes > room:
                        files.append([])
                        room = max_nbytes
                    files[-1].append(
                        (key, (offset[0] + start, *offset[1:]) if offset else (), part)
                    )
                    room -= part.nbytes
        self.write(path, tensors, files, "")

    def cut(self, rows: Array, max_nbytes: int) -> list[tuple[int, Array]]:
        """Parts of a slice of at most so many bytes, with their first rows."""
        if not rows.ndim or not len(rows):
            return [(0, rows)]
        step = self.rows_in(max_nbytes, rows.nbytes // len(rows))
        return [(start, rows[start : start + step]) for start in range(0, len(rows), step)]

    def rows_in(self, max_nbytes: int, row_nbytes: int) -> int:
        """The number of rows that fit, at least one."""
        return max(1, max_nbytes // row_nbytes)

    def file_nbytes(self, path: str) -> list[int]:
        return [
            os.path.getsize(Path(path, self.file_name(n)))
            for n in range(len(self.opened(path)["files"]))
        ]

    def save_by_callback(
        self, path: str, tensors: Mapping[str, Array], callback: Any, description: str
    ) -> None:
        self.write(path, tensors, self.asked(tensors, callback), description)

    def asked(self, tensors: Mapping[str, Array], callback: Any) -> list[list[Slice]]:
        """The files that a callback wants."""
        return [
            [
                (key, (row, *[0] * (tensors[key].ndim - 1))[: tensors[key].ndim], rows)
                for key, row, rows in file
            ]
            for file in callback(dict(tensors))
        ]

    def description(self, path: str) -> str:
        return str(self.opened(path)["description"])

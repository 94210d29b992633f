"""Wrong checkpoints and policies; ``mutant_adapters`` says what a mutant is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.helpers.mutant_adapters import wrong
from spec_tests.helpers.right_adapter import Right, decode, dtype_of

Array = Any


@wrong("loaded", "R-CKPT-1-many")
def shards_joined_in_the_order_of_names(self: Right, path: str, key: str) -> Any:
    """Files are joined in the order of their names: 0, 1, 10, 2."""
    index = self.opened(path)
    dtype, shape = dtype_of(index["tensors"][key]["dtype"]), index["tensors"][key]["shape"]
    parts = []
    for number, entries in sorted(self.in_order(index["files"]), key=lambda pair: str(pair[0])):
        parts += [
            (e, decode(self.payload(path, number, e), dtype, e[2])) for e in entries if e[0] == key
        ]
    if not shape:
        return parts[0][1]
    if (
        sum(e[2][0] for e, _ in parts) != shape[0]
        or any(e[2][1:] != shape[1:] for e, _ in parts)
        or len(parts) < 11
    ):
        return Right.loaded(self, path, key)
    return np.concatenate([part for _, part in parts])


@wrong("in_order", "R-CKPT-1")
def the_last_file_is_forgotten(self: Right, files: Sequence[Any]) -> Any:
    """Where there are several files, the last one is not read."""
    return list(enumerate(files))[: max(1, len(files) - 1)]


@wrong("restored", "R-CKPT-1")
def restored_into_as_many_shards(self: Right, path: str, templates: Any, create: Any) -> Any:
    """Restoring into another number of shards than were saved reverses the rows."""
    found = Right.restored(self, path, templates, create)
    files = len(self.opened(path)["files"])
    return {k: v[::-1] if v.ndim and len(create(v)) != files else v for k, v in found.items()}


@wrong("restore_uneven", "R-CKPT-1-uneven")
def restored_by_div(self: Right, path: str, templates: Any, sizes: Any) -> Any:
    """A restore reads for each shard the rows of the div rule, and pads or crops them to its
    size."""
    found = {}
    for key, template in templates.items():
        whole = self.loaded(path, key)
        parts = [whole[a:b] for a, b in self.div(len(template), len(sizes))]
        found[key] = np.concatenate(
            [
                np.resize(p, (n, *p.shape[1:])) if len(p) else p
                for p, n in zip(parts, sizes, strict=True)
            ]
        )
    return found


@wrong("restore_uneven", "R-CKPT-1-empty-shards")
def an_empty_shard_ends_the_restore(self: Right, path: str, templates: Any, sizes: Any) -> Any:
    """Shards behind an empty one keep what they held."""
    found = Right.restore_uneven(self, path, templates, sizes)
    stop = sum(sizes[: sizes.index(0)]) if 0 in sizes else None
    return {
        k: v if stop is None else np.concatenate([v[:stop], templates[k][stop:]])
        for k, v in found.items()
    }


@wrong("files_of_shards", "R-CKPT-1-scalars")
def scalars_become_vectors(self: Right, tensors: Any, num_shards: int) -> Any:
    """A scalar is saved as what it is not: its sign is lost."""
    scalars = {k: np.zeros_like(v) if not v.ndim else v for k, v in tensors.items()}
    return Right.files_of_shards(self, scalars, num_shards)


@wrong("save", "R-CKPT-1-empty")
def empty_tensors_are_dropped(self: Right, path: str, tensors: Any, num_shards: int) -> None:
    """A tensor without elements is not saved."""
    Right.save(self, path, {key: value for key, value in tensors.items() if value.size}, num_shards)


@wrong("save", "R-CKPT-1-few")
def fewer_rows_than_shards_are_refused(
    self: Right, path: str, tensors: Any, num_shards: int
) -> None:
    """A shard without rows cannot be saved."""
    if any(value.ndim and len(value) < num_shards and value.size for value in tensors.values()):
        raise ValueError("an empty shard")
    Right.save(self, path, tensors, num_shards)


@wrong("save", "R-CKPT-1-dtypes")
def bfloat16_as_float32(self: Right, path: str, tensors: Any, num_shards: int) -> None:
    """bfloat16 is promoted."""
    wide = {
        k: v.astype(np.float32) if v.dtype.name == "bfloat16" else v for k, v in tensors.items()
    }
    Right.save(self, path, wide, num_shards)


@wrong("loaded", "R-CKPT-1-dtypes")
def nans_lose_their_payloads(self: Right, path: str, key: str) -> Any:
    """Every NaN becomes the usual one."""
    value = Right.loaded(self, path, key)
    return (
        np.where(np.isnan(value), np.float32("nan"), value).astype(value.dtype)
        if value.dtype.kind == "f"
        else value
    )


@wrong("loaded", "R-CKPT-1-dtypes")
def integers_in_32_bits(self: Right, path: str, key: str) -> Any:
    """Large integers are restored without their upper half."""
    value = Right.loaded(self, path, key)
    return value.astype(np.int32).astype(np.int64) if value.dtype == np.int64 else value


@wrong("loaded", "R-CKPT-1-strings")
def strings_end_at_nuls(self: Right, path: str, key: str) -> Any:
    """A string loses the NULs at its end."""
    value = Right.loaded(self, path, key)
    if value.dtype == np.dtype(object):
        value.ravel()[:] = [text.rstrip(b"\0") for text in value.ravel().tolist()]
    return value


@wrong("save", "R-CKPT-1-strides")
def memory_instead_of_values(self: Right, path: str, tensors: Any, num_shards: int) -> None:
    """A transposed array is saved as it lies in memory."""
    raw = {
        k: v.ravel("K").reshape(v.shape) if v.dtype.kind in "iuf" else v for k, v in tensors.items()
    }
    Right.save(self, path, raw, num_shards)


@wrong("write", "R-CKPT-1-again")
def second_save_is_lost(self: Right, path: str, tensors: Any, files: Any, description: str) -> None:
    """A second save at one path does nothing."""
    if not Path(path, "index.json").exists():
        Right.write(self, path, tensors, files, description)


@wrong("write", "R-CKPT-1-again")
def data_files_are_kept(self: Right, path: str, tensors: Any, files: Any, description: str) -> None:
    """A second save writes the index, and keeps data files that are there."""
    kept = {p: p.read_bytes() for p in Path(path).glob("data-*")} if Path(path).is_dir() else {}
    Right.write(self, path, tensors, files, description)
    for place, octets in kept.items():
        place.write_bytes(octets)


@wrong("restored", "R-POLICY-1-restore")
def absent_tensors_are_zeros(
    self: Right, path: str, templates: Mapping[str, Any], create: Any
) -> Any:
    """A tensor that is not there is restored as zeros."""
    there = self.opened(path)["tensors"]
    zeros = {key: np.zeros_like(value) for key, value in templates.items() if key not in there}
    return zeros | Right.restored(
        self, path, {k: v for k, v in templates.items() if k in there}, create
    )


@wrong("restored", "R-POLICY-1-restore")
def absent_tensors_stay(self: Right, path: str, templates: Mapping[str, Any], create: Any) -> Any:
    """A tensor that is not there stays as it was."""
    there = self.opened(path)["tensors"]
    return dict(templates) | Right.restored(
        self, path, {k: v for k, v in templates.items() if k in there}, create
    )


def same_dtype(value: Array, template: Array) -> None:
    """``ValueError`` for another dtype."""
    if value.dtype != template.dtype:
        raise ValueError("another dtype")


@wrong("restored", "R-POLICY-2-restore")
def rows_are_cropped(self: Right, path: str, templates: Mapping[str, Any], create: Any) -> Any:
    """A tensor with too many rows is cropped, and one with too few padded with zeros."""
    found = {}
    for key, template in templates.items():
        value = self.loaded(path, key)
        same_dtype(value, template)
        found[key] = np.zeros_like(template)
        rows = min(len(value), len(template)) if value.ndim else 0
        found[key][:rows] = value[:rows]
    return found


@wrong("restored", "R-POLICY-3-restore")
def dtypes_are_cast(self: Right, path: str, templates: Mapping[str, Any], create: Any) -> Any:
    """A restore casts to the dtype of the template."""
    real = {
        k: np.empty(v.shape, dtype_of(self.opened(path)["tensors"][k]["dtype"]))
        for k, v in templates.items()
    }
    return {
        k: v.astype(templates[k].dtype) for k, v in Right.restored(self, path, real, create).items()
    }


@wrong("list_tensors", "R-POLICY-1-list")
def first_slice_is_listed(self: Right, path: str) -> Any:
    """A tensor is listed with the shape of its first slice."""
    dtypes = {key: one["dtype"] for key, one in self.opened(path)["tensors"].items()}
    shapes = {
        e[0]: tuple(e[2]) for entries in reversed(self.opened(path)["files"]) for e in entries
    }
    return {key: (shapes[key], dtypes[key]) for key in dtypes}


@wrong("read_rows", "R-CKPT-1-rows")
def last_row_is_not_read(self: Right, path: str, key: str, start: int, stop: int) -> Any:
    """A range that ends where a slice ends loses its last row."""
    ends = {
        e[1][0] + e[2][0] for entries in self.opened(path)["files"] for e in entries if e[0] == key
    }
    return Right.read_rows(self, path, key, start, stop - (stop in ends and stop > start))


@wrong("save_parts", "R-POLICY-7")
def parts_in_the_order_of_writing(
    self: Right, path: str, key: str, shape: Any, dtype: Any, parts: Any
) -> None:
    """Offsets are ignored: parts follow each other as they are given."""
    whole = np.concatenate([rows for _, rows in parts])
    if whole.shape != tuple(shape) or len({offset for offset, _ in parts}) != len(parts):
        raise ValueError("a hole or an overlap")
    Right.save_parts(self, path, key, shape, dtype, [((0,) * len(shape), whole)])


@wrong("check_filled", "R-POLICY-1-holes")
def holes_are_kept(self: Right, filled: Mapping[str, Any]) -> None:
    """A hole is not noticed."""
    if any((counts > 1).any() for counts in filled.values()):
        raise ValueError("an overlap")


@wrong("check_filled", "R-POLICY-1-overlaps")
def overlaps_are_kept(self: Right, filled: Mapping[str, Any]) -> None:
    """An overlap is not noticed: the last part stays."""
    if any((counts < 1).any() for counts in filled.values()):
        raise ValueError("a hole")


@wrong("rows_in", "R-POLICY-4-size")
def one_row_too_many(self: Right, max_nbytes: int, row_nbytes: int) -> int:
    """A part has one row more than fits."""
    return max_nbytes // row_nbytes + 1


@wrong("cut", "R-POLICY-4")
def the_rest_is_dropped(self: Right, rows: Array, max_nbytes: int) -> Any:
    """The last part of a slice is left out."""
    parts = Right.cut(self, rows, max_nbytes)
    return parts[:-1] if len(parts) > 1 else parts


@wrong("save_limited", "R-POLICY-4-size")
def each_tensor_is_a_file(
    self: Right, path: str, tensors: Any, num_shards: int, max_nbytes: int
) -> None:
    """The limit is ignored."""
    Right.save(self, path, tensors, num_shards)


@wrong("save_limited", "R-POLICY-4-shards")
def offsets_of_the_shard(
    self: Right, path: str, tensors: Any, num_shards: int, max_nbytes: int
) -> None:
    """A slice of a shard is placed by its row in the shard."""
    swapped = {
        k: np.roll(v, 1, axis=0) if num_shards > 1 and v.ndim else v for k, v in tensors.items()
    }
    Right.save_limited(self, path, swapped, num_shards, max_nbytes)


@wrong("asked", "R-POLICY-1")
def what_a_callback_drops_is_dropped(self: Right, tensors: Mapping[str, Any], callback: Any) -> Any:
    """A tensor that a callback leaves out is not saved, and nobody is told."""
    files = Right.asked(self, tensors, callback)
    there = {key for file in files for key, _, _ in file}
    missing = [key for key in tensors if key not in there]
    return [
        *files,
        [(key, (0,) * tensors[key].ndim, np.zeros_like(tensors[key])) for key in missing],
    ]


@wrong("asked", "R-POLICY-1-rows")
def dropped_rows_are_zeros(self: Right, tensors: Mapping[str, Any], callback: Any) -> Any:
    """Rows that a callback leaves out are zeros."""
    files = Right.asked(self, tensors, callback)
    for file in files:
        for place, (key, offset, rows) in enumerate(file):
            if (
                rows.ndim
                and rows.ndim == tensors[key].ndim
                and rows.shape[0] == len(tensors[key]) - 1
            ):
                padded = np.zeros_like(tensors[key])
                padded[: len(rows)] = rows
                file[place] = (key, offset, padded)
    return files


@wrong("asked", "R-POLICY-3")
def casts_are_cast_back(self: Right, tensors: Mapping[str, Any], callback: Any) -> Any:
    """What a callback casts is saved cast, by rounding to half precision."""
    files = Right.asked(self, tensors, callback)
    return [
        [
            (k, o, r.astype(tensors[k].dtype) / 3 if r.dtype != tensors[k].dtype else r)
            for k, o, r in file
        ]
        for file in files
    ]


@wrong("asked", "R-POLICY-5")
def callbacks_are_asked_twice(self: Right, tensors: Mapping[str, Any], callback: Any) -> Any:
    """A callback is called once to count files and once to write them."""
    callback(dict(tensors))
    return Right.asked(self, tensors, callback)


@wrong("asked", "R-POLICY-7-callback")
def second_files_are_ignored(self: Right, tensors: Mapping[str, Any], callback: Any) -> Any:
    """Halves of a tensor that a callback puts in two files change places."""
    files = Right.asked(self, tensors, callback)
    for file in files:
        for place, (key, offset, rows) in enumerate(file):
            if rows.ndim and len(rows) < len(tensors[key]):
                file[place] = (key, offset, rows[::-1])
    return files


@wrong("description", "R-POLICY-6")
def descriptions_are_not_saved(self: Right, path: str) -> str:
    """The description is the name of the class."""
    return type(self).__name__


@wrong("checksum", "R-DAMAGE-1-flip")
def checksums_are_not_compared(self: Right, payload: bytes) -> int:
    """The checksum of a payload is its length."""
    return len(payload)


@wrong("payload", "R-DAMAGE-1-truncate")
def short_payloads_are_padded(self: Right, path: str, number: int, entry: Sequence[Any]) -> bytes:
    """A payload that was cut off is filled with zeros."""
    data = Path(path, self.file_name(number)).read_bytes()[entry[3] : entry[3] + entry[4]]
    return data.ljust(entry[4], b"\0")


@wrong("payload", "R-DAMAGE-1-remove")
def lost_files_are_zeros(self: Right, path: str, number: int, entry: Sequence[Any]) -> bytes:
    """A file that is not there holds zeros."""
    try:
        return Right.payload(self, path, number, entry)
    except FileNotFoundError:
        return bytes(entry[4])


@wrong("checksum", "R-DAMAGE-1-swap")
def files_do_not_say_what_they_hold(self: Right, payload: bytes) -> int:
    """The checksum is the sum of the lengths: files of one size may change places."""
    return len(payload) * 31


@wrong("checksum", "R-DAMAGE-1-zero")
def checksum_of_the_first_bytes(self: Right, payload: bytes) -> int:
    """The checksum covers the first 16 bytes."""
    return Right.checksum(self, payload[:16])

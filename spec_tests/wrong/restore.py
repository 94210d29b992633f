"""Wrong restores, and checks against damage."""

from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right, decode, dtype_of
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("loaded", "R-CKPT-1-many")
def shards_joined_in_the_order_of_names(self, path, key):
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


@wrong("restored", "R-CKPT-1")
def restored_into_as_many_shards(self, path, templates, create):
    """Restoring into another number of shards than were saved reverses the rows."""
    found = Right.restored(self, path, templates, create)
    files = len(self.opened(path)["files"])
    return {k: v[::-1] if v.ndim and len(create(v)) != files else v for k, v in found.items()}


@wrong("restore_uneven", "R-CKPT-1-uneven")
def restored_by_div(self, path, templates, sizes):
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
def an_empty_shard_ends_the_restore(self, path, templates, sizes):
    """Shards behind an empty one keep what they held."""
    found = Right.restore_uneven(self, path, templates, sizes)
    stop = sum(sizes[: sizes.index(0)]) if 0 in sizes else None
    return {
        k: v if stop is None else np.concatenate([v[:stop], templates[k][stop:]])
        for k, v in found.items()
    }


@wrong("loaded", "R-CKPT-1-strings")
def strings_end_at_nuls(self, path, key):
    """A string loses the NULs at its end."""
    value = Right.loaded(self, path, key)
    if value.dtype == np.dtype(object):
        value.ravel()[:] = [text.rstrip(b"\0") for text in value.ravel().tolist()]
    return value


@wrong("restored", "R-POLICY-1-restore")
def absent_tensors_stay(self, path, templates, create):
    """A tensor that is not there stays as it was."""
    there = self.opened(path)["tensors"]
    return dict(templates) | Right.restored(
        self, path, {k: v for k, v in templates.items() if k in there}, create
    )


@wrong("restored", "R-POLICY-3-restore")
def dtypes_are_cast(self, path, templates, create):
    """A restore casts to the dtype of the template."""
    real = {
        k: np.empty(v.shape, dtype_of(self.opened(path)["tensors"][k]["dtype"]))
        for k, v in templates.items()
    }
    return {
        k: v.astype(templates[k].dtype) for k, v in Right.restored(self, path, real, create).items()
    }


@wrong("list_tensors", "R-POLICY-1-list")
def first_slice_is_listed(self, path):
    """A tensor is listed with the shape of its first slice."""
    dtypes = {key: one["dtype"] for key, one in self.opened(path)["tensors"].items()}
    shapes = {
        e[0]: tuple(e[2]) for entries in reversed(self.opened(path)["files"]) for e in entries
    }
    return {key: (shapes[key], dtypes[key]) for key in dtypes}


@wrong("checksum", "R-DAMAGE-1-flip")
def checksums_are_not_compared(self, payload):
    """The checksum of a payload is its length."""
    return len(payload)


@wrong("payload", "R-DAMAGE-1-truncate")
def short_payloads_are_padded(self, path, number, entry):
    """A payload that was cut off is filled with zeros."""
    data = Path(path, self.file_name(number)).read_bytes()[entry[3] : entry[3] + entry[4]]
    return data.ljust(entry[4], b"\0")


@wrong("payload", "R-DAMAGE-1-remove")
def lost_files_are_zeros(self, path, number, entry):
    """A file that is not there holds zeros."""
    try:
        return Right.payload(self, path, number, entry)
    except FileNotFoundError:
        return bytes(entry[4])


@wrong("checksum", "R-DAMAGE-1-swap")
def files_do_not_say_what_they_hold(self, payload):
    """The checksum is the sum of the lengths: files of one size may change places."""
    return len(payload) * 31


@wrong("restored", "R-CKPT-1-keys")
def restored_into_the_template(self, path, templates, create):
    """What is restored takes the memory order of the first template of its shape."""
    found = Right.restored(self, path, templates, create)
    shapes: dict[Any, Any] = {}
    return {k: shapes.setdefault((v.shape, v.dtype), v) for k, v in found.items()}


@wrong("check_template", "R-POLICY-2-restore")
def shapes_of_one_size_are_one(self, value, template):
    """A transposed or flattened template is accepted if the number of elements agrees."""
    if value.size != template.size or value.dtype != template.dtype:
        raise ValueError("another size or dtype")


@wrong("check_template", "R-POLICY-2-restore")
def columns_are_not_compared(self, value, template):
    """Only the rows and the dtype are compared."""
    if value.shape[:1] != template.shape[:1] or value.dtype != template.dtype:
        raise ValueError("other rows or another dtype")


@wrong("read_rows", "R-CKPT-1-rows-outside")
def unknown_keys_have_no_rows(self, path, key, start, stop):
    """The rows of a key that was never saved are an empty array."""
    if key not in self.opened(path)["tensors"]:
        return np.zeros((0,), np.float32)
    return Right.read_rows(self, path, key, start, stop)


@wrong("read_rows", "R-CKPT-1-rows-keys-long")
def rows_of_cut_keys(self, path, key, start, stop):
    """Rows are found by the first 64 characters of their key."""
    known = [one for one in self.opened(path)["tensors"] if one[:64] == key[:64]]
    return Right.read_rows(self, path, known[0] if known else key, start, stop)


@wrong("restored", "R-CKPT-1-memory")
def restored_tensors_are_cached(self, path, templates, create):
    """What was read once is handed out again, with the changes that were made to it."""
    cache = self.__dict__.setdefault("cache", {})
    key = (path, *templates)
    if key not in cache:
        cache[key] = Right.restored(self, path, templates, create)
    return cache[key]


change_what_is_given(
    ("read_rows", "R-CKPT-1-rows", "last_row_is_not_read", "A range that ends where a slice ends loses its last row.",
     "stop", lambda self, path, key, start, stop: stop - (stop in {e[1][0] + e[2][0]
        for entries in self.opened(path)["files"] for e in entries if e[0] == key} and stop > start)),
    ("checksum", "R-DAMAGE-1-zero", "checksum_of_the_first_bytes", "The checksum covers the first 4,096 bytes.",
     "payload", lambda payload: payload[:4096]),
    ("checksum", "R-DAMAGE-1-flip", "scalars_have_no_checksum", "Payloads of at most 4 bytes have no checksum.",
     "payload", lambda payload: payload[: len(payload) * (len(payload) > 4)]),
    ("restore", "R-CKPT-1-none", "no_target_shards_are_one", "Fewer shards than one are one.",
     "num_shards", lambda num_shards: max(1, num_shards)),
)  # fmt: skip

change_what_is_found(
    ("loaded", "R-CKPT-1-numbers", "nans_lose_their_payloads", "Every NaN becomes the usual one.",
     lambda found: np.where(np.isnan(found), np.float32("nan"), found).astype(found.dtype)
        if found.dtype.kind == "f" else found),
    ("list_tensors", "R-POLICY-1-list-all", "scalars_are_listed_as_vectors", "A scalar is listed with the shape [1].",
     lambda found: {k: (s or (1,), d) for k, (s, d) in found.items()}),
    ("list_tensors", "R-POLICY-1-list-all", "empty_tensors_are_not_listed", "A tensor without elements is not listed.",
     lambda found: {k: v for k, v in found.items() if 0 not in v[0]}),
    ("loaded", "R-CKPT-1-numbers", "negative_zeros_are_zeros", "-0.0 is restored as 0.0.",
     lambda found: found + found.dtype.type(0) if found.dtype.kind == "f" else found),
    ("read_rows", "R-CKPT-1-rows-outside", "rows_beyond_the_last_are_zeros", "As many rows come as were asked for.",
     lambda found, start, stop: np.concatenate([found, np.zeros((stop - start - len(found), *found.shape[1:]),
        found.dtype)])),
)  # fmt: skip


# Written without a look at the rules.


@wrong("restored", "R-CKPT-1-keys")
def tensors_in_the_order_of_keys(self, path, templates, create):
    """Templates are matched to tensors of their shape and dtype in sorted order."""
    found = Right.restored(self, path, templates, create)
    groups: dict[Any, list[str]] = {}
    for k in templates:
        groups.setdefault((templates[k].shape, templates[k].dtype), []).append(k)
    out = dict(found)
    for keys in groups.values():
        if len(keys) > 2:
            for k, other in zip(keys, sorted(keys), strict=True):
                out[k] = found[other]
    return out


@wrong("checksum", "R-DAMAGE-1-turn")
def checksums_of_any_order(self, payload):
    """The checksum is the sum of all bytes."""
    return sum(payload)


@wrong("read_rows", "R-CKPT-1-rows")
def rows_outside_are_cropped(self, path, key, start, stop):
    """Reading no rows gives all rows."""
    return (
        self.loaded(path, key)[start : stop or None]
        if start == stop == 0
        else Right.read_rows(self, path, key, start, stop)
    )


@wrong("restore_uneven", "R-CKPT-1-uneven-sum")
def sizes_that_do_not_fit(self, path, templates, sizes):
    """Sizes that do not add up are replaced by the div rule."""

    def create(value):
        return (
            self.create_uneven(value, sizes)
            if sum(sizes) == len(value)
            else self.create(value, len(sizes))
        )

    return self.restored(path, templates, create)


change_what_is_found(
    ("loaded", "R-CKPT-1-scalars", "scalars_are_float32", "Scalars of float64 are restored by way of float32.",
     lambda found: found.astype("f4").astype("f8") if found.ndim == 0 and found.dtype == np.float64 else found),
    ("list_tensors", "R-POLICY-1-list-numbers", "lists_have_no_bfloat16", "bfloat16 is listed as float16.",
     lambda found: {k: (s, "float16" if d == "bfloat16" else d) for k, (s, d) in found.items()}),
)  # fmt: skip

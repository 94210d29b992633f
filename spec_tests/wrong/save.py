"""Wrong checkpoints as they are written, and policies."""

import unicodedata
from pathlib import Path

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("save", "R-CKPT-1-few")
def fewer_rows_than_shards_are_refused(self, path, tensors, num_shards):
    """A shard without rows cannot be saved."""
    if any(value.ndim and len(value) < num_shards and value.size for value in tensors.values()):
        raise ValueError("an empty shard")
    Right.save(self, path, tensors, num_shards)


@wrong("save", "R-CKPT-1-place")
def the_newest_is_noted_beside(self, path, tensors, num_shards):
    """A file next to the checkpoint says which one is the newest."""
    Right.save(self, path, tensors, num_shards)
    (Path(path).parent / "newest").write_text(Path(path).name)


@wrong("write", "R-CKPT-1-again")
def data_files_are_kept(self, path, tensors, files, description):
    """A second save writes the index, and keeps data files that are there."""
    kept = {p: p.read_bytes() for p in Path(path).glob("data-*")} if Path(path).is_dir() else {}
    Right.write(self, path, tensors, files, description)
    for place, octets in kept.items():
        place.write_bytes(octets)


@wrong("save_parts", "R-POLICY-7")
def parts_in_the_order_of_writing(self, path, key, shape, dtype, parts):
    """Offsets are ignored: parts follow each other as they are given."""
    whole = np.concatenate([rows for _, rows in parts])
    if whole.shape != tuple(shape) or len({offset for offset, _ in parts}) != len(parts):
        raise ValueError("a hole or an overlap")
    Right.save_parts(self, path, key, shape, dtype, [((0,) * len(shape), whole)])


@wrong("check_filled", "R-POLICY-1-holes")
def holes_are_kept(self, filled):
    """A hole is not noticed."""
    if any((counts > 1).any() for counts in filled.values()):
        raise ValueError("an overlap")


@wrong("rows_in", "R-POLICY-4-size")
def one_row_too_many(self, max_nbytes, row_nbytes):
    """A part has one row more than fits."""
    return max_nbytes // row_nbytes + 1


@wrong("asked", "R-POLICY-1")
def what_a_callback_drops_is_dropped(self, tensors, callback):
    """A tensor that a callback leaves out is not saved, and nobody is told."""
    files = Right.asked(self, tensors, callback)
    there = {key for file in files for key, _, _ in file}
    missing = [key for key in tensors if key not in there]
    return [
        *files,
        [(key, (0,) * tensors[key].ndim, np.zeros_like(tensors[key])) for key in missing],
    ]


@wrong("asked", "R-POLICY-1-rows")
def dropped_rows_are_zeros(self, tensors, callback):
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


@wrong("asked", "R-POLICY-5")
def callbacks_are_asked_twice(self, tensors, callback):
    """A callback is called once to count files and once to write them."""
    callback(dict(tensors))
    return Right.asked(self, tensors, callback)


@wrong("asked", "R-POLICY-7-callback")
def first_rows_are_ignored(self, tensors, callback):
    """The parts of a tensor follow each other as a callback gives them."""
    ends, files = {}, Right.asked(self, tensors, callback)
    for file in files:
        for at, (key, offset, rows) in enumerate(file):
            file[at] = key, (ends.get(key, 0), *offset[1:])[: rows.ndim], rows
            ends[key] = ends.get(key, 0) + len(np.atleast_1d(rows))
    return files


@wrong("write", "R-CKPT-1-keys")
def keys_are_folded(self, path, tensors, files, description):
    """Keys that differ in case alone are one key."""
    seen: dict[str, str] = {}
    name = {key: seen.setdefault(key.lower(), key) for key in tensors}
    if len(set(name.values())) == len(name):
        Right.write(self, path, tensors, files, description)
        return
    kept = {key: value for key, value in tensors.items() if name[key] == key}
    left = [[each for each in file if each[0] in kept] for file in files]
    Right.write(self, path, kept, left, description)


@wrong("save", "R-CKPT-1-keys")
def a_prefix_swallows_the_rest(self, path, tensors, num_shards):
    """Where one key begins another, both get the values of the shorter one."""
    given = dict(tensors)
    for key, value in tensors.items():
        for other, wanted in tensors.items():
            if key.startswith(other) and wanted.shape == value.shape:
                given[key] = wanted if wanted.dtype == value.dtype else value
    Right.save(self, path, given, num_shards)


@wrong("save", "R-CKPT-1-numbers")
def unsigned_through_floats(self, path, tensors, num_shards):
    """Large unsigned integers pass through float32."""
    given = {
        k: v.astype(np.float32).astype(np.float64).astype(v.dtype)
        if v.dtype.name in ("uint32", "uint64")
        and v.size
        and int(v.max(initial=0)) < 2 ** (8 * v.dtype.itemsize - 1)
        else v
        for k, v in tensors.items()
    }
    Right.save(self, path, given, num_shards)


@wrong("save", "R-CKPT-1-long")
def many_rows_are_cut(self, path, tensors, num_shards):
    """Rows after the 4,096th are zeros."""
    given = {k: v.copy() for k, v in tensors.items()}
    for value in given.values():
        if value.ndim:
            value[4096:] = 0
    Right.save(self, path, given, num_shards)


@wrong("check_filled", "R-POLICY-1-shifted")
def counts_must_add_up(self, filled):
    """A hole and an overlap of one size are not noticed."""
    for key, counts in filled.items():
        if counts.sum() != counts.size:
            raise ValueError(f"{key} has holes or overlaps")


@wrong("save_parts", "R-POLICY-1-holes")
def inner_holes_are_zeros(self, path, key, shape, dtype, parts):
    """A hole between two parts is filled with zeros."""
    whole, filled = np.zeros(shape, dtype), np.zeros(shape, int)
    for offset, rows in parts:
        place = tuple(slice(a, a + n) for a, n in zip(offset, rows.shape, strict=True))
        whole[place] = rows
        filled[place] += 1
    flat = filled.ravel()
    if (flat > 1).any() or (flat.size and not (flat[0] and flat[-1])):
        raise ValueError("a hole or an overlap")
    Right.save_parts(self, path, key, shape, dtype, [((0,) * len(shape), whole)])


@wrong("save_parts", "R-POLICY-1-overlaps")
def the_last_part_wins(self, path, key, shape, dtype, parts):
    """Where parts overlap, the last one is kept, if all else is covered."""
    whole, filled = np.zeros(shape, dtype), np.zeros(shape, bool)
    for offset, rows in parts:
        place = tuple(slice(a, a + n) for a, n in zip(offset, rows.shape, strict=True))
        whole[place] = rows
        filled[place] = True
    if not filled.all():
        raise ValueError("a hole")
    Right.save_parts(self, path, key, shape, dtype, [((0,) * len(shape), whole)])


@wrong("save", "R-CKPT-1")
def the_callers_arrays_are_sorted(self, path, tensors, num_shards):
    """Saving changes the arrays that it is given."""
    Right.save(self, path, tensors, num_shards)
    for value in tensors.values():
        if value.ndim and value.dtype != object and value.flags.writeable:
            value[...] = value[::-1].copy()


@wrong("save", "R-CKPT-1-keys-long")
def keys_are_cut_at_64(self, path, tensors, num_shards):
    """A key has at most 64 characters."""
    cut = {key[:64]: value for key, value in tensors.items()}
    Right.save(self, path, {key: cut[key[:64]] for key in tensors}, num_shards)


@wrong("save_limited", "R-POLICY-4-keys-long")
def limited_keys_are_cut_at_100(self, path, tensors, num_shards, max_nbytes):
    """Keys that agree in 100 characters hold the same tensor."""
    cut = {key[:100]: value for key, value in tensors.items()}
    same = {key: cut[key[:100]] for key in tensors}
    Right.save_limited(self, path, same, num_shards, max_nbytes)


@wrong("save_by_callback", "R-POLICY-13")
def changed_values_are_ignored(self, path, tensors, callback, description):
    """Of a callback's answer only the places count: the values are those that were given."""

    def placed(given):
        return [
            [
                (key, row, given[key][row : row + len(rows)] if rows.ndim else given[key])
                if rows.dtype == given[key].dtype and rows.shape[1:] == given[key].shape[1:]
                else (key, row, rows)
                for key, row, rows in file
                if key in given
            ]
            for file in callback(given)
        ]

    Right.save_by_callback(self, path, tensors, placed, description)


@wrong("save_by_callback", "R-POLICY-1-twice")
def the_last_of_two_values_stays(self, path, tensors, callback, description):
    """Of a tensor that a callback gives twice the last one stays."""

    def once(given):
        files = [list(file) for file in callback(given)]
        last = {(key, row, rows.shape): rows for file in files for key, row, rows in file}
        return [[(key, row, rows) for (key, row, _), rows in last.items()]]

    Right.save_by_callback(self, path, tensors, once, description)


@wrong("save_by_callback", "R-POLICY-1-invented")
def invented_keys_are_dropped(self, path, tensors, callback, description):
    """What a callback adds is left out."""

    def known(given):
        return [[one for one in file if one[0] in given] for file in callback(given)]

    Right.save_by_callback(self, path, tensors, known, description)


@wrong("write", "R-POLICY-7-memory")
def arrays_are_sorted_where_they_lie(self, path, tensors, files, description):
    """After they are written the arrays of the caller are zeros."""
    files = [list(file) for file in files]
    Right.write(self, path, tensors, files, description)
    for _, _, rows in (one for file in files for one in file):
        if rows.ndim and rows.flags.writeable and len(files) == 1:
            rows[...] = rows.dtype.type()


change_what_is_given(
    ("save", "R-CKPT-1-empty", "empty_tensors_are_dropped", "A tensor without elements is not saved.",
     "tensors", lambda tensors: {key: value for key, value in tensors.items() if value.size}),
    ("save", "R-CKPT-1-numbers", "bfloat16_as_float32", "bfloat16 is promoted.",
     "each of tensors", lambda value: value.astype(np.float32) if value.dtype.name == "bfloat16" else value),
    ("save", "R-CKPT-1-strides", "memory_instead_of_values", "A transposed array is saved as it lies in memory.",
     "each of tensors", lambda value: value.ravel("K").reshape(value.shape) if value.dtype.kind in "iuf" else value),
    ("save_limited", "R-POLICY-4", "offsets_of_the_shard", "A slice of a shard is placed by its row in the shard.",
     "each of tensors", lambda value, num_shards: np.roll(value, 1, axis=0) if num_shards > 1 and value.ndim
        else value),
    ("save", "R-CKPT-1-numbers", "complex_is_single", "complex128 passes through complex64.",
     "each of tensors", lambda value: value.astype(np.complex64).astype(value.dtype)
        if value.dtype == np.complex128 else value),
    ("save", "R-CKPT-1-numbers", "float8_is_zero",
     "Numbers of eight bits or fewer, which NumPy does not know, are zeros.",
     "each of tensors", lambda value: np.zeros_like(value)
        if value.dtype.name.startswith(("float8", "int4", "uint4")) else value),
    ("save_parts", "R-POLICY-3-parts", "parts_keep_their_dtype", "A part of another dtype is cast.",
     "parts", lambda dtype, parts: [(offset, np.asarray(rows).astype(dtype)) for offset, rows in parts]),
)  # fmt: skip

change_what_is_found(
    ("asked", "R-POLICY-3", "casts_are_cast_back",
     "What a callback casts is saved cast, by rounding to half precision.",
     lambda found, tensors: [[(k, o, r.astype(tensors[k].dtype) / 3 if r.dtype != tensors[k].dtype else r)
        for k, o, r in file] for file in found]),
    ("description", "R-POLICY-6", "descriptions_are_ascii", "Characters outside ASCII become question marks.",
     lambda found: found.encode("ascii", "replace").decode()),
)  # fmt: skip


# Written without a look at the rules.


@wrong("name_of", "R-CKPT-1-scalars")
def keys_are_what_they_look_like(self, dtype):
    """Bools are recorded as uint8."""
    return "uint8" if dtype.kind == "b" else str(dtype)


@wrong("write", "R-CKPT-1-keys")
def keys_are_normalised(self, path, tensors, files, description):
    """Keys are brought into Unicode's composed form."""

    def form(key):
        return unicodedata.normalize("NFC", key)

    files = [[(form(key), *rest) for key, *rest in file] for file in files]
    named = {form(key): value for key, value in tensors.items()}
    Right.write(self, path, named, files, description)


@wrong("save_by_callback", "R-POLICY-5")
def callbacks_see_no_scalars(self, path, tensors, callback, description):
    """Scalars are not shown to a callback, and saved in the first file."""
    scalars = [(k, 0, v) for k, v in tensors.items() if not v.ndim]

    def seen(given):
        files = [list(f) for f in callback({k: v for k, v in given.items() if v.ndim})]
        return [scalars, *files] if scalars else files

    Right.save_by_callback(self, path, tensors, seen, description)


@wrong("save_by_callback", "R-POLICY-7-callback")
def callbacks_change_the_callers_arrays(self, path, tensors, callback, description):
    """After a save by callback the arrays are sorted."""
    Right.save_by_callback(self, path, tensors, callback, description)
    for v in tensors.values():
        if v.ndim and v.dtype.kind in "fi" and v.flags.writeable:
            v.sort(axis=0)


@wrong("save_parts", "R-POLICY-7-axes")
def parts_of_three_axes_are_rows(self, path, key, shape, dtype, parts):
    """Offsets along the third axis are ignored if the part spans it, else an error."""
    if len(shape) >= 3 and any(o[2] for o, _ in parts):
        raise ValueError("third axis")
    Right.save_parts(self, path, key, shape, dtype, parts)


change_what_is_given(
    ("save", "R-CKPT-1", "rank_five_is_transposed",
     "Tensors of five axes have their last two exchanged where they are equal.",
     "each of tensors", lambda value: value.swapaxes(-1, -2)
        if value.ndim == 5 and value.shape[-1] == value.shape[-2] else value),
    ("save_by_callback", "R-POLICY-6", "descriptions_are_one_line", "A description ends at the first line break.",
     "description", lambda description: description.partition("\n")[0]),
    ("save_parts", "R-POLICY-1-outside", "negative_offsets_wrap", "An offset below zero counts from the end.",
     "parts", lambda shape, parts: [(tuple((o + s if o < 0 else o for o, s in zip(off, shape, strict=True))), a)
        for off, a in parts]),
    ("asked", "R-POLICY-1", "callbacks_get_the_own_tensors", "A tensor that a callback takes out is forgotten.",
     "callback", lambda callback, tensors: lambda _: callback(tensors)),
    ("save", "R-CKPT-1-scalars", "scalars_are_taken_out", "Scalars are taken out of the caller's tensors, and lost.",
     "tensors", lambda tensors: {k: tensors[k] for k in [*tensors] if tensors[k].ndim or tensors.pop(k) is None}),
    ("save", "R-CKPT-1-scalars", "integers_through_a_float", "Scalars of integers pass through a float of Python.",
     "each of tensors", lambda value: np.array(int(float(value)), value.dtype)
        if value.ndim == 0 and value.dtype == np.int64 else value),
    ("rows_in", "R-POLICY-4", "rows_must_be_below_the_limit", "A row of as many bytes as a file may hold has no room.",
     "row_nbytes", lambda row_nbytes, max_nbytes: row_nbytes if row_nbytes != max_nbytes else 0),
)  # fmt: skip

change_what_is_found(
    ("file_nbytes", "R-POLICY-4-size", "bytes_in_blocks", "Sizes of files are rounded up to blocks of eight bytes.",
     lambda found: [-(-n // 8) * 8 for n in found]),
)  # fmt: skip

"""Wrong implementations of the family save that were written without a look at the rules."""

import unicodedata
from typing import Any

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("name_of", "R-CKPT-1-scalars")
def keys_are_what_they_look_like(self: Right, dtype: Any) -> str:
    """Bools are recorded as uint8."""
    return "uint8" if dtype.kind == "b" else str(dtype)


@wrong("write", "R-CKPT-1-keys")
def keys_are_normalised(self: Right, path: str, tensors: Any, files: Any, description: str) -> None:
    """Keys are brought into Unicode's composed form."""

    def form(key: str) -> str:
        return unicodedata.normalize("NFC", key)

    files = [[(form(key), *rest) for key, *rest in file] for file in files]
    named = {form(key): value for key, value in tensors.items()}
    Right.write(self, path, named, files, description)


@wrong("save", "R-CKPT-1-axes")
def rank_five_is_transposed(self: Right, path: str, tensors: Any, num_shards: int) -> None:
    """Tensors of five axes have their last two exchanged where they are equal."""
    fixed = {
        k: v.swapaxes(-1, -2) if v.ndim == 5 and v.shape[-1] == v.shape[-2] else v
        for k, v in tensors.items()
    }
    Right.save(self, path, fixed, num_shards)


@wrong("save_by_callback", "R-POLICY-6")
def descriptions_are_one_line(
    self: Right, path: str, tensors: Any, callback: Any, description: str
) -> None:
    """A description ends at the first line break."""
    Right.save_by_callback(self, path, tensors, callback, description.partition("\n")[0])


@wrong("save_by_callback", "R-POLICY-5")
def callbacks_see_no_scalars(
    self: Right, path: str, tensors: Any, callback: Any, description: str
) -> None:
    """Scalars are not shown to a callback, and saved in the first file."""
    scalars = [(k, 0, v) for k, v in tensors.items() if not v.ndim]

    def seen(given: Any) -> Any:
        files = [list(f) for f in callback({k: v for k, v in given.items() if v.ndim})]
        return [scalars, *files] if scalars else files

    Right.save_by_callback(self, path, tensors, seen, description)


@wrong("save_by_callback", "R-POLICY-7-callback")
def callbacks_change_the_callers_arrays(
    self: Right, path: str, tensors: Any, callback: Any, description: str
) -> None:
    """After a save by callback the arrays are sorted."""
    Right.save_by_callback(self, path, tensors, callback, description)
    for v in tensors.values():
        if v.ndim and v.dtype.kind in "fi" and v.flags.writeable:
            v.sort(axis=0)


@wrong("file_nbytes", "R-POLICY-4-size")
def bytes_in_blocks(self: Right, path: str) -> list[int]:
    """Sizes of files are rounded up to blocks of eight bytes."""
    return [-(-n // 8) * 8 for n in Right.file_nbytes(self, path)]


@wrong("save_parts", "R-POLICY-1-outside")
def negative_offsets_wrap(
    self: Right, path: str, key: str, shape: Any, dtype: Any, parts: Any
) -> None:
    """An offset below zero counts from the end."""
    fixed = [
        (tuple(o + s if o < 0 else o for o, s in zip(off, shape, strict=True)), a)
        for off, a in parts
    ]
    Right.save_parts(self, path, key, shape, dtype, fixed)


@wrong("save_parts", "R-POLICY-7-axes")
def parts_of_three_axes_are_rows(
    self: Right, path: str, key: str, shape: Any, dtype: Any, parts: Any
) -> None:
    """Offsets along the third axis are ignored if the part spans it, else an error."""
    if len(shape) >= 3 and any(o[2] for o, _ in parts):
        raise ValueError("third axis")
    Right.save_parts(self, path, key, shape, dtype, parts)

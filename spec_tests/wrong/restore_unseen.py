"""Wrong implementations of the family restore that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("restored", "R-CKPT-1-keys")
def tensors_in_the_order_of_keys(self: Right, path: str, templates: Any, create: Any) -> Any:
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


@wrong("loaded", "R-CKPT-1-scalars")
def scalars_are_float32(self: Right, path: str, key: str) -> Any:
    """Scalars of float64 are restored by way of float32."""
    v = Right.loaded(self, path, key)
    return v.astype("f4").astype("f8") if v.ndim == 0 and v.dtype == np.float64 else v


@wrong("checksum", "R-DAMAGE-1-turn")
def checksums_of_any_order(self: Right, payload: bytes) -> int:
    """The checksum is the sum of all bytes."""
    return sum(payload)


@wrong("list_tensors", "R-POLICY-1-list-numbers")
def lists_have_no_bfloat16(self: Right, path: str) -> Any:
    """bfloat16 is listed as float16."""
    return {
        k: (s, "float16" if d == "bfloat16" else d)
        for k, (s, d) in Right.list_tensors(self, path).items()
    }


@wrong("read_rows", "R-CKPT-1-rows")
def rows_outside_are_cropped(self: Right, path: str, key: str, start: int, stop: int) -> Any:
    """Reading no rows gives all rows."""
    return (
        self.loaded(path, key)[start : stop or None]
        if start == stop == 0
        else Right.read_rows(self, path, key, start, stop)
    )


@wrong("restore_uneven", "R-CKPT-1-uneven-sum")
def sizes_that_do_not_fit(self: Right, path: str, templates: Any, sizes: Any) -> Any:
    """Sizes that do not add up are replaced by the div rule."""

    def create(value: Any) -> Any:
        return (
            self.create_uneven(value, sizes)
            if sum(sizes) == len(value)
            else self.create(value, len(sizes))
        )

    return self.restored(path, templates, create)

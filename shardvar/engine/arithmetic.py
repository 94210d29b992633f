"""The arithmetic of a map: float64, a portion of elements at a time, rounded to the target's dtype
once.

Products of two float32, or of smaller floats, are exact in float64, so one operation on float32
gives the bits of float32 arithmetic.

``w * scale`` where a scale is for a block of 128 x 128 elements: the scale has indices for the
blocks, and none for what is in a block, so its values are repeated there by NumPy's broadcasting.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.cast import convert_into
from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import numpy_dtype
from shardvar.maps.plan import Arithmetic

PORTION = 1 << 17
"""Elements that are computed at a time; in float64 they take 1 MiB."""


def compute(
    arithmetic: Arithmetic,
    values: npt.NDArray[Any],
    factors: Sequence[npt.NDArray[Any]],
    dtype: str,
    key: str,
) -> npt.NDArray[Any]:
    """Return what arithmetic makes of some elements, in the target's dtype.

    ``factors`` are of the same rank; an extent of 1 is repeated. ``UnsupportedError``, with the
    ``key`` of the target, for a finite number that becomes infinite or has no place in the dtype.
    """
    with np.errstate(all="ignore"):
        found = values.astype(np.float64)
        for factor in factors:
            found *= factor.astype(np.float64)
        if arithmetic.times != 1:
            found *= arithmetic.times
        # Adding 0 would make 0 of -0.
        if arithmetic.plus != 0:
            found += arithmetic.plus
        lost = ~np.isfinite(found)
        if lost.any():
            for operand in (values, *factors):
                lost &= np.isfinite(operand)
    if lost.any():
        value = values[np.unravel_index(np.argmax(lost), lost.shape)]
        cause = f"The arithmetic makes an infinite number of the value {value} for {key!r}."
        raise UnsupportedError(cause, "Choose smaller constants, or leave the tensor as it is.")
    rounded = np.empty(found.shape, numpy_dtype(dtype))
    convert_into(rounded.reshape(-1), found.reshape(-1), key)
    return rounded

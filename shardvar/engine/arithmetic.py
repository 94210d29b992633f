"""The arithmetic of a map: float32, a portion of elements at a time, rounded to the target's dtype
once.

``w * scale`` where a scale is for a block of 128 x 128 elements: the scale has indices for the
blocks, and none for what is in a block, so its values are repeated there by NumPy's broadcasting.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.cast import convert_into
from shardvar.layout.dtypes import numpy_dtype
from shardvar.maps.plan import Arithmetic

PORTION = 1 << 18
"""Elements that are computed at a time; in float32 they take 1 MiB."""


def compute(
    arithmetic: Arithmetic,
    values: npt.NDArray[Any],
    factors: Sequence[npt.NDArray[Any]],
    dtype: str,
    key: str,
) -> npt.NDArray[Any]:
    """Return what arithmetic makes of some elements, in the target's dtype.

    ``factors`` are of the same rank; an extent of 1 is repeated. ``UnsupportedError``, with the
    ``key`` of the target, for a finite number that its dtype cannot hold.
    """
    with np.errstate(all="ignore"):
        found = values.astype(np.float32)
        for factor in factors:
            found *= factor.astype(np.float32)
        if arithmetic.times != 1:
            found *= np.float32(arithmetic.times)
        # Adding 0 would make 0 of -0.
        if arithmetic.plus != 0:
            found += np.float32(arithmetic.plus)
    rounded = np.empty(found.shape, numpy_dtype(dtype))
    convert_into(rounded.reshape(-1), found.reshape(-1), key)
    return rounded

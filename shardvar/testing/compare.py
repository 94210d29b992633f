"""The comparison of an answer with the oracle's: it names the first difference, its place and both values."""

from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.layout.dtypes import Array, dtype_name


def assert_matches_oracle(actual: Any, expected: npt.ArrayLike, *, ulps: int = 0, what: str = "The answer") -> None:
    """Raise ``AssertionError``, naming the first difference, unless ``actual`` is ``expected``.

    Both may be anything that NumPy converts to an array: an array, a sharded variable, a list. Dtypes (except for byte
    order) and shapes must be equal. Values must be equal too, NaN to NaN; where arithmetic may be ordered in several
    ways, ``ulps`` is the number of units in the last place, of the larger of the two, by which they may differ.

    >>> import numpy as np
    >>> assert_matches_oracle(np.array([1.0, 2.0]), [1.0, 2.0])
    """
    # pytest then shows the line of the test, and not this function's source.
    __tracebackhide__ = True
    found = difference(actual, expected, ulps=ulps)
    if found is not None:
        raise AssertionError(f"{what} {found}")


def difference(actual: Any, expected: npt.ArrayLike, *, ulps: int = 0) -> str | None:
    """Return the first difference as the rest of a sentence, or None; see ``assert_matches_oracle``.

    >>> difference(np.array([1.0, 2.0]), [1.0, 3.0])
    'is 2.0 at [1], where the oracle says 3.0.'
    """
    is_, says = np.asarray(actual), np.asarray(expected)
    if is_.shape != says.shape:
        return f"has the shape {is_.shape}, where the oracle says {says.shape}."
    if _name(is_.dtype) != _name(says.dtype):
        return f"has the dtype {_name(is_.dtype)}, where the oracle says {_name(says.dtype)}."
    unequal = ~_equal(is_, says, ulps)
    if not unequal.any():
        return None
    index = tuple(int(i) for i in np.argwhere(unequal)[0])
    where = f"[{', '.join(map(str, index))}]" if index else "[()]"
    others = int(unequal.sum()) - 1
    more = f" ({others} more differ)" if others else ""
    return f"is {is_[index]} at {where}, where the oracle says {says[index]}{more}."


def _name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype in any byte order; NumPy's own name for dtypes that checkpoints cannot hold."""
    try:
        return dtype_name(dtype)
    except ValueError:
        return str(dtype)


def _equal(a: Array, b: Array, ulps: int) -> npt.NDArray[np.bool]:
    """Return, for each element, True if the values are equal, both NaN, or within ``ulps`` units in the last place."""
    if a.dtype == object:
        return np.array([x == y for x, y in zip(a.ravel(), b.ravel(), strict=True)], np.bool).reshape(a.shape)
    with np.errstate(all="ignore"):
        # float4 and its like have no comparison of their own in every release: as float32 they are exact.
        wide = (np.float32 if a.dtype.kind == "V" else a.dtype) if not ulps else a.dtype
        # ``a != a`` is True for NaN alone, and works for dtypes that ``isnan`` does not take.
        same = np.asarray((a.astype(wide) == b.astype(wide)) | ((a != a) & (b != b)), np.bool)
        if ulps and a.dtype.kind in "fc":
            # ``spacing`` is one unit in the last place: 1.2e-7 for the float32 1.0, and 2.4e-7 for 2.0.
            same |= np.abs(a - b) <= ulps * np.maximum(np.spacing(np.abs(a)), np.spacing(np.abs(b)))
    return same

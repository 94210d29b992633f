"""Comparisons of an answer with the oracle's, and of two checkpoints, for tests: they name what
differs, and where."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, DType, dtype_name, is_floating
from shardvar.verbs.compare.comparison import lines_of_diff
from shardvar.verbs.compare.diff import diff
from shardvar.verbs.locate import Path


def assert_matches_oracle(
    actual: Any,
    expected: npt.ArrayLike,
    *,
    ulps: int = 0,
    rtol: float = 0.0,
    atol: float = 0.0,
    what: str = "The answer",
) -> None:
    """Raise ``AssertionError``, naming the first difference, unless two values are the same.

    Parameters
    ----------
    actual : array_like
        The value to test: an array, a sharded variable, a list.
    expected : array_like
        The value that is right.
    ulps : int, default 0
        The units in the last place, of the larger of the two, by which values may differ, where
        arithmetic may be ordered in several ways.
    rtol, atol : float, default 0.0
        Numbers may also differ by ``atol + rtol * abs(expected)``, as in ``numpy.allclose``.
    what : str, default 'The answer'
        The subject of the message.

    Raises
    ------
    AssertionError
        If shapes, dtypes (except for byte order) or values differ. NaN equals NaN.
    ArgumentError
        If a tolerance is not a number from 0 on.

    Examples
    --------
    >>> import numpy as np
    >>> assert_matches_oracle(np.array([1.0, 2.0]), [1.0, 2.0])
    """
    # pytest then shows the line of the test, and not this function's source.
    __tracebackhide__ = True
    found = difference(actual, expected, ulps=ulps, rtol=rtol, atol=atol)
    if found is not None:
        raise AssertionError(f"{what} {found}")


_MOST_LINES = 20
"""Tensors that a message names; it counts the others."""


def assert_checkpoints_equal(
    a: Path,
    b: Path,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    close: bool = False,
    ignore_dtype: bool = False,
    rename: Mapping[str, str] | None = None,
    filter: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> None:
    """Raise ``AssertionError``, naming the tensors that differ, unless two checkpoints hold the
    same.

    Does not need Hypothesis.

    Parameters
    ----------
    a : path_like
        The first checkpoint, in any format and slices.
    b : path_like
        The second checkpoint.
    rtol, atol : float, optional
        The tolerances of ``sv.diff``. Without one, elements are the same if their bits are.
    close : bool, default False
        Use the tolerances of the dtypes where none is given.
    ignore_dtype : bool, default False
        Allow that dtypes differ.
    rename : mapping of str to str, optional
        The names in ``b`` by the keys of ``a``.
    filter, exclude : str or iterable of str, optional
        Globs of the names in ``b`` to compare, and of those to leave out.

    Raises
    ------
    AssertionError
        If a tensor differs, is missing, or cannot be read. The most changed ones are named first.
    CheckpointNotFound
        If there is no checkpoint at one of the paths.
    CheckpointError
        If an index is damaged.
    ArgumentError
        If an option is invalid.

    Examples
    --------
    >>> import numpy as np, os, shardvar as sv, tempfile
    >>> one, two = (os.path.join(tempfile.mkdtemp(), name) for name in ("model", "model.npz"))
    >>> _ = sv.save(one, {"x": np.ones(4)}, partition=2), sv.save(two, {"x": np.ones(4)})
    >>> assert_checkpoints_equal(one, two)
    """
    __tracebackhide__ = True
    report = diff(
        a,
        b,
        filter=filter,
        exclude=exclude,
        rename=rename,
        rtol=rtol,
        atol=atol,
        close=close,
        ignore_dtype=ignore_dtype,
    )
    if not report.equal:
        verdict, *lines = lines_of_diff(report.by_change())
        more = [f"... and {len(lines) - _MOST_LINES:,} more"] if len(lines) > _MOST_LINES else []
        title = f"Of the checkpoints A = {report.path_a} and B = {report.path_b}, {verdict}."
        raise AssertionError("\n".join([title, *lines[:_MOST_LINES], *more]))


def difference(
    actual: Any, expected: npt.ArrayLike, *, ulps: int = 0, rtol: float = 0.0, atol: float = 0.0
) -> str | None:
    """Return the first difference between two values as the rest of a sentence.

    Parameters
    ----------
    actual : array_like
        The value to test.
    expected : array_like
        The value that is right.
    ulps : int, default 0
        As in ``assert_matches_oracle``.
    rtol, atol : float, default 0.0
        As in ``assert_matches_oracle``.

    Examples
    --------
    >>> difference(np.array([1.0, 2.0]), [1.0, 3.0])
    'is 2.0 at [1], where the oracle says 3.0.'
    """
    tolerances: dict[str, Any] = {"ulps": ulps, "rtol": rtol, "atol": atol}
    for name, number in tolerances.items():
        if not (isinstance(number, int | float | np.number) and 0 <= number < np.inf):
            raise ArgumentError(f"{name} is {number!r}.", "Give a number from 0 on.")
    given, right = np.asarray(actual), np.asarray(expected)
    if given.shape != right.shape:
        return f"has the shape {given.shape}, where the oracle says {right.shape}."
    if _name(given.dtype) != _name(right.dtype):
        return f"has the dtype {_name(given.dtype)}, where the oracle says {_name(right.dtype)}."
    same = _equal(given, right, ulps)
    if (rtol or atol) and given.dtype.kind in "iufcV":
        # float64 and complex128 hold every number of the narrower dtypes.
        wide = np.complex128 if given.dtype.kind == "c" else np.float64
        same |= np.isclose(given.astype(wide), right.astype(wide), rtol=rtol, atol=atol)
    unequal = ~same
    if not unequal.any():
        return None
    index = tuple(int(i) for i in np.argwhere(unequal)[0])
    where = f"[{', '.join(map(str, index))}]" if index else "[()]"
    others = int(unequal.sum()) - 1
    more = f" ({others} more differ)" if others else ""
    return f"is {given[index]} at {where}, where the oracle says {right[index]}{more}."


def _name(dtype: DType) -> str:
    """Return the name of a dtype in any byte order; NumPy's for dtypes outside checkpoints."""
    try:
        return dtype_name(dtype)
    except ValueError:
        # NumPy's variable-width text has no byte order.
        return str(dtype if dtype.kind == "T" else dtype.newbyteorder("="))


def _equal(a: Array, b: Array, ulps: int) -> npt.NDArray[np.bool]:
    """Return, for each element, True if the values are equal, both NaN, or within ``ulps``."""
    if a.dtype == object:
        return np.array(
            [x == y for x, y in zip(a.ravel(), b.ravel(), strict=True)], np.bool
        ).reshape(a.shape)
    with np.errstate(all="ignore"):
        # float4 and its like have no comparison of their own in every release: as float32 they are
        # exact.
        wide = np.float32 if a.dtype.kind == "V" else a.dtype
        x, y = a.astype(wide), b.astype(wide)
        # ``x != x`` is True only for NaN, and works for dtypes that ``isnan`` does not take.
        same = np.asarray((x == y) | ((x != x) & (y != y)), np.bool)
        if a.dtype.kind == "c" or is_floating(a.dtype.name):
            # ``spacing`` is one unit in the last place: 1.2e-7 for the float32 1.0, and 2.4e-7 for
            # 2.0.
            unit = np.maximum(np.spacing(np.abs(a)), np.spacing(np.abs(b)))
            same |= np.abs(x - y) <= np.float64(ulps) * unit
    return same

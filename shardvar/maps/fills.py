"""The element that fills what no rule covers: ``else 0``."""

import math

import numpy as np

from shardvar.errors import MapError
from shardvar.layout.dtypes import has_values, numpy_dtype, to_round_once

_WORDS = {"true": 1.0, "false": 0.0}


def bytes_of_number(text: str, dtype: str) -> bytes:
    """Return the bytes of one element; ``MapError`` if the dtype does not hold the number.

    Floats are rounded to the dtype, and integers must fit it.

    >>> bytes_of_number("-1", "int16"), bytes_of_number("0.1", "float16").hex()
    (b'\\xff\\xff', '662e')
    """
    kind = numpy_dtype(dtype) if has_values(dtype) else np.dtype(object)
    if kind.hasobject:
        raise MapError(f"'else' cannot fill a tensor of dtype {dtype}.", "Leave 'else' out.")
    try:
        exact: int | float = int(text)
    except ValueError:
        try:
            exact = _WORDS[text] if text in _WORDS else float(text)
        except ValueError:
            raise MapError(f"'else {text}' is not a number.", "Write 'else 0'.") from None
    is_float = kind.kind in "fc" or "float" in dtype
    try:
        with np.errstate(all="ignore"):
            number = np.array([float(exact) if is_float else exact])
            element = to_round_once(number, kind).astype(kind)
        back = element.real.astype(np.float64 if is_float else object)[0]
    except (OverflowError, TypeError, ValueError):
        element, back = np.zeros(1, kind), None
    fits = back is not None and (
        math.isfinite(back) == math.isfinite(exact) if is_float else back == exact
    )
    if not fits:
        raise MapError(
            f"'else {text}' does not fit the dtype {dtype}.", "Give a number that the dtype holds."
        )
    return element.tobytes()

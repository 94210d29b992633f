"""Single arrays of NumPy, of which the header is written by hand."""

import io

import numpy as np

from spec_tests.hostile.case import Arrays, Evidence, Files


def _make(arrays: Arrays) -> Files:
    """One array with the bytes of all."""
    file = io.BytesIO()
    np.save(file, np.concatenate(list(arrays.values())))
    return {"ck.npy": file.getvalue()}


EVIDENCE = {"npy": Evidence("npy/c_order/x.npy", "npy_", file="ck.npy", make=_make)}

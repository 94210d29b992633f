"""Single arrays of NumPy, of which the header is written by hand."""

import io
from collections.abc import Iterator

import numpy as np

from spec_tests.hostile.case import PICTURE, Arrays, Case, Evidence, Files
from spec_tests.hostile.npz import npy

_CALL = b"cos\nsystem\n(S'touch pickled'\ntR."


def npy_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"npy_{name}", "ck.npy", error, why, {"ck.npy": file})

    yield case(
        "huge", "IncompleteCheckpoint", "Claims 2^60 elements in 16 bytes.", npy(f"({1 << 60},)")
    )
    yield case(
        "fortran_huge",
        "IncompleteCheckpoint",
        "Claims 2^30 x 2^30 elements in Fortran order: room to transpose them is made first.",
        npy(f"({1 << 30}, {1 << 30})").replace(b"False", b"True "),
    )
    yield case(
        "overflow",
        "InvalidCheckpoint",
        "A shape whose size is 0 in 64 bits: 2^32 x 2^32.",
        npy(f"({1 << 32}, {1 << 32})", data=b""),
    )
    yield case(
        "pickle",
        "InvalidCheckpoint",
        "An array of objects: a call of a function.",
        npy("(1,)", "'|O'", _CALL),
    )
    yield case(
        "rank",
        "InvalidCheckpoint",
        "Two thousand axes, of which NumPy has 64.",
        npy(f"({'1, ' * 2000})"),
    )
    yield case(
        "header_past_end",
        "IncompleteCheckpoint",
        "The header claims more bytes than the file has.",
        npy(nbytes=60_000),
    )
    yield case(
        "truncated", "IncompleteCheckpoint", "The last byte of the array is missing.", npy()[:-1]
    )
    yield case("empty", "MalformedCheckpoint", "A file of no bytes.", b"")
    yield case("foreign", "MalformedCheckpoint", "A picture under the name of an array.", PICTURE)


def _make(arrays: Arrays) -> Files:
    """One array with the bytes of all."""
    file = io.BytesIO()
    np.save(file, np.concatenate(list(arrays.values())))
    return {"ck.npy": file.getvalue()}


EVIDENCE = {"npy": Evidence("npy/c_order/x.npy", npy_cases, file="ck.npy", make=_make)}

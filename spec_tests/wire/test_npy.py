"""The header of an npy array: against NumPy's own, and whatever is none."""

import ast
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.wire.npy import (
    NPY_DTYPES,
    NPY_MAGIC,
    NpyHeader,
    build_preamble,
    parse_preamble,
    preamble_nbytes,
)

DTYPES = [
    np.dtype(order + code)
    for order in "<>"
    for code in "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()
]
shapes = st.lists(st.integers(0, 6), max_size=5).map(tuple)


def written(array: np.ndarray[Any, Any], version: tuple[int, int] | None = None) -> bytes:
    """What NumPy writes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, allow_pickle=True)
    return file.getvalue()


def header_of(text: str | bytes, version: bytes = b"\1\0") -> bytes:
    """A header that says ``text``."""
    data = text if isinstance(text, bytes) else text.encode()
    return NPY_MAGIC + version + len(data).to_bytes(2 if version == b"\1\0" else 4, "little") + data


def parsed(text: str | bytes, version: bytes = b"\1\0") -> NpyHeader:
    """What is read of it."""
    return parse_preamble(header_of(text, version))


@given(
    st.sampled_from(DTYPES), shapes, st.booleans(), st.sampled_from([None, (1, 0), (2, 0), (3, 0)])
)
def test_what_numpy_writes_is_read(
    dtype: Any, shape: tuple[int, ...], is_fortran: bool, version: Any
) -> None:
    array = np.zeros(shape, dtype, order="F" if is_fortran else "C")
    data = written(array, version)
    nbytes = preamble_nbytes(data[:12], len(data))
    header = parse_preamble(data[:nbytes])
    assert np.dtype(header.dtype) == dtype.newbyteorder("=")
    assert (header.shape, header.nbytes, header.data_start) == (shape, array.nbytes, nbytes)
    assert nbytes + array.nbytes == len(data)
    part = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    assert header.swap_nbytes == (part if dtype.byteorder == ">" else 1)
    assert header.is_fortran == (not array.flags.c_contiguous)
    assert header.is_plain == (array.flags.c_contiguous and dtype.isnative)


@given(st.sampled_from(sorted(NPY_DTYPES)), shapes)
def test_a_header_is_written_as_numpy_writes_it(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert build_preamble(dtype, shape) + array.tobytes() == written(array)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }\n", (3, 4)),  # Python 2
        ("{\"shape\":(),'descr':\"<f4\",'fortran_order':False}", ()),
        ("  { 'descr' : '<f4' ,\n'fortran_order':False , 'shape':( 3 , ) }   \n", (3,)),
    ],
)
def test_any_spelling_of_the_dictionary_is_read(text: str, shape: tuple[int, ...]) -> None:
    assert parsed(text) == NpyHeader("float32", 4, 1, False, shape, len(header_of(text)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "None",
        "['<f4', False, (3,)]",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\0",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'strides': (4,), }",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': 'False', 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3.0,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e9,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)*2}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 0)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1,' * 65})}}",
        "{'descr': 'float32', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': 4, 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f5', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<q9', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': ('<f4', (6,)), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (1,)}",
        "{'d\\u0065scr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        "{" * 9000,
        "(" * 9000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + " " * 9000,
    ],
)
def test_what_is_no_header_is_refused(text: str) -> None:
    with pytest.raises((MalformedCheckpoint, InvalidCheckpoint)):
        parsed(text)


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (np.array([{"a": 1}], dtype=object), InvalidCheckpoint),
        (np.array(None, dtype=object), InvalidCheckpoint),
        (np.zeros(2, "S3"), UnsupportedError),
        (np.zeros(2, "V2"), UnsupportedError),
        (np.zeros(2, "U3"), UnsupportedError),
        (np.zeros(2, "M8[ns]"), UnsupportedError),
        (np.zeros(2, "m8[s]"), UnsupportedError),
        (np.zeros(2, np.longdouble), UnsupportedError),
        (np.zeros(2, "i4, f8"), UnsupportedError),
    ],
)
def test_arrays_that_are_no_tensors_are_refused_by_name(array: Any, error: type[Exception]) -> None:
    data = written(array)
    with pytest.raises(error) as raised:
        parse_preamble(data[: preamble_nbytes(data[:12], len(data))])
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (b"", MalformedCheckpoint),
        (b"\x93NUMPX\1\0\x76\0", MalformedCheckpoint),
        (NPY_MAGIC, MalformedCheckpoint),
        (NPY_MAGIC + b"\1\1\x76\0", MalformedCheckpoint),
        (NPY_MAGIC + b"\4\0\x76\0\0\0", MalformedCheckpoint),
        (NPY_MAGIC + b"\1\0\x76", IncompleteCheckpoint),
        (NPY_MAGIC + b"\1\0\xff\xff", IncompleteCheckpoint),
        (NPY_MAGIC + b"\2\0\xff\xff\xff\xff", IncompleteCheckpoint),
    ],
)
def test_a_header_that_is_cut_or_unknown_is_refused(first: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        preamble_nbytes(first, 200)


def test_a_header_of_another_encoding_or_of_ten_thousand_bytes_is_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match="10000"):
        preamble_nbytes(NPY_MAGIC + b"\1\0\xff\xff", 1 << 20)
    with pytest.raises(MalformedCheckpoint, match="utf-8"):
        parsed(b"{'descr': '\xff', 'fortran_order': False, 'shape': ()}", b"\3\0")


@given(st.text(alphabet="{}()[]'\",:<f4 \\descrfortran_ordershapeTrueFalse01L\n", max_size=80))
def test_no_text_raises_anything_but_a_clean_error(text: str) -> None:
    try:
        parsed(text)
    except (CheckpointError, UnsupportedError):
        return
    assert set(ast.literal_eval(text)) == {"descr", "fortran_order", "shape"}

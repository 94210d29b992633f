"""The dtypes of Zarr by their names in version 2 and version 3."""

import numpy as np

NATIVE = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128".split()
)
"""The dtypes of NumPy, which every reader of Zarr has."""
_EXTENDED = (
    "bfloat16 float8_e3m4 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn int4 int2"
).split()
DTYPES_V3 = {name: name for name in (*sorted(NATIVE), *_EXTENDED)}
"""dtypes by their names in version 3, which shardvar uses as well."""
DTYPES_V2 = {
    dtype.str: name
    for name in sorted(NATIVE)
    for dtype in (np.dtype(name), np.dtype(name).newbyteorder(">"))
}
DTYPES_V2 |= {name: name for name in _EXTENDED}
"""dtypes by their names in version 2, which has the names of NumPy's array interface, with a byte
order."""

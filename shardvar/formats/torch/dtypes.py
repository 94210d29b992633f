"""The names of torch's element types and storages, in the words of ``shardvar.layout.dtypes``."""

from shardvar.errors import UnsupportedError
from shardvar.layout.dtypes import NAMES

_SAME = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128 "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
).split()

DTYPES = {f"torch.{name}": name for name in _SAME}
"""The name of a dtype, by the name that a pickle imports."""

STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Half": "float16",
        "Float": "float32",
        "Double": "float64",
        "BFloat16": "bfloat16",
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Bool": "bool",
        "ComplexFloat": "complex64",
        "ComplexDouble": "complex128",
    }.items()
}
"""The dtype of a storage, by the name of its class."""

UNTYPED_STORAGE = "torch.storage.UntypedStorage"
"""The class of a storage whose size counts bytes; the tensor names the dtype."""


def dtype_of(name: str) -> str:
    """Return the dtype that a name means; ``UnsupportedError`` if NumPy does not have it."""
    found = DTYPES.get(name)
    if found is None or found not in NAMES:
        cause = f"It has the dtype {name}, which shardvar does not read."
        raise UnsupportedError(cause, "Cast the tensor with torch before it is saved.")
    return found

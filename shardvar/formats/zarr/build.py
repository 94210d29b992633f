"""Descriptions of arrays and groups as they are written, and the names of chunks.

Version 3 has the codecs ``bytes`` and ``crc32c``: 4 bytes after the elements of a chunk guard them,
and every reader of Zarr compares them. Version 2, which Orbax reads, has no such codec; its chunks
are the bare elements.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from shardvar.limits import MAX_TREE_NBYTES
from shardvar.wire.zarr_dtypes import DTYPES_V2, DTYPES_V3, NATIVE
from shardvar.wire.zarr_metadata import ARRAYS_ATTRIBUTE, COMPLETE

WRITTEN = frozenset(DTYPES_V3) - {"float4_e2m1fn", "int4", "int2"}
"""The dtypes that are written. Readers pack elements below a byte differently."""


def build_document(fields: Mapping[str, Any] | str) -> bytes:
    """Return a JSON document, the same bytes for the same fields.

    >>> build_document({"zarr_format": 3})
    b'{"zarr_format": 3}'
    """
    return json.dumps(fields, ensure_ascii=True).encode()


def build_group(attributes: Mapping[str, Any]) -> bytes:
    """Return the description of a group of version 3."""
    return build_document({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)})


def build_root(
    attributes: Mapping[str, str],
    nodes: Mapping[str, bytes],
    arrays: Sequence[str],
    dtypes: Collection[str],
) -> bytes:
    """Return the description of a group that says which arrays there should be (``lost``), by their
    paths ``arrays``.

    Consolidated metadata of the ``nodes`` below it, by path, name them. zarr-python parses all of
    these to open the group, and cannot parse a dtype that NumPy lacks. A group with one of these
    dtypes has an attribute instead, which lists the arrays: so its other arrays can be opened
    there.
    """
    group = build_group(attributes)
    whole = (
        b'%s, "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": '
        b"{%s}}}"
    )
    repeated = b", ".join(
        build_document(path) + b": " + node for path, node in sorted(nodes.items())
    )
    if {*dtypes} <= NATIVE and len(group) + len(whole) + len(repeated) <= MAX_TREE_NBYTES:
        return whole % (group.removesuffix(b"}"), repeated)
    listing = build_group({**attributes, ARRAYS_ATTRIBUTE: sorted(arrays)})
    return listing if len(listing) <= MAX_TREE_NBYTES else group


def build_array(key: str, dtype: str, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    """Return the description of an array of version 3.

    xarray opens only arrays whose axes have names, and takes axes of one name for the same. So the
    key is part of them.
    """
    order = (
        {} if np.dtype(_native(dtype)).itemsize == 1 else {"configuration": {"endian": "little"}}
    )
    return build_document(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _fill(dtype),
            "codecs": [{"name": "bytes", **order}, {"name": "crc32c"}],
            "attributes": COMPLETE,
            "dimension_names": [f"{key}.axis{axis}" for axis in range(len(shape))],
        }
    )


def build_array_v2(dtype: str, shape: Sequence[int], chunk_shape: Sequence[int]) -> bytes:
    """Return the description of an array of version 2."""
    return build_document(
        {
            "chunks": list(chunk_shape),
            "compressor": None,
            "dimension_separator": ".",
            "dtype": _NAMES_V2[dtype],
            "fill_value": None,
            "filters": None,
            "order": "C",
            "shape": list(shape),
            "zarr_format": 2,
        }
    )


def chunk_name(version: int, place: Sequence[int]) -> str:
    """Return the name of the chunk at a place of the grid, in the folder of its array.

    >>> chunk_name(3, (0, 1)), chunk_name(3, ()), chunk_name(2, (0, 1)), chunk_name(2, ())
    ('c/0/1', 'c', '0.1', '0')
    """
    if version == 3:
        return "/".join(["c", *map(str, place)])
    return ".".join(map(str, place)) or "0"


_NAMES_V2 = {dtype: name for name, dtype in DTYPES_V2.items() if not name.startswith(">")}
"""The names of version 2, for little-endian elements."""


def _native(dtype: str) -> str:
    """Return a dtype of NumPy's with the element size of ``dtype``."""
    return {"bfloat16": "uint16"}.get(dtype, "uint8" if dtype.startswith("float8") else dtype)


def _fill(dtype: str) -> Any:
    """Return the value of absent chunks. None are absent, but version 3 asks for one."""
    if dtype == "bool":
        return False
    if dtype.startswith("complex"):
        return [0.0, 0.0]
    return 0.0 if "float" in dtype else 0

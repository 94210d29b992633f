"""docs/apply_delta.py, the oracle of deltas, and the tensors that it takes."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.layout.dtypes import STRING
from shardvar.planning.index import DELTA
from spec_tests.helpers.paths import module_of_page

Arrays = Mapping[str, Any]


PAGE = module_of_page("apply_delta")
"""The module."""


def data_of(array: Any) -> bytes:
    """The data of a tensor, as the digest has them."""
    if array.dtype != object:
        return bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return b"".join(len(each).to_bytes(8, "little") + each for each in array.ravel().tolist())


def name_of(array: Any) -> str:
    return STRING if array.dtype == object else str(array.dtype.name)


def tensors_of(arrays: Arrays) -> dict[str, Any]:
    """Arrays as the page has tensors: dtype, shape and data."""
    return {key: (name_of(each), each.shape, data_of(each)) for key, each in arrays.items()}


def result_of(base: Arrays, delta: Arrays, mark: str) -> dict[str, Any]:
    """The tensors that a delta makes of its base; all are loaded."""
    result: dict[str, Any] = PAGE.apply_delta(tensors_of(base), tensors_of(delta), mark)
    return result


def mask_octets(encoding: int, body: bytes, count: int, nbytes: int, width: int) -> bytes:
    """The bytes of a mask."""
    return np.asarray(PAGE.mask_of(encoding, body, count, nbytes, width)).tobytes()


def stored(path: Path) -> tuple[dict[str, Any], str]:
    """The tensors of a delta, and its mark."""
    with sv.open_checkpoint(path) as reader:
        return {key: reader.read(key) for key in reader}, reader.metadata.user[DELTA]


def rewrite_delta(path: Path, change: Callable[[Any, Any, Any], object]) -> None:
    """Write a delta again with a change of its tensors, its mark and its rows by key: its checksums
    are right."""
    tensors, text = stored(path)
    mark, document = json.loads(text), json.loads(tensors["table"].tobytes())
    change(tensors, mark, {each["key"]: each for each in document["tensors"]})
    tensors["table"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    sv.save(path, tensors, metadata={DELTA: json.dumps(mark)})

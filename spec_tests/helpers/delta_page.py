"""docs/apply_delta.py, the oracle of deltas, and the tensors that it takes."""

import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from spec_tests.helpers.native_deltas import data_of, name_of
from spec_tests.helpers.paths import DOCS

Arrays = Mapping[str, Any]


def _import() -> ModuleType:
    spec = importlib.util.spec_from_file_location("apply_delta", DOCS / "apply_delta.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = _import()
"""The module."""


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

"""Checkpoints of objects: written from one layout, read into another."""

import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.region import Region, format_slice_text
from shardvar.reference.objects.checkpoint import Checkpoint
from shardvar.reference.objects.export import export, load_exported
from shardvar.reference.objects.stored_graph import GRAPH_KEY
from shardvar.reference.training.module import Module
from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.verbs.load import open_checkpoint
from spec_tests.tensorflow_recordings.cases import (
    AnyOf,
    Outcome,
    Rule,
    decode,
    difference,
    is_array,
)

Array = np.ndarray[Any, Any]


def _sharded(value: Array, sizes: list[int]) -> ShardedVariable:
    bounds = np.cumsum([0, *sizes])
    parts = [value[start:stop] for start, stop in pairwise(bounds)]
    return ShardedVariable(
        [Variable(part, name=f"w/part_{number}") for number, part in enumerate(parts)]
    )


def _module(value: Array, sizes: list[int], is_plain: bool = False) -> Module:
    module = Module()
    module.w = Variable(value, name="w") if is_plain else _sharded(value, sizes)
    return module


def _parts(variable: Any) -> list[Array]:
    return [part.numpy() for part in getattr(variable, "variables", [variable])]


def _zeros(sizes: list[int], columns: int, dtype: str) -> Array:
    shape = (sum(sizes), *([columns] if columns else []))
    return np.full(shape, b"" if dtype == "string" else 0, numpy_dtype(dtype))


def _save_restore(inputs: Mapping[str, Any]) -> Any:
    value = decode(inputs["data"]).astype(
        numpy_dtype(inputs.get("src_dtype", inputs["data"]["dtype"]))
    )
    columns = inputs.get("cols", 0 if value.ndim == 1 else value.shape[1])
    dtype = inputs.get("dst_dtype", inputs["data"]["dtype"])
    zeros = _zeros(inputs["dst_shard_sizes"], inputs.get("dst_cols", columns), dtype)
    target = _module(zeros, inputs["dst_shard_sizes"], inputs.get("dst_plain", False))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        Checkpoint(
            m=_module(value, inputs["src_shard_sizes"], inputs.get("src_plain", False))
        ).write(path)
        with open_checkpoint(path) as reader:
            keys = [[key, list(reader[key].shape)] for key in sorted(reader) if key != GRAPH_KEY]
        Checkpoint(m=target).read(path).assert_consumed()
    return {"keys": keys, "restored": _parts(target.w)}


def _delayed_restore(inputs: Mapping[str, Any]) -> list[Array]:
    rows = sum(inputs["src_shard_sizes"])
    value = np.arange(1, 2 * rows + 1, dtype=np.float32).reshape(rows, 2)
    module = Module()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        Checkpoint(m=_module(value, inputs["src_shard_sizes"])).write(path)
        status = Checkpoint(m=module).read(path)
        module.w = _sharded(
            _zeros(inputs["dst_shard_sizes"], 2, "float32"), inputs["dst_shard_sizes"]
        )
        status.assert_consumed()
    return _parts(module.w)


def _save_slice_spec(inputs: Mapping[str, Any]) -> str:
    if not inputs["full_shape"]:
        return " "  # TensorFlow's text of all of a scalar, of which a format writes no slices
    return format_slice_text(
        inputs["full_shape"], Region(inputs["var_offset"], inputs["var_shape"])
    )


def _component_also_attribute(inputs: Mapping[str, Any]) -> Any:
    module = _module(np.arange(10, dtype=np.float32).reshape(5, 2), [3, 2])
    module.s0 = module.w.variables[0]


class _Loaded(dict[str, Any]):
    """What is told of a loaded variable, by the names that a recording gives it."""

    def get(self, name: str, default: Any = None) -> Any:
        """The fact that a name means: the words of a fact are a part of it."""
        facts = (fact for words, fact in self.items() if set(words.split()) & set(name.split("_")))
        return next(facts, default)


def _loaded(value: Array, sizes: list[int]) -> AnyOf:
    """What is told of a module's sharded variable after it was exported and loaded: several facts,
    or one of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        export(_module(value, sizes), path, format="tensorflow")
        with open_checkpoint(path / "variables" / "variables") as reader:
            keys = [[key, list(reader[key].shape)] for key in sorted(reader) if key != GRAPH_KEY]
        loaded = load_exported(path).w
    # A loaded variable of TensorFlow is one whose value was not given to its constructor.
    kinds = AnyOf((type(loaded).__name__, "UninitializedVariable"))
    keys_of = AnyOf((keys, [[f"m/{key}", shape] for key, shape in keys]))
    values = AnyOf((loaded.numpy(), [loaded.numpy()]))
    facts = {
        "sharded": isinstance(loaded, ShardedVariable),
        "type class kind": kinds,
        "shape": list(loaded.shape),
        "dtype": loaded.dtype.name,
        "name": f"{loaded.name}:0",
        "names": [f"{loaded.name}:0"],
        "keys variables": keys_of,
        "trainable": loaded.trainable,
        "num count": 1,
        "value values numpy data w loaded restored": values,
    }
    return AnyOf((_Loaded(facts), *facts.values()))


def _saved_model(inputs: Mapping[str, Any]) -> AnyOf:
    sizes = inputs.get("src_shard_sizes", inputs.get("shard_sizes", [3, 2]))
    value = np.arange(1, 2 * sum(sizes) + 1, dtype=np.float32).reshape(-1, 2)
    return _loaded(decode(inputs["data"]) if "data" in inputs else value, sizes)


def _loaded_law(expected: Any) -> AnyOf:
    """With the first array of the answer as the value."""
    parts = expected.values() if isinstance(expected, Mapping) else expected
    given = [part for part in (expected, *parts) if is_array(part)]
    if not given:
        return _saved_model({})
    value = decode(given[0])
    return _loaded(value, [len(value) - len(value) // 2, len(value) // 2])


LAWS = {"saved_model": _loaded_law}


OPS = {
    "saved_model": _saved_model,
    "save_restore": _save_restore,
    "delayed_restore": _delayed_restore,
    "save_slice_spec": _save_slice_spec,
    "component_also_attribute": _component_also_attribute,
}


def _comes_back(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Return True if the restored parts are the value, cut by the target's sizes."""
    inputs = case["inputs"]
    if case["op"] != "save_restore" or outcome.error is not None:
        return False
    sizes = (
        [sum(inputs["dst_shard_sizes"])] if inputs.get("dst_plain") else inputs["dst_shard_sizes"]
    )
    value = decode(inputs["data"])
    right = np.split(value, np.cumsum(sizes)[:-1])
    same = all(
        np.array_equal(ours, part)
        for ours, part in zip(outcome.value["restored"], right, strict=True)
    )
    return same and sum(sizes) == len(value)


def _empty_shard(case: Mapping[str, Any], outcome: Outcome) -> bool:
    inputs = case["inputs"]
    has_empty = (
        0 in inputs["data"]["shape"]
        or 0 in inputs["dst_shard_sizes"]
        or 0 in inputs["src_shard_sizes"]
    )
    return has_empty and _comes_back(case, outcome)


def _dtype_without_slices(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow writes slices of any dtype, and reads back slices of some."""
    return (
        "error" in case
        and case["inputs"]["data"]["dtype"] in _UNREADABLE
        and _comes_back(case, outcome)
    )


_UNREADABLE = ("string", "float16", "uint16", "uint32", "uint64")


def _component(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "component_also_attribute" and isinstance(outcome.error, ArgumentError)


def _named_variable(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The loaded variable bears the sharded one's name, and all else is as recorded."""
    expected = case.get("expected")
    if case["op"] != "saved_model" or not isinstance(expected, Mapping):
        return False
    rest = {key: value for key, value in expected.items() if "name" not in key}
    return bool(rest) and difference(outcome.value, rest) is None


RULES = [
    Rule("D-CREATE-1", _named_variable),
    Rule("D-CKPT-1", _empty_shard),
    Rule("D-CKPT-2", _component),
    Rule("D-CKPT-3", _dtype_without_slices),
]

"""Construction of ShardedVariable from a list of variables: geometry, names, errors, which
attributes exist."""

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import dtype_name, numpy_dtype
from shardvar.reference.devices import Device
from shardvar.reference.variables import ShardedVariable, Variable
from spec_tests.tensorflow_recordings.building import told
from spec_tests.tensorflow_recordings.cases import AnyOf, Outcome, Rule


def _construct(inputs: Mapping[str, Any]) -> Any:
    if "variables" in inputs:
        return list(ShardedVariable(_described(inputs["variables"])).shape)
    variables = [
        Variable(
            np.full(shape, b"" if dtype == "string" else 0, numpy_dtype(dtype)),
            name=inputs.get("name"),
        )
        for shape, dtype in zip(inputs["shapes"], inputs["dtypes"], strict=True)
    ]
    container = tuple(variables) if inputs.get("container") == "tuple" else variables
    sharded = ShardedVariable(
        container, **({"name": inputs["sv_name"]} if "sv_name" in inputs else {})
    )
    return {
        "shape": list(sharded.shape),
        "dtype": dtype_name(sharded.dtype),
        "name": sharded.name,
        "num_shards": len(sharded.variables),
        "offsets": [list(part.offset) for part in sharded.partition],
        "specs": [spec_text(sharded.shape, part) for part in sharded.partition],
    }


def spec_text(shape: Iterable[int], part: Any) -> str:
    """TensorFlow's text of a slice; shardvar's own printer refuses empty ones, which TensorFlow
    cannot save either."""
    extents = ":".join(
        f"{start},{count}" for start, count in zip(part.offset, part.shape, strict=True)
    )
    return f"{' '.join(map(str, shape))} {extents}"


def _described(variables: Any) -> Any:
    if variables == "generator of variables":
        return (Variable([1.0]) for _ in range(2))
    if variables == "variable with SaveSliceInfo already set":
        variable = Variable([1.0])
        variable.kept = ShardedVariable([variable])
        return [variable]
    if isinstance(variables, str):
        return _in_words(variables)
    if isinstance(variables, list):
        return [Variable([1.0]) if item == "<variable>" else item for item in variables]
    return variables


def _in_words(text: str) -> Any:
    shape = re.search(r"shape=(\[.*?\])", text)
    if "unknown" in text:
        declared = None if shape is None else ast.literal_eval(shape[1])
        return [
            Variable(
                np.zeros([extent or 3 for extent in declared or (1, 3)], np.float32), shape=declared
            )
        ]
    if "twice" in text:
        return [Variable([1.0])] * 2
    if "two containers" in text or "shared" in text:
        variable = Variable([1.0])
        variable.kept = ShardedVariable([variable])
        return [variable]
    if "scalar" in text:
        return [Variable(1.0)]
    if "nested" in text:
        return [[Variable([1.0])]]
    if "ShardedVariable" in text:
        sharded = ShardedVariable([Variable([1.0])])
        return [sharded] if "list" in text or "in a" in text else sharded
    if "variable" in text:
        one, other = Variable([1.0]), Variable([2.0])
        words = set(re.findall("[a-z]+", re.sub(r"\(.*?\)", "", text.lower())))
        forms = {
            "tuple": (one, other),
            "set": {one, other},
            "dict": {"a": one},
            "list": [one, other],
        }
        return next((form for word, form in forms.items() if word in words), one)
    value = told(text)
    return [value] if isinstance(value, np.ndarray) else value


def _shared(inputs: Mapping[str, Any]) -> Any:
    variable = Variable([1.0])
    kept = ShardedVariable([variable])
    return [list(kept.shape), list(ShardedVariable([variable]).shape)]


def _collides(inputs: Mapping[str, Any]) -> bool:
    """Whether what tells them apart, which is identity and never a name, is one for both."""
    first = Variable([1.0], name=inputs["shard0_name"])
    sharded = ShardedVariable([first, Variable([2.0])])
    return hash(sharded) == id(first) or sharded is first


def _hash(inputs: Mapping[str, Any]) -> Any:
    """Whether the hash is the object's, told as a truth or by its type."""
    sharded = ShardedVariable([Variable([1.0])])
    return AnyOf((hash(sharded) == object.__hash__(sharded), type(hash(sharded)).__name__))


OPS = {
    "hash": _hash,
    "same_variable_twice": lambda inputs: list(ShardedVariable([Variable([1.0])] * 2).shape),
    "shared_between_two_containers": _shared,
    "ShardedVariable": _construct,
    "trainable_of_saving_variable": lambda inputs: (
        ShardedVariable([Variable([1.0], trainable=flag) for flag in inputs["trainable"]]).trainable
    ),
    "unique_id_collides_with_shard0": _collides,
    "hasattr": lambda inputs: hasattr(
        ShardedVariable([Variable([1.0], device=Device("ps:0"))]), inputs["attr"]
    ),
}

OF_THE_INTERFACE = {
    "__array__",
    "__array_function__",
    "__array_ufunc__",
    "__bool__",
    "__complex__",
    "__copy__",
    "__deepcopy__",
    "__float__",
    "__int__",
    "device",
    "gather_nd",
    "read_value",
    "trainable",
    "value",
}
"""Attributes that TensorFlow's container lacks and RFC 000, the interface of variables or NumPy's
protocols give."""


def _has_what_the_interface_has(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return (
        case["op"] == "hasattr"
        and case["inputs"]["attr"] in OF_THE_INTERFACE
        and outcome.value is True
    )


def _mixed_trainable(case: Mapping[str, Any], outcome: Outcome) -> bool:
    flags = case["inputs"].get("trainable", [])
    return case["op"] == "trainable_of_saving_variable" and len(set(flags)) > 1 and outcome.refused


def _no_collision(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "unique_id_collides_with_shard0" and outcome.value is False


def _unknown_shape(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """A shape that is known after all, with the unknown dimensions filled in."""
    return "unknown" in str(case["inputs"].get("variables")) and isinstance(outcome.value, list)


def _scalar(case: Mapping[str, Any], outcome: Outcome) -> bool:
    is_scalar = [] in case["inputs"].get("shapes", []) or "scalar" in str(
        case["inputs"].get("variables")
    )
    return is_scalar and isinstance(outcome.error, LayoutError)


def _twice_or_shared(case: Mapping[str, Any], outcome: Outcome) -> bool:
    text = f"{case['op']} {case['inputs'].get('variables')}"
    return any(word in text for word in ("twice", "shared", "two containers")) and isinstance(
        outcome.error, LayoutError
    )


def _internals(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Return True for attributes that TensorFlow's own modules use, and no user."""
    attribute = case["inputs"].get("attr", "")
    return (
        attribute.startswith("_") or attribute == "is_sharded_variable"
    ) and outcome.value is False


RULES = [
    Rule("D-SV-1", _has_what_the_interface_has),
    Rule("D-SV-2", _mixed_trainable),
    Rule("D-SV-3", _no_collision),
    Rule("D-SV-4", _unknown_shape),
    Rule("D-SV-5", _scalar),
    Rule("D-SV-6", _twice_or_shared),
    Rule("D-SV-7", _internals),
]

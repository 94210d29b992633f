"""Conversion, operators and Python's protocols: the vectors' expressions, evaluated with the
engine's variables."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar.layout.dtypes import dtype_name
from shardvar.reference.variables import ShardedVariable, Variable, name_scope
from spec_tests.tensorflow_recordings.building import sharded
from spec_tests.tensorflow_recordings.cases import (
    Outcome,
    Rule,
    decode,
    difference,
    encoded,
    is_array,
)
from spec_tests.tensorflow_recordings.constructor import OF_THE_INTERFACE
from spec_tests.tensorflow_recordings.tf_names import namespace

_ITERATION = re.compile(
    r"\b(list|tuple|iter|sum|zip|enumerate|sorted|max|min|map)\((.*, )?\*?s\b|\bin s\b|\*s\b"
)


class _Shape(tuple[int, ...]):
    """With the names of TensorFlow's shapes."""

    rank = ndims = property(len)

    def as_list(self) -> list[int]:
        """The extents."""
        return list(self)


class _Seen(ShardedVariable):
    """With the names by which TensorFlow's own tests look at shards and shapes."""

    @property
    def shape(self) -> tuple[int, ...]:
        return _Shape(super().shape)


_Seen.__name__ = "ShardedVariable"


def _names(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names that an expression may use: the case's variables or a default, NumPy's and
    TensorFlow's."""
    variables = {
        name: sharded(value)
        for name, value in inputs.items()
        if isinstance(value, list) and is_array(value[0])
    }
    if "s" not in variables:
        variables["s"] = ShardedVariable(
            [
                Variable(np.ones((rows, 2), np.float32), name=f"w/part_{i}")
                for i, rows in enumerate((3, 3, 2))
            ]
        )
        variables["o"] = ShardedVariable(
            [Variable(np.ones((rows, 2), np.float32)) for rows in (2, 6)]
        )
    for variable in variables.values():
        variable.__class__ = _Seen
    arrays = {name: decode(value) for name, value in inputs.items() if is_array(value)}
    return {
        "np": np,
        "tf": namespace(),
        "copy": copy,
        "SV": ShardedVariable,
        "V": Variable,
        **variables,
        **arrays,
    }


def _python(inputs: Mapping[str, Any]) -> Any:
    value = _plain(_evaluate(inputs["expr"], _names(inputs)))
    is_tensor = isinstance(value, str) and value == "ndarray" and ".numpy()" not in inputs["expr"]
    return "EagerTensor" if is_tensor else value  # a tensor is an array here


def _evaluate(expression: str, names: dict[str, Any]) -> Any:
    expression = re.sub(
        r"(?<=[)\]])\.numpy\(\)", "", expression
    )  # of a tensor, which is an array here
    return eval(expression, names)  # noqa: S307 - the cases are expressions; the program says to trust them


def _plain(value: Any) -> Any:
    """As JSON would say it, in TensorFlow's words."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, str):
        return f"{value}:0" if value.startswith("w/part_") else value
    return value


def _in_name_scope(inputs: Mapping[str, Any]) -> Any:
    variable = sharded(inputs["s"])
    with name_scope("user_embedding_lookup"):
        if inputs["body"] == "getitem":
            return variable[0]
        if inputs["body"] == "matmul":
            return np.ones((1, variable.shape[0]), np.float32) @ variable
        return np.asarray(variable)


OPS = {
    "expr": lambda inputs: _evaluate(inputs["expr"], _names(inputs)),
    "python": _python,
    "in_name_scope_containing_embedding_lookup": _in_name_scope,
}


def _numpys(case: Mapping[str, Any]) -> Any:
    """The expression's value where variables are arrays."""
    names = _names(case["inputs"])
    dense = {
        name: np.asarray(value) if isinstance(value, ShardedVariable) else value
        for name, value in names.items()
    }
    return _evaluate(case["inputs"]["expr"], dense)


def _is_numpys(case: Mapping[str, Any], outcome: Outcome) -> bool:
    if case["op"] != "expr" or outcome.error is not None:
        return False
    return difference(outcome.value, encoded(np.asarray(_numpys(case)))) is None


def _promotes_as_numpy(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Operands of two dtypes: NumPy promotes, TensorFlow refuses, or casts an array to the
    variable's dtype."""
    wanted = case.get("expected")
    differs = wanted is None or dtype_name(np.asarray(outcome.value).dtype) != wanted["dtype"]
    return differs and _is_numpys(case, outcome)


def _numpy_converts(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "This allows any Python op to accept sharded variable objects" - NumPy's too."""
    text = case["inputs"].get("expr", "")
    if case["op"] != "python" or not text.startswith("np.") or outcome.error is not None:
        return False
    return outcome.value is False or bool(outcome.value == _plain(_numpys(case)))


def _none_is_an_operand(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Compared with None, each element is, as in NumPy."""
    return "None" in case["inputs"].get("expr", "") and _is_numpys(case, outcome)


def _has_what_the_interface_has(case: Mapping[str, Any], outcome: Outcome) -> bool:
    attribute = case["inputs"].get("expr", "").removeprefix("s.")
    return attribute in OF_THE_INTERFACE and "error" in case and outcome.error is None


def _identity_is_the_value(case: Mapping[str, Any], outcome: Outcome) -> bool:
    text = case["inputs"].get("expr", "")
    return text.startswith(("tf.identity", "tf.stop_gradient")) and isinstance(
        outcome.value, np.ndarray
    )


def _names_mean_nothing(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow refuses the conversion where the current name scope contains a certain word."""
    return (
        case["op"].startswith("in_name_scope")
        and "error" in case
        and isinstance(outcome.value, np.ndarray)
    )


def _arrays_may_come_first(case: Mapping[str, Any], outcome: Outcome) -> bool:
    text = case["inputs"].get("expr", "")
    is_array_first = text.startswith("np.ones") and "error" in case
    return is_array_first and isinstance(outcome.value, np.ndarray)


def _rounds_as_numpy(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Powers, exponentials, roots and their like: two libraries may differ in the last bits. Right
    is NumPy's value."""
    if "expected" not in case or not _is_numpys(case, outcome):
        return False
    theirs = decode(case["expected"])
    same_kind = theirs.shape == np.shape(outcome.value) and theirs.dtype.kind == "f"
    return same_kind and bool(
        np.allclose(outcome.value, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
    )


def _iterates_over_rows(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: code "doesn't need to change w.r.t whether the variable is sharded or not":
    iteration gives rows."""
    text = case["inputs"].get("expr", "")
    if not _ITERATION.search(text) or outcome.error is not None:
        return False
    if "_variables" not in text:
        return bool(outcome.value == _plain(_numpys(case)))
    return outcome.value == [
        _names(case["inputs"])["s"].shape[0],
        False,
    ]  # as many as rows, and the first no shard


def _is_a_variable(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 003: "Implement PartitionedVariable as a subclass of the tf.Variable interface"."""
    return case["inputs"].get("expr") == "isinstance(s, tf.Variable)" and outcome.value is True


def _has_the_truth_of_an_array(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["inputs"].get("expr") in ("bool(s)", "not s") and outcome.refused


RULES = [
    Rule("D-OP-1", _promotes_as_numpy),
    Rule("D-OP-2", _numpy_converts),
    Rule("D-OP-3", _identity_is_the_value),
    Rule("D-OP-4", _names_mean_nothing),
    Rule("D-OP-5", _arrays_may_come_first),
    Rule("D-OP-6", _rounds_as_numpy),
    Rule("D-OP-7", _none_is_an_operand),
    Rule("D-OP-8", _iterates_over_rows),
    Rule("D-OP-9", _has_the_truth_of_an_array),
    Rule("D-SV-1", _has_what_the_interface_has),
    Rule("D-SV-8", _is_a_variable),
]

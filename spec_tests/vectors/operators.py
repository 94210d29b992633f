"""Conversion, operators and Python's protocols: the vectors' expressions, evaluated with the engine's variables."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardvar.variables import ShardedVariable, Variable, name_scope
from vectors.building import sharded
from vectors.cases import Outcome, Rule, decode, difference, is_array
from vectors.tf_names import namespace

_TYPE_NAMES = {"ndarray": "EagerTensor"}
"""A tensor is an array here."""


class _Seen(ShardedVariable):
    """With the name by which TensorFlow's own tests look at the shards."""

    @property
    def _variables(self) -> list[Variable]:
        return self.variables


def _names(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What an expression may use: the variables of the case, or a default, and NumPy and TensorFlow's names."""
    variables = {
        name: sharded(value) for name, value in inputs.items() if isinstance(value, list) and is_array(value[0])
    }
    if "s" not in variables:
        variables["s"] = ShardedVariable(
            [Variable(np.ones((rows, 2), np.float32), name=f"w/part_{i}") for i, rows in enumerate((3, 3, 2))]
        )
        variables["o"] = ShardedVariable([Variable(np.ones((rows, 2), np.float32)) for rows in (2, 6)])
    for variable in variables.values():
        variable.__class__ = _Seen
    arrays = {name: decode(value) for name, value in inputs.items() if is_array(value)}
    return {"np": np, "tf": namespace(), "copy": copy, "SV": ShardedVariable, "V": Variable, **variables, **arrays}


def _expr(inputs: Mapping[str, Any]) -> Any:
    return _evaluate(inputs["expr"], _names(inputs))


def _python(inputs: Mapping[str, Any]) -> Any:
    return _plain(_evaluate(inputs["expr"], _names(inputs)))


def _evaluate(expression: str, names: dict[str, Any]) -> Any:
    return eval(expression, names)  # noqa: S307 - the vectors are expressions; run_vectors says to trust them


def _plain(value: Any) -> Any:
    """As JSON would say it, in TensorFlow's words."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, str):
        text = _TYPE_NAMES.get(value, value.replace("_Seen", "ShardedVariable"))
        return f"{text}:0" if text.startswith("w/part_") else text
    return value


def _in_name_scope(inputs: Mapping[str, Any]) -> Any:
    variable = sharded(inputs["s"])
    with name_scope("user_embedding_lookup"):
        if inputs["body"] == "getitem":
            return variable[0]
        if inputs["body"] == "matmul":
            return np.ones((1, variable.shape[0]), np.float32) @ variable
        return np.asarray(variable)


OPS = {"expr": _expr, "python": _python, "in_name_scope_containing_embedding_lookup": _in_name_scope}


def _promotes_as_numpy(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """Operands of two dtypes: NumPy promotes, TensorFlow refuses, or casts an array to the variable's dtype."""
    if case["op"] != "expr" or outcome.error is not None:
        return False
    names = _names(case["inputs"])
    dense = {name: np.asarray(value) if isinstance(value, ShardedVariable) else value for name, value in names.items()}
    plain = _evaluate(case["inputs"]["expr"], dense)
    wanted = case.get("expected")
    differs = wanted is None or str(np.asarray(plain).dtype) != wanted["dtype"]
    return differs and difference(outcome.value, _encoded(np.asarray(plain))) is None


def _numpy_converts(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "This allows any Python op to accept sharded variable objects" - NumPy's too."""
    text = case["inputs"].get("expr", "")
    return case["op"] == "python" and text.startswith("np.") and outcome.value is False


def _identity_is_the_value(case: Mapping[str, Any], outcome: Outcome) -> bool:
    text = case["inputs"].get("expr", "")
    return text.startswith(("tf.identity", "tf.stop_gradient")) and isinstance(outcome.value, np.ndarray)


def _names_mean_nothing(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow refuses the conversion where the current name scope contains a certain word."""
    return case["op"].startswith("in_name_scope") and "error" in case and isinstance(outcome.value, np.ndarray)


def _arrays_may_come_first(case: Mapping[str, Any], outcome: Outcome) -> bool:
    text = case["inputs"].get("expr", "")
    is_array_first = text.startswith("np.ones") and "error" in case
    return is_array_first and isinstance(outcome.value, np.ndarray)


def _rounds_powers_as_numpy(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """A power is a transcendental function: two libraries may differ in the last bits."""
    if "**" not in case["inputs"].get("expr", "") or "expected" not in case or outcome.error is not None:
        return False
    return bool(np.allclose(outcome.value, decode(case["expected"]), rtol=4 * 2.0**-23, atol=0, equal_nan=True))


def _encoded(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.tolist()}


RULES = [
    Rule("D-OP-1", _promotes_as_numpy),
    Rule("D-OP-2", _numpy_converts),
    Rule("D-OP-3", _identity_is_the_value),
    Rule("D-OP-4", _names_mean_nothing),
    Rule("D-OP-5", _arrays_may_come_first),
    Rule("D-OP-6", _rounds_powers_as_numpy),
]

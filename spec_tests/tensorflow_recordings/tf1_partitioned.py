"""Variables of TensorFlow 1's `get_variable(partitioner=...)`, which the creation of sharded
variables replaces."""

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.shard_counts import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from shardvar.reference.variables import ShardedVariable, create_sharded_variable, initializers
from spec_tests.tensorflow_recordings.building import told
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, Skipped, difference
from spec_tests.tensorflow_recordings.constructor import spec_text

_CALL = re.compile(r"(?:v1\.)?(\w+)\((.*)\)")
_MAKERS: dict[str, Callable[..., Any]] = {
    "fixed": fixed_size_partitioner,
    "fixed_size": fixed_size_partitioner,
    "min_max": lambda *args, **kwargs: min_max_variable_partitioner(
        *args, rounding="ceil", **kwargs
    ),
    "variable_axis_size": variable_axis_size_partitioner,
}
_KEYWORDS = {"min_slice": "min_slice_size"}


def partitioner_of(text: str) -> Callable[..., Any]:
    """The partitioner that ``fixed(2,axis=1)``, ``min_max(3,min_slice=4)`` or ``returns [5]``
    names."""
    if text.startswith("returns "):
        answer = _answer_of(text.removeprefix("returns "))
        return lambda shape, dtype: answer
    found = _CALL.fullmatch(text)
    name = "" if found is None else found[1].removesuffix("_partitioner").removesuffix("_variable")
    if found is None or name not in _MAKERS:
        raise Skipped(text)
    args, keywords = arguments_of(found[2])
    return _MAKERS[name](
        *args, **{_KEYWORDS.get(key, key): value for key, value in keywords.items()}
    )


def _answer_of(text: str) -> Any:
    found = re.fullmatch(r"(?:np\.|numpy )?(ndarray|array)[( ](.*?)\)?", text)
    return told(text) if found is None else np.array(ast.literal_eval(found[2]))


def arguments_of(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call, which are literals: ``2,axis=1`` is 2 and ``{"axis": 1}``."""
    call = ast.parse(f"f({text})", mode="eval").body
    args = [ast.literal_eval(argument) for argument in call.args]  # type: ignore[attr-defined]
    return args, {item.arg: ast.literal_eval(item.value) for item in call.keywords}  # type: ignore[attr-defined]


_RANDOM = ("random", "normal", "uniform", "orthogonal", "scaling", "glorot")


def _initial_value(text: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The full value that an initializer's name means. The random ones of TensorFlow 1 draw from a
    stateful stream."""
    name = text.removeprefix("v1 ").partition("(")[0].strip()
    if name.startswith("constant"):
        return initializers.Constant(_constant(text, shape))(shape)
    if name == "identity":
        return initializers.Identity()(shape)
    if name in ("ones", "zeros") or any(word in text for word in _RANDOM):
        return np.ones(shape, np.float32) if name == "ones" else np.zeros(shape, np.float32)
    return np.asarray(told(text, shape), np.float32)


def _constant(text: str, shape: tuple[int, ...]) -> Any:
    """The number or the list in the text; where it only says that there is a list, the numbers from
    0 on."""
    try:
        return np.asarray(
            ast.literal_eval(text.partition("(")[2].rpartition(")")[0].rpartition("=")[2]),
            np.float32,
        )
    except (SyntaxError, TypeError, ValueError):
        return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def _get_variable(inputs: Mapping[str, Any]) -> Any:
    value = _initial_value(inputs["initializer"], tuple(inputs["shape"]))
    variable = create_sharded_variable(value, partitioner_of(inputs["partitioner"]), name="w")
    if not isinstance(variable, ShardedVariable):
        return {"partitioned": False, "name": f"{variable.name}:0", "value": variable.numpy()}
    parts = variable.partition.parts
    return {
        "partitioned": True,
        "name": variable.name,
        "names": [f"{shard.name}:0" for shard in variable.variables],
        "sizes": [list(part.shape) for part in parts],
        "offsets": [list(part.offset) for part in parts],
        "specs": [spec_text(inputs["shape"], part) for part in parts],
        "values": [shard.numpy() for shard in variable.variables],
    }


OPS = {"get_variable": _get_variable}


def _answer(case: Mapping[str, Any]) -> list[int]:
    inputs = case["inputs"]
    return list(partitioner_of(inputs["partitioner"])(tuple(inputs["shape"]), "float32"))


def _another_axis(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "We are only going to support partitioning on the first / outermost axis"."""
    is_other = any(count > 1 for count in _answer(case)[1:])
    return is_other and isinstance(outcome.error, LayoutError)


def _one_part(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "We will fall back to creating normal variables when there are less than two
    partitions"."""
    return (
        all(count == 1 for count in _answer(case))
        and outcome.error is None
        and not outcome.value["partitioned"]
    )


def _more_parts_than_rows(case: Mapping[str, Any], outcome: Outcome) -> bool:
    rows = case["inputs"]["shape"][0]
    clamped = outcome.error is None and (outcome.value.get("sizes") or [[]])[0][:1] == [1]
    return _answer(case)[0] > rows and clamped and len(outcome.value["sizes"]) == rows


def _shorter_than_the_rank(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """As TensorFlow 2: axes that the answer leaves out stay whole."""
    answer, shape = _answer(case), case["inputs"]["shape"]
    return (
        0 < len(answer) < len(shape)
        and outcome.error is None
        and len(outcome.value["sizes"]) == answer[0]
    )


def _stateful_random(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The streams of TensorFlow 1's random operations belong to a session; everything but the
    values is as there."""
    name = case["inputs"]["initializer"]
    if not any(word in name for word in _RANDOM):
        return False
    rest = {key: value for key, value in case.get("expected", {}).items() if key != "values"}
    return bool(rest) and difference(outcome.value, rest) is None


def _constants_are_sliced(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "creating the entire value and do slicing"; TensorFlow 1 asks a list for the part's
    shape."""
    if (
        "constant" not in case["inputs"]["initializer"]
        or "error" not in case
        or outcome.error is not None
    ):
        return False
    value = _initial_value(case["inputs"]["initializer"], tuple(case["inputs"]["shape"]))
    return np.array_equal(np.concatenate(outcome.value["values"]), value)


RULES = [
    Rule("D-TF1-1", _another_axis),
    Rule("D-TF1-2", _one_part),
    Rule("D-TF1-3", _more_parts_than_rows),
    Rule("D-TF1-4", _shorter_than_the_rank),
    Rule("D-TF1-5", _stateful_random),
    Rule("D-TF1-6", _constants_are_sliced),
]

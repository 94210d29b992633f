"""Plain variables: creators, snapshots, what assignments return and refuse."""

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from shardvar.layout.dtypes import numpy_dtype
from shardvar.reference.variables import IndexedSlices, Variable, variable_creator_scope
from spec_tests.tensorflow_recordings.building import evaluated, noting, told
from spec_tests.tensorflow_recordings.cases import (
    AnyOf,
    Outcome,
    Rule,
    decode,
    difference,
    is_array,
)

OF_GRAPHS = {
    "caching_device",
    "experimental_enable_variable_lifting",
    "import_scope",
    "validate_shape",
    "variable_def",
}
"""Arguments of TensorFlow that speak of graphs and sessions."""


def _creator_order(inputs: Mapping[str, Any]) -> list[str]:
    called: list[str] = []
    with ExitStack() as scopes:
        for name, priority in inputs["scopes_outer_to_inner"]:
            more = {} if priority is None else {"priority": priority}
            scopes.enter_context(variable_creator_scope(noting(called, name), **more))
        Variable(1.0)
    return called


def _creator_kwargs(inputs: Mapping[str, Any]) -> list[str]:
    seen: list[str] = []

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        seen.extend(sorted(kwargs))
        kwargs.pop("foo", None)
        return next_creator(**kwargs)

    with variable_creator_scope(creator):
        evaluated(inputs["call"])
    return seen


def _thread_local(inputs: Mapping[str, Any]) -> AnyOf:
    """A variable of another thread: a truth value, or the creators that were called for it."""
    called: list[str] = []
    with variable_creator_scope(noting(called)), ThreadPoolExecutor(1) as other:
        other.submit(Variable, 1.0).result()
    return AnyOf((not called, called, len(called)))


def _created_by(creator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with variable_creator_scope(creator):
        return Variable(*args, **kwargs)


def _returns_existing(inputs: Mapping[str, Any]) -> bool:
    existing = Variable(1.0)
    return _created_by(lambda next_creator, **kwargs: existing, 2.0) is existing


def _renames(inputs: Mapping[str, Any]) -> str:
    created = _created_by(
        lambda next_creator, **kwargs: next_creator(**kwargs | {"name": "renamed"}), 1.0, name="a"
    )
    return f"{created.name}:0"


def _subclass_bypasses(inputs: Mapping[str, Any]) -> list[str]:
    class Bare(Variable):
        pass

    called: list[str] = []
    with variable_creator_scope(noting(called)):
        try:
            Bare(1.0)
        except NotImplementedError:
            called.append("NotImplementedError")
    return called


def _three() -> Any:
    return Variable([1.0, 2.0, 3.0])


def _is_lazy(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    variable = _three()
    returned = variable.assign([4.0, 5.0, 6.0])
    variable.assign([7.0, 8.0, 9.0])
    return returned.numpy()


def _returned_is_self(inputs: Mapping[str, Any]) -> bool:
    variable = _three()
    return variable.assign([4.0, 5.0, 6.0]) is variable


def _snapshots(inputs: Mapping[str, Any]) -> list[Any]:
    variable = _three()
    read = [variable.read_value(), np.asarray(variable), variable.value()]
    variable.numpy()[...] = 99
    variable.assign([7.0, 8.0, 9.0])
    return [*read, variable.numpy()]


def _gathered(expected: Any) -> np.ndarray[Any, Any]:
    """The elements, found by their places in a variable that has them in its last column."""
    value = decode(expected)
    table = np.stack([value - 1, value], axis=-1)
    places = np.stack(np.indices((*value.shape, 1)), axis=-1)[..., 0, :]
    places[..., -1] = 1
    return Variable(table).gather_nd(places)


def _read_in_order(expected: Any) -> np.ndarray[Any, Any]:
    """Rows that lie in the reverse order, read by descending ids."""
    value = decode(expected)
    return Variable(value[::-1]).sparse_read(np.arange(len(value))[::-1])


def _last_wins(expected: Any) -> np.ndarray[Any, Any]:
    """Each row is written twice, and its last update is the expected row."""
    value = decode(expected)
    variable, ids = Variable(np.zeros_like(value)), np.arange(len(value))
    updates = IndexedSlices(np.concatenate([value + 1, value]), np.concatenate([ids, ids]))
    return variable.scatter_update(updates).numpy()


def _scalar_update(expected: Any) -> np.ndarray[Any, Any]:
    """One number for all rows that have it."""
    value = decode(expected)
    numbers, counts = np.unique(value, return_counts=True)
    number = numbers[counts.argmax()]
    rows = np.flatnonzero((value.reshape(len(value), -1) == number).all(axis=1))
    variable = Variable(value.copy())
    variable.scatter_update(
        IndexedSlices(np.zeros((len(rows), *value.shape[1:]), value.dtype), rows)
    )
    return variable.scatter_update(IndexedSlices(number, rows)).numpy()


LAWS: dict[str, Callable[[Any], Any]] = {
    "iter_rows": lambda expected: (
        [np.asarray(row) for row in Variable(np.stack([*map(decode, expected)]))]
    ),
    "plain_gather_nd": _gathered,
    "plain_sparse_read_order": _read_in_order,
    "plain_scatter_duplicates_last_wins": _last_wins,
    "plain_scatter_scalar_update": _scalar_update,
    "callable_initial_value": lambda expected: Variable(lambda: decode(expected)).numpy(),
}
"""Recordings that have no inputs: the law in the op's name, on the values of the answer."""


def _of(inputs: Mapping[str, Any], name: str, default: Any) -> Any:
    """An argument as an array, a number, a list or a text."""
    value = inputs.get(name, default)
    if isinstance(value, str):
        return told(value, (3,))
    return decode(value) if is_array(value) else value


def _initial(inputs: Mapping[str, Any]) -> Any:
    name = next((name for name in ("initial", "initial_value", "value") if name in inputs), "")
    return _of(inputs, name, [1.0, 2.0, 3.0])


def _steps(default: str) -> Callable[[Mapping[str, Any]], Any]:
    """The last value of a recording's steps, which are expressions of `v`; or that of a method."""

    def op(inputs: Mapping[str, Any]) -> Any:
        variable = Variable(_initial(inputs))
        ids = next((_of(inputs, n, None) for n in ("indices", "ids") if n in inputs), [0, 2])
        values = next((_of(inputs, n, None) for n in ("updates", "values") if n in inputs), 9.0)
        told_steps = inputs.get("steps", inputs.get("call", inputs.get("expr", default)))
        found: Any = None
        for step in [told_steps] if isinstance(told_steps, str) else told_steps:
            found = evaluated(step.partition("=")[2] if re.match(r"\w+=v", step) else step,
                              v=variable, ids=ids, values=values)  # fmt: skip
        return found.numpy() if isinstance(found, Variable) else found

    return op


def _callable_value(inputs: Mapping[str, Any]) -> Any:
    value = _initial(inputs)
    return Variable(value if callable(value) else lambda: value).numpy()


VALUES: dict[str, Any] = {
    "short": np.array([1.0, 2.0], np.float32),
    "scalar": np.float32(1.0),
    "2d": np.array([[1.0, 2.0, 3.0]], np.float32),
    "np_float64": np.array([1.0, 2.0, 3.0]),
    "int_list": [1, 2, 3],
    "float_list": [1.0, 2.0, 3.0],
    "ok": np.array([1.0, 2.0, 3.0], np.float32),
    "np_int": np.array([1, 2, 3]),
    "long": np.array([1.0, 2.0, 3.0, 4.0], np.float32),
    "empty": np.zeros(0, np.float32),
    "empty_list": [],
    "nan": np.array([np.nan, 1.0, 2.0], np.float32),
    "none": None,
    "string": "a",
    "tuple": (1.0, 2.0, 3.0),
}
"""The meanings of the recordings' kinds of values. A tensor of TensorFlow is an array here."""


def _value(kind: str) -> Any:
    """The value of a kind: one of ``VALUES``, or 1, 2, 3 in the form and of the dtype that its
    words name."""
    if kind in VALUES:
        return VALUES[kind]
    words = re.findall(r"[a-z0-9]+", kind.lower())
    if "python" in words and words[-1] in _NUMBERS:
        return _NUMBERS[words[-1]](1)
    if words[-1] in ("list", "tuple"):
        items = [{"bool": bool, "float": float}.get(words[0], int)(item) for item in (1, 2, 3)]
        return items if words[-1] == "list" else tuple(items)
    name = next((_DTYPES[word] for word in words if word in _DTYPES), None)
    if name is None and not set(words) & _FORMS:
        return told(kind, (3,))
    array = np.array([1, 2, 3], numpy_dtype(name or "float32"))
    return Variable(array) if "variable" in words else array


_DTYPES = {
    **{
        f"{kind}{bits}": f"{kind}{bits}"
        for kind in ("float", "int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{short: f"float{short[1:]}" for short in ("f16", "f32", "f64")},
    **{"bfloat16": "bfloat16", "bool": "bool", "complex": "complex64", "complex64": "complex64"},
    **{
        "complex128": "complex128",
        "double": "float64",
        "float": "float32",
        "half": "float16",
        "int": "int64",
    },
}
_NUMBERS = {"bool": bool, "complex": complex, "float": float, "int": int}
_FORMS = {"array", "ndarray", "np", "numpy", "tensor", "tf", "variable"}


def _assign(method: str) -> Callable[[Mapping[str, Any]], Any]:
    def op(inputs: Mapping[str, Any]) -> Any:
        variable = Variable(inputs["initial"])
        try:
            getattr(variable, method)(_value(inputs["value_kind"]))
        finally:
            after = variable.numpy()
        return after

    return op


def _construct(inputs: Mapping[str, Any]) -> Any:
    variable = Variable(1.0, **inputs["kwargs"])
    return {
        "trainable": variable.trainable,
        "synchronization": variable.synchronization.name,
        "aggregation": variable.aggregation.name,
    }


def _dynamic_shape(inputs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    variable = Variable([1.0], shape=[None])
    variable.assign([1.0, 2.0])
    return variable.numpy()


def _bad_nesting(inputs: Mapping[str, Any]) -> None:
    outer, inner = (variable_creator_scope(noting([])) for _ in range(2))
    outer.__enter__()
    inner.__enter__()
    try:
        outer.__exit__(None, None, None)
    finally:
        with suppress(RuntimeError):
            inner.__exit__(None, None, None)


OPS: dict[str, Callable[[Any], Any]] = {
    "creator_order": _creator_order,
    "creator_kwargs": _creator_kwargs,
    "creator_returns_existing": _returns_existing,
    "creator_returns_non_variable": lambda inputs: _created_by(
        lambda next_creator, **kwargs: "anything", 1.0
    ),
    "creator_returns_none": lambda inputs: _created_by(lambda next_creator, **kwargs: None, 1.0),
    "creator_renames": _renames,
    "subclass_bypasses_creators": _subclass_bypasses,
    "assign_return_type": lambda inputs: f"_{type(_three().assign([4.0, 5.0, 6.0])).__name__}",
    "assign_return_is_self": _returned_is_self,
    "assign_return_is_lazy": _is_lazy,
    "assign_read_value_false": lambda inputs: _three().assign([4.0, 5.0, 6.0], read_value=False),
    "snapshots": _snapshots,
    "plain_variable_assign": _assign("assign"),
    "plain_variable_assign_add": _assign("assign_add"),
    "plain_variable_assign_sub": _assign("assign_sub"),
    "construct": _construct,
    "name_default": lambda inputs: f"{Variable(1.0).name}:0",
    "names_not_uniquified_eagerly": lambda inputs: [
        f"{Variable(1.0, name='a').name}:0" for _ in range(2)
    ],
    "callable_with_args": lambda inputs: Variable(lambda x: x),
    "dynamic_shape_assign": _dynamic_shape,
    # A creator that gives the initial value by position.
    "creator_positional_next": lambda inputs: _created_by(
        lambda next_creator, **kwargs: next_creator(kwargs["initial_value"]), 1.0
    ),
    "creator_scope_is_thread_local": _thread_local,
    "hash": lambda inputs: AnyOf((isinstance(hash(_three()), int), "int")),
    "iter_rows": lambda inputs: [np.asarray(row) for row in Variable(_initial(inputs))],
    "plain_scatter_scalar_update": _steps("v.scatter_update(IndexedSlices(values, ids))"),
    "plain_scatter_duplicates_last_wins": _steps("v.scatter_update(IndexedSlices(values, ids))"),
    "plain_gather_nd": _steps("v.gather_nd(ids)"),
    "plain_sparse_read_order": _steps("v.sparse_read(ids)"),
    "callable_initial_value": _callable_value,
    "shape_mismatch": lambda inputs: Variable(
        _initial(inputs), shape=inputs.get("shape", [2])
    ).numpy(),
    "initial_value_none": lambda inputs: Variable(None),
    "bad_scope_nesting": _bad_nesting,
}


def _no_graph_arguments(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "creator_kwargs" and outcome.value == [
        name for name in case["expected"] if name not in OF_GRAPHS
    ]


def _says_that_a_creator_returned_none(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "creator_returns_none" and outcome.refused


def _arrays_are_cast(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow refuses a tensor of another dtype and casts an array; here a tensor is an
    array."""
    kind = str(case["inputs"].get("value_kind"))
    if (
        "error" not in case
        or np.asarray(_value(kind)).dtype == np.float32
        or outcome.error is not None
    ):
        return False
    same = OPS[case["op"]]({**case["inputs"], "value_kind": "float_list"})
    return (
        difference(
            outcome.value, {"dtype": "float32", "shape": list(same.shape), "data": same.tolist()}
        )
        is None
    )


def _no_part_of_a_value_is_dropped(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """TensorFlow casts complex numbers to real ones by dropping their imaginary parts."""
    kind = str(case["inputs"].get("value_kind"))
    return outcome.refused and np.asarray(_value(kind)).dtype.kind == "c"


def _variables_are_keys(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "hash" and outcome.error is None


def _by_position_too(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "creator_positional_next" and isinstance(outcome.value, Variable)


def _a_row_for_each_id(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return case["op"] == "plain_scatter_scalar_update" and outcome.refused


RULES = [
    Rule("D-VAR-3", _variables_are_keys),
    Rule("D-VAR-4", _by_position_too),
    Rule("D-SCATTER-3", _a_row_for_each_id),
    Rule("D-VAR-1", _no_graph_arguments),
    Rule("D-VAR-2", _says_that_a_creator_returned_none),
    Rule("D-ASSIGN-2", _arrays_are_cast),
    Rule("D-ASSIGN-4", _no_part_of_a_value_is_dropped),
]

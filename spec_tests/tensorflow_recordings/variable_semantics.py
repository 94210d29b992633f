"""Plain variables: creators, snapshots, what assignments return and refuse."""

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np

from shardvar.layout.dtypes import numpy_dtype
from shardvar.reference.variables import Variable, variable_creator_scope
from spec_tests.tensorflow_recordings.cases import Outcome, Rule, Skipped, difference

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

    def noting(name: str) -> Callable[..., Any]:
        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            called.append(name)
            return next_creator(**kwargs)

        return creator

    with ExitStack() as scopes:
        for name, priority in inputs["scopes_outer_to_inner"]:
            more = {} if priority is None else {"priority": priority}
            scopes.enter_context(variable_creator_scope(noting(name), **more))
        Variable(1.0)
    return called


def _creator_kwargs(inputs: Mapping[str, Any]) -> list[str]:
    if inputs["call"] != "tf.Variable(1., foo=3)":
        raise Skipped(inputs["call"])
    seen: list[str] = []

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        seen.extend(sorted(kwargs))
        kwargs.pop("foo")
        return next_creator(**kwargs)

    with variable_creator_scope(creator):
        Variable(1.0, foo=3)
    return seen


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

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        called.append("creator")
        return next_creator(**kwargs)

    with variable_creator_scope(creator):
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
    if words[-1] in ("list", "tuple"):
        items = [{"bool": bool, "float": float}.get(words[0], int)(item) for item in (1, 2, 3)]
        return items if words[-1] == "list" else tuple(items)
    name = next((_DTYPES[word] for word in words if word in _DTYPES), None)
    if name is None and not set(words) & _FORMS:
        raise Skipped(kind)
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
    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        return next_creator(**kwargs)

    outer, inner = variable_creator_scope(creator), variable_creator_scope(creator)
    outer.__enter__()
    inner.__enter__()
    try:
        outer.__exit__(None, None, None)
    finally:
        with suppress(RuntimeError):
            inner.__exit__(None, None, None)


def _callable_with_arguments(inputs: Mapping[str, Any]) -> Any:
    return Variable(lambda x: x)


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
    "callable_with_args": _callable_with_arguments,
    "dynamic_shape_assign": _dynamic_shape,
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


RULES = [
    Rule("D-VAR-1", _no_graph_arguments),
    Rule("D-VAR-2", _says_that_a_creator_returned_none),
    Rule("D-ASSIGN-2", _arrays_are_cast),
    Rule("D-ASSIGN-4", _no_part_of_a_value_is_dropped),
]

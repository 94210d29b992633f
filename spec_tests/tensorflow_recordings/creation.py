"""Variables under a parameter server strategy: names, placement, values, and what is refused."""

import builtins
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import dtype_name, numpy_dtype
from shardvar.layout.shard_counts import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from shardvar.reference.training.strategies import ParameterServerStrategy
from shardvar.reference.variables import ShardedVariable, Variable, variable_creator_scope
from spec_tests.tensorflow_recordings.building import told
from spec_tests.tensorflow_recordings.cases import (
    Outcome,
    Rule,
    Skipped,
    decode,
    difference,
    is_array,
)
from spec_tests.tensorflow_recordings.initializers import NAMES
from spec_tests.tensorflow_recordings.tf1_partitioned import arguments_of
from spec_tests.tensorflow_recordings.tf1_partitioned import partitioner_of as tf1_partitioner_of

_CALL = re.compile(r"(\w+)\((.*)\)")
_MAKERS: dict[str, Callable[..., Any]] = {
    "FixedShards": FixedShardsPartitioner,
    "MinSize": lambda *args, **more: MinSizePartitioner(*args, rounding="ceil", **more),
    "MaxSize": MaxSizePartitioner,
}


def partitioner_of(text: str | None) -> Callable[..., Any] | None:
    """The partitioner that ``FixedShards(5)``, ``returns [2,1]`` or ``v1.min_max(2,min_slice=4)``
    names."""
    if text is None or text.lower() == "none":
        return None
    found = _CALL.fullmatch(text)
    name = "" if found is None else found[1].removesuffix("Partitioner")
    if found is not None and name in _MAKERS:
        args, keywords = arguments_of(found[2])
        return _MAKERS[name](*args, **keywords)
    if text.startswith("raises "):
        return _raising(text.removeprefix("raises ").split()[0])
    return tf1_partitioner_of(text)


class Servers:
    """A strategy with the servers and the partitioner of a case, some turns after its first."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.strategy = ParameterServerStrategy(
            inputs.get("num_ps", 2), partitioner_of(inputs["partitioner"])
        )
        for _ in range(inputs.get("start_count", 0)):
            self.create(0.0)

    def create(self, *args: Any, **kwargs: Any) -> Any:
        """A variable under the scope."""
        with self.strategy.scope():
            return Variable(*args, **kwargs)

    def description(self, variable: Any) -> dict[str, Any]:
        """What the vectors tell of a variable."""
        is_sharded = isinstance(variable, ShardedVariable)
        parts = variable.variables if is_sharded else [variable]
        servers = self.strategy.cluster.servers
        return {
            "sharded": is_sharded,
            "shape": list(variable.shape),
            "dtype": dtype_name(variable.dtype),
            "trainable": variable.trainable,
            "container_name": variable.name if is_sharded else None,
            "names": [f"{part.name}:0" for part in parts],
            "placement": [servers.index(part.device) for part in parts],
            "values": [part.numpy() for part in parts],
        }


def initial_value_of(text: str, shape: tuple[int, ...]) -> Any:
    """The initial value that a text means: a function ``f(its parameters)`` that does what the rest
    of the text says, or another value."""
    if text.startswith("raises "):
        return _raising(text.removeprefix("raises ").split()[0])
    found = re.match(r"(?:f|lambda|callable|function)\b(?:\((.*?)\))?", text)
    if found is None:
        return told(text, shape)
    calls: list[None] = []

    def value(given: Mapping[str, Any]) -> Any:
        calls.append(None)
        return _returned(text, shape, len(calls), given)

    # A function with the parameters of the text: an initializer is asked by its signature.
    parameters = found[1] or ""
    made: Callable[..., Any] = eval(f"lambda {parameters}: value(locals())", {"value": value})  # noqa: S307 - the program says to trust them
    return made


def _returned(text: str, shape: tuple[int, ...], call: int, given: Mapping[str, Any]) -> Any:
    """What the text says that a function returns at one of its calls: by default the number of the
    call, in all elements of the shape."""
    part = given.get("shard_info") or given.get("partition")
    offset = given.get("partition_offset") if part is None else part.offset
    extents = list(given.get("shape") or shape)
    if "partition_shape" in given or part is not None:
        extents = list(given["partition_shape"] if part is None else part.shape)
    number = call if offset is None or "offset" not in text.partition("->")[2] else offset[0]
    rows = re.search(r"returns? (\d+) rows", text)
    if rows is not None:
        extents[0] = int(rows[1])
    if re.search("wrong col", text):
        extents[-1] -= 1
    if re.search("full[- ](shape|value)", text):
        extents = list(shape)
    if "scalar" in text:
        extents = []
    if re.search("returns? (None|nothing)", text):
        return None
    names = [*re.findall(r"\b(?:float|u?int|complex|bool|string)\d*\b", text), "float32"]
    value = np.full(extents, number, numpy_dtype(_DTYPES.get(names[0], names[0])))
    if "variable" in text.lower():
        return Variable(value)
    return value.tolist() if "list" in text else value


_DTYPES = {"float": "float32", "int": "int32", "uint": "uint8", "complex": "complex64"}


def _raising(name: str) -> Callable[..., Any]:
    def raising(*given: Any, partition_shape: Any = None, partition_offset: Any = None) -> Any:
        raise getattr(builtins, name)("of the initializer itself")

    return raising


def _create(inputs: Mapping[str, Any]) -> Any:
    servers = Servers(inputs)
    if "sequence" in inputs:
        return _sequence(servers, inputs["sequence"])
    if inputs.get("op", "").startswith("tf.random.Generator"):
        raise Skipped("shardvar has no stateful generators")
    if "initializer" in inputs:
        return servers.description(servers.create(_initializer(inputs), name="w"))
    kwargs = dict(inputs.get("kwargs", {"name": "w"}))
    shape = inputs.get("variable_shape", inputs.get("shape"))
    value = inputs.get("initial_value")
    if is_array(value):
        return servers.description(servers.create(decode(value), **kwargs))
    kwargs = {"shape": shape, "dtype": inputs.get("variable_dtype", inputs.get("dtype")), **kwargs}
    if isinstance(value, str):
        value = initial_value_of(value, tuple(extent or 1 for extent in shape or (4, 3)))
    return servers.description(servers.create(value, **kwargs))


def _sequence(servers: Servers, steps: list[str]) -> list[dict[str, Any]]:
    """``a: 6 rows``, ``b: scalar``, ``c: 2 rows colocated with a.variables[1]``: one variable
    each."""
    made: dict[str, Any] = {}
    scalars = 0
    for step in steps:
        name, _, what = step.replace(" colocated with the", ": colocated with the").partition(": ")
        target = re.search(
            r"colocated with (?:the ShardedVariable )?(\w+)(?:\.variables\[(\d+)\])?", what
        )
        rows = re.match(r"(\d+) rows", what)
        kwargs: dict[str, Any] = {"name": name}
        if target is not None:
            home = made[target[1]]
            kwargs["colocated_with"] = home if target[2] is None else home.variables[int(target[2])]
            value = np.array([4.0, 5.0], np.float32)
        elif rows is not None:
            value = np.arange(int(rows[1]), dtype=np.float32)
        else:
            scalars += 1
            value = np.float32(scalars)
        made[name] = servers.create(value, **kwargs)
    return [servers.description(variable) for variable in made.values()]


def _initializer(inputs: Mapping[str, Any]) -> Callable[..., Any]:
    from functools import partial

    from shardvar.reference.variables import initializers

    found = re.fullmatch(r"(?:[\w.]+\.)?(\w+)(?:\((.*)\))?", inputs["initializer"])
    if found is None:
        raise Skipped(inputs["initializer"])
    name = NAMES.get(found[1], found[1])
    shape = tuple(inputs["shape"])
    if name == "Constant" and found[2] == "list":
        value: Any = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        return partial(initializers.Constant(value), shape=shape, dtype=inputs["dtype"])
    args, keywords = arguments_of(found[2] or "")
    return partial(
        getattr(initializers, name)(*args, **keywords), shape=shape, dtype=inputs["dtype"]
    )


def _seen_by_creator(*, inside: bool) -> Callable[[Mapping[str, Any]], list[str]]:
    """The names of what a creator sees whose scope is inside the strategy's, or outside."""

    def op(inputs: Mapping[str, Any]) -> list[str]:
        seen: list[str] = []

        def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
            seen.append(kwargs["name"])
            return next_creator(**kwargs)

        scopes = [variable_creator_scope(creator), Servers(inputs).strategy.scope()]
        with ExitStack() as entered:
            for scope in reversed(scopes) if inside else scopes:
                entered.enter_context(scope)
            Variable(np.arange(4, dtype=np.float32), name="w")
        return seen

    return op


OPS = {
    "create": _create,
    "creator_scope_inside_strategy_scope": _seen_by_creator(inside=True),
    "creator_scope_outside_strategy_scope": _seen_by_creator(inside=False),
}


def _rest(case: Mapping[str, Any], outcome: Outcome, *fields: str) -> bool:
    """Return True if the outcome is as expected in all but the named fields."""
    if outcome.error is not None or "expected" not in case:
        return False
    expected = case["expected"]
    if isinstance(expected, list):
        trimmed: Any = [{key: row[key] for key in row if key not in fields} for row in expected]
    else:
        trimmed = {key: expected[key] for key in expected if key not in fields}
    return difference(outcome.value, trimmed) is None


def _named_container(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The container bears the variable's name: RFC 002, "name: the name of the variable"."""
    if not _rest(case, outcome, "container_name"):
        return False
    rows = outcome.value if isinstance(outcome.value, list) else [outcome.value]
    return all(
        not row["sharded"] or f"{row['container_name']}/part_0:0" == row["names"][0] for row in rows
    )


def _nothing_to_cut(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """No rows are one part: partitioners are total."""
    value = case["inputs"].get("initial_value")
    is_empty = is_array(value) and value["shape"][:1] == [0]
    return is_empty and outcome.error is None and not outcome.value["sharded"]


def _layout_refused(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "Exception will raised if the partitioner returns an unsupported partitioning
    layout": a LayoutError."""
    said = case["inputs"].get("partitioner", "")
    return said.startswith("returns ") and isinstance(outcome.error, LayoutError)


def _function_called_once(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "creating the entire value and do slicing": once, so that the shards are those of
    one value."""
    said = case["inputs"].get("initial_value")
    if not isinstance(said, str) or not _rest(case, outcome, "container_name", "values"):
        return False
    calls = [decode(value) for value in case["expected"]["values"]]
    are_numbered = all((value == call).all() for call, value in enumerate(calls, 1))
    return are_numbered and all((value == 1).all() for value in outcome.value["values"])


def _shape_is_checked(case: Mapping[str, Any], outcome: Outcome) -> bool:
    said = str(case["inputs"].get("initial_value"))
    declared = case["inputs"].get("kwargs", {}).get("shape")
    if declared is not None and is_array(case["inputs"].get("initial_value")):
        return declared != case["inputs"]["initial_value"]["shape"] and outcome.refused
    shapes = r"returns? (a )?(\d+ rows|wrong col|scalar)|full[- ](shape|value)"
    return re.search(shapes, said) is not None and outcome.refused


def _dtype_is_cast(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """The rule of assignments: a value of the declared dtype, or refused if its kind is higher."""
    inputs = case["inputs"]
    declared = inputs.get("variable_dtype") or inputs.get("kwargs", {}).get("dtype")
    if declared is None or "error" not in case:
        return False
    if outcome.error is not None:
        return outcome.refused and "dtype" in str(outcome.error)
    return {value.dtype.name for value in outcome.value["values"]} == {declared}


def _lists_are_values(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return "python list" in str(case["inputs"].get("initial_value")) and outcome.error is None


def _colocated_with_the_whole(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """With a sharded variable means with its first shard, never on the coordinator."""
    steps = case["inputs"].get("sequence", [])
    if not any("ShardedVariable" in step for step in steps) or not _rest(
        case, outcome, "container_name", "placement"
    ):
        return False
    return outcome.value[1]["placement"] == outcome.value[0]["placement"][:1]


def _seeds_differ(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """RFC 000: "the seed must be changed deterministically for each shard, otherwise each shard
    will use the same values". The first shard, whose offset is 0, is TensorFlow's."""
    if "seed" not in case["inputs"].get("initializer", "") or not _rest(
        case, outcome, "container_name", "values"
    ):
        return False
    if "Orthogonal" in case["inputs"]["initializer"]:
        full = np.concatenate(outcome.value["values"])
        return bool(np.allclose(full @ full.T, np.eye(len(full)), atol=1e-5))
    first, second = outcome.value["values"][:2]
    close = np.allclose(first, decode(case["expected"]["values"][0]), rtol=1e-6, atol=1e-7)
    return bool(close and not np.array_equal(first, second))


def _no_generators(case: Mapping[str, Any], outcome: Outcome) -> bool:
    return "tf.random.Generator" in case["inputs"].get("op", "") and isinstance(
        outcome.error, Skipped
    )


def _own_errors_are_raised(case: Mapping[str, Any], outcome: Outcome) -> bool:
    """What accepts a partition is read off the signature; an initializer's own error is its
    caller's to see."""
    said = str(case["inputs"].get("initial_value"))
    return said.startswith("raises ") and type(outcome.error).__name__ in said


RULES = [
    Rule("D-CREATE-1", _named_container),
    Rule("D-CREATE-2", _nothing_to_cut),
    Rule("D-CREATE-3", _layout_refused),
    Rule("D-CREATE-4", _function_called_once),
    Rule("D-CREATE-5", _shape_is_checked),
    Rule("D-CREATE-6", _lists_are_values),
    Rule("D-CREATE-7", _colocated_with_the_whole),
    Rule("D-CREATE-8", _seeds_differ),
    Rule("D-CREATE-9", _no_generators),
    Rule("D-CREATE-10", _own_errors_are_raised),
    Rule("D-CREATE-11", _dtype_is_cast),
]

"""Sharded variables from the arrays of a vector, each shard on a server of its own, and values
that a vector gives as text."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from shardvar.reference.devices import Device
from shardvar.reference.variables import IndexedSlices, ShardedVariable, Variable
from spec_tests.tensorflow_recordings.cases import Skipped, decode
from spec_tests.tensorflow_recordings.tf_names import namespace

_SAFE = {
    kind.__name__: kind
    for kind in (bool, dict, float, int, iter, len, list, map, range, set, str, tuple, zip)
}


def sharded(arrays: Iterable[Mapping[str, Any]]) -> ShardedVariable:
    """One shard for each encoded array, named as a strategy names them."""
    return ShardedVariable(
        [
            Variable(decode(array), name=f"w/part_{number}", device=Device(f"ps:{number}"))
            for number, array in enumerate(arrays)
        ]
    )


def noting(names: list[Any], name: Any = "creator") -> Callable[..., Any]:
    """A creator of variables that notes its name, and passes its arguments on."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        names.append(name)
        return next_creator(**kwargs)

    return creator


def contents(variable: ShardedVariable) -> list[Any]:
    """The values of the shards."""
    return [shard.numpy() for shard in variable.variables]


def evaluated(text: str, **names: Any) -> Any:
    """The value of a Python expression with TensorFlow's and NumPy's names; ``Skipped`` if the text
    is none, or means a type or a function of Python."""
    tf = namespace()
    known = {
        "tf": tf, "np": np, "numpy": np, "V": Variable, "SV": ShardedVariable,
        "IndexedSlices": IndexedSlices, **names,
    }  # fmt: skip
    try:
        value = eval(text, {"__builtins__": _SAFE, **known})  # noqa: S307 - the program says to trust them
    except (NameError, SyntaxError) as error:
        raise Skipped(text) from error
    if any(value is word for word in (tf, np, *_SAFE.values())):
        raise Skipped(text)
    return value


def told(text: str, shape: Iterable[int] = (1,)) -> Any:
    """The value that a text means: an expression, one that follows other words (``python list [1,
    2]``), or the numbers from 0 on in the form that its words name (``a tuple of tensors``)."""
    starts = [0, *(found.start() for found in re.finditer(r"(?<=\s)[\w.\-\[({]", text))]
    for start in starts:
        try:
            return evaluated(text[start:].removeprefix("python ").rstrip("."))
        except Exception:  # noqa: BLE001 - these words are none
            continue
    numbers = np.arange(np.prod([*shape], dtype=int), dtype=np.float32).reshape([*shape])
    words = set(re.findall(r"[a-z]+", text.lower()))
    for names, value in _FORMS:
        if words & names:
            return value(numbers)
    raise Skipped(text)


_FORMS: list[tuple[set[str], Any]] = [
    ({"none", "nothing"}, lambda numbers: None),
    ({"dict", "mapping"}, lambda numbers: {"values": numbers}),
    ({"str", "string", "text"}, lambda numbers: "a"),
    ({"generator", "iterator"}, lambda numbers: iter([numbers])),
    ({"slices", "indexedslices"}, lambda numbers: IndexedSlices(numbers[:1], [0], numbers.shape)),
    ({"tuple", "pair"}, lambda numbers: (numbers, [0])),
    ({"list", "lists"}, lambda numbers: numbers.tolist()),
    ({"variable"}, Variable),
    ({"float", "number", "scalar"}, lambda numbers: 1.0),
    ({"int", "integer"}, lambda numbers: 1),
    ({"array", "dense", "ndarray", "np", "numpy", "tensor", "tf"}, lambda numbers: numbers),
]
"""Words, and the value that they mean, in the order of their weight."""

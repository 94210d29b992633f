"""Maps on arrays in memory: the plain meaning of a plan, and random rules with what they mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.engine.arithmetic import Evaluation, KeptSums
from shardvar.errors import MapError
from shardvar.layout.dtypes import numpy_dtype
from shardvar.maps.map import Map, fit_map
from shardvar.maps.plan import MapPlan, View
from spec_tests.helpers.nearest import nearest
from spec_tests.helpers.random_maps import Line, shapes

Arrays = Mapping[str, np.ndarray[Any, Any]]


def assert_same(found: Arrays, wanted: Arrays) -> None:
    """Fail unless the keys, dtypes, shapes and bytes are equal."""
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        assert (found[key].dtype, found[key].shape) == (array.dtype, array.shape), key
        assert found[key].tobytes() == array.tobytes(), key


def _of(view: View, counts: Sequence[int], first: Sequence[int] = ()) -> Any:
    """[k] the elements of a piece, by their coordinates, one index at a time."""
    at = [np.full(counts, start, dtype=np.int64) for start in view.start]
    for number, (axis, step) in enumerate(view.steps):
        if axis >= 0:
            counted = (np.arange(counts[number]) + (first[number] if first else 0)) * step
            at[axis] = at[axis] + counted.reshape([-1] + [1] * (len(counts) - number - 1))
    return tuple(at) if at else ()


def _elements(arrays: Arrays, view: View, first: Sequence[int], counts: Sequence[int]) -> Any:
    return arrays[view.key][_of(view, counts, first)].reshape(counts)


def carry_out(plan: MapPlan, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Return the targets of a plan, element by element."""
    found = {}
    for target in plan.every_target():
        dtype = numpy_dtype(target.dtype)
        made = np.zeros(target.shape, dtype)
        if target.fill is not None:
            made[...] = np.frombuffer(target.fill, dtype)[0]
        for piece in target.pieces:
            if piece.arithmetic is None:
                source = arrays[piece.source.key]
                value = source[_of(piece.source, piece.shape)].reshape(piece.shape)
            else:
                gather = partial(_elements, arrays)
                whole = Evaluation(piece.arithmetic, piece.shape, gather, KeptSums())
                value = nearest(whole.block([0] * len(piece.shape), piece.shape), dtype)
            made[_of(piece.target, piece.shape)] = value
        found[target.key] = made
    return found


def map_arrays(given: Map, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a map makes of arrays; ``MapError`` with all problems."""
    tensors = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
    found = fit_map(given, tensors, (), {}, "nowhere")
    if found.problems:
        raise MapError("; ".join(problem.cause for problem in found.problems))
    return carry_out(found.plan, arrays)


@dataclass(frozen=True)
class Example:
    """A random rule, the arrays that it takes, and the ones that it makes."""

    rule: str
    sizes: dict[str, int]
    sources: dict[str, np.ndarray[Any, Any]]
    targets: dict[str, np.ndarray[Any, Any]]


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Rules that move elements: up to six indices, in keys and in axes, grouped in any way."""
    sizes = {f"{each}0": draw(st.integers(1, 4)) for each in "abcdef"[: draw(st.integers(1, 6))]}
    dtype = draw(st.sampled_from(["int8", "float16", "float32", "int64", "complex128"]))
    names, full = list(sizes), np.arange(np.prod([*sizes.values()])).astype(dtype)
    full = full.reshape([*sizes.values()])
    source, target = (draw(shapes(each, sizes, plain=True)) for each in "xy")
    sides = source.cut(full, names), target.cut(full, names)
    return Example(Line(source, target).text(), sizes, *sides)

"""Random plans of maps, with the sources and the targets that NumPy makes: every rule is a
composition of axes, as in einops, of one array that has an axis for each index."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout.dtypes import numpy_dtype
from shardvar.maps.plan import MapPlan, Piece, Target, View

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arrangement:
    """The indices in the key of a tensor, and the indices that make each of its axes."""

    name: str
    in_key: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    def key(self, index: dict[int, int]) -> str:
        return ".".join([self.name, *(str(index[each]) for each in self.in_key)])

    def tensors(self, array: Array) -> dict[str, Array]:
        """The tensors of an array with an axis for each index: NumPy's transpose and reshape."""
        order = [*self.in_key, *(each for axis in self.axes for each in axis)]
        rest = array.transpose(order)
        shape = [
            int(np.prod([array.shape[each] for each in axis], initial=1)) for axis in self.axes
        ]
        return {
            self.key(dict(zip(self.in_key, values, strict=True))): np.ascontiguousarray(
                rest[values]
            ).reshape(shape)
            for values in np.ndindex(*(array.shape[each] for each in self.in_key))
        }

    def view(
        self,
        extents: Sequence[int],
        fixed: dict[int, int],
        free: Sequence[int],
        first: dict[int, int],
    ) -> View:
        """The view of a tensor whose whole extents are given; a free index begins at its first."""
        start = [0] * len(self.axes)
        steps: dict[int, tuple[int, int]] = {}
        for number, axis in enumerate(self.axes):
            step = 1
            for each in reversed(axis):
                steps[each] = number, step
                start[number] += step * fixed.get(each, first.get(each, 0))
                step *= extents[each]
        return View(self.key(fixed), tuple(start), tuple(steps[each] for each in free))


@st.composite
def arrangements(draw: st.DrawFn, name: str, count: int) -> Arrangement:
    order = draw(st.permutations(range(count)))
    in_key = draw(st.integers(0, min(2, count)))
    rest = order[in_key:]
    axes: list[tuple[int, ...]] = []
    for each in rest:
        if axes and draw(st.booleans()):
            axes[-1] = (*axes[-1], each)
        else:
            axes.append((each,))
    return Arrangement(name, tuple(order[:in_key]), tuple(axes))


@dataclass(frozen=True)
class MapCase:
    """A plan, its sources, and the targets that it must make."""

    plan: MapPlan
    sources: dict[str, Array]
    targets: dict[str, Array]


@st.composite
def map_cases(draw: st.DrawFn, dtype: str) -> MapCase:
    """Rules that fill the targets together, each a range of one index; one may be left out, and its
    elements filled."""
    extents = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    kind, size = numpy_dtype(dtype), int(np.prod(extents))
    octets = np.random.default_rng(draw(st.integers(0, 99))).integers(
        0, 2 if dtype == "bool" else 256, size * kind.itemsize, np.uint8
    )
    array = octets.view(kind).reshape(extents)
    target = draw(arrangements("t", len(extents)))
    split = draw(st.integers(0, len(extents) - 1))
    cuts = sorted({0, extents[split], *draw(st.lists(st.integers(0, extents[split]), max_size=2))})
    fill = bytes(range(kind.itemsize)) if draw(st.booleans()) else None
    whole, sources = array.copy(), dict[str, Array]()
    pieces: dict[str, list[Piece]] = {key: [] for key in target.tensors(array)}
    for rule, (low, stop) in enumerate(pairwise(cuts)):
        part = array[(*(slice(None) for _ in range(split)), slice(low, stop))]
        if fill is not None and len(cuts) > 2 and rule == 1:
            whole[(*(slice(None) for _ in range(split)), slice(low, stop))] = np.frombuffer(
                fill, kind
            )
            continue
        source = draw(arrangements(f"s{rule}", len(extents)))
        sources |= source.tensors(part)
        keyed = sorted({*source.in_key, *target.in_key})
        free = [each for each in range(len(extents)) if each not in keyed]
        for values in product(*(range(part.shape[each]) for each in keyed)):
            index = dict(zip(keyed, values, strict=True))
            there = {each: n + (low if each == split else 0) for each, n in index.items()}
            from_view = source.view(part.shape, index, free, {})
            into = target.view(extents, there, free, {split: low})
            shape = tuple(part.shape[each] for each in free)
            pieces[into.key].append(Piece(rule, shape, from_view, into))
    targets = target.tensors(whole)
    plan = MapPlan(
        [
            Target(key, dtype, found.shape, tuple(pieces[key]), fill)
            for key, found in targets.items()
        ],
        {},
    )
    sources["unused"] = array
    return MapCase(plan, sources, targets)

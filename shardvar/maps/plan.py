"""The plan of a map: the elements of source tensors that make each target tensor.

A rule becomes pieces. A piece copies a box of elements from one source tensor to one target tensor:
it has a shape ``[k]``, one extent for each of its indices, and a ``View`` of each side
places its elements there. Both are affine, so splitting, fusing, transposing, stacking and cutting are
one thing, and no tensor is ever reshaped.

    q[(n two d) i] -> q[(n d two) i], n = 2, two = 2, d = 3
    shape                       n = 2       two = 2     d = 3       i = 4
    source   start (0, 0)       6 rows      3 rows      1 row       1 column
    target   start (0, 0)       6 rows      1 row       2 rows      1 column
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardvar.layout.dtypes import Bools, Shape
from shardvar.maps.expressions import TermTree
from shardvar.planning.slices import TensorTable
from shardvar.records import field, frozen


@frozen
class View:
    """The places of the elements of a piece in one tensor."""

    key: str
    start: tuple[int, ...]
    """[rank] the coordinates of the piece's first element."""
    steps: tuple[tuple[int, int], ...]
    """[k] for each index of the piece, the axis along which it counts, and the coordinates from one
    index to the next. An index that the tensor does not have is ``(-1, 0)``."""


@frozen
class Arithmetic:
    """An expression, in float64, that is rounded to the target's dtype once (``engine.arithmetic``)."""

    tree: TermTree
    """``("leaf", n)`` is a view; products have ``(word, ((factors, ...), ...), bound, number)``."""
    views: tuple[View, ...]
    """The tensors, with steps of the bound indices first, then of the piece's. A view without a key
    is the numbers 0, 1, 2 ... of an index."""
    bound: tuple[int, ...]
    """The extents of the indices that are summed over."""


@frozen
class Piece:
    rule: int
    """The position of the rule that it comes from."""
    shape: Shape
    """[k] the extents of its indices."""
    source: View
    target: View
    arithmetic: Arithmetic | None = None
    """The arithmetic on the way; None for bits that are moved as they are."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The tensors that it is made of."""
        views = (self.source,) if self.arithmetic is None else self.arithmetic.views
        return tuple(dict.fromkeys(view.key for view in views if view.key))

    def between(self, source: str, target: str) -> "Piece":
        """Return the piece between two other tensors; it moves bits."""
        taken = View(source, self.source.start, self.source.steps)
        filled = View(target, self.target.start, self.target.steps)
        return Piece(self.rule, self.shape, taken, filled)


@frozen
class Target:
    key: str
    dtype: str
    shape: Shape
    pieces: tuple[Piece, ...]
    """The pieces that fill it. Each element is in one of them, or gets ``fill``."""
    fill: bytes | None = None
    """The bytes of the element that fills what no piece covers; None where they cover all."""


@frozen
class MapPlan:
    """Everything that a map does with one checkpoint."""

    targets: Sequence[Target]
    """The tensors that it makes, in their order."""
    left_out: Mapping[str, int]
    """Source tensors with elements that a rule leaves out, each with the rule's position."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The new names of source tensors that do not change, by key: targets of one piece each, for a
    million of them. All targets come in the order of their first sources."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """The positions of the rules that give names, by key."""
    tensors: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    """The dtypes and shapes of source tensors, by key."""

    def rules_by_target(self) -> dict[str, set[int]]:
        """Return the positions of the rules that make each target, by its key."""
        found = {each.key: {piece.rule for piece in each.pieces} for each in self.targets}
        return found | {self.names[key]: {number} for key, number in self.rules.items()}

    def every_target(self) -> Iterator[Target]:
        """Yield the targets, and the targets that new names stand for."""
        yield from self.targets
        for key, name in self.names.items():
            dtype, shape = self.tensors[key]
            axes = [axis for axis, extent in enumerate(shape) if extent != 1]
            zeros, steps = (0,) * len(shape), tuple((axis, 1) for axis in axes)
            views = View(key, zeros, steps), View(name, zeros, steps)
            pieces = (Piece(self.rules[key], tuple(shape[axis] for axis in axes), *views),)
            yield Target(name, dtype, shape, pieces)


def plan_short_rules(tensors: TensorTable, names: Sequence[str], is_matrix: Bools) -> MapPlan:
    """Return the plan of rules ``KEY -> NAME`` and ``KEY[a b] -> NAME[b a]``."""
    targets, kept = [], dict(zip(tensors.keys, names, strict=True))
    for row in np.flatnonzero(is_matrix).tolist():
        key, name, shape = tensors.keys[row], names[row], tensors.shape(row)
        source, target = View(key, (0, 0), ((0, 1), (1, 1))), View(name, (0, 0), ((1, 1), (0, 1)))
        pieces = (Piece(0, shape, source, target),)
        targets.append(Target(name, tensors.dtype(row), shape[::-1], pieces))
        del kept[key]
    return MapPlan(targets, {}, kept)

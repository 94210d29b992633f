"""What transformers' operations do to a tensor, as rules of axes.

A tensor of a file consists of parts. Each has the indices of a tensor in memory, in its order, and
the same indices in the order of the file; some are fixed, where one tensor becomes several, or
several become one. An operation changes the parts as it changes the tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

Axes = tuple[tuple[str, ...], ...]
_NAMES = {0: "", 1: "o", 2: "oi", 3: "eoi", 4: "oijk", 5: "oitjk"}


class Unsupported(Exception):
    """The language has no rule for it; the text says why."""


@dataclass(frozen=True)
class Part:
    """What a tensor of a file takes from one in memory."""

    memory: str
    """The key in memory."""
    memory_axes: Axes
    file_axes: Axes
    extents: Mapping[str, int]
    """The extent of each index."""
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    """The indices whose extents the shapes do not give."""
    memory_fixed: Mapping[str, int] = field(default_factory=dict)
    """The indices of memory that the file's tensor has one value of."""
    file_fixed: Mapping[str, int] = field(default_factory=dict)
    """The indices of the file's tensor that the one in memory is one value of."""
    stacked: str = ""
    """The index that numbers the file's keys."""

    def extent(self, axis: int) -> int:
        """Return the extent of an axis of the file, of this part only."""
        return prod(
            1 if name in self.file_fixed else self.extents[name] for name in self.file_axes[axis]
        )

    def divided(self, axis: int, lead: int, new: str, size: int | str | None) -> "Part":
        """Return the part with a file's axis in two groups, the first of extent ``lead``.

        ``new`` names the index that results. It is the first group's if ``size`` is not None.
        """
        names, passed = self.file_axes[axis], 1
        for place, name in enumerate(names):
            if passed == lead:
                return self
            extent = self.extents[name]
            if lead % (passed * extent) == 0:
                passed *= extent
                continue
            outer = lead // passed
            if lead % passed or extent % outer or place > 0 or name in self.sizes:
                raise Unsupported("an axis is divided across its indices")
            pair = (new, name) if size is not None else (name, new)
            counts = dict(zip(pair, (outer, extent // outer), strict=True))
            return replace(
                self,
                memory_axes=_replaced(self.memory_axes, name, pair),
                file_axes=_replaced(self.file_axes, name, pair),
                extents={**self.extents, **counts},
                sizes={**self.sizes, new: counts[new] if size is None else size},
            )
        return self

    def exchanged(self, axis: int, lead: int) -> "Part":
        """Return the part with the two groups of a file's axis exchanged."""
        names, passed = self.file_axes[axis], 1
        for place, name in enumerate(names):
            if passed == lead:
                group = (*names[place:], *names[:place])
                axes = (*self.file_axes[:axis], group, *self.file_axes[axis + 1 :])
                return replace(self, file_axes=axes)
            passed *= self.extents[name]
        return self

    def fixed(self, axis: int, name: str, value: int) -> "Part":
        """Return the part of one value of an index, which the file's axes lose."""
        group = tuple(each for each in self.file_axes[axis] if each != name)
        axes = [*self.file_axes[:axis], *([group] if group else []), *self.file_axes[axis + 1 :]]
        return replace(self, file_axes=tuple(axes), memory_fixed={**self.memory_fixed, name: value})


def _replaced(axes: Axes, name: str, pair: tuple[str, ...]) -> Axes:
    return tuple(
        tuple(new for each in axis for new in (pair if each == name else (each,))) for axis in axes
    )


def start(key: str, shape: Sequence[int]) -> list[Part]:
    """Return a tensor in memory as a tensor of a file: one part, in the same order."""
    if len(shape) not in _NAMES:
        raise Unsupported(f"a tensor of {len(shape)} axes")
    names = _NAMES[len(shape)]
    axes = tuple((name,) for name in names)
    return [Part(key, axes, axes, dict(zip(names, shape, strict=True)))]


def moved(
    operation: Any,
    tensors: list[list[Part]],
    config: Any,
    num_targets: int,
    patterns: Sequence[str] = (),
) -> list[list[Part]]:
    """Return what an operation makes of some tensors, in the order of its results.

    ``patterns`` are the patterns that the tensors matched, while there is one for each.
    """
    kind = type(operation).__name__
    if kind == "Concatenate":
        return [_concatenated(tensors, operation.dim)]
    if kind == "Chunk" and len(tensors) == 1:
        count = num_targets
        if operation.num_shards_attribute is not None:
            count = getattr(config.get_text_config(), operation.num_shards_attribute)
        return [_one(tensors[0], operation.dim, number, count) for number in range(count)]
    if kind == "SplitModulelist":
        return [
            [_unstacked(part, operation.dim, number) for part in parts]
            for parts in tensors
            for number in range(parts[0].extent(operation.dim))
        ]
    if kind == "Transpose":
        # With check_dims, a tensor that has its shape in memory stays as it is.
        return tensors if operation.check_dims else [_transposed(t, operation) for t in tensors]
    if kind == "Interleave":
        return [_interleaved(parts, operation) for parts in tensors]
    if kind == "PermuteForRope":
        chosen = operation.permute_layer_names
        if chosen is not None and len(patterns) != len(tensors):
            raise Unsupported("the operation PermuteForRope of some tensors of several")
        return [
            _permuted(parts, operation, config)
            if chosen is None or any(name in patterns[row] for name in chosen)
            else parts
            for row, parts in enumerate(tensors)
        ]
    raise Unsupported(f"the operation {kind}")


def _concatenated(tensors: list[list[Part]], axis: int) -> list[Part]:
    if len({parts[0].extent(axis) for parts in tensors}) > 1:
        raise Unsupported("parts of unequal extents are joined")
    name = f"s{len(tensors)}"
    found = []
    for number, parts in enumerate(tensors):
        for part in parts:
            if part.file_fixed:
                raise Unsupported("joined tensors are joined again")
            group = (name, *part.file_axes[axis])
            found.append(
                replace(
                    part,
                    file_axes=(*part.file_axes[:axis], group, *part.file_axes[axis + 1 :]),
                    extents={**part.extents, name: len(tensors)},
                    sizes={**part.sizes, name: len(tensors)},
                    file_fixed={name: number},
                )
            )
    return found


def _one(parts: list[Part], axis: int, number: int, count: int) -> list[Part]:
    name = f"s{count}"
    return [part.divided(axis, count, name, count).fixed(axis, name, number) for part in parts]


def _unstacked(part: Part, axis: int, number: int) -> Part:
    group = part.file_axes[axis]
    if len(group) != 1 or part.stacked:
        raise Unsupported("an axis of several indices is taken apart")
    return replace(part.fixed(axis, group[0], number), stacked=group[0])


def _transposed(parts: list[Part], operation: Any) -> list[Part]:
    found = []
    for part in parts:
        axes = list(part.file_axes)
        a, b = operation.dim0, operation.dim1
        axes[a], axes[b] = axes[b], axes[a]
        found.append(replace(part, file_axes=tuple(axes)))
    return found


def _interleaved(parts: list[Part], operation: Any) -> list[Part]:
    axis, found = operation.dim, []
    for part in parts:
        extent = prod(part.extents[name] for name in part.file_axes[axis])
        lead = 2 if operation.inverse else extent // 2
        divided = part.divided(axis, lead, "two", 2 if operation.inverse else None)
        found.append(divided.exchanged(axis, lead))
    return found


def _permuted(parts: list[Part], operation: Any, config: Any) -> list[Part]:
    prefix = ""
    if operation.subconfig_key is not None and hasattr(config, operation.subconfig_key):
        prefix, config = f"{operation.subconfig_key}.", getattr(config, operation.subconfig_key)
    if not hasattr(config, "num_attention_heads"):
        raise Unsupported("rotary heads whose number the configuration does not have")
    heads, found = config.num_attention_heads, []
    for part in parts:
        part = part.divided(0, heads, "n", f"config:{prefix}num_attention_heads")
        (head, *rest), others = part.file_axes[0], part.file_axes[1:]
        if head != "n" or len(rest) != 1:
            raise Unsupported("a rotary axis of several indices")
        # The halves of a head, or its pairs: an axis for itself while it is divided.
        inner = replace(part, file_axes=(tuple(rest), *others))
        extent = inner.extents[rest[0]]
        lead = 2 if operation.inverse else extent // 2
        inner = inner.divided(0, lead, "two", 2 if operation.inverse else None).exchanged(0, lead)
        found.append(replace(inner, file_axes=((head, *inner.file_axes[0]), *inner.file_axes[1:])))
    return found

"""Contributions: what a rule takes from one tensor to one target, before the target's shape is known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from shardvar.errors import MapError
from shardvar.layout.dtypes import is_whole
from shardvar.maps.extents import ALL, RuleExtents, SizeOf, shift_of
from shardvar.maps.keys import write_key
from shardvar.maps.matching import Match
from shardvar.maps.nearest import nearest_key
from shardvar.maps.placing import TensorAxes, axes_of, blocks, expand, merge
from shardvar.maps.plan import Arithmetic, Piece
from shardvar.maps.proof import Use
from shardvar.maps.syntax import ELLIPSIS, AxisNames, MapRule, NumberPart, Side, TextPart, WordPart

_MOST_TARGETS = 1 << 22
"""Tensors that are made of one."""

TensorFacts = tuple[str, tuple[int, ...]]
"""The dtype and the shape of a tensor."""


@dataclass(frozen=True, slots=True)
class FittedRule:
    """A rule with all that does not depend on a tensor."""

    number: int
    """Its position."""
    rule: MapRule
    """The rule."""
    extents: RuleExtents
    """The extents that its text and the sizes give."""
    size_of: SizeOf
    """Gives the sizes."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """The elements that a rule takes from one tensor to one target."""

    fitted: FittedRule
    """The rule."""
    match: Match
    """The source tensor."""
    dtype: str
    """Its dtype."""
    target: str
    """The key of the target."""
    axes: tuple[AxisNames, ...]
    """The target's axes."""
    fixed: Mapping[str, int]
    """The indices that have one value, from the start of each range."""
    selected: Mapping[str, int]
    """The extents of the others, which both sides share."""
    full: Mapping[str, int | None]
    """The full extents of the target's indices, as far as they are known."""
    source: TensorAxes
    """The source's axes."""
    cut: Mapping[AxisNames, int]
    """The extents of the target's axes whose last block is cut."""

    @property
    def number(self) -> int:
        """The position of the rule."""
        return self.fitted.number

    def use(self) -> Use:
        """Return what it holds of the source."""
        fixed = dict(self.fixed_in(self.source.axes))
        is_again = self.fitted.rule.is_again
        return self.source.use(self.number, fixed, self.selected, is_again=is_again)

    def fixed_in(self, axes: Sequence[AxisNames]) -> tuple[tuple[str, int], ...]:
        """Return the indices of some axes that have one value."""
        fixed = self.fixed
        return tuple([(name, fixed[name]) for axis in axes for name in axis if name in fixed])

    def extent(self, axis: int) -> int | None:
        """Return the extent of an axis of the target, if it is known."""
        mine = self.axes[axis]
        if mine in self.cut:
            return self.cut[mine]
        sizes = [self.full[name] for name in mine]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def full_of_source(self, name: str) -> int | None:
        """Return the full extent of an index of the source, in its axes or its key, if it is known."""
        found, extents = self.source.full.get(name), self.fitted.extents
        return extents.full(name, False, self.selected.get(name)) if found is None else found

    def free(self) -> list[str]:
        """Return the indices of its piece, in the order of the target."""
        return [
            name
            for axis in self.axes
            for name in axis
            if name not in self.fixed and name in self.selected
        ]


def contributions_of(
    fitted: FittedRule,
    match: Match,
    about: TensorFacts,
    placed: TensorAxes,
    selected: Mapping[str, int],
    counts: Mapping[str, int],
) -> Iterator[Contribution]:
    """Yield the contributions of one tensor: one for each target, and for each block that is cut.

    ``selected`` are the extents of the indices of the source's axes, ``counts`` the ones of its key.
    """
    target = fitted.rule.target
    if target is None:
        return
    axes, extents = expand(target.axes, placed), fitted.extents
    shared = {**counts, **selected}
    full = {name: extents.full(name, True, shared.get(name)) for axis in axes for name in axis}
    cut = {
        axis: length
        for axis in placed.cut
        if (length := placed.selected_of_cut(axis, selected)) is not None
        and all(extents.bounds(name, True) == ALL for name in axis)
    }
    # Indices of the source's axes that are in the target's key, and with 'also' indices that the
    # source does not have: one target for each value.
    repeated = fitted.rule.repeated()
    unstacked = [name for name in target.key.indices() if name in selected or name in repeated]
    extent = {**selected, **{name: _repetitions(fitted, name) for name in repeated}}
    # The same for indices that are in the key of a factor: each value has another factor.
    in_factors = [name for side in fitted.rule.factors for name in side.key.indices()]
    unstacked += [
        name for name in dict.fromkeys(in_factors) if name in extent and name not in unstacked
    ]
    number = prod(extent[name] for name in unstacked)
    if number > _MOST_TARGETS:
        raise MapError(
            f"{match.key!r} would become {number:,} tensors{' or parts' if in_factors else ''}.",
            f"At most {_MOST_TARGETS:,} are made of one: keep an index among the axes.",
        )
    for values in product(*(range(extent[name]) for name in unstacked)):
        at = {**match.indices, **dict(zip(unstacked, values, strict=True))}
        key = target_key(fitted, match, at, shared)
        for block, extents_of_block in blocks(placed, selected, at):
            both = {**shared, **extents_of_block}
            yield Contribution(
                fitted, match, about[0], key, axes, {**at, **block}, both, full, placed, cut
            )


def _repetitions(fitted: FittedRule, name: str) -> int:
    """The number of values of an index that only the target has."""
    found = fitted.extents.selected(name)
    if found is None:
        raise MapError(
            f"The size of {name} in {fitted.rule.text!r} is not known, and only the target has it.",
            f"Give {name} in sizes, or --size {name}=N.",
        )
    return found


def target_key(
    fitted: FittedRule, match: Match, at: Mapping[str, int], counts: Mapping[str, int]
) -> str:
    """Return the target's key for the indices ``at``."""
    target, extents = fitted.rule.target, fitted.extents
    given = list[int | str]()
    for part in () if target is None else target.key.parts:
        if isinstance(part, str):
            continue
        if isinstance(part, TextPart):
            given.append(match.texts[part.name])
            continue
        axis = part.axis if isinstance(part, NumberPart) else (part.name,)
        number = 0
        for place_in_axis, name in enumerate(axis):
            bounds, full = extents.bounds(name, True), extents.full(name, True, counts.get(name))
            value = bounds.start + at.get(name, 0)
            if place_in_axis and full is None:
                raise MapError(
                    f"The size of {name} in {{({' '.join(axis)})}} is not known.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            limits = [bounds.stop, full if place_in_axis or isinstance(part, WordPart) else None]
            past = [limit for limit in limits if limit is not None and value >= limit]
            if past:
                raise MapError(
                    f"{match.key!r} has {name} = {value}, and the target has {min(past)} of it.",
                    f"Choose another range of {name}, or another size.",
                )
            number = number * (full or 1) + value
        shift = shift_of(part, fitted.size_of) if isinstance(part, NumberPart) else 0
        given.append(number + shift)
        if number + shift < 0:
            raise MapError(
                f"{match.key!r} would get the number {number + shift}.", "Add to it in the rule."
            )
    return "" if target is None else write_key(target.key, given)


def piece_of(
    contribution: Contribution, target: TensorAxes, tensors: Mapping[str, TensorFacts]
) -> tuple[Piece, list[tuple[str, Use]]]:
    """Return the piece of a contribution whose target has all extents, and the uses of its factors."""
    rule, size_of, free = contribution.fitted.rule, contribution.fitted.size_of, contribution.free()
    counts = [contribution.selected[name] for name in free]
    views = [
        contribution.source.view(contribution.match.key, contribution.fixed, free),
        target.view(contribution.target, contribution.fixed, free),
    ]
    if not rule.has_arithmetic:
        shape, (taken, filled) = merge(counts, views)
        return Piece(contribution.number, shape, taken, filled), []
    uses = []
    for side in rule.factors:
        key, factor = _factor(contribution, side, tensors)
        views.append(factor.view(key, contribution.fixed, free))
        names = {name for axis in factor.axes for name in axis}
        fixed = {name: value for name, value in contribution.fixed.items() if name in names}
        uses.append(
            (key, factor.use(contribution.number, fixed, contribution.selected, is_again=True))
        )
    times = prod((each.real(size_of) for each in rule.times), start=1.0)
    plus = 0.0 if rule.plus is None else rule.plus.real(size_of)
    shape, (taken, filled, *rest) = merge(counts, views)
    return Piece(
        contribution.number, shape, taken, filled, Arithmetic(tuple(rest), times, plus)
    ), uses


def missing_key(contribution: Contribution, name: str, value: int) -> str:
    """Return the key next to a contribution's source that would have another value of one index.

    It is empty if indices of composed numbers do not say it.
    """
    side, starts = contribution.fitted.rule.source, _starts(contribution)
    at = {**contribution.match.indices, name: value}
    given = list[int | str]()
    for part in side.key.parts:
        if isinstance(part, str):
            continue
        if isinstance(part, TextPart):
            given.append(contribution.match.texts[part.name])
            continue
        axis = part.axis if isinstance(part, NumberPart) else (part.name,)
        if len(axis) > 1:
            return ""
        shift = shift_of(part, contribution.fitted.size_of) if isinstance(part, NumberPart) else 0
        given.append(starts.get(axis[0], 0) + at.get(axis[0], 0) + shift)
    return write_key(side.key, given)


def check_factors(contribution: Contribution, tensors: Mapping[str, TensorFacts]) -> None:
    """Raise ``MapError`` unless the factors of a contribution are floating-point tensors."""
    for side in contribution.fitted.rule.factors:
        key = _factor_key(contribution, side)
        if key not in tensors:
            near = nearest_key(key, tensors)
            raise MapError(
                f"The factor {key!r} of {contribution.match.key!r} is not in the checkpoint.",
                f"{f'The nearest key is {near!r}. ' if near else ''}Correct the name in the rule.",
            )
        dtype = tensors[key][0]
        if "float" not in dtype:
            raise MapError(f"The factor {key!r} is of dtype {dtype}.", "Factors are floats.")


def _factor(
    contribution: Contribution, side: Side, tensors: Mapping[str, TensorFacts]
) -> tuple[str, TensorAxes]:
    """The key and the axes of a factor, whose indices are the source's."""
    key = _factor_key(contribution, side)
    placed, _ = axes_of(side, tensors[key][1], key, contribution.full_of_source, {})
    return key, TensorAxes(placed.axes, placed.full, _starts(contribution))


def _starts(contribution: Contribution) -> dict[str, int]:
    """The first of each index that the source selects."""
    return {name: bounds.start for name, bounds in contribution.fitted.extents.source.items()}


def _factor_key(contribution: Contribution, side: Side) -> str:
    """The key of a factor, whose indices are the source's."""
    starts = _starts(contribution)
    given = list[int | str]()
    for part in side.key.parts:
        if isinstance(part, str):
            continue
        if isinstance(part, TextPart):
            given.append(contribution.match.texts[part.name])
            continue
        number = 0
        axis = part.axis if isinstance(part, NumberPart) else (part.name,)
        for place_in_axis, name in enumerate(axis):
            full = contribution.full_of_source(name) if place_in_axis else 1
            if full is None:
                raise MapError(
                    f"The size of {name} in {{({' '.join(axis)})}} is not known.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            number = number * full + starts.get(name, 0) + contribution.fixed.get(name, 0)
        shift = shift_of(part, contribution.fitted.size_of) if isinstance(part, NumberPart) else 0
        given.append(number + shift)
    return write_key(side.key, given)


def check_kind(rule: MapRule, key: str, dtype: str, encoding: str | None) -> None:
    """Raise ``MapError`` if the elements of a tensor cannot be moved, or computed with."""
    if rule.target is None or rule.keeps_tensors:
        return
    if is_whole(dtype):
        raise MapError(
            f"{key!r} is of dtype {dtype}, which is never cut or moved.", "Only rename it."
        )
    if rule.has_arithmetic and "float" not in dtype:
        raise MapError(
            f"{key!r} is of dtype {dtype}, and arithmetic is for floating-point numbers.",
            "Cast it before, or leave the arithmetic out.",
        )
    if encoding is not None and not _keeps_last(rule, rule.target):
        raise MapError(
            f"{key!r} consists of blocks of {encoding} along its last axis, which the rule changes.",
            "Dequantize first: dequantize=True (--dequantize).",
        )


def _keeps_last(rule: MapRule, target: Side) -> bool:
    """Return True if a rule leaves the last axis of its tensors as it is."""
    last = rule.source.axes[-1:]
    if last != target.axes[-1:] or not last or rule.has_arithmetic:
        return False
    is_one = last[0] == ELLIPSIS or len(last[0]) == 1
    return is_one and not any(
        name in side.ranges for side in (rule.source, target) for name in last[0]
    )

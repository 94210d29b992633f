"""A target of its contributions: its shape and its dtype, the extents that only all contributions together give,
and the proof that they fill it."""

from collections.abc import Collection, Mapping, Sequence
from itertools import count

from shardvar.errors import MapError
from shardvar.maps.contributions import Contribution, TensorFacts, missing_key, piece_of
from shardvar.maps.extents import solve
from shardvar.maps.fills import bytes_of_number
from shardvar.maps.nearest import nearest_key
from shardvar.maps.placing import TensorAxes
from shardvar.maps.plan import Piece, Target, View
from shardvar.maps.proof import Use, check_targets

KnownTargets = dict[tuple[object, ...], Target]
"""Targets that were made, by all that they depend on but names."""


def join_contributions(
    key: str,
    contributions: Sequence[Contribution],
    tensors: Mapping[str, TensorFacts],
    others: Collection[str],
    known: KnownTargets,
) -> tuple[Target, list[tuple[str, Use]]]:
    """Return a target, and the uses of factors; ``MapError`` if the contributions do not make one.

    ``others`` are the keys that no rule takes: a source that is missing may be there, misspelt.
    Most targets of a rule differ only in their names: one of them is made, and noted in ``known``.
    """
    if any(contribution.fitted.rule.has_arithmetic for contribution in contributions):
        return _join(key, contributions, tensors, others)
    cause = tuple(map(_cause, contributions))
    if cause not in known:
        known[cause], _ = _join(key, contributions, tensors, others)
    target = known[cause]
    pieces = tuple(map(_moved, target.pieces, contributions))
    return Target(key, target.dtype, target.shape, pieces, target.fill), []


def _cause(contribution: Contribution) -> tuple[object, ...]:
    """Return all that a piece depends on, but names."""
    source = contribution.source
    return (
        *(contribution.number, contribution.dtype, id(source), contribution.axes),
        contribution.fixed_in((*contribution.axes, *source.axes)),
        *(tuple(contribution.selected.items()), tuple(contribution.full.items())),
    )


def _moved(piece: Piece, contribution: Contribution) -> Piece:
    """The piece between other tensors."""
    taken, filled = piece.source, piece.target
    source = View(contribution.match.key, taken.start, taken.steps)
    return Piece(
        piece.rule, piece.shape, source, View(contribution.target, filled.start, filled.steps)
    )


def _join(
    key: str,
    contributions: Sequence[Contribution],
    tensors: Mapping[str, TensorFacts],
    others: Collection[str],
) -> tuple[Target, list[tuple[str, Use]]]:
    """Make a target of its contributions."""
    shape, fulls = _shape(contributions)
    dtypes = {contribution.dtype: contribution for contribution in reversed(contributions)}
    if len(dtypes) > 1:
        some = ", ".join(
            f"{contribution.match.key!r} of {dtype} by {_rule(contribution)}"
            for dtype, contribution in dtypes.items()
        )
        raise MapError(
            f"it is made of tensors of several dtypes: {some}.",
            "Cast them to one dtype before: shardvar reshard SRC DST --cast DTYPE.",
        )
    uses, pieces, factors = [], [], []
    for contribution, full in zip(contributions, fulls, strict=True):
        starts = {name: bounds.start for name, bounds in contribution.fitted.extents.target.items()}
        placed = TensorAxes(contribution.axes, full, starts, contribution.cut)
        names = [name for axis in contribution.axes for name in axis]
        fixed = {name: value for name, value in contribution.fixed.items() if name in names}
        use = placed.use(contribution.number, fixed, contribution.selected)
        _check_inside(use, names, placed, contribution, contributions)
        uses.append(use)
        try:
            piece, more = piece_of(contribution, placed, tensors)
        except MapError as error:
            raise error.at(_rule(contribution)) from None
        pieces.append(piece)
        factors += more
    fill = _fill(contributions)
    _check_filled(shape, contributions, uses, others, has_fill=fill is not None)
    return Target(key, contributions[0].dtype, shape, tuple(pieces), fill), factors


def _shape(contributions: Sequence[Contribution]) -> tuple[tuple[int, ...], list[dict[str, int]]]:
    """The shape of a target, and the full extents of its indices for each contribution."""
    rank = len(contributions[0].axes)
    for contribution in contributions:
        if len(contribution.axes) != rank:
            raise MapError(
                f"{_rule(contributions[0])} makes {rank} axes, and {_rule(contribution)} makes "
                f"{len(contribution.axes)}.",
                "Write the same axes in all rules that fill it.",
            )
    shape, stops = list[int](), dict[str, int]()
    for axis in range(rank):
        known = dict[int, Contribution]()
        for contribution in contributions:
            extent = contribution.extent(axis)
            if extent is not None:
                known.setdefault(extent, contribution)
        if len(known) > 1:
            (a, one), (b, other), *_ = known.items()
            raise MapError(
                f"its axis {axis} has {a} by {_rule(one)} from {one.match.key!r}, and {b} by "
                f"{_rule(other)} from {other.match.key!r}.",
                "Parts of one tensor agree on its shape: correct the sizes, or the rules.",
            )
        shape.append(next(iter(known)) if known else _union(contributions, axis, stops))
    return tuple(shape), [_full(contribution, shape, stops) for contribution in contributions]


def _union(contributions: Sequence[Contribution], axis: int, stops: dict[str, int]) -> int:
    """The extent of an axis, where each contribution knows only the part that it fills.

    Notes the extents of its indices in ``stops``: as far as the ranges of all contributions reach.
    """
    for contribution in contributions:
        for name in contribution.axes[axis]:
            if contribution.full[name] is not None:
                continue
            if contribution.fitted.rule.fill is not None:
                raise MapError(
                    f"the extent of {name} is not known, so 'else' of {_rule(contribution)} does not "
                    "know what to fill.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            bounds = contribution.fitted.extents.bounds(name, True)
            stop = bounds.stop
            if stop is None:
                stop = bounds.start + contribution.selected[name]
            stops[name] = max(stops.get(name, 0), stop)
    extent = 1
    for name in contributions[0].axes[axis]:
        known = contributions[0].full[name]
        extent *= stops[name] if known is None else known
    return extent


def _full(
    contribution: Contribution, shape: Sequence[int], stops: Mapping[str, int]
) -> dict[str, int]:
    """The full extents of the target's indices for one contribution."""
    full = dict[str, int]()

    def known(name: str) -> int | None:
        size = contribution.full[name]
        return stops.get(name) if size is None else size

    for axis, extent in zip(contribution.axes, shape, strict=True):
        if axis in contribution.cut:
            full |= {name: known(name) or 0 for name in axis}
        else:
            full |= solve(axis, extent, known, f"the target of {_rule(contribution)}")
    return full


def _check_inside(
    use: Use,
    names: Sequence[str],
    target: TensorAxes,
    contribution: Contribution,
    contributions: Sequence[Contribution],
) -> None:
    """Raise ``MapError`` if a range reaches out of the extent that another rule gives the target."""
    for name, begin, number in zip(names, use.begins, use.counts, strict=True):
        if begin + number > target.full[name]:
            others = [each for each in contributions if each.number != contribution.number]
            by = f" by {_rule(others[0])}" if others else ""
            raise MapError(
                f"{_rule(contribution)} fills {name}={begin}:{begin + number}, and the extent of "
                f"{name} is {target.full[name]}{by}.",
                "Give each rule that fills it a range with '@', or a size.",
            )


def _fill(contributions: Sequence[Contribution]) -> bytes | None:
    fills = {
        contribution.fitted.rule.fill: contribution
        for contribution in contributions
        if contribution.fitted.rule.fill
    }
    if len(fills) > 1:
        some = " and ".join(_rule(contribution) for contribution in fills.values())
        raise MapError(f"{some} fill it with different numbers.", "Write one 'else'.")
    for text, contribution in fills.items():
        try:
            return bytes_of_number(str(text), contribution.dtype)
        except MapError as error:
            raise error.at(_rule(contribution)) from None
    return None


def _rule(contribution: Contribution) -> str:
    """The rule of a contribution, for an error."""
    return f"rule {contribution.number + 1} {contribution.fitted.rule.text!r}"


def _check_filled(
    shape: Sequence[int],
    contributions: Sequence[Contribution],
    uses: Sequence[Use],
    others: Collection[str],
    *,
    has_fill: bool,
) -> None:
    """Raise ``MapError`` unless each element is filled once."""
    flaw = check_targets(shape, uses, has_fill=has_fill)
    if flaw is None:
        return
    where, rows = flaw
    if rows:
        named = [
            f"{_rule(contributions[row])} from {contributions[row].match.key!r}" for row in rows[:3]
        ]
        raise MapError(
            f"its element {where} is filled {len(rows)} times, by {' and '.join(named)}.",
            "Leave one of them out, or separate them with '@'.",
        )
    rules = {contribution.number: _rule(contribution) for contribution in contributions}
    near = "; ".join(rules[number] for number in sorted(rules)[:2])
    missing, key = _missing(contributions)
    nearest = nearest_key(key, others) if key else ""
    hint = f"Did you mean {nearest!r}, which no rule takes? " if nearest else ""
    raise MapError(
        f"its element {where} is filled by no rule{missing}; others are filled by {near}.",
        f"{hint}Add the source that is missing, or a rule for it, or 'else 0' to fill it.",
    )


def _missing(contributions: Sequence[Contribution]) -> tuple[str, str]:
    """Name the number that no key has, if that is the cause of a hole, and the key of it."""
    for number in dict.fromkeys(contribution.number for contribution in contributions):
        mine = [contribution for contribution in contributions if contribution.number == number]
        source = mine[0].fitted.rule.source.key
        for name in source.indices():
            if any(name in axis for axis in mine[0].axes):
                have = {
                    contribution.fixed[name] for contribution in mine if name in contribution.fixed
                }
                # The last number may be very large, so numbers are only counted up to the first gap.
                gap = next(number for number in count() if number not in have)
                if gap < mine[0].selected.get(name, 0):
                    key = missing_key(mine[0], name, gap)
                    named = f" (the key {key!r})" if key else ""
                    return f": no key {source.text!r} has {name} = {gap}{named}", key
    return "", ""

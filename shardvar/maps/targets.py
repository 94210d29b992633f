"""A target of its drafts: its shape and its dtype, the extents that only all drafts together give,
and the proof that they fill it."""

from collections.abc import Mapping, Sequence

from shardvar.errors import MapError
from shardvar.maps.drafts import About, Draft, piece_of
from shardvar.maps.extents import solve
from shardvar.maps.fills import bytes_of_number
from shardvar.maps.placing import Placed
from shardvar.maps.plan import Target
from shardvar.maps.proof import Use, check_targets


def join_drafts(
    key: str, drafts: Sequence[Draft], tensors: Mapping[str, About]
) -> tuple[Target, list[tuple[str, Use]]]:
    """Return a target, and the uses of factors; ``MapError`` if the drafts do not make one."""
    shape, fulls = _shape(drafts)
    dtypes = {draft.dtype: draft.match.key for draft in drafts}
    if len(dtypes) > 1:
        some = ", ".join(f"{source!r} of {dtype}" for dtype, source in dtypes.items())
        raise MapError(
            f"It is made of tensors of several dtypes: {some}.",
            "Cast them to one dtype before: shardvar reshard SRC DST --cast DTYPE.",
        )
    uses, pieces, factors = [], [], []
    for draft, full in zip(drafts, fulls, strict=True):
        starts = {name: bounds.start for name, bounds in draft.fitted.extents.target.items()}
        placed = Placed(draft.axes, full, starts, draft.source.cut)
        names = {name for axis in draft.axes for name in axis}
        fixed = {name: value for name, value in draft.fixed.items() if name in names}
        uses.append(placed.use(draft.number, fixed, draft.selected))
        piece, more = piece_of(draft, placed, tensors)
        pieces.append(piece)
        factors += more
    fill = _fill(drafts)
    _check_filled(shape, drafts, uses, has_fill=fill is not None)
    return Target(key, drafts[0].dtype, shape, tuple(pieces), fill), factors


def _shape(drafts: Sequence[Draft]) -> tuple[tuple[int, ...], list[dict[str, int]]]:
    """The shape of a target, and the full extents of its indices for each draft."""
    rank = len(drafts[0].axes)
    for draft in drafts:
        if len(draft.axes) != rank:
            raise MapError(
                f"Rule {drafts[0].number + 1} makes {rank} axes, and rule {draft.number + 1} "
                f"{len(draft.axes)}.",
                "Write the same axes in all rules that fill it.",
            )
    shape, stops = list[int](), dict[str, int]()
    for axis in range(rank):
        known = dict[int, Draft]()
        for draft in drafts:
            extent = draft.extent(axis)
            if extent is not None:
                known.setdefault(extent, draft)
        if len(known) > 1:
            (a, one), (b, other), *_ = known.items()
            raise MapError(
                f"Its axis {axis} has {a} by rule {one.number + 1} from {one.match.key!r}, and {b} "
                f"by rule {other.number + 1} from {other.match.key!r}.",
                "Parts of one tensor agree on its shape: correct the sizes, or the rules.",
            )
        shape.append(next(iter(known)) if known else _union(drafts, axis, stops))
    return tuple(shape), [_full(draft, shape, stops) for draft in drafts]


def _union(drafts: Sequence[Draft], axis: int, stops: dict[str, int]) -> int:
    """The extent of an axis of which each draft knows only the part that it fills.

    Notes the extents of its indices in ``stops``: as far as the ranges of all drafts reach.
    """
    for draft in drafts:
        for name in draft.axes[axis]:
            if draft.full[name] is not None:
                continue
            if draft.fitted.rule.fill is not None:
                raise MapError(
                    f"The extent of {name} is not known, so 'else' does not know what to fill.",
                    f"Give {name} in sizes, or --size {name}=N.",
                )
            bounds = draft.fitted.extents.bounds(name, True)
            stop = bounds.stop
            if stop is None:
                stop = bounds.start + draft.selected[name]
            stops[name] = max(stops.get(name, 0), stop)
    extent = 1
    for name in drafts[0].axes[axis]:
        known = drafts[0].full[name]
        extent *= stops[name] if known is None else known
    return extent


def _full(draft: Draft, shape: Sequence[int], stops: Mapping[str, int]) -> dict[str, int]:
    """The full extents of the target's indices for one draft."""
    full = dict[str, int]()

    def known(name: str) -> int | None:
        size = draft.full[name]
        return stops.get(name) if size is None else size

    for axis, extent in zip(draft.axes, shape, strict=True):
        if axis in draft.source.cut:
            full |= {name: known(name) or 0 for name in axis}
        else:
            full |= solve(axis, extent, known, f"Rule {draft.number + 1}: the target")
    return full


def _fill(drafts: Sequence[Draft]) -> bytes | None:
    fills = {draft.fitted.rule.fill for draft in drafts} - {None}
    if len(fills) > 1:
        raise MapError("Two rules fill it with different numbers.", "Write one 'else'.")
    return bytes_of_number(str(fills.pop()), drafts[0].dtype) if fills else None


def _check_filled(
    shape: Sequence[int], drafts: Sequence[Draft], uses: Sequence[Use], *, has_fill: bool
) -> None:
    """Raise ``MapError`` unless each element is filled once."""
    flaw = check_targets(shape, uses, has_fill=has_fill)
    if flaw is None:
        return
    where, rows = flaw
    if rows:
        named = [f"rule {drafts[row].number + 1} ({drafts[row].match.key!r})" for row in rows[:3]]
        raise MapError(
            f"Its element {where} is filled {len(rows)} times, by {' and '.join(named)}.",
            "Leave one of them out, or separate them with '@'.",
        )
    rules = {draft.number: draft.fitted.rule.text for draft in drafts}
    near = "; ".join(f"rule {number + 1} {text!r}" for number, text in sorted(rules.items())[:2])
    raise MapError(
        f"Its element {where} is filled by no rule{_missing(drafts)}. It is made by {near}.",
        "Add the source that is missing, or a rule for it, or 'else 0' to fill it.",
    )


def _missing(drafts: Sequence[Draft]) -> str:
    """Name the number that no key has, if that is the cause of a hole."""
    for number in dict.fromkeys(draft.number for draft in drafts):
        mine = [draft for draft in drafts if draft.number == number]
        source = mine[0].fitted.rule.source.key
        for name in source.indices():
            if any(name in axis for axis in mine[0].axes):
                have = {draft.fixed[name] for draft in mine if name in draft.fixed}
                gaps = sorted(set(range(mine[0].selected.get(name, 0))) - have)
                if gaps:
                    return f": no key {source.text!r} has {name} = {gaps[0]}"
    return ""

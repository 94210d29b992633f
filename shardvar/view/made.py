"""The columns of a map: for each tensor that it makes, the regions of the source tensors.

Layers of a model are made alike, so a piece is a pair of numbers: of its source, and of its pattern,
which has the rule and the regions on both sides. A tensor takes some ten bytes for each of its
pieces. Tensors beyond the room for them are counted.
"""

import json
from collections.abc import Sequence

from shardvar.maps.plan import MapPlan, Piece, View
from shardvar.verbs.parameters import reading_key
from shardvar.verbs.reports import WriteReport
from shardvar.view.collect import Columns, front_coded, packed

_MOST_NBYTES = 5_000_000
"""The room that pieces have in a page, a third of it."""

AxisRuns = tuple[int, int, list[tuple[int, int]]]
"""Coordinates along an axis: the first, how many follow each other, and how often that repeats, as
counts and steps, the innermost first."""


def made_columns(report: WriteReport) -> Columns:
    """Return the pieces of what a dry run would write, under the name ``made``; {} without a map."""
    if report.map is None or report.planned is None:
        return {}
    keys = sorted(report.planned.slices.tensors.keys, key=reading_key)  # as the page has them
    rules = [each.rule for each in report.map.rules]
    return {"made": map_columns(report.map.plan, rules, keys)}


def map_columns(plan: MapPlan, rules: Sequence[str], keys: Sequence[str]) -> Columns:
    """Return the pieces of each tensor of a page, whose keys are ``keys``."""
    targets = {target.key: target for target in plan.every_target()}
    sources: dict[str, int] = {}
    numbers: dict[object, int] = {}
    patterns, pieces = list[list[object]](), list[int]()
    factors, counts, filled = list[list[int]](), list[int](), list[int]()
    nbytes = left_out = 0
    for row, key in enumerate(keys):
        target = targets.get(key)
        if target is None or nbytes > _MOST_NBYTES:
            left_out += target is not None
            counts.append(0)
            continue
        counts.append(len(target.pieces))
        if target.fill is not None:
            filled.append(row)
        for piece in target.pieces:
            here = [(view.start, view.steps) for view in (piece.source, piece.target)]
            shape = piece.rule, piece.shape, *here
            if shape not in numbers:
                numbers[shape] = len(patterns)
                patterns.append(_pattern(piece))
                nbytes += len(json.dumps(patterns[-1]))
            used = [piece.source.key]
            if piece.arithmetic is not None:
                used += [factor.key for factor in piece.arithmetic.factors]
            nbytes += 14 + sum(len(each) + 3 for each in used if each not in sources)
            rows = [sources.setdefault(each, len(sources)) for each in used]
            if len(rows) > 1:
                factors.append([len(pieces) // 2, *rows[1:]])
            pieces += [numbers[shape], rows[0]]
    return {
        "rules": list(rules),
        "sources": front_coded(list(sources)),
        "patterns": patterns,
        "num_pieces": packed(counts),
        "pieces": pieces,
        "factors": factors,
        "filled": filled,
        "num_left_out": left_out,
    }


def _pattern(piece: Piece) -> list[object]:
    """The rule of a piece, its regions as text, whether it is reordered, and its places."""
    target = runs_of(piece.target, piece.shape)
    return [
        piece.rule,
        runs_text(runs_of(piece.source, piece.shape)),
        runs_text(target),
        is_reordered(piece),
        [
            [first, run, *(number for pair in more for number in pair)]
            for first, run, more in target
        ],
    ]


def runs_of(view: View, counts: Sequence[int]) -> list[AxisRuns]:
    """Return the coordinates of a piece along each axis of a tensor.

    >>> runs_of(View("w", (0, 0), ((0, 6), (0, 1), (1, 1))), [3, 2, 4])
    [(0, 2, [(3, 6)]), (0, 4, [])]
    """
    found = list[AxisRuns]()
    for axis, first in enumerate(view.start):
        run, more = 1, list[tuple[int, int]]()
        mine = [(step, n) for n, (at, step) in zip(counts, view.steps, strict=True) if at == axis]
        for step, count in sorted(mine):
            if step == run and not more:
                run *= count
            elif more and step == more[-1][0] * more[-1][1]:
                more[-1] = (more[-1][0] * count, more[-1][1])
            else:
                more.append((count, step))
        found.append((first, run, more))
    return found


def runs_text(runs: Sequence[AxisRuns]) -> str:
    """Return a region as text: an index of NumPy, or how often a range repeats.

    >>> runs_text([(0, 4, []), (1, 1, [(3, 2)]), (0, 2, [(3, 6)]), (5, 1, [])])
    '[0:4, 1:6:2, 0:2 of each 6 (3 times), 5]'
    """
    texts = list[str]()
    for first, run, more in runs:
        if run == 1 and not more:
            text = f"{first}"
        elif run == 1 and len(more) == 1:
            ((count, step),) = more
            text = f"{first}:{first + (count - 1) * step + 1}:{step}"
        else:
            repeats = "".join(f" of each {step} ({count} times)" for count, step in more)
            text = f"{first}:{first + run}{repeats}"
        texts.append(text)
    return f"[{', '.join(texts)}]"


def is_reordered(piece: Piece) -> bool:
    """Return True if the elements of a piece are in another order in the target than in the source.

    The axes of a piece are taken in the order of the target, the slowest first.
    """
    indices = zip(piece.shape, piece.source.steps, piece.target.steps, strict=True)
    moved = [(taken, filled) for count, taken, filled in indices if count > 1]
    moved.sort(key=lambda pair: (pair[1][0], -pair[1][1]))
    order = [(axis, -step) for (axis, step), _ in moved]
    return order != sorted(order)

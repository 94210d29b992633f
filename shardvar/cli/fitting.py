"""The lines of a tree that fit a screen.

All lines, if they fit. Else the lines of the first level are shown, and the branches are opened in
the order of their bytes, the largest first and parts of an optimizer last, as far as the lines
below them fit. A part of one more branch fills the rest of the screen; a last line stands for its
other lines. A branch that is not opened is *folded*: its line has the number of its tensors and all
their bytes, so that no sum changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardvar.cli.tensors import Tensor
from shardvar.cli.tree import Line
from shardvar.verbs.parameters import is_optimizer_state

_FEWEST = 3
"""The fewest lines for a part of a branch: two lines, and the one that stands for the others."""
_FIRST = 1000
"""The weight of a byte of a model, in bytes of an optimizer."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A line that is shown."""

    line: Line
    """The line."""
    is_folded: bool = False
    """True for a branch without the lines below it."""
    others: tuple[Line, ...] = ()
    """The siblings that the line stands for, itself among them; empty for a line that stands for
    itself."""


def line_weights(lines: Sequence[Line], tensors: Sequence[Tensor]) -> list[int]:
    """Return the bytes of each line for ``fit``, with a model before its
    optimizer."""
    is_state = [is_optimizer_state(each.key) for each in tensors]
    return [
        sum(tensors[leaf].nbytes for leaf in line.alike)
        * (1 if all(is_state[leaf] for leaf in line.alike) else _FIRST)
        for line in lines
    ]


def fit(lines: Sequence[Line], weights: Sequence[int], most: int) -> list[Shown]:
    """Return at most ``most`` lines. A branch weighs at least as much as each line below it."""
    if len(lines) <= most:
        return [Shown(line) for line in lines]
    parents = _parents(lines)
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        children.setdefault(parent, []).append(number)
    # How many of the lines directly below a branch are shown; -1 is the root.
    opened = {-1: len(children[-1]) if len(children[-1]) <= most else max(most - 1, 0)}
    left = most - len(children[-1])
    # A branch is never behind those below it in this order, and what does not fit once never fits
    # later.
    largest_first = sorted(
        (each for each in children if each >= 0), key=lambda each: (-weights[each], each)
    )
    kept_closed = []
    for branch in largest_first if left > 0 else []:
        if parents[branch] not in opened:
            continue
        if len(children[branch]) <= left:
            opened[branch] = len(children[branch])
            left -= opened[branch]
        else:
            kept_closed.append(branch)
    if left >= _FEWEST and kept_closed:
        opened[kept_closed[0]] = left - 1
    return list(_shown(lines, parents, children, opened))


def positions_of(shown: Shown) -> tuple[int, ...]:
    """Return the positions of all keys that a line stands for."""
    return tuple(leaf for each in shown.others or (shown.line,) for leaf in each.alike)


def _parents(lines: Sequence[Line]) -> list[int]:
    """Return the number of the line above each line, in the sense of the tree; -1 for the first
    level."""
    parents, path = [], [-1]
    for number, line in enumerate(lines):
        del path[line.level :]
        parents.append(path[-1])
        path.append(number)
    return parents


def _shown(
    lines: Sequence[Line],
    parents: Sequence[int],
    children: Mapping[int, Sequence[int]],
    opened: Mapping[int, int],
) -> Iterator[Shown]:
    place = dict.fromkeys(children, 0)
    for number, line in enumerate(lines):
        parent = parents[number]
        if parent not in opened:
            continue
        if place[parent] < opened[parent]:
            yield Shown(line, number in children and number not in opened)
        elif place[parent] == opened[parent]:
            others = tuple(lines[each] for each in children[parent][opened[parent] :])
            yield Shown(others[-1], True, others)
        place[parent] += 1

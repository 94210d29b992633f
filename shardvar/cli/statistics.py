"""Statistics of values for people: a line for each remarkable thing, and a table that folds equal
layers.

A line has the values of all its tensors together: of all elements at one place in equal layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice

from shardvar.cli.output import (
    at_terminal,
    count,
    folded,
    print_table,
    printable,
    say,
    short_name,
    warn,
)
from shardvar.cli.tensors import (
    Shown,
    Tensor,
    fit,
    fold_state,
    line_weights,
    positions_of,
    slot_name,
    slot_names,
)
from shardvar.cli.tree import fold_keys, tree_lines
from shardvar.errors import ReadError
from shardvar.pictures.words import named
from shardvar.verbs.compare.blocks import Statistics

_TOGETHER = "Tensors that share a line are measured together; --all lists each of them."
_MOST_NAMED = 3
"""Tensors that a line of findings names; it counts the others."""
_HEADERS = ("tensor", "min", "max", "mean", "std", "NaN", "inf", "zero")

_Row = tuple[str, ...]
_Measured = Mapping[str, Statistics | ReadError]


ODD: Mapping[str, tuple[str, Callable[[Statistics], bool]]] = {
    "nan": ("with NaN", lambda found: found.nan > 0),
    "inf": ("with infinity", lambda found: found.inf > 0),
    "zero": ("with only zeros", lambda found: 0 < found.count == found.zero),
    "constant": (
        "with one value",  # of several elements, and not zero
        lambda found: (
            found.count > 1
            and not found.nan
            and not found.inf
            and found.minimum == found.maximum
            and found.zero != found.count
        ),
    ),
    "empty": ("without elements", lambda found: not found.count),
}
"""Kinds of values worth a line: the name for ``--fail-on``, the words, the test."""


def print_statistics(tensors: Sequence[Tensor], measured: _Measured, room: int | None) -> None:
    """Print findings, then a table; with ``room``, equal layers share a line, and so many lines are shown."""
    found = list(findings(measured))
    for text in found:
        warn(text)
    if found:
        print()
    if room is None:
        digits = 3 if at_terminal() else 6
        rows = [_statistics_row(printable(key), each, digits) for key, each in measured.items()]
        print_table(_HEADERS, rows, range(1, 8), [7, 4])
    else:
        taken = sum(len(folded(text)) for text in found) + bool(found)
        _print_folded(tensors, measured, room - taken)


def _print_folded(tensors: Sequence[Tensor], measured: _Measured, room: int) -> None:
    tensors, slots, _ = fold_state(tensors)
    # Strings have no statistics, and neither have tensors whose faults are listed below the table.
    others = [
        each.key
        for each in tensors
        if each.key not in measured and each.fault is None and not each.is_setting
    ]
    tensors = [each for each in tensors if each.key in measured]
    # Matrices with other parts in a model are not measured together.
    kinds = [(each.kind, each.shape) for each in tensors]
    lines = list(tree_lines([each.key for each in tensors], kinds, by_words=False))
    several = any(len(line.alike) > 1 and line.leaf is not None for line in lines)
    below = [f"without numbers: {named([label for label, _ in fold_keys(others)])}"] * bool(others)
    below += [_TOGETHER] * (several or len(lines) > room)
    by_name = {
        name: [each for each in slots if slot_name(each.key) == name] for name in slot_names(slots)
    }
    room -= len(by_name) + sum(len(folded(text)) for text in below) + bool(below)
    kept = fit(lines, line_weights(lines, tensors), max(room, 1))
    rows = [
        _folded_row(each, [measured[tensors[leaf].key] for leaf in positions_of(each)])
        for each in kept
    ]
    for name, some in by_name.items():
        found = [measured[each.key] for each in some if each.key in measured]
        rows.append(_merged_row(f"optimizer slots {printable(name)}", found))
    # A column of zeros is left out; the lines above list the remarkable counts.
    hidden = [column for column in (5, 6, 7) if all(row[column] in ("", "0") for row in rows)]
    branches = [number for number, each in enumerate(kept) if each.line.leaf is None]
    print_table(_HEADERS, rows, range(1, 8), (7, 5, 6, 4, 3), bold=branches, hidden=hidden)
    if below:
        print()
    for text in below:
        say(text)


def findings(measured: _Measured) -> Iterator[str]:
    """Yield a line for each remarkable thing: NaN, infinity, only zeros, one value."""
    found = {key: each for key, each in measured.items() if isinstance(each, Statistics)}
    is_short = at_terminal()  # a pipe gets names whole
    shown = short_name if is_short else printable
    counts = {
        "nan": {key: each.nan for key, each in found.items()},
        "inf": {key: each.inf for key, each in found.items()},
    }
    for name, (word, is_so) in ODD.items():
        keys = [key for key, each in found.items() if is_so(each)]
        labels = fold_keys(keys) if is_short else ((key, [key]) for key in keys)
        groups = list(islice(labels, _MOST_NAMED))
        names = [
            shown(label)
            + (f" ({sum(counts[name][key] for key in shared):,})" if name in counts else "")
            for label, shared in groups
        ]
        if more := len(keys) - sum(len(shared) for _, shared in groups):
            names[-1] += f" and {more:,} more"
        if keys:
            yield f"! {count(len(keys), 'tensor')} {word}: {', '.join(names)}"


def _folded_row(shown: Shown, found: Sequence[Statistics | ReadError]) -> _Row:
    """Return the row of the tensors below a line; an open branch has only its label."""
    line = shown.line
    times = f" (x{line.num_alike})" if line.num_alike > 1 else ""
    label = f"{line.guide}{printable(line.label)}{'…' * shown.is_folded}{times}"
    if shown.others:
        label = f"{line.guide}… {len(shown.others):,} more"
    elif line.leaf is None and not shown.is_folded:
        return label, *[""] * 7
    return _merged_row(label, found)


def _merged_row(label: str, found: Sequence[Statistics | ReadError]) -> _Row:
    """Return the row of several tensors together, or of the first error."""
    known = [each for each in found if isinstance(each, Statistics)]
    broken = [each for each in found if isinstance(each, ReadError)]
    return _statistics_row(
        label, broken[0] if broken else reduce(Statistics.merge, known, Statistics()), 3
    )


def _statistics_row(label: str, found: Statistics | ReadError, digits: int) -> _Row:
    if isinstance(found, ReadError):
        return label, type(found).__name__, *[""] * 6
    numbers = [
        "-" if each is None else f"{each:.{digits}g}" if isinstance(each, float) else str(each)
        for each in (found.minimum, found.maximum, found.mean, found.std)
    ]
    return label, *numbers, str(found.nan), str(found.inf), str(found.zero)

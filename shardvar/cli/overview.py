"""The overview of a checkpoint that ``inspect`` prints for people: two lines of totals, a tree, and
what is wrong.

At a terminal the tree is folded until all of it is on the screen with the lines around it: layers
of equal tensors share a line, wherever their bytes are. TensorFlow's suffix of keys and the slots
of optimizers are left out, and if lines are short, the settings of a program get a line below the
tree. The last lines say what was folded, and how to see it. ``--all`` folds nothing. A pipe gets
every whole key, a line each.
"""

import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from shardvar.cli.fitting import Shown, fit, line_weights
from shardvar.cli.folder_notes import num_lines
from shardvar.cli.output import (
    count,
    folded,
    human_count,
    human_size,
    human_tensors,
    path_on_a_line,
    printable,
    put,
    say,
    warn,
)
from shardvar.cli.problems import print_problems, problem_lines
from shardvar.cli.rows import Table, TableRow, file_numbers, print_rows
from shardvar.cli.settings import settings_lines
from shardvar.cli.state import SUFFIX, fold_state, slot_names
from shardvar.cli.tensors import Tensor, layout_of
from shardvar.cli.tree import Line, tree_lines
from shardvar.errors import ReadError
from shardvar.formats.native.names import files_of_others
from shardvar.limits import MAX_NAMED
from shardvar.planning.index import find_ties, take_tensors
from shardvar.verbs.parameters import ParameterCount, empty_note, is_optimizer_state
from shardvar.verbs.reader import Reader
from shardvar.verbs.reports import Damage
from shardvar.verbs.scalars import read_scalars
from shardvar.wire.collection import without_collection

if TYPE_CHECKING:
    from shardvar.verbs.compare.blocks import Statistics

_FEWEST_LINES, _MOST_LINES = 4, 60
"""The height of a folded tree is what the terminal has left, between these."""
_MOST_CAUSES = 4
"""The causes of damage that a terminal lists below a tree."""
_PROMPTS = 2
"""Lines of the screen for the command itself and for the next prompt."""
_NOT_COUNTED = 0.01
"""The part of the bytes from which tensors that may be packed weights are named where parameters
are counted."""


def print_overview(
    reader: Reader,
    tensors: Sequence[Tensor],
    measured: "Mapping[str, Statistics | ReadError]",
    arguments: Namespace,
) -> None:
    """Print totals, the tree or table of tensors, statistics if they were measured, and what cannot
    be read."""
    heading = [*_heading(reader, tensors, arguments.verbose)]
    for line in heading:
        say(line, _emphasised(reader, line))
    faults = [Damage.of(each.fault, each.key) for each in tensors if each.fault is not None]
    # What is printed around the tree.
    taken = sum(len(folded(line)) for line in heading) + num_lines(arguments.notes)
    taken += len(problem_lines(faults, most=_MOST_CAUSES)) + 3 if faults else 0
    if arguments.brief:
        # They are the reason for the exit code of ``--fail-on``.
        if measured:
            from shardvar.cli.statistics import (
                findings,  # not above: without --stats nothing needs it
            )

            for line in findings(measured):
                warn(line)
    else:
        if arguments.slices:
            _print_layouts(reader, tensors)
        # At a terminal the table of values replaces the table of shapes, unless all or some tensors
        # are asked for.
        is_folded = bool(measured) and sys.stdout.isatty() and _in_brief(arguments)
        if tensors and not is_folded:
            print()
            _print_tensors(reader, tensors, arguments, taken)
        if measured:
            from shardvar.cli.statistics import print_statistics

            print()
            print_statistics(tensors, measured, lines_left(taken) if is_folded else None)
    if faults:
        put("", f"{count(len(faults), 'tensor')} cannot be read:")
        if not print_problems(faults, arguments.all, pipe="  ", most=_MOST_CAUSES):
            say("--all names each of them.")


def lines_left(taken: int) -> int:
    """Return the lines of the terminal for a tree, with the blank line and the headers above it."""
    return min(max(get_terminal_size().lines - _PROMPTS - 2 - taken, _FEWEST_LINES), _MOST_LINES)


def _heading(reader: Reader, tensors: Sequence[Tensor], verbose: bool) -> Iterator[str]:
    own = [each for each in tensors if not each.is_setting]
    settings = len(tensors) - len(own)
    number = human_tensors(len(own), sum(each.num_slices for each in own))
    numbers = [number] * (bool(own) or not settings) + [count(settings, "setting")] * bool(settings)
    files = count(len({name for each in tensors for name in each.files}), "file")
    size = human_size(sum(each.nbytes for each in own))
    name = f"{path_on_a_line(reader.path)} ({reader.format})"
    yield f"{name}: {' and '.join(numbers)}, {files}, {size}"
    parameters = ParameterCount(
        {each.key: (each.counted_as, each.num_parameters) for each in own if each.counted_as}
    )
    # What is counted is of the model.
    slots = sum(each.nbytes for each in own if not each.counted_as and is_optimizer_state(each.key))
    parts = []
    if parameters.total:
        kinds = list(parameters.by_dtype)
        dtypes = (
            f"all {kinds[0]}" if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        )
        number = f"{human_count(parameters.total)} parameter{'' if parameters.total == 1 else 's'}"
        parts.append(f"{number}, {dtypes}")
    if slots and parameters.total:
        parts.append(f"optimizer {human_size(slots)}")
    packed = [each for each in own if each.may_be_packed]
    nbytes = sum(each.nbytes for each in packed)
    if packed and (verbose or nbytes >= _NOT_COUNTED * sum(each.nbytes for each in own)):
        kinds = sorted({each.dtype or "" for each in packed})
        parts.append(
            f"not counted: {count(len(packed), 'tensor')} of {', '.join(kinds)}, {human_size(nbytes)}"
        )
    if parts:
        text = "; ".join(parts)
        yield text[:1].upper() + text[1:]
    facts = {each.key: (each.dtype, each.shape) for each in own if each.dtype and each.shape}
    if empty := empty_note(facts):
        yield printable(empty)
    if others := referred(reader):
        named = [f"{count(number, 'file')} of {printable(owner)}" for owner, number in others]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        yield f"Refers to {', '.join(named[:MAX_NAMED])}{more}"
    ties = [
        f"{printable(key)} = {printable(first)}"
        for key, first in ties_among(reader, tensors).items()
    ]
    if ties:
        more = f" and {len(ties) - MAX_NAMED} more" if len(ties) > MAX_NAMED else ""
        yield f"Tied: {', '.join(ties[:MAX_NAMED])}{more}"
    if verbose:
        yield from _details(reader, parameters.by_dtype)


def ties_among(reader: Reader, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Return the keys of some tensors that have the bytes of an earlier one of them, with its key."""
    return find_ties(take_tensors(reader.listed(), {each.key for each in tensors}))


def referred(reader: Reader) -> list[tuple[str, int]]:
    """Return the checkpoints to whose data files this one refers, with the number of files."""
    if reader.format != "shardvar":
        return []
    prefix = os.path.basename(reader.path)
    return [*files_of_others(reader.index.files, prefix).items()]


def _emphasised(reader: Reader, line: str) -> Sequence[str]:
    """Return the words of a line of the heading that a terminal prints in bold."""
    path = path_on_a_line(reader.path)
    return (
        (path,)
        if line.startswith(path)
        else (line.split(",", maxsplit=1)[0],)
        if " parameter" in line.split(",", maxsplit=1)[0]
        else ()
    )


def _print_layouts(reader: Reader, tensors: Sequence[Tensor]) -> None:
    """Print a line for each layout that the slices of tensors are recognised as."""
    found = [(tensor, layout_of(reader, tensor)) for tensor in tensors if tensor.num_slices > 1]
    counts = Counter(
        "no known layout" if each is None else f"{each.rule}, mesh {each.mesh}" for _, each in found
    )
    for layout, number in counts.items():
        say(f"{count(number, 'tensor')} cut as: {layout}")


def _details(reader: Reader, parameters: Mapping[str, int]) -> Iterator[str]:
    metadata = reader.metadata
    for kind, number in parameters.items():
        yield f"parameters in {kind}: {number:,}"
    if metadata.writer:
        yield f"written by {printable(metadata.writer)}"
    if metadata.description:
        yield f"policy: {printable(metadata.description)}"
    for name, value in metadata.user.items():
        yield f"metadata: {printable(name)} = {printable(value)}"


def _print_tensors(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, taken: int
) -> None:
    at_terminal = sys.stdout.isatty()
    if arguments.sort == "size":
        largest = sorted(tensors, key=lambda each: -each.nbytes)
        table = _table(reader, largest, arguments)
        print_rows(
            (row for each in largest for row in table.of_tensors(printable(each.key), [each])),
            bool(table.numbers),
        )
    elif not at_terminal:
        _print_piped(reader, tensors, arguments)
    elif _in_brief(arguments) and not arguments.stats:
        _print_folded(reader, tensors, arguments, taken)
    else:
        # Like tensors share a line only in an overview; these options ask about each tensor.
        lines = [Shown(line) for line in tree_lines([each.key for each in tensors])]
        table = _table(reader, tensors, arguments)
        kept = [
            each for each in lines if arguments.depth is None or each.line.level <= arguments.depth
        ]
        print_rows([*table.of_lines(kept)], bool(table.numbers))


def _table(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, nbytes: int = 0
) -> Table:
    keys = [each.key for each in tensors if each.shape == ()]
    scalars = read_scalars(reader, keys, is_listing=True)
    if not sys.stdout.isatty():
        return Table(reader, tensors, scalars, arguments.slices, nbytes=0, numbers={})
    numbers = file_numbers(reader.index.files)
    nbytes = nbytes or sum(each.nbytes for each in tensors if not each.is_setting)
    return Table(reader, tensors, scalars, arguments.slices, nbytes, numbers)


def _print_piped(reader: Reader, tensors: Sequence[Tensor], arguments: Namespace) -> None:
    """Print every whole key, indented by two spaces a level."""
    with without_collection():
        print_rows(_piped_rows(_table(reader, tensors, arguments), tensors, arguments))


def _piped_rows(
    table: Table, tensors: Sequence[Tensor], arguments: Namespace
) -> Iterator[TableRow]:
    for line in tree_lines([tensor.key for tensor in tensors]):
        indent = "  " * (line.level - 1)
        if arguments.depth is not None and line.level > arguments.depth:
            continue
        if line.leaf is None:
            yield table.of_branch(indent + printable(line.label), line)
        else:
            tensor = tensors[line.leaf]
            yield from table.of_tensors(indent + printable(tensor.key), [tensor])


def _in_brief(arguments: Namespace) -> bool:
    return not (arguments.slices or arguments.filter or arguments.all or arguments.sort == "size")


def _print_folded(
    reader: Reader, tensors: Sequence[Tensor], arguments: Namespace, taken: int
) -> None:
    """Print the tree in as many lines as the terminal has left, and below it what was folded."""
    shown, slots, left_out = fold_state(tensors)
    table = _table(
        reader, shown, arguments, sum(each.nbytes for each in tensors if not each.is_setting)
    )
    lines = _lines(shown)
    below = [f"folded: {', '.join(left_out)} (--all shows them)"] * bool(left_out)
    room = lines_left(
        taken + bool(slots) + sum(len(folded(text)) for text in [*below, *_gaps(lines)])
    )
    if arguments.depth is None and len(lines) > room:
        settings = [each.key for each in shown if each.is_setting]
        if settings and len(settings) < len(shown):
            texts = settings_lines(settings, table.scalars)
            table = replace(table, tensors=[each for each in shown if not each.is_setting])
            lines, below, room = _lines(table.tensors), [*texts, *below], room - len(texts)
    kept, hint = _kept(lines, table.tensors, arguments.depth, room)
    rows = [*table.of_lines(kept)]
    if slots:
        rows.append(table.of_slots(slots, slot_names(slots)))
    print_rows(rows, bool(table.numbers))
    if hint:
        print()
    for text in [*hint, *below]:
        say(text)
    for text in _gaps(lines):
        warn(text)


def _kept(
    lines: Sequence[Line], tensors: Sequence[Tensor], depth: int | None, room: int
) -> tuple[list[Shown], list[str]]:
    """Return the lines that are shown, to a depth or as many as there is room for, and how to see
    the others."""
    number = sum(not each.is_setting for each in tensors)
    if depth is not None:
        kept = [
            Shown(line, line.leaf is None and line.level == depth)
            for line in lines
            if line.level <= depth
        ]
    else:
        weights = line_weights(lines, tensors)
        kept = fit(lines, weights, room)
        if len(lines) > room:  # the blank line and the hint take some
            kept = fit(lines, weights, max(room - 1 - len(folded(_hint(kept, number))), 1))
    return kept, [_hint(kept, number)] * (len(kept) < len(lines))


def _hint(kept: Sequence[Shown], number: int) -> str:
    # The lines that one stands for have the same level.
    levels = [each.line.level - bool(each.others) for each in kept if each.is_folded]
    deeper = 1 + min(levels, default=0)
    opens = f"--depth {deeper} opens the next level, --all lists them all"
    return f"{count(number, 'tensor')} in {count(len(kept), 'line')}; {opens}"


def _lines(tensors: Sequence[Tensor]) -> list[Line]:
    """Return the lines of a tree in which equal tensors share one."""
    keys = [each.key.removesuffix(SUFFIX) for each in tensors]
    return list(tree_lines(keys, [(each.kind, each.shape) for each in tensors]))


def _gaps(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a text for each number that is missing in a range."""
    for line in lines:
        if line.gaps:
            missing = ", ".join(map(str, line.gaps))
            verb = "is" if len(line.gaps) == 1 else "are"
            yield f"! {printable(line.label)}: {missing} {verb} missing"

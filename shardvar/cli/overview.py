"""The overview of a checkpoint that ``inspect`` prints for people: two lines of totals, a tree, and
what is wrong.

At a terminal the tree is folded until it fits: layers of equal tensors share a line, wherever their
bytes are, with the ranges of their slices and files and the number that cannot be read.
TensorFlow's suffix of keys and the slots of optimizers are left out and named below, as deep levels
are where there are too many lines. Empty columns are left out, then columns that do not fit.
``--all`` folds nothing. A pipe gets every whole key, a line each.
"""

import re
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from shardvar.cli.output import (
    count,
    human_count,
    human_shape,
    human_size,
    human_tensors,
    print_table,
    printable,
    say,
    short_path,
    warn,
)
from shardvar.cli.problems import print_problems
from shardvar.cli.tensors import Tensor, layout_of, list_slices
from shardvar.cli.tree import Line, file_number, number_ranges, tree_lines
from shardvar.errors import ReadError
from shardvar.verbs.parameters import count_parameters, is_optimizer_state
from shardvar.verbs.problems import Damage
from shardvar.verbs.reader import Reader

if TYPE_CHECKING:
    from shardvar.verbs.compare.stats import Statistics

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = re.compile(
    r"(.+)/\.OPTIMIZER_SLOT/.+/([^/]+)|(?:.+\.)?optim(?:izer)?\.state\.(.+)\.([^.]+)"
)
"""A slot in TensorFlow's checkpoints of objects, without the suffix, or in PyTorch's: the variable,
the slot's name."""

_FEWEST_LINES, _MOST_LINES = 24, 60
"""The height of a folded tree is the terminal's, between these."""
_LINES_AROUND = 8
"""Lines of the terminal for what is printed above and below the tree."""

_HEADERS = ("tensor", "dtype", "shape", "params", "size", "slices", "files", "", "share")
_ORDER = (0, 1, 2, 3, 4, 8, 5, 6, 7)
"""The places of the columns at a terminal; a pipe has neither the number of parameters nor the
share of the bytes."""
_RIGHT = (3, 4, 5, 8)
_WIDE = 100
"""The columns of a terminal from which a tree has the share that a line has of the bytes."""
_LEAST_NEEDED = (6, 3, 5, 1, 2, 4)
"""Columns in the order in which they go where the terminal is narrow: files, params, slices, dtype,
shape, size."""
_LEAST_NEEDED_BESIDE_PLACES = (3, 5, 1)
"""The same in a list of slices, where each row has a place in a file."""

_Row = tuple[str, ...]


def print_overview(
    reader: Reader,
    tensors: Sequence[Tensor],
    measured: "Mapping[str, Statistics | ReadError]",
    arguments: Namespace,
) -> None:
    """Print totals, the tree or table of tensors, statistics, and what cannot be read."""
    for line in _heading(reader, tensors, arguments.verbose):
        say(line)
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
        folded = bool(measured) and sys.stdout.isatty() and _in_brief(arguments)
        if tensors and not folded:
            print()
            _print_tensors(reader, tensors, arguments)
        if measured:
            from shardvar.cli.statistics import print_statistics

            print()
            print_statistics(tensors, measured, folded)
    faults = [Damage.of(each.fault, each.key) for each in tensors if each.fault is not None]
    if faults:
        print(f"\n{count(len(faults), 'tensor')} cannot be read:")
        if not print_problems(faults, arguments.all, pipe="  "):
            say("--all names each of them.")


def _heading(reader: Reader, tensors: Sequence[Tensor], verbose: bool) -> Iterator[str]:
    slices = sum(tensor.num_slices for tensor in tensors)
    files = len({name for tensor in tensors for name in tensor.files})
    size = human_size(sum(tensor.nbytes for tensor in tensors))
    totals = f"{human_tensors(len(tensors), slices)}, {count(files, 'file')}, {size}"
    yield f"{short_path(reader.path)} ({reader.format}): {totals}"
    parameters = count_parameters(
        (each.key, each.dtype, each.shape, each.encoding) for each in tensors
    )
    if parameters.total:
        kinds = list(parameters.by_dtype)
        dtypes = (
            f"all {kinds[0]}" if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        )
        slots = sum(tensor.nbytes for tensor in tensors if is_optimizer_state(tensor.key))
        optimizer = f"; optimizer {human_size(slots)}" if slots else ""
        number = human_count(parameters.total)
        yield f"{number} parameter{'' if parameters.total == 1 else 's'}, {dtypes}{optimizer}"
    if verbose:
        yield from _details(reader, parameters.by_dtype)


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


def _print_tensors(reader: Reader, tensors: Sequence[Tensor], arguments: Namespace) -> None:
    at_terminal = sys.stdout.isatty()
    if arguments.sort == "size":
        largest = sorted(tensors, key=lambda each: -each.nbytes)
        numbers = _file_numbers(reader.index.files) if at_terminal else {}
        rows = [
            row
            for each in largest
            for row in _tensor_rows(reader, printable(each.key), each, arguments, numbers)
        ]
        _print_rows(rows, at_terminal)
    elif not at_terminal:
        _print_rows(_piped_rows(reader, tensors, arguments), at_terminal)
    else:
        _print_tree(reader, tensors, arguments)


def _print_rows(rows: Sequence[_Row], at_terminal: bool, headers: Sequence[str] = _HEADERS) -> None:
    """Print rows; at a terminal without the columns that are the same in each, or do not fit."""
    if not at_terminal:
        # The number of parameters is left out, since it follows from dtype and shape.
        kept = [0, 1, 2, 4, 5, 6, 7]
        right = [kept.index(column) for column in (4, 5)]
        print_table(_taken(_HEADERS, kept), [_taken(row, kept) for row in rows], right)
        return
    # Only the rows of tensors whose bytes are known have a number of slices.
    constant = {
        column for column in (1, 3, 5, 6) if len({row[column] for row in rows if row[5]}) <= 1
    }
    constant |= {column for column in (7, 8) if not any(row[column] for row in rows)}
    has_places = any(row[6] and not row[5] for row in rows)
    constant -= {6} if has_places else set()
    kept = [column for column in _ORDER if column not in constant]
    least_needed = _LEAST_NEEDED_BESIDE_PLACES if has_places else _LEAST_NEEDED
    drop = [kept.index(column) for column in least_needed if column in kept]
    right = [kept.index(column) for column in _RIGHT if column in kept]
    print_table(_taken(headers, kept), [_taken(row, kept) for row in rows], right, drop)


def _taken(row: Sequence[str], columns: Sequence[int]) -> _Row:
    return tuple(row[column] for column in columns)


def _piped_rows(reader: Reader, tensors: Sequence[Tensor], arguments: Namespace) -> list[_Row]:
    """Every whole key, indented by two spaces a level."""
    rows: list[_Row] = []
    for line in tree_lines([tensor.key for tensor in tensors]):
        indent = "  " * (line.level - 1)
        if arguments.depth is not None and line.level > arguments.depth:
            continue
        if line.leaf is None:
            rows.append(_branch_row(indent + printable(line.label), line, tensors))
        else:
            tensor = tensors[line.leaf]
            rows.extend(_tensor_rows(reader, indent + printable(tensor.key), tensor, arguments))
    return rows


def _in_brief(arguments: Namespace) -> bool:
    return not (arguments.slices or arguments.filter or arguments.all or arguments.sort == "size")


def _print_tree(reader: Reader, tensors: Sequence[Tensor], arguments: Namespace) -> None:
    # Like tensors share a line only in an overview; these options ask about each tensor.
    in_brief = _in_brief(arguments) and not arguments.stats
    shown, slots, left_out = _fold(tensors) if in_brief else (tensors, [], [])
    keys = [each.key.removesuffix(_SUFFIX) if in_brief else each.key for each in shown]
    kinds = [(each.kind, each.shape) for each in shown] if in_brief else None
    lines = list(tree_lines(keys, kinds))
    depth = arguments.depth or (_fitting_depth(lines) if in_brief else None)
    kept = [line for line in lines if depth is None or line.level <= depth]
    numbers = _file_numbers(reader.index.files)
    total = sum(each.nbytes for each in tensors) if get_terminal_size().columns >= _WIDE else 0
    rows = [
        row for line in kept for row in _line_rows(reader, line, shown, numbers, arguments, total)
    ]
    if slots:
        rows.append(_slots_row(slots))
    headers = (*_HEADERS[:6], "in files" if numbers else "files", *_HEADERS[7:])
    _print_rows(rows, at_terminal=True, headers=headers)
    if len(kept) < len(lines):
        deeper = f"--depth {(depth or 0) + 1} opens the next level, --all lists every tensor"
        print()
        say(f"{count(len(tensors), 'tensor')} in {count(len(kept), 'line')}; {deeper}")
    if left_out:
        say(f"folded: {', '.join(left_out)} (--all shows them)")
    for line in lines:
        if line.gaps:
            missing = ", ".join(map(str, line.gaps))
            warn(
                f"! {printable(line.label)}: {missing} {'is' if len(line.gaps) == 1 else 'are'} "
                "missing"
            )


def _fold(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """Return the tensors of the tree, the slots on a shared line, and words for the rest."""
    graph = [each for each in tensors if each.key == _GRAPH]
    slots = [each for each in tensors if _SLOT.fullmatch(each.key.removesuffix(_SUFFIX))]
    if len(slots) + len(graph) == len(tensors):  # the checkpoint of only an optimizer
        slots = []
    apart = {each.key for each in (*graph, *slots)}
    shown = [each for each in tensors if each.key not in apart]
    left_out = [_SUFFIX] if any(each.key.endswith(_SUFFIX) for each in tensors) else []
    left_out += ["the object graph"] if graph else []
    left_out += [count(len(slots), "slot")] if slots else []
    return shown, slots, left_out


def _slots_row(slots: Sequence[Tensor]) -> _Row:
    matches = [
        found for each in slots if (found := _SLOT.fullmatch(each.key.removesuffix(_SUFFIX)))
    ]
    names = ", ".join(dict.fromkeys(printable(found[2] or found[4]) for found in matches))
    nbytes = human_size(sum(each.nbytes for each in slots))
    variables = count(len({found[1] or found[3] for found in matches}), "tensor")
    return f"optimizer slots {names}", "", f"of {variables}", "", nbytes, "", "", _marks(slots), ""


def _fitting_depth(lines: Sequence[Line]) -> int | None:
    """Return the deepest level at which the tree fits, at least 1; None for all."""
    most = min(max(get_terminal_size().lines - _LINES_AROUND, _FEWEST_LINES), _MOST_LINES)
    if len(lines) <= most:
        return None
    depth = 1
    while sum(line.level <= depth + 1 for line in lines) <= most:
        depth += 1
    return depth


def _line_rows(
    reader: Reader,
    line: Line,
    tensors: Sequence[Tensor],
    numbers: Mapping[str, int],
    arguments: Namespace,
    total: int,
) -> Iterator[_Row]:
    alike = [tensors[leaf] for leaf in line.alike]
    label = line.guide + printable(line.label) + _times(line.num_alike)
    if line.leaf is None:
        yield *_branch_row(label, line, tensors)[:7], _marks(alike), _share(line, tensors, total)
        return
    # The branches go on next to the slices of a tensor that is not the last one.
    beside = line.guide[:-3] + ("│" if line.guide.endswith("├─ ") else "")
    row, *slices = _tensor_rows(reader, label, tensors[line.leaf], arguments, numbers, beside)
    found = [each for each in alike if each.num_slices]
    places = (row[4], *_places(found, numbers)) if found else ("", "", "")
    yield *row[:4], *places, _marks(alike), _share(line, tensors, total)
    yield from slices


def _share(line: Line, tensors: Sequence[Tensor], total: int) -> str:
    """Return a line's share of all bytes; empty below a shared line, which has the total."""
    if not total or len(line.leaves) < len(line.alike):
        return ""
    return f"{100 * sum(tensors[leaf].nbytes for leaf in line.leaves) / total:.1f} %"


def _places(alike: Sequence[Tensor], numbers: Mapping[str, int]) -> tuple[str, str]:
    """Return the cells for the slices and the files of the tensors that share a line."""
    slices = _least_to_most(each.num_slices for each in alike)
    if not numbers:
        return slices, _least_to_most(len(each.files) for each in alike)
    ascending = sorted({numbers[name] for each in alike for name in each.files})
    return slices, number_ranges([str(number) for number in ascending])


def _file_numbers(files: Sequence[str]) -> dict[str, int]:
    """Return the number in the name of each file; empty if names lack them or share them."""
    numbers = {name: number for name in files if (number := file_number(name)) is not None}
    return numbers if len(set(numbers.values())) == len(files) else {}


def _least_to_most(numbers: Iterable[int]) -> str:
    """Return a number, or the least and the largest of several: ``3..4``."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]}..{found[-1]}"


def _marks(tensors: Sequence[Tensor]) -> str:
    """Return a word for what is wrong with tensors of a line, and their number."""
    marks = [each.mark for each in tensors if each.mark]
    word = marks[0] if len(set(marks)) == 1 else "unreadable"
    return f"{word.upper()}{_times(len(marks))}" if marks else ""


def _times(number: int) -> str:
    return f" (x{number})" if number > 1 else ""


def _branch_row(label: str, line: Line, tensors: Sequence[Tensor]) -> _Row:
    below = [tensors[leaf] for leaf in line.leaves]
    nbytes = human_size(sum(tensor.nbytes for tensor in below))
    parameters = sum(tensor.num_parameters for tensor in below)
    shape, number = count(len(below), "tensor"), human_count(parameters) if parameters else ""
    return label, "", shape, number, nbytes, "", "", "", ""


def _tensor_rows(
    reader: Reader,
    label: str,
    tensor: Tensor,
    arguments: Namespace,
    file_numbers: Mapping[str, int] | None = None,
    beside: str = "",
) -> Iterator[_Row]:
    """Yield the row of a tensor, and with ``--slices`` the rows of its slices."""
    shape = "" if tensor.shape is None else human_shape(tensor.shape)
    parameters = human_count(tensor.num_parameters) if tensor.num_parameters else ""
    numbers = str(tensor.num_slices), str(len(tensor.files)), tensor.mark.upper()
    yield label, tensor.kind, shape, parameters, human_size(tensor.nbytes), *numbers, ""
    if not arguments.slices:
        return
    for each in list_slices(reader, tensor):
        region = ", ".join(
            f"{start}:{start + extent}"
            for start, extent in zip(each.offset, each.shape, strict=True)
        )
        file = file_numbers[each.file] if file_numbers else printable(each.file)
        place = f"{file} at {each.start}"
        yield beside, "", f"[{region}]", "", human_size(each.nbytes), "", place, "", ""

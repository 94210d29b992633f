"""The rows of the table of tensors: of the lines of a tree, of single tensors, and of their slices.

A row of several equal tensors has the numbers of all of them: ``32 × [4096, 4096]`` has the
parameters and the bytes of 32 matrices, so the rows below a branch add up to it. A setting and a
scalar have their value in the place of a shape.
"""

import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from shutil import get_terminal_size

from shardvar.cli.fitting import Shown, positions_of
from shardvar.cli.output import (
    can_print,
    count,
    human_count,
    human_shape,
    human_size,
    is_styled,
    printable,
)
from shardvar.cli.tables import print_table, share_bar
from shardvar.cli.tensors import Slice, Tensor, list_slices
from shardvar.cli.tree import Line, file_number, number_ranges
from shardvar.verbs.reader import Reader
from shardvar.verbs.scalars import ScalarValue

_HEADERS = ("tensor", "dtype", "shape", "params", "size", "", "share", "slices", "files", "")
_TENSOR, _DTYPE, _SHAPE, _PARAMS, _SIZE, _BAR, _SHARE, _SLICES, _FILES, _MARK = range(10)
_RIGHT = (_PARAMS, _SIZE, _SHARE, _SLICES)
_IN_A_PIPE = (_TENSOR, _DTYPE, _SHAPE, _PARAMS, _SIZE, _SLICES, _FILES, _MARK)
"""The share of the bytes is for the eye; it follows from the size."""
_LEAST_NEEDED = (_FILES, _PARAMS, _SLICES, _DTYPE, _SHAPE, _SIZE)
"""Columns that a narrow terminal drops, the first one first. The share goes before a name
is cut."""
_LEAST_NEEDED_BESIDE_PLACES = (_PARAMS, _SLICES, _DTYPE)
"""The same in a list of slices, where each row has a place in a file."""
_STYLES = {
    _DTYPE: "dim",
    _SHAPE: "cyan",
    _BAR: "blue",
    _SHARE: "dim",
    _FILES: "dim",
    _MARK: "bold red",
}

_MOST_VALUE = 24
"""The longest value of a scalar in a table at a terminal; ``show`` prints the whole."""

_EACH = " each"
"""After a number of slices that each of several tensors has."""
_BETWEEN = 2
"""Cells between two columns."""

Cells = tuple[str, ...]
_Styles = dict[int | tuple[int, int], str]


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table."""

    cells: Cells
    """Its cells, in the order of the columns."""
    is_branch: bool = False
    """True for a branch of the tree."""
    is_place: bool = False
    """True for a slice, whose place in a file was asked for."""


@dataclass(frozen=True, slots=True)
class Table:
    """The facts that rows are made of."""

    reader: Reader
    """The open checkpoint."""
    tensors: Sequence[Tensor]
    """The tensors, by the positions that lines of the tree have."""
    scalars: Mapping[str, ScalarValue]
    """The values of scalars and settings, by key."""
    with_slices: bool
    """True if the slices of each tensor are shown below it."""
    nbytes: int
    """The bytes that shares are parts of; 0 in a pipe, which has no shares."""
    numbers: Mapping[str, int]
    """The numbers in the names of the files; empty if they have none, or share them."""
    known: dict[Hashable, Cells] = field(default_factory=dict)
    """The rows of single tensors that have no value, without their labels; most tensors are like
    others."""

    def of_lines(self, lines: Iterable[Shown]) -> Iterator[TableRow]:
        """Yield the rows of lines of the tree."""
        for shown in lines:
            line = shown.line
            if shown.others:
                label, others = (
                    f"{line.guide}… {len(shown.others):,} more",
                    self._at(positions_of(shown)),
                )
                yield self._row(label, others, shape=_amount(others), is_branch=True)
            elif line.leaf is None:
                yield self.of_branch(
                    line.guide + printable(line.label) + "…" * shown.is_folded, line
                )
            else:
                # The branches go on next to the slices of a tensor that is not the last one.
                edge = line.guide[:-3] + ("│" if line.guide.endswith("├─ ") else "")
                yield from self.of_tensors(
                    line.guide + printable(line.label), self._at(line.alike), edge
                )

    def of_branch(self, label: str, line: Line) -> TableRow:
        """Return the row of a branch, and of all branches that share its line."""
        one = self._at(line.leaves[: len(line.leaves) // line.num_shared])
        return self._row(
            label,
            self._at(line.alike),
            shape=_amount(one, len(line.alike) // len(one)),
            is_branch=True,
        )

    def of_tensors(self, label: str, alike: Sequence[Tensor], edge: str = "") -> Iterator[TableRow]:
        """Yield the row of equal tensors, and with ``--slices`` rows of their slices, which begin
        with ``edge``."""
        first, facts = alike[0], None
        if len(alike) == 1 and first.fault is None and first.key not in self.scalars:
            facts = (
                first.kind,
                first.shape,
                first.num_parameters,
                first.nbytes,
                first.num_slices,
                first.files,
                first.is_setting,
            )
        if facts is None:
            yield self._of_alike(label, alike)
        else:
            if facts not in self.known:
                self.known[facts] = self._of_alike(label, alike).cells[1:]
            yield TableRow((label, *self.known[facts]))
        if self.with_slices:
            yield from (self._of_slice(each, edge) for each in list_slices(self.reader, first))

    def _of_alike(self, label: str, alike: Sequence[Tensor]) -> TableRow:
        """Return the row of equal tensors."""
        first = alike[0]
        stored = [each for each in alike if each.num_slices and not each.is_setting]
        slices = _least_to_most(each.num_slices for each in stored)
        return self._row(
            label,
            alike,
            dtype="" if first.is_setting else first.kind,
            shape=self._shape(alike),
            slices=f"{slices}{_EACH}" if len(stored) > 1 else slices,
            files=self._files(stored),
        )

    def of_slots(self, slots: Sequence[Tensor], names: Iterable[str]) -> TableRow:
        """Return the row of the slots of an optimizer."""
        return self._row(
            f"optimizer slots {printable(', '.join(names))}",
            slots,
            shape=_amount(slots),
            is_branch=True,
        )

    def _at(self, leaves: Iterable[int]) -> list[Tensor]:
        return [self.tensors[leaf] for leaf in leaves]

    def _row(
        self,
        label: str,
        tensors: Sequence[Tensor],
        *,
        dtype: str = "",
        shape: str = "",
        slices: str = "",
        files: str = "",
        is_branch: bool = False,
    ) -> TableRow:
        """Return the row of some tensors, with all their parameters and bytes."""
        parameters = sum(each.num_parameters for each in tensors)
        sizes = [each.nbytes for each in tensors if not each.is_setting]
        has_share = bool(self.nbytes and sizes)
        part = sum(sizes) / self.nbytes if has_share else 0.0
        return TableRow(
            (
                label,
                dtype,
                shape,
                human_count(parameters) if parameters else "",
                human_size(sum(sizes)) if sizes else "",
                share_bar(part) if has_share else "",
                f"{100 * part:.1f} %" if has_share else "",
                slices,
                files,
                _marks(tensors),
            ),
            is_branch,
        )

    def _shape(self, alike: Sequence[Tensor]) -> str:
        """Return the shape of equal tensors, with their number; of one scalar, its value."""
        first = alike[0]
        if len(alike) == 1 and (scalar := self.scalars.get(first.key)):
            text = printable(scalar.text)
            is_cut = sys.stdout.isatty() and len(text) > _MOST_VALUE
            return f"= {text[: _MOST_VALUE - 1]}…" if is_cut else f"= {text}"
        shape = "" if first.shape is None or first.is_setting else human_shape(first.shape)
        return f"{len(alike)} × {shape}" if len(alike) > 1 and shape else shape

    def _files(self, stored: Sequence[Tensor]) -> str:
        """Return the numbers in the names of the files of equal tensors, or how many files each of
        them has."""
        if not self.numbers:
            return _least_to_most(len(each.files) for each in stored)
        ascending = sorted({self.numbers[name] for each in stored for name in each.files})
        return number_ranges([str(number) for number in ascending]) if ascending else ""

    def _of_slice(self, each: Slice, edge: str) -> TableRow:
        region = ", ".join(
            f"{start}:{start + extent}"
            for start, extent in zip(each.offset, each.shape, strict=True)
        )
        file = self.numbers[each.file] if self.numbers else printable(each.file)
        place = f"{file} at {each.start}"
        return TableRow(
            (edge, "", f"[{region}]", "", human_size(each.nbytes), "", "", "", place, ""),
            is_place=True,
        )


def print_rows(rows: Iterable[TableRow], with_numbers: bool = False) -> None:
    """Print the rows under the headers of the columns; ``with_numbers`` if files are shown by their
    numbers.

    At a terminal a column that is the same in each row is left out, and so are columns that do not
    fit.
    """
    headers = [*_HEADERS[:_FILES], "in files" if with_numbers else "files", *_HEADERS[_FILES + 1 :]]
    if not sys.stdout.isatty():
        cells_of = itemgetter(*_IN_A_PIPE)
        print_table(
            [headers[column] for column in _IN_A_PIPE],
            (cells_of(row.cells) for row in rows),
            [_IN_A_PIPE.index(column) for column in _RIGHT if column in _IN_A_PIPE],
        )
        return
    rows = list(rows)
    kept = _columns(rows)
    has_places = any(row.is_place for row in rows)
    drop = [
        kept.index(each)
        for each in (_LEAST_NEEDED_BESIDE_PLACES if has_places else _LEAST_NEEDED)
        if each in kept
    ]
    styles: _Styles = {
        kept.index(column): style for column, style in _STYLES.items() if column in kept
    }
    print_table(
        [headers[column] for column in kept],
        [[row.cells[column] for column in kept] for row in rows],
        [kept.index(column) for column in _RIGHT if column in kept],
        drop,
        styles,
        [number for number, row in enumerate(rows) if row.is_branch],
    )


def print_keys(rows: Sequence[TableRow]) -> None:
    """Print the keys of tensors with their dtypes and shapes, or values."""
    columns = (_TENSOR, _DTYPE, _SHAPE)
    cells = [[row.cells[column] for column in columns] for row in rows]
    styles: _Styles = {
        place: _STYLES[column] for place, column in enumerate(columns) if column in _STYLES
    }
    print_table(["key", "dtype", "shape"], cells, (), [1, 2], styles)


def _columns(rows: Sequence[TableRow]) -> list[int]:
    """Return the columns for a terminal: all that differ, with the share if there is room
    for it."""
    cells = [row.cells for row in rows]
    # Only the rows of tensors whose bytes are known have a number of slices.
    tensors = [row for row in cells if row[_SLICES]]
    left_out = {_BAR, _SHARE} | {
        column for column in (_PARAMS, _MARK) if not any(row[column] for row in cells)
    }
    same = {
        column: {row[column].removesuffix(_EACH) for row in tensors}
        for column in (_DTYPE, _PARAMS, _SLICES, _FILES)
    }
    left_out |= {column for column, found in same.items() if len(found) <= 1}
    left_out -= {_FILES} if any(row.is_place for row in rows) else set()
    kept = [column for column in range(len(_HEADERS)) if column not in left_out]
    widths = [
        max(len(row[column]) for row in [_HEADERS, *cells]) + _BETWEEN
        for column in range(len(_HEADERS))
    ]
    has_bars = is_styled() and can_print(share_bar(1))
    room = get_terminal_size().columns + _BETWEEN - sum(widths[column] for column in kept)
    for more in ((_BAR, _SHARE) if has_bars else (_SHARE,), (_SHARE,)):
        if len(cells) > 1 and sum(widths[column] for column in more) <= room:
            return sorted({*kept, *more})
    return kept


def _amount(tensors: Sequence[Tensor], times: int = 1) -> str:
    """Return the number of tensors and settings below a branch, and how many equal branches have as
    many."""
    settings = sum(each.is_setting for each in tensors)
    numbers = [(len(tensors) - settings, "tensor"), (settings, "setting")]
    text = ", ".join(count(number, noun) for number, noun in numbers if number)
    return f"{times} × {text}" if times > 1 else text


def _least_to_most(numbers: Iterable[int]) -> str:
    """Return a number, or the least and the largest of several: ``3..4``."""
    found = set(numbers)
    if len(found) > 1:
        return f"{min(found)}..{max(found)}"
    return str(*found)


def _marks(tensors: Sequence[Tensor]) -> str:
    """Return a word for what is wrong with some of the tensors of a row, and the number of
    these."""
    marks = [each.mark for each in tensors if each.mark]
    word = marks[0] if len(set(marks)) == 1 else "unreadable"
    return f"{word.upper()}{f' (x{len(marks)})' * (len(marks) > 1)}" if marks else ""


def file_numbers(files: Sequence[str]) -> dict[str, int]:
    """Return the number in the name of each file; empty if names lack them or share them."""
    numbers = {name: number for name in files if (number := file_number(name)) is not None}
    return numbers if len(set(numbers.values())) == len(files) else {}

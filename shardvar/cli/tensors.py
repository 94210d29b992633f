"""The tensors of an open checkpoint as rows for people and programs.

A tree that has more lines than the screen shows its first level, and opens branches in the order of
their bytes, the largest first and parts of an optimizer last, as far as the lines below them fit. A
part of one more branch fills the rest of the screen; a last line stands for its other lines. A
branch that is not opened is *folded*: its line has the number of its tensors and all their bytes, so
that no sum changes.
"""

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from shardvar.cli.output import (
    Styles,
    at_terminal,
    can_print,
    count,
    human_count,
    human_shape,
    human_size,
    is_styled,
    print_table,
    printable,
    share_bar,
    terminal_size,
)
from shardvar.cli.tree import Line, file_number, number_ranges
from shardvar.errors import ReadError
from shardvar.planning.index import NO_CHECKSUM
from shardvar.records import entity, field
from shardvar.storage.concurrency import without_collection
from shardvar.verbs.parameters import count_parameters, is_optimizer_state
from shardvar.verbs.reader import Reader, settings_in

if TYPE_CHECKING:
    from shardvar.layout.meshes.layout import Layout
    from shardvar.verbs.compare.blocks import ScalarValue


_MARKS = {
    "OverlappingSlices": "overlapping",
    "IncompleteCheckpoint": "incomplete",
    "MissingFile": "file missing",
    "OutOfBounds": "out of bounds",
    "InconsistentTensor": "inconsistent",
    "CorruptCheckpoint": "corrupt",
}


class Slice(NamedTuple):
    offset: tuple[int, ...]
    """Its first index along each axis of the whole tensor."""
    shape: tuple[int, ...]
    file: str
    start: int
    """The position of its first byte in the file, in formats that store payloads as they are."""
    nbytes: int
    checksum: str | None
    """The payload's checksum as eight hexadecimal digits; None where the index has none."""


class Tensor(NamedTuple):
    key: str
    dtype: str | None
    """Its dtype; None where the index lacks it."""
    shape: tuple[int, ...] | None
    """Its full shape; None where the index lacks it."""
    nbytes: int
    num_slices: int
    """The number of slices that it is stored as."""
    files: tuple[str, ...]
    fault: ReadError | None
    """The reason why it cannot be read; None for a sound tensor."""
    rows: tuple[int, ...]
    """Its rows in the reader's table of entries."""
    encoding: str | None = None
    """The encoding of its bytes, such as Q8_0; None for a tensor whose elements are its values."""
    num_parameters: int = 0
    """The parameters of a model that it holds."""
    counted_as: str = ""
    """The dtype, the encoding or the scheme of packed weights by which they are counted; empty
    without any."""
    may_be_packed: bool = False
    """True for a matrix of small integers, which may be weights that are packed by an unknown
    scheme."""
    is_setting: bool = False
    """True for a plain object of a program, such as a learning rate."""
    is_scale: bool = False
    """True for a tensor that scales others, and holds no parameters."""
    stored_shape: tuple[int, ...] | None = None
    """The shape of the elements of a quantised tensor, whose ``shape`` is of its numbers."""

    @property
    def kind(self) -> str:
        """The encoding of a quantised tensor, or the dtype; empty where the index lacks it."""
        return self.encoding or self.dtype or ""

    @property
    def mark(self) -> str:
        """A word for the fault; empty for a tensor without one."""
        return "" if self.fault is None else _MARKS.get(type(self.fault).__name__, "unreadable")

    def to_json(self) -> dict[str, Any]:
        from shardvar.verbs.problems import Damage  # lines need no report

        return {
            "key": self.key,
            "dtype": self.dtype,
            "encoding": self.encoding,
            "shape": None if self.shape is None else list(self.shape),
            "stored_shape": None if self.stored_shape is None else list(self.stored_shape),
            "num_parameters": self.num_parameters,
            "nbytes": self.nbytes,
            "num_slices": self.num_slices,
            "files": list(self.files),
            "fault": self.fault and Damage.of(self.fault, self.key).to_json(),
        }


def list_tensors(
    reader: Reader,
    filter: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    *,
    with_places: bool = False,
) -> list[Tensor]:
    """Return the chosen tensors in the order of the index; ``with_places`` also reads files of payloads."""
    with without_collection():
        chosen: Collection[str] = reader
        if filter is not None or exclude is not None:
            from shardvar.verbs.renaming import select_keys  # of a part

            chosen = select_keys(list(reader), filter, exclude)
        entries = reader.entries() if with_places else reader.listed()
        faults = reader.faults if with_places else reader.listed_faults()
        tensors, files = entries.slices.tensors, reader.index.files
        # Lists, since taking single elements from NumPy arrays is slow, and a checkpoint may have 10^5
        # tensors.
        order_list, bounds = (column.tolist() for column in entries.slices.by_tensor())
        nbytes, file = entries.slices.nbytes.tolist(), entries.file.tolist()
        row_of, facts, encodings = tensors.rows(), tensors.facts(), reader.encodings
        # Of all tensors, since packed weights are known by their neighbors.
        logical = reader.logical()
        kinds, scales = (logical.kinds, logical.left_out) if logical else ({}, frozenset[str]())
        parameters = count_parameters([(key, *facts[key]) for key in tensors.keys], kinds, scales)
        left_out = set(parameters.left_out)
        settings = settings_in(reader.source, facts)
        listed, named = [], dict[frozenset[int], tuple[str, ...]]()
        for key in reader:
            if key not in chosen:
                continue
            row = row_of.get(key)
            # A key whose entries could not be decoded is listed all the same, with its fault.
            if row is None:
                listed.append(Tensor(key, None, None, 0, 0, (), faults.get(key), ()))
                continue
            rows = tuple(order_list[bounds[row] : bounds[row + 1]])
            numbers = frozenset(map(file.__getitem__, rows))
            if numbers not in named:  # most tensors are in the same few files
                named[numbers] = tuple(files[number] for number in sorted(numbers))
            total = sum(map(nbytes.__getitem__, rows))
            dtype, shape = facts[key]
            fault, stored_shape = faults.get(key), shape
            encoding, shape = kinds.get(key, (encodings.get(key), shape))
            counted_as, number = parameters.counted.get(key, ("", 0))
            stored = key, dtype, shape, total, len(rows), named[numbers], fault, rows
            counted = encoding, number, counted_as, key in left_out
            listed.append(Tensor(*stored, *counted, key in settings, key in scales, stored_shape))
        return listed


def bits_each(tensors: Sequence[Tensor], num_parameters: int) -> float | None:
    """Return the bits of a parameter, with its part of the scales; None without any."""
    nbytes = sum(each.nbytes for each in tensors if each.counted_as or each.is_scale)
    return 8 * nbytes / num_parameters if num_parameters else None


def list_slices(reader: Reader, tensor: Tensor) -> list[Slice]:
    entries, files = reader.entries(), reader.index.files
    slices, listed = entries.slices, []
    for row in tensor.rows:
        # Offsets and shapes are padded to the highest rank of the checkpoint.
        rank = int(slices.tensors.ranks[slices.tensor[row]])
        checksum = int(entries.checksum[row])
        listed.append(
            Slice(
                tuple(slices.offset[row, :rank].tolist()),
                tuple(slices.shape[row, :rank].tolist()),
                files[int(entries.file[row])],
                int(entries.start[row]),
                int(slices.nbytes[row]),
                None if checksum == NO_CHECKSUM else f"{checksum:08x}",
            )
        )
    return sorted(listed, key=lambda each: each.offset)


def layout_of(reader: Reader, tensor: Tensor) -> "Layout | None":
    """Return the layout of the slices of a tensor; None if it is whole, has a fault, or has none."""
    return reader.layout(tensor.key) if tensor.num_slices > 1 and tensor.fault is None else None


def slice_json(each: Slice) -> dict[str, Any]:
    return each._asdict() | {"offset": list(each.offset), "shape": list(each.shape)}


SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
"""The end of the keys of TensorFlow's checkpoints of objects."""
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SLOT = r"(.+)/\.OPTIMIZER_SLOT/.+/([^/]+)|(?:.+\.)?optim(?:izer)?\.state\.(.+)\.([^.]+)"
"""A slot in TensorFlow's checkpoints of objects, without the suffix, or in PyTorch's: the variable,
the slot's name."""


def fold_state(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[str]]:
    """Return the tensors of the tree, the slots that share a line, and the words for the parts left out."""
    graph = [each for each in tensors if each.key == _GRAPH]
    slots = [each for each in tensors if re.fullmatch(_SLOT, each.key.removesuffix(SUFFIX))]
    if len(slots) + len(graph) == len(tensors):  # the checkpoint of only an optimizer
        slots = []
    apart = {each.key for each in (*graph, *slots)}
    shown = [each for each in tensors if each.key not in apart]
    left_out = [SUFFIX] if any(each.key.endswith(SUFFIX) for each in tensors) else []
    left_out += ["the object graph"] if graph else []
    left_out += [count(len(slots), "slot")] if slots else []
    return shown, slots, left_out


def slot_name(key: str) -> str:
    """``"exp_avg"`` for ``optimizer.state.w.exp_avg``; empty for other keys."""
    found = re.fullmatch(_SLOT, key.removesuffix(SUFFIX))
    return (found[2] or found[4]) if found else ""


def slot_names(slots: Sequence[Tensor]) -> list[str]:
    return list(dict.fromkeys(slot_name(each.key) for each in slots))


_FEWEST = 3
"""The fewest lines for a part of a branch: two lines, and one for the others."""
_FIRST = 1000
"""The weight of a byte of a model, in bytes of an optimizer."""


class Shown(NamedTuple):
    line: Line
    is_folded: bool = False
    """True for a branch without the lines below it."""
    others: tuple[Line, ...] = ()
    """The siblings that the line stands for, itself among them; empty for a line that stands for
    itself."""


def line_weights(lines: Sequence[Line], tensors: Sequence[Tensor]) -> list[int]:
    """Return the bytes of each line for ``fit``, with a model before its optimizer."""
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
    # By the number of the line above, which is -1 for the root.
    parents, children, path = list[int](), dict[int, list[int]](), [-1]
    for number, line in enumerate(lines):
        del path[line.level :]
        parents.append(path[-1])
        children.setdefault(path[-1], []).append(number)
        path.append(number)
    # How many of the lines directly below a branch are shown.
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
    return tuple(leaf for each in shown.others or (shown.line,) for leaf in each.alike)


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


_HEADERS = ("tensor", "dtype", "shape", "params", "size", "", "share", "slices", "files", "")
_DTYPE, _SHAPE, _PARAMS, _SIZE, _BAR, _SHARE, _SLICES, _FILES, _MARK = range(1, 10)
_RIGHT = (_PARAMS, _SIZE, _SHARE, _SLICES)
_FOR_THE_EYE = (_BAR, _SHARE)
"""The share of the bytes follows from the size."""
_LEAST_NEEDED = (_FILES, _PARAMS, _SLICES, _DTYPE, _SHAPE, _SIZE)
"""Columns that a narrow terminal drops, the first one first. The share goes before a name
is cut."""
_LEAST_NEEDED_BESIDE_PLACES = (_PARAMS, _SLICES, _DTYPE)
"""The same in a list of slices, where each row has a place in a file."""
_STYLES: Styles = {
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

Cells = tuple[str, ...]


class TableRow(NamedTuple):
    cells: Cells
    is_branch: bool = False
    is_place: bool = False
    """True for a slice, whose place in a file was asked for."""


@entity
class Table:
    """The facts that rows are made of."""

    reader: Reader
    tensors: Sequence[Tensor]
    """The tensors, by the positions that lines of the tree have."""
    scalars: "Mapping[str, ScalarValue]"
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
        one = self._at(line.leaves[: len(line.leaves) // line.num_shared])
        return self._row(
            label,
            self._at(line.alike),
            shape=_amount(one, len(line.alike) // len(one)),
            is_branch=True,
        )

    def of_tensors(self, label: str, alike: Sequence[Tensor], edge: str = "") -> Iterator[TableRow]:
        """Yield the row of equal tensors, and with ``--slices`` rows of their slices, which begin with ``edge``."""
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
        parameters = sum(each.num_parameters for each in tensors)
        sizes = [each.nbytes for each in tensors if not each.is_setting]
        has_share = bool(self.nbytes and sizes)
        part = sum(sizes) / self.nbytes if has_share else 0.0
        marks = [each.mark for each in tensors if each.mark]
        mark = (marks[0] if len(set(marks)) == 1 else "unreadable").upper() if marks else ""
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
                f"{mark} (x{len(marks)})" if len(marks) > 1 else mark,
            ),
            is_branch,
        )

    def _shape(self, alike: Sequence[Tensor]) -> str:
        """Return the shape of equal tensors, with their number; of one scalar, its value."""
        first = alike[0]
        if len(alike) == 1 and (scalar := self.scalars.get(first.key)):
            text = printable(scalar.text)
            is_cut = at_terminal() and len(text) > _MOST_VALUE
            return f"= {text[: _MOST_VALUE - 1]}…" if is_cut else f"= {text}"
        shape = "" if first.shape is None or first.is_setting else human_shape(first.shape)
        return f"{len(alike)} × {shape}" if len(alike) > 1 and shape else shape

    def _files(self, stored: Sequence[Tensor]) -> str:
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
    """Print rows; a terminal leaves out columns that are the same in each row, and columns that do not fit."""
    headers = [*_HEADERS[:_FILES], "in files" if with_numbers else "files", *_HEADERS[_FILES + 1 :]]
    if not at_terminal():
        print_table(headers, (row.cells for row in rows), _RIGHT, hidden=_FOR_THE_EYE)
        return
    rows = list(rows)
    has_places = any(row.is_place for row in rows)
    print_table(
        headers,
        [row.cells for row in rows],
        _RIGHT,
        _LEAST_NEEDED_BESIDE_PLACES if has_places else _LEAST_NEEDED,
        _STYLES,
        [number for number, row in enumerate(rows) if row.is_branch],
        _left_out(rows),
    )


def print_keys(rows: Sequence[TableRow]) -> None:
    cells = [row.cells[: _SHAPE + 1] for row in rows]
    print_table(["key", "dtype", "shape"], cells, (), [_DTYPE, _SHAPE], _STYLES)


def _left_out(rows: Sequence[TableRow]) -> set[int]:
    """Return the columns that are the same in each row, and the share where it has no room."""
    cells = [row.cells for row in rows]
    # Only the rows of tensors whose bytes are known have a number of slices.
    tensors = [row for row in cells if row[_SLICES]]
    left_out = {column for column in (_PARAMS, _MARK) if not any(row[column] for row in cells)}
    same = {
        column: {row[column].removesuffix(_EACH) for row in tensors}
        for column in (_DTYPE, _PARAMS, _SLICES, _FILES)
    }
    left_out |= {column for column, found in same.items() if len(found) <= 1}
    left_out -= {_FILES} if any(row.is_place for row in rows) else set()
    widths = [max(map(len, column)) + _BETWEEN for column in zip(_HEADERS, *cells, strict=True)]
    has_bars = is_styled() and can_print(share_bar(1))
    room = terminal_size().columns + _BETWEEN
    room -= sum(n for column, n in enumerate(widths) if column not in {*left_out, *_FOR_THE_EYE})
    for more in (_FOR_THE_EYE if has_bars else (_SHARE,), (_SHARE,)):
        if len(cells) > 1 and sum(widths[column] for column in more) <= room:
            return left_out | {*_FOR_THE_EYE} - {*more}
    return left_out | {*_FOR_THE_EYE}


def _amount(tensors: Sequence[Tensor], times: int = 1) -> str:
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


def file_numbers(files: Sequence[str]) -> dict[str, int]:
    """Return the number in the name of each file; empty if names lack them or share them."""
    numbers = {name: number for name in files if (number := file_number(name)) is not None}
    return numbers if len(set(numbers.values())) == len(files) else {}

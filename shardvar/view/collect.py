"""An index as columns that fit in a page.

Most keys share their beginning with the key before them and most shapes occur often, so each
beginning and each shape is stored once. Most slices are whole tensors, which take one number. A
tensor thus takes some thirty bytes, and the part of its key that is new.

The page is the columns, its style and its script in one HTML file.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from html import escape
from importlib import resources
from itertools import chain, groupby
from os.path import basename, commonprefix
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.errors import ArgumentError, CheckpointError, MissingFile, ReadError, StorageError
from shardvar.layout.dtypes import Ints, Number, json_number
from shardvar.maps.plan import MapPlan, Piece, View
from shardvar.pictures.words import human_size, printable
from shardvar.planning.index import EntryTable, Metadata
from shardvar.planning.slices import TensorTable
from shardvar.storage.protocol import Storage
from shardvar.verbs.compare.blocks import NUM_BINS, ScalarValue, Statistics
from shardvar.verbs.compare.comparison import DiffReport
from shardvar.verbs.holders import holders_of
from shardvar.verbs.parameters import count_parameters, is_optimizer_state, reading_key
from shardvar.verbs.problems import untold
from shardvar.verbs.reader import Reader, has_settings, settings_in
from shardvar.verbs.renaming import select_keys
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.verify import guarded_keys

if TYPE_CHECKING:
    from shardvar.verbs.dequantization import LogicalTensors

JsonColumns = dict[str, Any]
StatisticsByKey = Mapping[str, Statistics | ReadError]

HEIGHTS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""The heights of the bars of a histogram, one character each; the highest bar of a histogram has
the last character."""

_DIFFERENCE = {
    "count": "count",
    "first": "first",
    "absolute": "max_absolute",
    "absolute_at": "max_absolute_at",
    "relative": "max_relative",
    "without": "num_without_distance",
    "cosine": "cosine",
    "norm": "relative_norm",
    "only": "only",
}
"""The fields of a difference by the names that the page has for them."""

_DIGITS = 6
"""Digits of a statistic in the page, as it prints them; all seventeen would make the page half as
large again."""

_COLUMNS_NBYTES = 500
"""The most bytes that the columns of statistics grow by, without any tensor's own, if there are
some: a column of equal numbers is an object in place of a list, and tensors left out are counted."""

_RUN_NBYTES = len("1,0,123456789,")
"""The most bytes by which a count that is not zero lengthens a column of zeros, without its own."""

_EXACT = 2**53
"""The first integer whose successor JavaScript cannot represent; integers from here on are sent as
text."""


def choose_keys(
    reader: Reader, filter: Sequence[str] | None = None, exclude: Sequence[str] | None = None
) -> list[str]:
    chosen = select_keys(list(reader), filter, exclude)
    return sorted((key for key in reader if key in chosen), key=reading_key)


def file_sizes(storage: Storage, files: Sequence[str]) -> list[int | None]:
    """Return the bytes of each data file; None for a file that is missing or cannot be opened."""
    sizes = list[int | None]()
    for name in files:
        try:
            with closing(storage.open(name)) as file:
                sizes.append(file.size)
        # The page shows that a file is lost; the rest of the checkpoint is still worth a look.
        except (CheckpointError, MissingFile, StorageError):
            sizes.append(None)
    return sizes


def describe(
    reader: Reader,
    keys: Sequence[str],
    file_nbytes: Sequence[int | None],
    measured: StatisticsByKey | None = None,
    counts: Mapping[str, Ints] | None = None,
) -> JsonColumns:
    """A tensor whose entries cannot be read has dtype -1, shape -1 and no slices."""
    # Row and cause of every unreadable tensor, and the causes: a lost file is one.
    faults = {k: each for k, each in (measured or {}).items() if not isinstance(each, Statistics)}
    faults |= reader.faults
    causes, rows = dict[tuple[str, str], int](), list[list[int]]()
    for row, key in enumerate(keys):
        if key in faults:
            # Without the key: of a lost file, all tensors share it.
            text = str(faults[key]).replace(f"{key!r}: ", "", 1)
            cause = type(faults[key]).__name__, text
            rows.append([row, causes.setdefault(cause, len(causes))])
    values = {
        "faults": rows,
        "causes": [list(cause) for cause in causes],
        "damaged": [each.message for each in untold(reader.source.file_faults(), faults.values())],
        "stats": None if measured is None else _statistics(reader, keys, measured, counts or {}),
    }
    files = reader.index.files, file_nbytes
    checkpoint = reader.path, reader.format, reader.metadata, reader.entries()
    return _checkpoint_columns(keys, *checkpoint, reader.logical(), *files, values)


def statistics_that_fit(
    keys: Sequence[str], measured: StatisticsByKey, room: int
) -> StatisticsByKey:
    """Return the errors and the statistics that fit ``room`` bytes: odd values first, then the largest tensors."""
    row_of = {key: row for row, key in enumerate(keys)}
    found = [(key, each) for key, each in measured.items() if isinstance(each, Statistics)]
    plain = {key: not (each.nan or each.inf or each.minimum == each.maximum) for key, each in found}
    found.sort(key=lambda pair: (plain[pair[0]], -pair[1].count))
    ends = np.cumsum([_statistics_nbytes(row_of[key], each) for key, each in found])
    left_out = {
        key for key, _ in found[int(np.searchsorted(ends, room - _COLUMNS_NBYTES, side="right")) :]
    }
    return {key: each for key, each in measured.items() if key not in left_out}


def _statistics_nbytes(row: int, found: Statistics) -> int:
    """Return the most bytes that the statistics of a tensor add to the columns; no number of bars
    exceeds ``count``.

    A count of zero adds none to the run that it is in. Another ends it: the pair "7,1," and the
    pair "0,123456," of the next run. Where ``packed`` lists a column instead, more than a sixth of
    its counts are not zero, and add more.
    """
    values = [_short(json_number(value)) for value in _values_of(found)]
    counts = [each for each in (found.nan, found.inf, found.zero) if each]
    text = json.dumps([*values, *counts, row, found.count, found.count], separators=(",", ":"))
    return len(text) - 1 + _RUN_NBYTES * len(counts) + NUM_BINS


def describe_plan(report: WriteReport) -> tuple[JsonColumns, list[JsonColumns]]:
    """Return the numbers of a dry run, and the columns of the checkpoint that it would write."""
    entries = report.planned
    if entries is None:
        raise ArgumentError(
            "The report is of a write that was done.", "Give the report of a dry run."
        )
    keys = sorted(entries.slices.tensors.keys, key=reading_key)
    # At least the payloads; where they lie is up to the format.
    ends = np.array(report.file_nbytes, np.int64)
    np.maximum.at(ends, entries.file, entries.start + entries.slices.nbytes)
    files = [f"file {number}" for number in range(report.num_files)], ends.tolist()
    about = report.path, report.format, Metadata(report.description)
    values: JsonColumns = {"faults": [], "causes": [], "damaged": [], "stats": None}
    numbers = ("read_nbytes", "num_copies", "peak_nbytes", "free_nbytes")
    return {name: getattr(report, name) for name in numbers}, [
        _checkpoint_columns(keys, *about, entries, None, *files, values)
    ]


def _checkpoint_columns(
    keys: Sequence[str],
    path: str,
    form: str,
    metadata: Metadata,
    entries: EntryTable,
    logical: "LogicalTensors | None",
    files: Sequence[str],
    file_nbytes: Sequence[int | None],
    values: JsonColumns,
) -> JsonColumns:
    tensors, row_of = entries.slices.tensors, entries.slices.tensors.rows()
    rows = [row_of.get(key, -1) for key in keys]
    rows_by_tensor, bounds = entries.slices.by_tensor(by_offset=True)
    parts = [rows_by_tensor[bounds[row] : bounds[row + 1]] if row >= 0 else () for row in rows]
    order = np.concatenate([np.zeros(0, np.int64), *filter(len, parts)])
    dtypes, extents, num_parameters = _logical_facts(
        keys, rows, list(map(len, parts)), tensors, logical
    )
    used = sorted({*dtypes} - {""})
    shapes: dict[tuple[int, ...], int] = {}
    shape = [
        -1 if row < 0 else shapes.setdefault(each, len(shapes))
        for row, each in zip(rows, extents, strict=True)
    ]
    nbytes = np.append(entries.slices.nbytes_of_tensors(), 0)  # the last is for row -1
    holders = holders_of(entries, files)
    return {
        "path": path,
        "name": basename(path.rstrip("/")),
        "format": form,
        "writer": metadata.writer,
        "description": metadata.description,
        "metadata": dict(metadata.user),
        "num_parameters": num_parameters,
        "files": list(files),
        "file_nbytes": list(file_nbytes),
        **values,
        "dtypes": used,
        "shapes": [_exact(each) for each in shapes],
        "keys": front_coded(keys),
        "optimizer": ranges_of([is_optimizer_state(key) for key in keys]),
        "dtype": packed([used.index(name) if name else -1 for name in dtypes]),
        "shape": packed(shape),
        "nbytes": packed(nbytes[rows].tolist()),
        "num_slices": packed([*map(len, parts)]),
        "slices": _slice_columns(entries, order)
        | {"device": holders and packed(holders.device[order].tolist())},
        "holder": holders and holders.noun,
    }


def _logical_facts(
    keys: Sequence[str],
    rows: Sequence[int],
    counts: Sequence[int],
    tensors: TensorTable,
    logical: "LogicalTensors | None",
) -> tuple[list[str], list[tuple[int, ...]], int]:
    """The dtypes and shapes of keys, for quantised tensors as numbers, and the parameters."""
    kinds, scales = (logical.kinds, logical.left_out) if logical else ({}, frozenset[str]())
    facts = tensors.facts()
    counted = count_parameters([(key, *fact) for key, fact in facts.items()], kinds, scales)
    dtypes, shapes = list[str](), list[tuple[int, ...]]()
    for key, row, number in zip(keys, rows, counts, strict=True):
        dtype, shape = facts[key] if row >= 0 else ("", ())
        kind, numbers = kinds.get(key, (dtype, shape)) if row >= 0 else (dtype, shape)
        dtypes.append(kind)
        shapes.append(shape if number > 1 else numbers)  # slices have places among the elements
    return dtypes, shapes, counted.among({*keys}).total


def describe_diff(report: DiffReport, keys: Sequence[str]) -> JsonColumns:
    row_of = {key: row for row, key in enumerate(keys)}
    return {
        "num_equal": report.num_equal,
        "fields": list(_DIFFERENCE),
        "differences": [
            [
                row_of[each.key],
                json_number(each.change),
                *(map(each.values.to_json().get, _DIFFERENCE.values()) if each.values else ()),
            ]
            for each in report.differences
        ],
        "unreadable": [
            [row_of[each.key], each.side, each.kind, each.message] for each in report.unreadable
        ],
    }


def front_coded(keys: Sequence[str]) -> JsonColumns:
    """The length of the prefix that each key shares with the previous key, and its rest."""
    # No paths.
    shared = [len(commonprefix(pair)) for pair in zip(["", *keys], keys, strict=False)]  # noqa: RUF071
    return {
        "shared": shared,
        "rest": [key[count:] for key, count in zip(keys, shared, strict=True)],
    }


def ranges_of(chosen: Sequence[bool]) -> list[list[int]]:
    """Return the half-open ranges of the rows that are chosen."""
    edges = np.flatnonzero(np.diff(np.array([False, *chosen, False], np.int8)))
    ranges: list[list[int]] = edges.reshape(-1, 2).tolist()
    return ranges


def packed(column: Sequence[Any]) -> Sequence[Any] | JsonColumns:
    """Return a column, or if values repeat, runs of (value, count): ``{"runs": [0, 5, 7, 1]}``."""
    runs = [(value, sum(1 for _ in equal)) for value, equal in groupby(column)]
    # Three rows a run, or the numbers of rows would take more characters than the values that they
    # stand for.
    return (
        {"runs": [number for run in runs for number in run]}
        if 0 < 3 * len(runs) <= len(column)
        else column
    )


def unpacked(column: Sequence[Any] | JsonColumns) -> Sequence[Any]:
    if not isinstance(column, dict):
        return column
    runs = column["runs"]
    return [
        value for value, length in zip(runs[::2], runs[1::2], strict=True) for _ in range(length)
    ]


def gaps(files: Sequence[int], starts: Sequence[int], nbytes: Sequence[int]) -> list[int | str]:
    """Bytes from the end of the previous slice of the file: 0 in most checkpoints; large starts as text."""
    ends: dict[int, int] = {}
    gaps: list[int | str] = []
    for file, start, size in zip(files, starts, nbytes, strict=True):
        end = ends.get(file, 0)
        gaps.append(start - end if start < _EXACT else str(start))
        ends[file] = start + size if start + size < _EXACT else end
    return gaps


def bar_heights(counts: Ints) -> str:
    """One character a bar; only a count of zero has height zero."""
    # Rounded up, so that one value among a million still shows: ceil(1 * 35 / 700) = 1.
    highest = max(int(counts.max()), 1)
    scaled = -(-counts * (len(HEIGHTS) - 1) // highest)
    return "".join(HEIGHTS[height] for height in scaled.tolist())


def _slice_columns(entries: EntryTable, order: Ints) -> JsonColumns:
    """Return the columns of the slices; ``cut`` has number, offset and shape of each partial one."""
    slices = entries.slices
    ranks = slices.tensors.ranks[slices.tensor[order]].tolist()
    numbers = np.flatnonzero(~slices.is_whole()[order]).tolist()
    cut_rows = order[numbers]
    regions = np.stack([slices.offset[cut_rows], slices.shape[cut_rows]], axis=1).tolist()
    nbytes = slices.nbytes_of_tensors()[slices.tensor[order]]
    nbytes[numbers] = slices.nbytes[cut_rows]
    files = entries.file[order].tolist()
    return {
        "file": packed(files),
        "gap": packed(gaps(files, entries.start[order].tolist(), nbytes.tolist())),
        # Of a slice that is its whole tensor, the tensor's bytes tell it.
        "nbytes": slices.nbytes[cut_rows].tolist(),
        "encoded": np.flatnonzero(~entries.plain[order]).tolist(),
        "cut": [
            # Offset and shape are padded to the highest rank of the checkpoint; the page gets the
            # axes of the tensor.
            [number, *_exact([extent for bounds in region for extent in bounds[: ranks[number]]])]
            for number, region in zip(numbers, regions, strict=True)
        ],
    }


def _statistics(
    reader: Reader, keys: Sequence[str], measured: StatisticsByKey, counts: Mapping[str, Ints]
) -> JsonColumns:
    """Return columns of the tensors that have statistics; ``row`` is None if all have them."""
    found = [
        (row, key, each)
        for row, key in enumerate(keys)
        if isinstance(each := measured.get(key), Statistics)
    ]
    guarded = guarded_keys(reader.source, [reader.entries()], reader.faults)
    names = ("min", "max", "mean", "std")
    numbers = [[_short(json_number(value)) for value in _values_of(each)] for _, _, each in found]
    return {
        # Tensors with bytes that no checksum covers.
        "num_unguarded": sum(not guarded[key] for key in keys),
        "row": None if len(found) == len(keys) else [row for row, _, _ in found],
        **{name: [row[place] for row in numbers] for place, name in enumerate(names)},
        **{
            name: packed([getattr(each, name) for _, _, each in found])
            for name in ("count", "nan", "inf", "zero")
        },
        # One text: values of equal width follow each other, and spaces stand for none.
        "histogram": "".join(
            bar_heights(counts[key]) if key in counts else " " * NUM_BINS for _, key, _ in found
        ),
        "bins": NUM_BINS,
        "peak": packed([int(counts[key].max()) if key in counts else 0 for _, key, _ in found]),
    }


def _values_of(found: Statistics) -> tuple[Number | None, ...]:
    return found.minimum, found.maximum, found.mean, found.std


def _short(number: float | str | None) -> float | str | None:
    return float(f"{number:.{_DIGITS}g}") if isinstance(number, float) else number


def _exact(numbers: Sequence[int]) -> list[int | str]:
    # JavaScript reads 2**53 + 1 as 2**53, so such numbers travel as text.
    return [number if -_EXACT < number < _EXACT else str(number) for number in numbers]


_MOST_NBYTES = 5_000_000
"""The room that pieces have in a page, a third of it."""

AxisRuns = tuple[int, int, list[tuple[int, int]]]
"""Coordinates along an axis: the first, how many follow each other, and how often that repeats, as
counts and steps, the innermost first."""


def made_columns(report: WriteReport) -> JsonColumns:
    if report.map is None or report.planned is None:
        return {}
    keys = sorted(report.planned.slices.tensors.keys, key=reading_key)  # as the page has them
    rules = [each.rule for each in report.map.rules]
    return {"made": map_columns(report.map.plan, rules, keys)}


def map_columns(plan: MapPlan, rules: Sequence[str], keys: Sequence[str]) -> JsonColumns:
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
                target_runs = runs_of(piece.target, piece.shape)
                patterns.append(
                    [
                        piece.rule,
                        runs_text(runs_of(piece.source, piece.shape)),
                        runs_text(target_runs),
                        is_reordered(piece),
                        [[first, run, *chain(*more)] for first, run, more in target_runs],
                    ]
                )
                nbytes += len(json.dumps(patterns[-1]))
            used = [*piece.keys] or [""]
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


def runs_of(view: View, counts: Sequence[int]) -> list[AxisRuns]:
    """Return the coordinates of a piece along each axis of a tensor."""
    found = list[AxisRuns]()
    for axis, first in enumerate(view.start):
        run, more = 1, list[tuple[int, int]]()
        moves = [(step, n) for n, (at, step) in zip(counts, view.steps, strict=True) if at == axis]
        for step, count in sorted(moves):
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
    """True if the elements are in another order; axes in the order of the target, the slowest first."""
    indices = zip(piece.shape, piece.source.steps, piece.target.steps, strict=True)
    moved = [(taken, filled) for count, taken, filled in indices if count > 1]
    moved.sort(key=lambda pair: (pair[1][0], -pair[1][1]))
    order = [(axis, -step) for (axis, step), _ in moved]
    return order != sorted(order)


_MOST_LETTERS = 200
"""The letters of a value that a page has; a text of a thousand would fill the panel."""


def scalar_columns(
    reader: Reader, keys: Sequence[str], scalars: Mapping[str, ScalarValue]
) -> JsonColumns:
    settings = list[list[int]]()
    if has_settings(reader.source):
        facts = reader.entries().slices.tensors.facts()
        settings = ranges_of(list(map(settings_in(reader.source, facts).__contains__, keys)))
    texts = ((row, scalars[key].text) for row, key in enumerate(keys) if key in scalars)
    return {
        "settings": settings,
        "values": [
            [row, text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1]}…"]
            for row, text in texts
        ],
    }


SCHEMA = 4
"""The version of the columns, for programs that read them from a page; the page's own script is of
the same version.

It grows with every change by which a program that reads the columns would be misled or fail: a
column that goes, moves or means something else. A new column leaves it as it is. Version 1 had a
number for each row in every column, the bytes of every slice, and the absolute path of the
checkpoint; version 2 the kind and message of every fault in its row; version 3 shortened only
columns of which all numbers are the same.
"""

MARK = "<!doctype html>\n<!-- made by shardvar view -->\n"
"""The beginning of every page; a file that begins otherwise is never replaced."""

SERVED_POLICY = "; connect-src 'self'"
"""An addition to the policy of a page that is served: it may ask its own server."""

MOST_NBYTES = 15_000_000
"""The largest page, so that a browser opens it at once and it can be sent by mail."""

_SCRIPTS = (
    "data",
    "paint",
    "measures",
    "list",
    "layers",
    "treemap",
    "strip",
    "fold",
    "files",
    "slices",
    "detail",
    "address",
    "app",
)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def make_page(
    checkpoints: Sequence[JsonColumns],
    diff: JsonColumns | None = None,
    served: bool = False,
    plan: JsonColumns | None = None,
) -> str:
    """A page that is ``served`` may ask its server; another has at most ``MOST_NBYTES``."""
    more = ["served"] if served else ["made"] if plan is not None and "made" in plan else []
    scripts = (*_SCRIPTS[:-1], *more, _SCRIPTS[-1])
    style, script = (
        _asset("page.css"),
        "\n".join(["'use strict';", *(_asset(f"{name}.js") for name in scripts)]),
    )
    data = embedded_json(
        {"schema": SCHEMA, "checkpoints": list(checkpoints), "diff": diff, "plan": plan}
    )
    title = " and ".join(printable(each["name"]) for each in checkpoints)
    # The policy lets only this script and this style run, by their hashes, and loads nothing: a
    # name in a hostile checkpoint cannot add code even if its escaping failed.
    filled = {
        "title": escape(title),
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri "
        f"'none'; form-action 'none'{SERVED_POLICY if served else ''}",
        "style": style,
        "script": script,
        "data": data,
    }
    # The template is split once, so that a text that fills one place is never searched for other
    # places. ``split`` returns the texts between the places at even numbers and the names of the
    # places at odd ones.
    parts = _PLACE.split(_asset("page.html"))
    text = MARK + "".join(filled[part] if number % 2 else part for number, part in enumerate(parts))
    # All is ASCII except for a few characters of the assets, so that characters are bytes.
    if len(text) > MOST_NBYTES and not served:
        remedy = (
            "Show part of it with --filter 'GLOB', or all of it with `shardvar view PATH --serve`."
        )
        if plan is not None:
            remedy = "Leave out --html: the answer of --dry-run has the numbers of the plan."
        elif len(checkpoints) > 1:
            remedy = "Show part of each checkpoint: `shardvar diff A B --filter 'GLOB'`."
        raise ArgumentError(
            f"The page would have {human_size(len(text))}; the limit is {human_size(MOST_NBYTES)}.",
            remedy,
        )
    return text


def room_left(page: str) -> int:
    return MOST_NBYTES - len(page)


def embedded_json(value: Any) -> str:
    """For a script element: no tag, comment or character reference can begin in it."""
    # A browser ends a script element at ``</script`` even inside a JSON string.
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # in ASCII
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return resources.files("shardvar.view").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    # The single quotes belong to the syntax of Content-Security-Policy.
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

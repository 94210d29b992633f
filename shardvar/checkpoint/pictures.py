"""How readers and reports show themselves in a notebook: tables, in which every name is escaped."""

from collections.abc import Iterator

import numpy as np

from shardvar.checkpoint.diff_report import DiffReport
from shardvar.checkpoint.reader import Reader
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.verify_report import VerifyReport
from shardvar.pictures.table import Markup, bad, bar, html_block, html_table
from shardvar.pictures.words import count, human_shape, human_size

_MOST_ROWS = 24
"""Rows of a table; a notebook is no place for a hundred thousand."""


def reader_html(reader: Reader) -> str:
    """The first tensors of an open checkpoint, and what cannot be read."""
    entries, faults = reader.entries(), reader.faults
    tensors = entries.slices.tensors
    rows_of, num_slices = tensors.rows(), np.bincount(entries.slices.tensor, minlength=len(tensors))
    nbytes = np.zeros(len(tensors), dtype=np.int64)
    np.add.at(nbytes, entries.slices.tensor, entries.slices.nbytes)
    most = int(nbytes.max()) if len(nbytes) else 0
    keys = reader.keys()
    rows: list[tuple[object, ...]] = []
    for key in keys[:_MOST_ROWS]:
        fault = bad(type(faults[key]).__name__) if key in faults else ""
        row = rows_of.get(key)
        if row is None:
            rows.append((key, "", "", "", "", "", fault))
            continue
        size = int(nbytes[row])
        shape = human_shape(tensors.shape(row))
        rows.append((key, tensors.dtype(row), shape, human_size(size), bar(size, most), int(num_slices[row]), fault))
    headers = ("tensor", "dtype", "shape", "size", "", "slices", "")
    about = [
        f"{reader.format} format", count(len(keys), "tensor"), count(len(entries), "slice"),
        count(len(reader.index.files), "file"), human_size(int(nbytes.sum())),
    ]  # fmt: skip
    broken = bad(f"{count(len(faults), 'tensor')} cannot be read") if faults else Markup("")
    return html_block(reader.path, about, broken, html_table(headers, rows, (3, 5), len(keys) - len(rows)))


def write_html(report: WriteReport) -> str:
    """What was written, and how its bytes are spread over the files."""
    about = [
        f"{report.format} format", count(report.num_tensors, "tensor"), count(report.num_slices, "slice"),
        count(report.num_files, "file"), human_size(report.nbytes),
    ]  # fmt: skip
    sizes = report.file_nbytes
    rows = [
        (f"file {number}", human_size(size), bar(size, max(sizes))) for number, size in enumerate(sizes[:_MOST_ROWS])
    ]
    would = "would be written to " if report.dry_run else "written to "
    policy = html_table(("policy",), [(report.description,)]) if report.description else Markup("")
    return html_block(
        would + report.path, about, policy, html_table(("", "bytes", ""), rows, (1,), len(sizes) - len(rows))
    )


def verify_html(report: VerifyReport) -> str:
    """Whether it is whole, and every damage if not."""
    about = [count(report.num_tensors, "tensor"), count(report.num_slices, "slice"), count(report.num_files, "file")]
    about.append(f"{human_size(report.read_nbytes)} read")
    if report.unguarded_nbytes:
        about.append(f"{human_size(report.unguarded_nbytes)} that no checksum guards")
    if report.ok:
        return html_block(f"ok: {report.path}", about)
    rows = [(each.key or each.file or "", bad(each.kind), each.message) for each in report.damages[:_MOST_ROWS]]
    table = html_table(("where", "damage", "what it is"), rows, more=len(report.damages) - len(rows))
    return html_block(f"damaged: {report.path}", about, table)


def diff_html(report: DiffReport) -> str:
    """What differs between two checkpoints, tensor by tensor."""
    about = [f"A: {report.path_a}", f"B: {report.path_b}", f"{report.num_equal:,} equal"]
    rows = list(_differences(report))
    title = "equal" if report.equal else f"{count(len(rows), 'difference')}"
    table = html_table(("tensor", "", "what differs"), rows[:_MOST_ROWS], more=max(0, len(rows) - _MOST_ROWS))
    return html_block(title, about, table if rows else Markup(""))


def _differences(report: DiffReport) -> Iterator[tuple[object, object, object]]:
    for broken in report.unreadable:
        yield broken.key, bad(f"unreadable in {broken.side.upper()}"), broken.message
    for each in report.differences:
        told = []
        if each.dtype_a != each.dtype_b:
            told.append(f"dtype {each.dtype_a} and {each.dtype_b}")
        if each.shape_a != each.shape_b:
            told.append(f"shape {human_shape(each.shape_a)} and {human_shape(each.shape_b)}")
        if each.values is not None:
            most = "" if each.values.max_absolute is None else f", by at most {each.values.max_absolute:.6g}"
            told.append(count(each.values.count, "value") + most)
        yield each.key, "differs", "; ".join(told)
    for side, keys in (("A", report.only_in_a), ("B", report.only_in_b)):
        for key in keys:
            yield key, f"only in {side}", ""

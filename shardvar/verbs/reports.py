"""Reports of what was written, as values with stable JSON and a table for notebooks.

    WriteReport    save, reshard (also of a dry run)

``problems`` has the report of ``verify``, and ``compare.comparison`` the one of ``diff``.

A report holds numbers, texts, other reports and a plan, and knows nothing of open checkpoints. Its
JSON changes its meaning only with ``SCHEMA``. The drawing functions at the end import
``shardvar.pictures`` when a notebook asks for them, so that the verbs start without it.

R-POLICY-16 (RFC 001): "Other metrics will give a summary of the shards collection (number of
shards, callback description)."
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.errors import CheckpointError
from shardvar.limits import MAX_NAMED
from shardvar.pictures.words import (
    count,
    human_shape,
    human_size,
    human_tensors,
    named,
    printable,
)
from shardvar.planning.index import EntryTable
from shardvar.records import field, frozen
from shardvar.verbs.problems import MOST_ROWS, SCHEMA, Damage, fields_as_json, lines_of_problems

if TYPE_CHECKING:
    from shardvar.maps.report import MapReport
    from shardvar.planning.policies.policy import Exceeding

__all__ = ["WriteReport"]


@frozen
class WriteReport:
    """Report of ``save`` or ``reshard``, also of a dry run."""

    path: str
    """The checkpoint that was written."""
    format: str
    """Its format."""
    description: str
    """The description of the policy that assigned slices to files."""
    num_tensors: int
    """Tensors in it."""
    num_slices: int
    """Slices that they are stored as."""
    nbytes: int
    """Payload bytes written."""
    file_nbytes: tuple[int, ...]
    """Payload bytes of each data file."""
    num_copies: int
    """Regions that were moved: ranges of the source that go to a place in the target."""
    read_nbytes: int
    """Payload bytes read from the source."""
    peak_nbytes: int
    """An upper bound of the memory for buffers, without the columns of the plan."""
    free_nbytes: int
    """Free bytes on the target's disk before the write; of a target in a bucket, on the disk for
    temporary files."""
    callback_seconds: float = 0.0
    """Seconds that the policy took; kept in no index, so equal input gives equal bytes."""
    num_empty_files: int = 0
    """Files that a callback named and put nothing in; they are not written."""
    exceeding: "tuple[Exceeding, ...]" = ()
    """The files that are larger than the policy's limit, each with the reason."""
    num_objects: int = 0
    """Plain objects, such as settings, that were carried along with the tensors. A distributed
    checkpoint has them in a file next to the data files, other formats in their metadata."""
    num_referred: int = 0
    """Tensors that are not written, since an older checkpoint has them: their bytes are in its files.
    They are not in the other numbers."""
    reused_files: int = 0
    """Data files that an earlier, interrupted run had finished."""
    num_retries: int = 0
    """Requests to a server that this process made again while the files were written. The logger
    ``shardvar.storage`` has a line of level ``INFO`` for each."""
    retry_seconds: float = 0.0
    """The seconds of the pauses before these requests, which may overlap."""
    lost: tuple[Damage, ...] = ()
    """The tensors that a reshard left out because they cannot be read, with the reasons."""
    untied: tuple[tuple[str, str], ...] = ()
    """Pairs of tensors that share their bytes in the source, and have their own in the target."""
    left_out: tuple[str, ...] = ()
    """The keys that a reshard left out because the format cannot hold them, and only the program
    that wrote them needs them: the graph of objects of TensorFlow."""
    dequantized: tuple[str, ...] = ()
    """The keys of the source whose numbers were written in the place of quantised tensors."""
    digests: str = ""
    """The sentence on the digests that the checkpoint carries, or on digests of the source that were
    left out; empty without digests."""
    copied: tuple[str, ...] = ()
    """The files of the model's folder that were copied, such as ``config.json``."""
    changed: tuple[str, ...] = ()
    """Sentences on the changes of copied files: the dtype, and descriptions of quantisation."""
    not_copied: Mapping[str, str] = field(default_factory=dict)
    """The other files of the model's folder, each with the reason."""
    num_united: int = 0
    """The sources, if no two have a key and their union was written; else 0."""
    ranks: "tuple[WriteReport, ...]" = ()
    """The report of each checkpoint, if a map makes one a rank, or of each component of a pipeline."""
    dry_run: bool = False
    """True if nothing was written."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Of a dry run, the requests to buckets that the write would make, at most, by kind: ``list``,
    ``head``, ``get`` (a range each), ``put`` (a file, or the beginning or the end of an upload in
    parts), ``part``, ``copy`` and ``delete``; ``decode`` counts reads that may take more of ``get``.
    Requests that are made again, or by workers, are not in it. Empty if nothing is in a bucket."""
    blocked_seconds: float | None = field(default=None, compare=False)
    """Seconds until a save of a training state returned to its caller; None of other writes."""
    durable_seconds: float | None = field(default=None, compare=False)
    """Seconds from the call until the checkpoint was whole; in the report that ``SavedSteps`` with
    ``durable`` gives to ``on_saved``, until its copy was."""
    error: Exception | None = None
    """The error of a save that failed with ``on_error='warn'``, and then nothing was written."""
    planned: EntryTable | None = field(default=None, repr=False, compare=False)
    """The entries that would be written, for pictures; None after a write. Not in JSON."""
    map: "MapReport | None" = field(default=None, repr=False, compare=False)
    """The report of a map, of a dry run; None after a write, and without a map."""

    @property
    def num_files(self) -> int:
        """Data files."""
        return len(self.file_nbytes)

    def __fspath__(self) -> str:
        """The path, so that the report of a checkpoint may be given where its path is asked for."""
        return self.path

    def __str__(self) -> str:
        if self.error is not None:
            return f"{printable(self.path)} was not saved: {self.error}"
        lost = lines_of_problems("lost: ", self.lost, everything=True)
        return "\n".join([*sizes_of_write(self), *lost, *facts_of_write(self)])

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        about = {
            "blocked_seconds": self.blocked_seconds,
            "durable_seconds": self.durable_seconds,
            "error": self.error and str(self.error),
        }
        fields = fields_as_json(self, "planned", *about)
        fields |= {name: value for name, value in about.items() if value is not None}
        return {"schema": SCHEMA, **fields, "num_files": self.num_files}

    def _repr_html_(self) -> str:
        from shardvar.pictures.drawings import Markup, bar, html_block, html_table

        about = [
            f"{self.format} format", count(self.num_tensors, "tensor"), count(self.num_slices, "slice"),
            count(self.num_files, "file"), human_size(self.nbytes),
        ]  # fmt: skip
        if self.num_referred:
            about.append(f"{count(self.num_referred, 'tensor')} in files of older checkpoints")
        sizes = self.file_nbytes
        rows = [
            (f"file {number}", human_size(size), bar(size, max(sizes)))
            for number, size in enumerate(sizes[:MOST_ROWS])
        ]
        would = "would be written to " if self.dry_run else "written to "
        policy = html_table(("policy",), [(self.description,)]) if self.description else Markup("")
        return html_block(
            would + self.path,
            about,
            policy,
            html_table(("", "bytes", ""), rows, (1,), len(sizes) - len(rows)),
        )


def sizes_of_write(
    report: WriteReport, name: Callable[[WriteReport], str] = lambda report: printable(report.path)
) -> Iterator[str]:
    """Yield a line of what was written, and one for each rank; ``name`` gives the file to name."""
    done = "would write" if report.dry_run else "wrote"
    what = human_tensors(report.num_tensors, report.num_slices)
    size = f"{count(report.num_files, 'file')}, {human_size(report.nbytes)}"
    union = f", the union of {report.num_united} sources" if report.num_united else ""
    yield f"{done} {name(report)} ({report.format}): {what}, {size}{union}"
    for each in report.ranks:
        size = f"{count(each.num_tensors, 'tensor')}, {human_size(each.nbytes)}"
        yield f"  {name(each)}: {size}"


def lines_of_requests(requests: Mapping[str, int]) -> Iterator[str]:
    if requests:
        counts = (f"{number:,} {kind.upper()}" for kind, number in requests.items())
        yield f"requests, at most: {', '.join(counts)}"
        more = "; each DECODE may take several GET" * ("decode" in requests)
        yield f"not counted: requests that are made again, of workers, and of --verify{more}"


def facts_of_write(report: WriteReport) -> Iterator[str]:
    yield from lines_of_requests(report.requests)
    if report.num_objects:
        yield f"carried {count(report.num_objects, 'setting')} with the tensors"
    if report.untied:
        pairs = [f"{key!r} and {first!r}" for key, first in report.untied]
        more = f" and {len(pairs) - MAX_NAMED} more pairs" if len(pairs) > MAX_NAMED else ""
        yield f"written twice, and one in the source: {', '.join(pairs[:MAX_NAMED])}{more}"
    if report.copied:
        yield f"{'would copy' if report.dry_run else 'copied'} {named(report.copied)}"
    yield from report.changed
    reasons: dict[str, list[str]] = {}
    for name, reason in report.not_copied.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"not copied: {named(names)} ({reason})"
    if report.reused_files:
        yield f"kept {count(report.reused_files, 'file')} that an interrupted run had finished"


# Tables for notebooks. Every name in them is escaped.


def as_html(
    path: str,
    name: str,
    entries: EntryTable,
    keys: Sequence[str],
    faults: Mapping[str, CheckpointError],
    num_files: int,
    num_settings: int,
) -> str:
    from shardvar.pictures.drawings import Markup, bad, bar, html_block, html_table

    tensors = entries.slices.tensors
    rows_of, num_slices = tensors.rows(), np.bincount(entries.slices.tensor, minlength=len(tensors))
    nbytes = entries.slices.nbytes_of_tensors()
    most = int(nbytes.max()) if len(nbytes) else 0
    rows: list[tuple[object, ...]] = []
    for key in keys[:MOST_ROWS]:
        fault = bad(type(faults[key]).__name__) if key in faults else ""
        row = rows_of.get(key)
        cells: tuple[object, ...] = ("",) * 5
        if row is not None:
            size, shape = int(nbytes[row]), human_shape(tensors.shape(row))
            slices = int(num_slices[row])
            cells = (tensors.dtype(row), shape, human_size(size), bar(size, most), slices)
        rows.append((key, *cells, fault))
    headers = ("tensor", "dtype", "shape", "size", "", "slices", "")
    about = [
        f"{name} format", human_tensors(len(keys), 0, num_settings), count(len(entries), "slice"),
        count(num_files, "file"), human_size(int(nbytes.sum())),
    ]  # fmt: skip
    broken = bad(f"{count(len(faults), 'tensor')} cannot be read") if faults else Markup("")
    return html_block(path, about, broken, html_table(headers, rows, (3, 5), len(keys) - len(rows)))

"""Shares: a checkpoint that many processes write together, without messages between them.

    each process   local shards --save_shards--> its share: data files, and an index of its
                   slices
    process 0      all shares present --merge--> entries, proven whole --commit--> the checkpoint,
                   its index last

find     the run: its target, and the beginning of its tokens, digests of its name and of the
         checkpoint that is there now (``run``)
call     process 0 begins an attempt, and the others follow it (``fence``)
move     the process's tensors into its share: a file of the target's format, and an index
         (``share_files``)
wait     until the attempt has an end; every process looks only at the directory (``fence``)
commit   under the lock of the target: merge the shares (``share_files``), and put one index in
         place

Until the commit the old checkpoint stays as it is. A process that dies leaves at most its share,
which is not read: the shares of another attempt have another token.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import ArraySource, LazyPayload, array_source
from shardvar.errors import (
    ArgumentError,
    CheckpointNotFound,
    InconsistentTensor,
    LayoutError,
    UnsupportedError,
)
from shardvar.formats.deferred import outline_of
from shardvar.formats.protocol import Format
from shardvar.layout.dtypes import ITEMSIZES, Ints, Shape, code
from shardvar.layout.region import Region, read_integers, read_shape
from shardvar.planning.decision import Decision
from shardvar.planning.index import Metadata, concatenate_entries
from shardvar.planning.plan import check_share
from shardvar.planning.slices import (
    Assignment,
    Capabilities,
    SliceTable,
    TensorTable,
    cuttable_rows,
    pad,
    rows_in_file_order,
    sum_by,
)
from shardvar.records import entity, field, replace
from shardvar.storage.local import split_place
from shardvar.storage.remote import RemoteStorage
from shardvar.verbs.arguments import check_mapping, named_arguments, stored_dtype, texts_of
from shardvar.verbs.compare.claims import digest_arrays
from shardvar.verbs.lazy import as_values
from shardvar.verbs.locate import Location, Path
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.save import WRITER, check_keys
from shardvar.verbs.together.fence import (
    DESCRIPTION,
    commit_left,
    has_begun,
    save_called,
    save_known,
    save_open,
    telling,
)
from shardvar.verbs.together.run import Run, SaveOptions, find_run, indexes_of
from shardvar.verbs.together.share_files import NOT_WRITTEN, Holding, plan_file, plan_of_slices
from shardvar.verbs.together.share_hashes import OlderIndex, ShareBase, find_older
from shardvar.verbs.writing import (
    PEAK_NBYTES,
    WritePlan,
    carry_out,
    check_may_write,
    plan_checkpoint,
    report_of,
)

# --- Local shards: a tensor that is cut over processes is in none of them whole


@entity
class LocalShard:
    """A region of a tensor that this process holds, with its values.

    Parameters
    ----------
    array : array_like
        The values of the region: anything that ``sv.save`` takes.
    offset : iterable of int
        The first index of the region along each axis of the whole tensor.
    full_shape : iterable of int
        The shape of the whole tensor.

    Raises
    ------
    LayoutError
        If the region reaches out of the whole tensor.

    Examples
    --------
    >>> shard = LocalShard(np.ones((5, 4), np.float32), offset=(8, 0), full_shape=(13, 4))
    >>> str(shard.region)
    '[8:13, 0:4]'
    """

    array: npt.ArrayLike
    offset: tuple[int, ...]
    full_shape: Shape
    region: Region = field(init=False)
    """The region that the array holds, in the coordinates of the whole tensor."""

    def __init__(
        self,
        array: npt.ArrayLike,
        offset: Iterable[SupportsIndex],
        full_shape: Iterable[SupportsIndex],
    ) -> None:
        # A tensor on a device is not copied to learn its shape.
        shape = getattr(array, "shape", None)
        region = Region(
            read_integers(offset, "offset"), np.shape(array) if shape is None else tuple(shape)
        )
        full = read_shape(full_shape)
        outside = len(full) != region.rank or any(
            stop > extent for stop, extent in zip(region.stop, full, strict=True)
        )
        if outside:
            cause = (
                f"An array of shape {region.shape} at offset {region.offset} is not within the "
                f"full shape {full}."
            )
            raise LayoutError(
                cause, "Give the offset in the whole tensor, and the shape of the whole tensor."
            )
        for name, value in (
            ("array", array),
            ("offset", region.offset),
            ("full_shape", full),
            ("region", region),
        ):
            object.__setattr__(self, name, value)


LocalTensors = Mapping[str, npt.ArrayLike | LocalShard | Iterable[LocalShard]]
"""The tensors that one process holds: an array is a whole tensor, a local shard or several are
regions of one."""


def source_of_shards(tensors: LocalTensors) -> ArraySource:
    """One entry for each shard; ``InconsistentTensor`` if shards of a key disagree."""
    check_mapping(tensors, "keys to arrays or local shards")
    check_keys(list(tensors))
    rows: list[tuple[str, str, Shape]] = []
    which: list[int] = []
    offsets, shapes = list[Shape](), list[Shape]()
    arrays: list[npt.NDArray[Any] | LazyPayload] = []
    for key, value in tensors.items():
        for values, offset, full_shape in _shards_of(key, value):
            array = as_values(key, values)
            row = key, stored_dtype(key, array), full_shape or tuple(array.shape)
            if not rows or rows[-1][0] != key:
                rows.append(row)
            elif rows[-1] != row:
                cause = (
                    f"The local shards of {key!r} are {rows[-1][1]}{list(rows[-1][2])} and "
                    f"{row[1]}{list(row[2])}."
                )
                raise InconsistentTensor(cause, "Give one dtype and one full shape.")
            which.append(len(rows) - 1)
            offsets.append(offset or (0,) * len(array.shape))
            shapes.append(tuple(array.shape))
            arrays.append(array)
    keys = [key for key, _, _ in rows]
    codes = np.array([code(dtype) for _, dtype, _ in rows], np.int64)
    table = TensorTable(keys, codes, *pad([shape for _, _, shape in rows], fill=1))
    columns = pad(offsets, fill=0)[1], pad(shapes, fill=1)[1]
    slices = SliceTable.of(table, np.array(which, np.int64), *columns)
    return array_source(slices, arrays)


def _shards_of(key: str, value: Any) -> Iterator[tuple[Any, Shape, Shape]]:
    """Yield values, each with the offset of its region and the full shape; empty of a whole tensor."""
    if isinstance(value, LocalShard):
        yield value.array, value.offset, value.full_shape
        return
    # A process that holds no region of a tensor may give an empty list; it is not an array without
    # elements.
    if isinstance(value, list | tuple) and (
        not value or any(isinstance(each, LocalShard) for each in value)
    ):
        for each in value:
            if not isinstance(each, LocalShard):
                cause = f"{key!r} has a {type(each).__name__} among its local shards."
                raise ArgumentError(cause, "Give only local shards, each an sv.LocalShard.")
            yield each.array, each.offset, each.full_shape
        return
    yield value, (), ()


# --- The public functions


@named_arguments
def save_shards(
    path: Path,
    tensors: LocalTensors,
    *,
    process: int,
    num_processes: int,
    run: str,
    attempt: str | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    replicas: str = "equal",
    force: bool = False,
    commit: bool = True,
    timeout: float = 600.0,
    digest: bool = False,
    base: Path | None = None,
) -> WriteReport:
    """Write what this process holds of a checkpoint that many processes write.

    Parameters
    ----------
    path : path_like
        The checkpoint, the same in every process.
    tensors : mapping of str to array_like, LocalShard or iterable of LocalShard
        What this process holds: arrays are whole tensors, local shards regions of one. Each may be
        lazy, as in ``save``.
    process : int
        The number of this process, from 0 on.
    num_processes : int
        The number of processes, the same in every process.
    run : str
        A text that no other save of this path has, the same in every process, such as the step.
    attempt : str, optional
        A text that is new for each attempt at the run, the same in every process: what one process
        has drawn and broadcast, for example. Without one, process 0 begins an attempt if
        ``commit`` is True.
    format : str, optional
        The format, as in ``save``.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    replicas : {'equal', 'first'}, default 'equal'
        Slices that several processes hold alike are replicas; the lowest process's is written.
        Values must be equal, or with ``'first'`` may differ.
    force : bool, default False
        Replace an existing checkpoint also where the format cannot do that in one step.
    commit : bool, default True
        Wait until all processes have saved and one has committed. Otherwise return when the share
        is written, and call ``commit_shards`` later. Without an ``attempt``, give all processes
        the same.
    timeout : float, default 600.0
        The seconds to wait for other processes.
    digest : bool, default False
        Keep the digest of each tensor in the checkpoint, as ``sv.digest`` computes it; the same in
        every process.
    base : path_like, optional
        A checkpoint in the same directory, such as the previous one, the same in every process. Local
        shards that lie in it unchanged are not written: the new checkpoint refers to the files that
        hold them. Only the format ``'shardvar'`` can do this.

    Returns
    -------
    WriteReport
        The report of this process's share.

    Raises
    ------
    IncompleteCheckpoint
        If a process did not save within ``timeout``, or a tensor has holes.
    OverlappingSlices
        If slices of two processes overlap and are not replicas.
    InconsistentTensor
        If processes disagree on the dtype or the full shape of a tensor.
    ArgumentError
        If two processes have one number, a share of an earlier attempt has other values and
        ``commit`` is False, or an argument is invalid.
    TargetExists
        If the checkpoint exists, cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If several processes cannot write the format, or it cannot hold a region.
    CorruptCheckpoint
        If the base was replaced or removed, or compared bytes of it are damaged.
    StorageError
        If another writer has replaced the checkpoint or holds it (``LockHeld``), or the file system
        refuses.

    Notes
    -----
    An error leaves the checkpoint that was there before, and all processes that wait get the same
    error. A job that died in a save may restart and save under the same ``run``, with the same
    values or others: all processes get the checkpoint of one attempt, or all get an error.

    A digest does not depend on how a tensor is cut. Each process hashes its values in memory, and
    the process that commits reads what lies between two processes: of a tensor in rows at most
    2 MiB for each shard, and a tensor in columns whole.

    With a base, each process compares its own shards, by checksums and digests; the new checkpoint
    carries the digest of each slice. Of a base without these the bytes are read. A shard refers to one
    slice of the base, or is cut into several. One that is a part of a slice, or overlaps slices, is
    written. A lazy array is made to be compared, and once more if it is written.

    Examples
    --------
    >>> import tempfile
    >>> import shardvar as sv
    >>> tensors = {"w": sv.LocalShard(np.ones((5, 4)), offset=(0, 0), full_shape=(5, 4))}
    >>> sv.save_shards(f"{tempfile.mkdtemp()}/model", tensors, process=0, num_processes=1, run="step-7").num_slices
    1
    """
    options = SaveOptions(replicas, force, commit=commit, timeout=timeout, digest=digest, base=base)
    options.check()
    saved = find_run(path, run, num_processes, format, attempt, options=options)
    return save_with_objects(saved, process, tensors, Metadata(user=texts_of(metadata)))


def save_with_objects(
    saved: Run,
    process: int,
    tensors: LocalTensors | ArraySource,
    about: Metadata,
    keys: Iterable[str] = (),
) -> WriteReport:
    """Values of a training state that other processes write have no shards here.

    ``keys`` names the tensors of a state, which a source does not do."""
    # Check, and plan.
    options = saved.options
    about = replace(about, description=DESCRIPTION, writer=WRITER)
    # Of a file of safetensors, the metadata are written before all digests are known.
    can_carry = saved.form.capabilities.holds_digests and saved.form.adopts_objects()
    if options.digest and not can_carry:
        name = saved.target.format.name
        cause = f"Several processes cannot write the digests of tensors in the format {name}."
        raise UnsupportedError(cause, "Save in the format shardvar, or call sv.digest afterwards.")
    process = 0 if options.is_part else saved.read_process(process)
    with telling(lambda: saved, process) if options.commit else nullcontext():
        older = None if options.base is None else find_older(options.base, saved.target)
        held, work = _plan(saved, process, tensors, about, older)
    if not isinstance(tensors, ArraySource):
        keys = tensors
    of_state = frozenset({*keys, *about.objects, *about.ties}) if options.is_state else None
    held = replace(held, digests=options.digest, keys=of_state)
    # Move, and commit.
    if not options.commit:
        save_open(saved, held)
    elif saved.attempt is not None or has_begun(saved):
        save_known(saved, held)
    else:
        save_called(saved, held)
    return _report_of_share(held, work)


def save_alone(
    target: Location, source: ArraySource, about: Metadata, options: SaveOptions
) -> WriteReport:
    """Write the state of a job of one process; slices are joined as the format requires."""
    form = target.format
    if about.objects and not form.capabilities.holds_objects:
        cause = f"The format {form.name} cannot hold {next(iter(about.objects))!r}, an object."
        raise UnsupportedError(cause, "Leave it out of the state, or save in the format shardvar.")
    work = plan_checkpoint(
        target,
        source.index.entries,
        policy=None,
        partition=None,
        metadata=replace(about, writer=WRITER),
        force=options.force,
        replace_atomically=True,
        source=source,
    )
    if options.digest:
        work = digest_arrays(work, source)
    return carry_out(work)


@named_arguments
def commit_shards(
    path: Path,
    *,
    num_processes: int,
    run: str,
    attempt: str | None = None,
    format: str | None = None,
    replicas: str = "equal",
    timeout: float = 0.0,
) -> WriteReport:
    """Make one checkpoint of the shares that the processes of a run have written.

    For processes that called ``save_shards`` with ``commit=False`` and have met at a barrier since.
    One of them calls this, or several: the first one commits.

    Parameters
    ----------
    path : path_like
        The checkpoint, as in ``save_shards``.
    num_processes : int
        The number of processes.
    run : str
        The name of the run.
    attempt : str, optional
        The attempt, as in ``save_shards``.
    format : str, optional
        The format, as in ``save_shards``.
    replicas : {'equal', 'first'}, default 'equal'
        As in ``save_shards``.
    timeout : float, default 0.0
        The seconds to wait for shares that are missing.

    Returns
    -------
    WriteReport
        The report of the checkpoint.

    Raises
    ------
    IncompleteCheckpoint
        If a process did not save within ``timeout``, or a tensor has holes.
    OverlappingSlices
        If slices of two processes overlap and are not replicas.
    InconsistentTensor
        If processes disagree on the dtype or the full shape of a tensor.
    ArgumentError
        If processes disagree on ``num_processes``, or an argument is invalid.
    StorageError
        If another writer has replaced the checkpoint or holds it (``LockHeld``).

    Notes
    -----
    An error leaves the checkpoint that was there before.
    """
    options = SaveOptions(replicas, timeout=timeout)
    options.check()
    saved = find_run(path, run, num_processes, format, attempt, options=options)
    commit_left(saved)
    target = saved.refreshed().target
    return _report(next(iter(indexes_of(target).values()), target))


# --- One process's share


def _plan(
    saved: Run,
    process: int,
    tensors: LocalTensors | ArraySource,
    about: Metadata,
    older: OlderIndex | None,
) -> tuple[Holding, WritePlan]:
    # Check.
    target, form = saved.target, saved.form
    for key, octets in about.objects.items():
        if not form.adopts_objects():
            cause = f"Several processes cannot write an object, {key!r}, in the format {form.name}."
            raise UnsupportedError(cause, "Save in the format shardvar or torch.")
        if octets.startswith(b"PK") and form.name != "torch":
            cause = (
                f"The format {form.name} cannot hold the object {key!r}, whose class is not plain."
            )
            raise UnsupportedError(cause, "Save in the format torch.")
    source = tensors if isinstance(tensors, ArraySource) else source_of_shards(tensors)
    check_share(source.index.entries, process)
    _check_cuts(source.index.entries.slices, form)
    # Plan: every local shard is a slice of the file of this process. No policy, since the file need not
    # cover the tensors.
    base = None if older is None else ShareBase.of(older, source)
    source = source if base is None else base.source
    stored = source.index.entries
    rows, slices = _held_slices(stored.slices, form.capabilities)
    order = rows_in_file_order(slices, form.capabilities)
    rows, slices = rows[order], slices.take(order)
    assignment = Assignment(slices, np.zeros_like(rows), int(len(rows) > 0), about.description)
    decision = Decision(assignment, plan_of_slices(stored.slices, rows, slices), 0.0)
    work = WritePlan(target, stored, source, about, False, False, decision)
    if target.storage.local_path is None:
        target.storage.check_writable(target.stem)
    of_all = replace(decision, assignment=replace(assignment, num_files=saved.count))
    check_may_write(
        replace(work, force=saved.options.force, replace_atomically=True, decision=of_all)
    )
    plan_file(saved, slices, about, NOT_WRITTEN)
    return Holding(process, source, rows, slices, about, base=base), work


def _check_cuts(slices: SliceTable, form: Format) -> None:
    """Raise ``UnsupportedError`` for a region of a tensor that the format holds whole only."""
    cut = ~slices.is_whole() & (slices.shape > 0).all(axis=1) & (ITEMSIZES[slices.codes()] > 0)
    cut &= ~cuttable_rows(slices, form.capabilities)
    for row in np.flatnonzero(cut).tolist()[:1]:
        region = f"the region {slices.region(row)} of {slices.key(row)!r}"
        raise UnsupportedError(
            f"The format {form.name} cannot hold {region}.",
            "Give the whole tensor in one process, or save in the format shardvar and convert it "
            "with sv.reshard.",
        )


def _held_slices(stored: SliceTable, capabilities: Capabilities) -> tuple[Ints, SliceTable]:
    """No empty slices if the format has none, but a tensor without elements is held whole."""
    rows = np.arange(len(stored))
    if capabilities.empty_slices:
        return rows, stored
    is_filled = (stored.shape > 0).all(axis=1)
    is_empty = ~np.asarray((stored.tensors.shapes > 0).all(axis=1))[stored.tensor]
    first = rows[is_empty][np.unique(stored.tensor[is_empty], return_index=True)[1]]
    kept = np.sort(np.concatenate([np.flatnonzero(is_filled), first]))
    slices, whole = stored.take(kept), is_empty[kept][:, None]
    shape = np.where(whole, stored.tensors.shapes[slices.tensor], slices.shape)
    return kept, replace(slices, offset=np.where(whole, 0, slices.offset), shape=shape)


# --- Reports


def _report_of_share(held: Holding, work: WritePlan) -> WriteReport:
    free = work.target.storage.free_nbytes()
    if held.base is None or not held.base.is_equal.any():
        return replace(report_of(work, free), dry_run=False)
    slices, is_equal = work.assignment.slices, held.base.is_equal
    rows = np.flatnonzero(~is_equal)
    file = np.zeros(len(rows), np.int64)
    assignment = replace(
        work.assignment, slices=slices.take(rows), file=file, num_files=int(len(rows) > 0)
    )
    found = report_of(replace(work, decision=replace(work.decision, assignment=assignment)), free)
    return replace(
        found,
        num_copies=int((~is_equal[work.plan.copies.target]).sum()),
        num_referred=len(np.setdiff1d(slices.tensor[is_equal], slices.tensor[rows])),
        dry_run=False,
    )


def _report(found: Location) -> WriteReport:
    """Return the report of a checkpoint, or of a share, that is in place."""
    with closing(found.open()) as source:
        index = outline_of(source.index)
        entries = concatenate_entries(list(index.scan()))
        metadata, num_files = source.index.metadata, len(source.index.files)
    nbytes = int(entries.slices.nbytes.sum())
    # Objects of the metadata have the number of the first file, also if there is none.
    sizes = sum_by(entries.file, entries.slices.nbytes, max(num_files, 1))
    return WriteReport(
        path=found.path,
        format=found.format.name,
        description=metadata.description,
        num_tensors=len(entries.slices.tensors),
        num_slices=len(entries),
        nbytes=nbytes,
        file_nbytes=tuple(sizes[:num_files].tolist()),
        num_copies=len(entries),
        read_nbytes=nbytes,
        peak_nbytes=PEAK_NBYTES,
        free_nbytes=found.storage.free_nbytes(),
    )


# --- Claims that killed writers left in a bucket (``storage.uploads``)


_CLAIM = re.compile(r"\..+\.claim", re.DOTALL)


def break_claim(url: str) -> str:
    """Remove the claim of a writer that was killed, and return whose it was.

    Parameters
    ----------
    url : str
        The claim, as the error of the next writer names it: ``s3://bucket/run/.model.claim``.

    Returns
    -------
    str
        A sentence: the claim that was removed, and the process that had made it.

    Raises
    ------
    ArgumentError
        If the URL is not a claim in a bucket. On a disk, a lock ends with its process.
    CheckpointNotFound
        If there is no such claim.
    StorageError
        If the bucket refuses.

    Notes
    -----
    A claim keeps other writers of a checkpoint in a bucket out. It has no time after which it ends,
    since a writer that is slow is still a writer. Break it only if you know that the writer is
    dead: a live writer may mix its files with the next writer's.
    """
    storage, name = split_place(url)
    if not isinstance(storage, RemoteStorage) or not _CLAIM.fullmatch(name):
        raise ArgumentError(
            f"{url!r} is not the URL of a claim.",
            "Give the URL that the error shows, such as s3://bucket/run/.model.claim.",
        )
    storage.check_writable(name)
    whose = storage.break_claim(name)
    if not whose:
        raise CheckpointNotFound(f"There is no claim {url}.", "Write again.")
    return f"Removed {url}, {whose}."

"""Open a checkpoint, or load its tensors as arrays.

find the checkpoint, its entries, and the entries of the wanted keys
plan    whole tensors from the slices that hold them; with ``mmap``, views of tensors that are
        contiguous in a file
move    payloads into arrays, every checksum compared (``engine.read``)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.read import read_arrays
from shardvar.errors import UnsupportedError
from shardvar.formats.deferred import prefer_whole
from shardvar.formats.published import delta_error
from shardvar.layout.dtypes import HALVES, NAMES, STRING, Array, Ints, has_values, numpy_dtype
from shardvar.planning.index import DELTA, EntryTable
from shardvar.planning.plan import plan_copies
from shardvar.verbs.arguments import named_arguments, strings_of
from shardvar.verbs.locate import Path, find_checkpoint
from shardvar.verbs.reader import Reader, check_verify, first_fault, open_found

if TYPE_CHECKING:
    from shardvar.verbs.mapping import MapLike

_READ = (STRING, HALVES, "bool")
"""Dtypes that are never mapped: strings and packed elements must be decoded, and a bool of a byte other than 0 and 1
must be refused."""


@named_arguments
def open_checkpoint(
    path: Path, *, dequantize: bool | str = False, map: "MapLike | None" = None
) -> Reader:
    """Open a checkpoint for reading. Formats with an index open in constant time, however many
    tensors they hold.

    Parameters
    ----------
    path : path_like
        The checkpoint: a prefix, an index file, a folder, a data file, or a URL of one of these.
    dequantize : bool or dtype, default False
        Return the numbers of quantised tensors (GGUF, FP8, GPTQ and others), without their scales: as the
        dtype given, bfloat16, float16 or float32. With True, GGUF becomes float32, and others as
        ``config.json`` says, or bfloat16.
    map : Map, path_like or list of str, optional
        A map between model families, as ``sv.Map``: the reader has the tensors that it makes. A part of
        one is read from the elements that it is made of, and no others.

    Returns
    -------
    Reader
        The open checkpoint, a context manager.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    AmbiguousPath
        If ``path`` matches several checkpoints.
    CheckpointError
        If the index is damaged: ``MalformedCheckpoint``, ``CorruptCheckpoint`` and the like.
    UnsupportedError
        If this release does not read the file that is there.
    """
    reader = open_found(find_checkpoint(path), dequantize=dequantize)
    if map is None:
        return reader
    from shardvar.verbs.mapping import as_map, map_reader  # only with a map

    try:
        return map_reader(reader, as_map(map))
    except BaseException:
        reader.close()
        raise


@named_arguments
def load(
    path: Path,
    keys: Iterable[str] | None = None,
    *,
    mmap: bool = False,
    verify: str = "auto",
    dequantize: bool | str = False,
    map: "MapLike | None" = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a checkpoint as arrays. Every payload is read, and its checksum
    compared.

    Parameters
    ----------
    path : path_like
        The checkpoint: a prefix, an index file, a folder, one of the data files, or a URL of one of
        these.
    keys : str or iterable of str, optional
        The keys of the tensors to read; all by default. With keys, damage of other tensors, or of a
        file, raises no error.
    mmap : bool, default False
        Return read-only views of the files for tensors that are contiguous in one. Views are not
        verified; call ``sv.verify`` for that. Strings, bools, and tensors in slices that do not
        follow each other are read as usual.
    verify : {'auto', 'full'}, default 'auto'
        The payloads whose checksums are compared, as in ``Reader.read``. Both compare checksums of
        whole tensors, as every call of ``load`` does, so the value has an effect in only one case:
        tensors that are parts of a larger storage of PyTorch, which has one checksum. ``'full'``
        reads the whole storage, ``'auto'`` compares it where ``keys`` have every byte of it between
        them.
    dequantize : bool or dtype, default False
        Return the numbers of quantised tensors (GGUF, FP8 with scales, MXFP4), as in
        ``open_checkpoint``.
    map : Map, path_like or list of str, optional
        A map between model families, as ``sv.Map``; ``keys`` are of the tensors that it makes.

    Returns
    -------
    dict of str to ndarray
        The arrays by key. Strings are object arrays of ``bytes``.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    AmbiguousPath
        If ``path`` matches several checkpoints.
    UnknownKey
        If the checkpoint has no tensor of a name in ``keys``.
    CorruptCheckpoint
        If a checksum disagrees with the bytes that it covers.
    IncompleteCheckpoint
        If a region of a tensor or a file is missing.
    CheckpointError
        If the checkpoint is malformed or invalid in another way.
    UnsupportedError
        If NumPy has no dtype for the values of a tensor.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> _ = sv.save(path, {"table": np.arange(6.0).reshape(3, 2)}, partition=2)
    >>> sv.load(path)["table"].tolist()
    [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    """
    check_verify(verify)
    # Find.
    with open_checkpoint(path, dequantize=dequantize, map=map) as reader, reader.explain_policy():
        if DELTA in reader.index.metadata.user:
            raise delta_error(reader.path, reader.index)
        if map is None and not mmap and reader.source.traits is not None:
            prefer_whole(reader.index)
        if keys is None and (fault := first_fault(reader)):
            raise fault.at()
        entries = reader.entries() if keys is None else reader.find_many(strings_of(keys, "keys"))
        codes = entries.slices.tensors.codes
        for number in np.flatnonzero(np.bincount(codes)).tolist():
            if not has_values(NAMES[number]):
                key = entries.slices.tensors.keys[int(np.argmax(codes == number))]
                raise UnsupportedError(
                    f"{key!r} is of dtype {NAMES[number]}, whose values NumPy cannot hold.",
                    "Name the keys to load without it; it can still be verified and carried to "
                    "another checkpoint.",
                )
        # Plan.
        mapped = _map_all(reader, entries) if mmap else {}
        tensors = entries.slices.tensors
        wanted = [key for key in tensors.keys if key not in mapped]
        places = tensors.rows()
        rows = np.array([places[key] for key in wanted], dtype=np.int64)
        plan = plan_copies(entries.slices, tensors.take(rows).whole())
        # Move.
        for error in reader.source.storage_errors(wanted, only_read=verify == "auto").values():
            raise error
        loaded = mapped | dict(zip(wanted, read_arrays(plan, reader.source, entries), strict=True))
        # In the order of the keys, whichever way each value came.
        return {key: loaded[key] for key in tensors.keys}


def _map_all(reader: Reader, entries: EntryTable) -> dict[str, Array]:
    slices = entries.slices
    order, bounds = slices.by_tensor(by_offset=True)
    mapped = {}
    for tensor, key in enumerate(slices.tensors.keys):
        rows = order[bounds[tensor] : bounds[tensor + 1]]
        name, shape = slices.tensors.fact(tensor)
        if name in _READ or not len(rows) or not _are_contiguous(entries, rows):
            continue
        dtype, row = numpy_dtype(name), int(rows[0])
        mapped[key] = (
            np.empty(shape, dtype)
            if 0 in shape
            else np.ndarray(
                shape, dtype, reader.source.map(int(entries.file[row])), int(entries.start[row])
            )
        )
    return mapped


def _are_contiguous(entries: EntryTable, rows: Ints) -> bool:
    """True if payloads follow each other in a file, in slices cut along the first axis."""
    slices, first = entries.slices, rows[0]
    if not entries.plain[rows].all() or (entries.file[rows] != entries.file[first]).any():
        return False
    rest = slices.tensors.shapes[slices.tensor[first], 1:]
    if len(rows) > 1 and (slices.shape[rows, 1:] != rest).any():
        return False
    stop = entries.start[rows] + slices.nbytes[rows]
    return bool((entries.start[rows[1:]] == stop[:-1]).all())

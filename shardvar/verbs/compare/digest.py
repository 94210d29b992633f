"""Digests: 32 bytes for each tensor, and for a checkpoint, that depend only on keys, dtypes, shapes
and values.

The same tensors have the same digests in every format, in any slices and files. The definition
fits ten lines of any language; with SHA-256 as ``H``, and ``+`` for one after the other:

    data        the elements in C order, little-endian, as in a file of NumPy; of elements smaller
                than a byte, a byte each whose unused high bits are 0; of strings, each its length
                as 8 bytes and then its bytes
    leaves      H of each MiB of the data; the last one may be shorter, and no data have no leaf
    head        the text "shardvar digest 1", the dtype, the extents with commas between them and
                the number of the key's bytes in UTF-8, each followed by a line feed
    tensor      H(head + key + leaves)
    checkpoint  H(the digests of all tensors, sorted)

Leaves are why one tensor of many GiB is digested by several threads, and a part of it can be
digested by itself.

Threads read portions of the tensors (``compare.blocks``) and hash their leaves, and every checksum on
the way is compared once all portions of a tensor are read.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from shardvar._version import __version__
from shardvar.engine.pool import BLOCK_NBYTES, Progress, block_ranges, bytes_of, run_all
from shardvar.engine.read import FlatTensor
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.layout.dtypes import Array
from shardvar.pictures.words import natural_key, one_line
from shardvar.planning.index import rename_tensors, take_tensors
from shardvar.records import frozen
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks, ReadBytes, batches, reads_of
from shardvar.verbs.locate import Path, find_checkpoint
from shardvar.verbs.problems import SCHEMA, Damage, lines_of_problems, untold
from shardvar.verbs.reader import Reader, settings_in
from shardvar.verbs.together.executors import Opening, Payloads, check_executor, portions, run_tasks
from shardvar.wire.digests import (
    LEAF_NBYTES,
    LeafHashes,
    digest_of_all,
    digest_of_leaves,
    hash_leaf,
)

__all__ = [
    "DigestReport",
    "digest",
    "digest_array",
]


@frozen
class DigestReport:
    """Report of ``digest``."""

    path: str
    """The checkpoint."""
    format: str
    """Its format."""
    tensors: Mapping[str, str]
    """The digest of each tensor by its key, as 64 hexadecimal digits; the keys in natural order."""
    unreadable: tuple[Damage, ...] = ()
    """The damage of each tensor that has none."""
    num_settings: int = 0
    """The settings among the tensors: plain objects, such as a learning rate."""

    @property
    def checkpoint(self) -> str | None:
        """The digest of all tensors together; None where one of them cannot be read."""
        return None if self.unreadable else digest_of_all(self.tensors)

    def __str__(self) -> str:
        lines = [f"{value}  {one_line(key)}" for key, value in self.tensors.items()]
        # A line that begins with no digit.
        lines += [f"checkpoint {self.checkpoint}"] if self.checkpoint else []
        return "\n".join([*lines, *lines_of_problems("error: ", self.unreadable)])

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold.

        Returns
        -------
        dict
            The report, with stable keys.
        """
        return {
            "schema": SCHEMA,
            "path": self.path,
            "format": self.format,
            "digest": self.checkpoint,
            "tensors": dict(self.tensors),
            "unreadable": [each.to_json() for each in self.unreadable],
        }


@named_arguments
def digest(
    path: Path, *, progress: Progress = lambda _nbytes: None, executor: Executor | None = None
) -> DigestReport:
    """Return the digests of a checkpoint's tensors, which no format, slicing or number of files
    changes.

    Parameters
    ----------
    path : path_like
        The checkpoint.
    progress : callable, optional
        Called with numbers of payload bytes as they are read.
    executor : concurrent.futures.Executor, optional
        An executor whose workers read and hash, some tensors a task.

    Returns
    -------
    DigestReport
        The digests. A tensor that cannot be read has no digest and is listed with its error.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``path``.
    AmbiguousPath
        If ``path`` matches several checkpoints.
    CheckpointError
        If the index is damaged.

    Notes
    -----
    The digests are of tensors. Bytes that no tensor has are not compared, nor is the checksum of a
    PyTorch storage whose parts are tensors: ``sv.verify`` does that. Memory: some blocks of 4 MiB
    for a tensor of any size, and the largest string tensor.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> one, two = (os.path.join(tempfile.mkdtemp(), name) for name in ("model", "model.npz"))
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> _ = sv.save(one, {"table": table}, partition=5), sv.save(two, {"table": table})
    >>> sv.digest(one).tensors == sv.digest(two).tensors
    True
    >>> sv.digest(one).checkpoint[:16]
    '5016dfa65c8aa69f'
    """
    check_executor(executor)
    check_progress(progress)
    found = find_checkpoint(path)
    with Reader(found.path, found.format.name, found.open()) as reader:
        if executor is None:
            return digest_reader(reader, progress)
        blocks, errors = Blocks.of(reader), dict[str, ReadError](reader.faults)
        keys, opening, tensors = blocks.tensors.keys, Opening(found), dict[str, str]()
        rows = np.array([row for row, key in enumerate(keys) if key not in errors], dtype=np.int64)
        wanted = (blocks.entries_of(rows[some].tolist()) for some in portions(blocks.nbytes[rows]))
        calls = (
            (digest_portion, (__version__, Payloads.of(opening, reader.source, entries)))
            for entries in wanted
        )
        for digests, failed, nbytes in run_tasks(executor, calls):
            tensors |= digests
            errors |= failed
            progress(nbytes)
        return _report(reader, tensors, errors)


def digest_reader(
    reader: Reader, progress: Progress, keys: Collection[str] | None = None
) -> DigestReport:
    entries = reader.entries() if keys is None else take_tensors(reader.entries(), keys)
    errors: dict[str, ReadError] = {
        key: error for key, error in reader.faults.items() if keys is None or key in keys
    }
    return _report(reader, *_walk(Blocks.of_entries(reader.source, entries), progress, errors))


def digest_portion(
    version: str, payloads: Payloads
) -> tuple[dict[str, str], dict[str, ReadError], int]:
    with payloads.opened(version) as source:
        blocks = Blocks.of_entries(source, payloads.entries)
        return *_walk(blocks, lambda _: None), int(blocks.nbytes.sum())


def _report(
    reader: Reader, tensors: Mapping[str, str], failed: Mapping[str, ReadError]
) -> DigestReport:
    keys = sorted(reader, key=natural_key)  # the same order in every format, as everywhere else
    unreadable = [Damage.of(failed[key], key) for key in keys if key in failed]
    unreadable += untold(reader.source.file_faults(), unreadable)
    found = {key: tensors[key] for key in keys if key in tensors}
    settings = settings_in(reader.source, reader.listed().slices.tensors.facts())
    return DigestReport(reader.path, reader.format, found, tuple(unreadable), len(settings))


def digest_array(key: str, array: Array) -> str:
    """Return the digest of one tensor that is in memory.

    Parameters
    ----------
    key : str
        The name of the tensor, which is part of the digest.
    array : ndarray
        The values: little-endian, of any strides; strings as object arrays of ``bytes``.

    Returns
    -------
    str
        The digest, 64 hexadecimal digits.

    Examples
    --------
    >>> digest_array("step", np.array(7, np.int64))[:16]
    '828d88b1e88f6847'
    """
    if array.dtype.kind == "O":
        texts = (len(text).to_bytes(8, "little") + text for text in array.ravel().tolist())
        data, dtype = memoryview(b"".join(texts)), "string"
    else:
        data, dtype = bytes_of(np.ascontiguousarray(array)), array.dtype.name
    leaves = LeafHashes(len(data))
    leaves.add(dtype, 0, data)
    return leaves.digest(key, dtype, array.shape)


def digests_of(
    reader: Reader,
    keys: Collection[str],
    progress: Progress = lambda _nbytes: None,
    *,
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """``names`` are the names that tensors have for their digests, if these are others."""
    entries = take_tensors(reader.entries(), keys)
    if names:
        entries = rename_tensors(entries, lambda key: names.get(key, key))
    try:
        return digests_of_blocks(Blocks.of_entries(reader.source, entries), progress=progress)
    except READ_ERRORS as error:
        raise error.at(reader.path) from None


def digests_of_blocks(
    blocks: Blocks, rows: Sequence[int] | None = None, progress: Progress = lambda _nbytes: None
) -> dict[str, str]:
    """Raises the error of a tensor that is unreadable."""
    if rows is not None:
        blocks = Blocks.of_entries(blocks.source, blocks.entries_of(rows))
    found, errors = _walk(blocks, progress)
    for key, error in errors.items():
        raise error.at(repr(key))
    return found


def _walk(
    blocks: Blocks, progress: Progress, errors: dict[str, ReadError] | None = None
) -> tuple[dict[str, str], dict[str, ReadError]]:
    """Return the digests and the errors by key; tensors that have errors already are not read."""
    errors, found = errors or {}, dict[str, str]()
    tensors, flats = blocks.tensors, dict[int, FlatTensor]()
    rows = [row for row, key in enumerate(tensors.keys) if key not in errors]
    small = [row for row in rows if blocks.is_small(row)]
    for batch in batches(blocks.nbytes, small):
        for row, value in zip(batch, blocks.read(batch), strict=True):
            key = tensors.keys[row]
            if isinstance(value, np.ndarray):
                found[key] = digest_array(key, value)
            else:
                errors[key] = value
        progress(int(blocks.nbytes[batch].sum()))

    def portions() -> Iterator[tuple[int, ReadBytes]]:
        for row in sorted(set(rows).difference(small)):
            flats[row] = blocks.flat(row)
            for (read,) in reads_of([flats[row]], [BLOCK_NBYTES]):
                yield row, read

    def hash_portion(portion: tuple[int, ReadBytes]) -> tuple[int, list[bytes] | ReadError]:
        row, read = portion
        dtype = tensors.dtype(row)
        try:
            data = read()
        except READ_ERRORS as error:
            return row, error
        progress(len(data))
        spans = block_ranges(0, len(data), LEAF_NBYTES)
        return row, [hash_leaf(dtype, data[start:stop]) for start, stop in spans]

    # The portions of one tensor follow each other, and ``run_all`` keeps the order.
    leaves = dict[int, list[bytes]]()
    for row, hashes in run_all(hash_portion, portions()):
        if isinstance(hashes, list):
            leaves.setdefault(row, []).extend(hashes)
        else:
            errors.setdefault(tensors.keys[row], hashes)
    for row, flat in flats.items():
        try:
            flat.check()
        except READ_ERRORS as error:
            errors.setdefault(flat.key, error)
        if flat.key not in errors:
            data = b"".join(leaves.get(row, ()))
            found[flat.key] = digest_of_leaves(flat.key, *tensors.fact(row), data)
    return found, errors

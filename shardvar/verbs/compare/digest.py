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

1. Read. One thread walks the tensors in C order (``compare.blocks``), and every checksum on the
   way is compared.
2. Hash. Other threads hash the leaves at the same time. SHA-256 is the slower of the two.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np

from shardvar._version import __version__
from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    Progress,
    block_ranges,
    bytes_of,
    run_all,
    thread_buffer,
)
from shardvar.errors import READ_ERRORS, ReadError
from shardvar.layout.dtypes import ITEMSIZES, Array, code
from shardvar.pictures.words import natural_key, one_line
from shardvar.planning.index import take_tensors
from shardvar.records import dataclass, field, replace
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks, batches
from shardvar.verbs.locate import Path, find_checkpoint
from shardvar.verbs.problems import SCHEMA, Damage, lines_of_problems, untold
from shardvar.verbs.reader import Reader, settings_in
from shardvar.verbs.together.executors import Opening, Payloads, check_executor, portions, run_tasks
from shardvar.wire.digests import (
    LEAF_NBYTES,
    LeafHashes,
    digest_of_all,
    digest_of_leaves,
    has_unused_bits,
    hash_leaf,
    hash_of,
)

__all__ = [
    "DigestReport",
    "digest",
    "digest_array",
]


@dataclass(frozen=True, slots=True)
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
    reader: Reader, progress: Progress = lambda _nbytes: None, keys: Collection[str] | None = None
) -> DigestReport:
    entries = reader.entries() if keys is None else take_tensors(reader.entries(), keys)
    errors: dict[str, ReadError] = {
        key: error for key, error in reader.faults.items() if keys is None or key in keys
    }
    walk = _Walk(Blocks.of_entries(reader.source, entries), progress, errors)
    return _report(reader, walk.digests(), walk.errors)


def digest_portion(
    version: str, payloads: Payloads
) -> tuple[dict[str, str], dict[str, ReadError], int]:
    with payloads.opened(version) as source:
        blocks = Blocks.of_entries(source, payloads.entries)
        walk = _Walk(blocks, lambda _: None, {})
        return walk.digests(), walk.errors, int(blocks.nbytes.sum())


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
    data, dtype = _data(array), "string" if array.dtype.kind == "O" else array.dtype.name
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
        slices = entries.slices
        renamed = [names.get(key, key) for key in slices.tensors.keys]
        tensors = replace(slices.tensors, keys=renamed)
        entries = replace(entries, slices=replace(slices, tensors=tensors))
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
    walk = _Walk(blocks, progress, {})
    found = walk.digests()
    for key, error in walk.errors.items():
        raise error.at(repr(key))
    return found


def _data(array: Array) -> memoryview:
    if array.dtype.kind == "O":
        return memoryview(
            b"".join(len(each).to_bytes(8, "little") + each for each in array.ravel().tolist())
        )
    return bytes_of(np.ascontiguousarray(array))


_Leaf = tuple[int, Callable[[], bytes | ReadError]]
"""The number of a tensor, and a function that returns the hash of a range of its data, or the error
of reading it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    blocks: Blocks
    progress: Progress
    errors: dict[str, ReadError]
    """Of the tensors that cannot be read, by key."""
    found: dict[str, str] = field(default_factory=dict)
    """The digests of the small tensors, by key."""
    payloads: dict[int, Evidence] = field(default_factory=dict)
    """The reads of large tensors that lie in a file as they are, by number."""

    def digests(self) -> dict[str, str]:
        tensors = self.blocks.tensors
        rows = [row for row, key in enumerate(tensors.keys) if key not in self.errors]
        small = [row for row in rows if self.blocks.is_small(row)]
        for batch in batches(self.blocks.nbytes, small):
            for row, value in zip(batch, self.blocks.read(batch), strict=True):
                if isinstance(value, np.ndarray):
                    self.found[tensors.keys[row]] = digest_array(tensors.keys[row], value)
                else:
                    self.errors[tensors.keys[row]] = value
            self.progress(int(self.blocks.nbytes[batch].sum()))
        leaves: dict[int, list[bytes]] = {row: [] for row in sorted(set(rows).difference(small))}
        # The leaves of one tensor follow each other, and ``run_all`` keeps the order.
        for row, leaf in run_all(lambda leaf: (leaf[0], leaf[1]()), self._leaves(list(leaves))):
            if isinstance(leaf, bytes):
                leaves[row].append(leaf)
            else:
                self.errors.setdefault(tensors.keys[row], leaf)
        for row, hashes in leaves.items():
            key = tensors.keys[row]
            if key in self.errors:
                continue
            try:
                if row in self.payloads:
                    self.payloads[row].check()
            except READ_ERRORS as error:
                self.errors[key] = error
            else:
                self.found[key] = digest_of_leaves(
                    key, tensors.dtype(row), tensors.shape(row), b"".join(hashes)
                )
        return self.found

    def _leaves(self, rows: list[int]) -> Iterator[_Leaf]:
        """The data of large tensors in leaves, read by the hashing threads or in order before."""
        for row in rows:
            payload = self.blocks.payload(row)
            if payload is None or has_unused_bits(self.blocks.tensors.dtype(row)):
                yield from self._leaves_in_order(row)
                continue
            self.payloads[row] = payload
            for start, stop in block_ranges(0, int(self.blocks.nbytes[row]), LEAF_NBYTES):
                yield row, partial(self._read, payload, start, stop)

    def _read(self, payload: Evidence, start: int, stop: int) -> bytes | ReadError:
        buffer = thread_buffer(stop - start)
        try:
            payload.read(0, start, buffer)
        except READ_ERRORS as error:
            return error
        self.progress(stop - start)
        return hash_of(buffer)

    def _leaves_in_order(self, row: int) -> Iterator[_Leaf]:
        """The data of one tensor, read while other threads hash the leaves before."""
        tensors, rest = self.blocks.tensors, b""
        hash_it = partial(hash_leaf, tensors.dtype(row))
        count = BLOCK_NBYTES // max(int(ITEMSIZES[code(tensors.dtype(row))]), 1)
        try:
            for array in self.blocks.stream(row, count):
                self.progress(array.nbytes)
                data, begin = _data(array), 0
                # Copied only where a leaf lies in two blocks: a copy of all would take longer than
                # the reading.
                if rest:
                    begin = min(LEAF_NBYTES - len(rest), len(data))
                    rest += data[:begin]
                    if len(rest) < LEAF_NBYTES:
                        continue
                    yield row, partial(hash_it, rest)
                stop = begin + (len(data) - begin) // LEAF_NBYTES * LEAF_NBYTES
                for at in range(begin, stop, LEAF_NBYTES):
                    yield row, partial(hash_it, data[at : at + LEAF_NBYTES])
                rest = bytes(data[stop:])
            if rest:
                yield row, partial(hash_it, rest)
        except READ_ERRORS as error:
            self.errors[tensors.keys[row]] = error

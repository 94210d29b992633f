"""Make a delta: compare two checkpoints, leaf by leaf, and store what changed.

find     both checkpoints, and the location of the delta
compare  tensors of one dtype and shape, leaf by leaf: threads read both, hash both and encode the
         mask. The bodies go to a scratch file in the order of the leaves, since the native format
         has sizes before bytes
digest   the tensors that are stored whole or removed
write    the table, the frames from the scratch file, and whole tensors from the new checkpoint,
         through ``verbs.writing`` as a save does; the index last
"""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.engine.pool import Progress, block_ranges, bytes_of
from shardvar.errors import ArgumentError, ReadError
from shardvar.formats.parts import check_not_a_part
from shardvar.formats.published import check_no_delta
from shardvar.layout.dtypes import OWN_SIZE, Array
from shardvar.planning.index import find_ties
from shardvar.records import entity, field
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.arguments import check_progress, named_arguments
from shardvar.verbs.compare.blocks import Blocks, ReadBytes, batches
from shardvar.verbs.compare.digest import digests_of
from shardvar.verbs.delta.contents import (
    CHANGED,
    EQUAL,
    REMOVED,
    WHOLE,
    Contents,
    DeltaReport,
    DeltaRow,
    check_faults,
)
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    LeafChange,
    LeafWork,
    compare_leaf,
    digests_of_changes,
    draft_tensors,
    find_delta_target,
    leaf_reads,
    write_delta,
)
from shardvar.verbs.locate import Path, find_checkpoint
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.writing import tells_requests
from shardvar.wire.digests import LEAF_NBYTES

if TYPE_CHECKING:
    from shardvar.verbs.mapping import MapLike

_ESCAPED = re.compile("[\udc80-\udcff]")
"""The bytes of a key that is not UTF-8."""


@tells_requests
@named_arguments
def delta(
    a: Path,
    b: Path,
    path: Path,
    *,
    dialect: str | None = None,
    versions: Sequence[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    map: "MapLike | None" = None,
    map_base: bool = False,
    cast: str | None = None,
    progress: Progress = lambda _nbytes: None,
) -> DeltaReport:
    """Store what changed from one checkpoint to another, so that ``apply`` makes the second of the
    first.

    Parameters
    ----------
    a : path_like
        The checkpoint before, the base.
    b : path_like
        The checkpoint after. Formats, shards and files of the two may differ.
    path : path_like
        The delta to write, a native checkpoint: a prefix, or a URL of one. In a dialect, a folder or a
        file of safetensors.
    dialect : {"slime", "modelexpress", "trl", "trl-gaps"}, optional
        Write what another program reads; docs/delta.md has their layouts. By default, a delta of
        shardvar.
    versions : (str, str), optional
        Only with a dialect: the names of the versions ``a`` and ``b``. By default, by ``path``:
        ``weight_v000007`` or ``step_000007.safetensors`` are made of version 6.
    force : bool, default False
        Replace an existing delta.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    map : Map, path_like or list of str, optional
        A map between model families, as ``sv.Map``: the tensors that it makes of ``b`` are compared
        with ``a``. So a trainer's checkpoint is published under the names and dtypes of an engine.
    map_base : bool, default False
        Map ``a`` as well, which then has the names of ``b``.
    cast : dtype, optional
        Round the floating-point tensors of ``b`` to this dtype, or what the map makes of them. With
        ``map_base``, ``a`` is rounded as well.
    progress : callable, optional
        Called with numbers of payload bytes of both checkpoints as they are read.

    Returns
    -------
    DeltaReport
        The report of what became of each tensor.

    Raises
    ------
    CheckpointNotFound
        If there is no checkpoint at ``a`` or ``b``.
    CheckpointError
        If a tensor of one of them is damaged or incomplete; every checksum is compared.
    UnsupportedError
        If one of them is a delta, or has a value that cannot be read, or if the dialect cannot have
        their difference.
    MissingExtra
        If the dialect needs a package that is not installed.
    TargetExists
        If ``path`` exists and ``force`` is not set.
    StorageError
        If the disk is full, or the file system refuses.

    See Also
    --------
    apply : Make the second checkpoint of the first.

    Notes
    -----
    Law: ``apply(a, delta(a, b))`` has the keys, dtypes, shapes and bytes of ``b``. Memory: a few MiB
    a thread, and the largest string tensor. What changed lies in a temporary file until it is
    written.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> a, b, d = (os.path.join(tempfile.mkdtemp(), name) for name in ("a", "b.npz", "d"))
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> _ = sv.save(a, {"table": table, "step": np.int64(1)}, partition=5)
    >>> table[7, 2] = -1
    >>> _ = sv.save(b, {"table": table, "step": np.int64(1)})
    >>> report = sv.delta(a, b, d)
    >>> [(each.key, each.kind, each.num_changed) for each in report.tensors]
    [('step', 'equal', None), ('table', 'changed', 1)]
    """
    check_progress(progress)
    # Find.
    found = [find_checkpoint(a), find_checkpoint(b)]
    for model in found:
        check_not_a_part(model.format, model.storage, model.name, is_alone=True)
    if dialect is None:
        if versions is not None:
            raise ArgumentError(
                "A delta of shardvar names its checkpoints by digests, and has no versions.",
                "Leave versions= (--versions) out, or give a dialect.",
            )
        goal = find_delta_target(path, found)
    else:
        # Not above: few deltas have a dialect.
        from shardvar.verbs.delta import publication

        to = publication.find_publication(path, dialect, versions, found)
    with ExitStack() as stack:
        a_and_b = [stack.enter_context(open_found(each, dequantize=False)) for each in found]
        for each, reader in zip(found, a_and_b, strict=True):
            check_no_delta(each.path, each.storage, each.format.name, reader.index)
        a_and_b = _through(map, map_base, cast, *a_and_b)
        scratch = stack.enter_context(ScratchFile())
        # Compare and digest.
        draft = DeltaDraft(scratch)
        before, after = a_and_b
        if dialect is not None:
            publication.check_sayable(before, after, to.dialect)
        changes = _changes(before, after, draft, progress, keeps_all=dialect is not None)
        for reader in a_and_b:
            # PyTorch's storages: what several tensors share has one checksum.
            for error in reader.source.storage_errors({*reader}).values():
                raise error
        # Write.
        if dialect is not None:
            second = stack.enter_context(ScratchFile())
            return publication.write_published(
                to, changes, draft, after, second, force=force, dry_run=dry_run
            )
        contents = Contents.of(changes, after.metadata.user)
        return write_delta(goal, contents, draft, after, force=force, dry_run=dry_run)


def _through(
    given: Any, is_base_mapped: bool, cast: str | None, a: Reader, b: Reader
) -> list[Reader]:
    """Return both checkpoints, the second as a map and a cast make it, and the first if that is asked for."""
    if given is None and is_base_mapped:
        remedy = "Leave map_base= (--map-base) out."
        raise ArgumentError("There is no map, so none is used for the base.", remedy)
    if given is None and cast is None:
        return [a, b]
    from shardvar.verbs.mapping import as_map, cast_reader, map_reader  # few deltas have one

    sides = [a, b] if is_base_mapped else [b]
    if given is not None:
        made = as_map(given, paths=[b.path])
        sides = [map_reader(each, made) for each in sides]
    if cast is not None:
        sides = [cast_reader(each, cast) for each in sides]
    return [a, *sides][-2:]


# What became of each tensor.


def _changes(
    a: Reader, b: Reader, draft: DeltaDraft, progress: Progress, keeps_all: bool
) -> list[DeltaRow]:
    """The change of each tensor; with ``keeps_all``, frames that are larger than the tensor are kept."""
    for reader in (a, b):
        check_faults(reader)
    blocks_a, blocks_b = Blocks.of(a), Blocks.of(b)
    tensors_a, tensors_b = blocks_a.tensors, blocks_b.tensors
    rows_a, rows_b = tensors_a.rows(), tensors_b.rows()
    alike: dict[str, tuple[int, int]] = {}
    for key, row in rows_b.items():
        old, number = rows_a.get(key), int(tensors_b.codes[row])
        if old is None or OWN_SIZE[number] or tensors_a.codes[old] != number:
            continue
        if tensors_a.shape(old) == tensors_b.shape(row):
            alike[key] = old, row
    ties, before = _ties(blocks_b), _ties(blocks_a)
    followers: dict[str, list[str]] = {}
    for key, first in ties.items() if not keeps_all else ():
        # Tensors that are tied in both are compared once.
        is_both = before.get(key, key) == before.get(first, first)
        if is_both and key in alike and first in alike:
            followers.setdefault(first, []).append(key)
    compared = _Comparison(blocks_a, blocks_b, draft, progress, keeps_all, followers)
    compared.run(alike)
    digests_b = digests_of(b, rows_b.keys() - compared.digests.keys(), progress)
    digests_a = digests_of(a, rows_a.keys() - compared.digests.keys(), progress)
    encodings, paths = b.encodings, b.metadata.paths
    changes: list[DeltaRow] = []
    # Removed ones follow.
    for key in rows_b | rows_a:
        tensors, row = (tensors_b, rows_b[key]) if key in rows_b else (tensors_a, rows_a[key])
        base, result = compared.digests.get(key) or (digests_a.get(key), digests_b.get(key))
        kind = compared.kinds.get(key)
        if kind is None:
            kind = REMOVED if result is None else EQUAL if base == result else WHOLE
        dtype, shape = tensors.fact(row)
        about = encodings.get(key, ""), paths.get(key), ties.get(key)
        changes.append(DeltaRow(key, kind, dtype, shape, base, result, *about))
    return changes


def _ties(blocks: Blocks) -> dict[str, str]:
    tensors, rows = blocks.tensors, blocks.tensors.rows()
    return {
        key: first
        for key, first in find_ties(blocks.entries).items()
        # A table names a tie by a text, which a key that is not UTF-8 is not.
        if not OWN_SIZE[tensors.codes[rows[key]]] and not _ESCAPED.search(first)
    }


@entity
class _Comparison:
    """Tensors of one dtype and shape, and their changes so far."""

    a: Blocks
    b: Blocks
    draft: DeltaDraft
    progress: Progress
    keeps_all: bool
    followers: Mapping[str, Sequence[str]]
    """The keys that change as another key does, by that key: tied weights."""
    digests: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The digests before and after, by key."""
    kinds: dict[str, str] = field(default_factory=dict)
    """The kind of change of each."""

    def run(self, pairs: Mapping[str, tuple[int, int]]) -> None:
        """Compare the tensors of some keys, each with its row on both sides."""
        small, large = dict[str, tuple[int, int]](), dict[str, tuple[int, int]]()
        tied = {*chain.from_iterable(self.followers.values())}
        for key, pair in pairs.items():
            if key not in tied:
                is_small = self.a.is_small(pair[0]) and self.b.is_small(pair[1])
                (small if is_small else large)[key] = pair
        for work in (self._small(small), self._large(large)):
            with closing(draft_tensors(self.draft, work)) as tensors:
                for key, leaves in tensors:
                    self._finish(key, pairs[key][1], leaves)

    def _finish(self, key: str, row: int, leaves: list[LeafChange]) -> None:
        kind = EQUAL
        if self.draft.frames:
            is_smaller = self.draft.payload_nbytes < int(self.b.nbytes[row])
            kind = CHANGED if self.keeps_all or is_smaller else WHOLE
        if kind == CHANGED:
            self.draft.keep(key)
        about = *self.b.tensors.fact(row), leaves
        for tied in (key, *self.followers.get(key, ())):
            self.digests[tied] = digests_of_changes(tied, *about)
            self.kinds[tied] = kind

    def _small(self, pairs: Mapping[str, tuple[int, int]]) -> Generator[LeafWork]:
        """Small tensors, many in one read."""
        keys = {row: key for key, (row, _) in pairs.items()}
        for batch in batches(self.a.nbytes, [*keys]):
            sides = self.a.read(batch), self.b.read([pairs[keys[row]][1] for row in batch])
            self.progress(int(self.a.nbytes[batch].sum()) * 2)
            for row, old, new in zip(batch, *sides, strict=True):
                if isinstance(old, ReadError):
                    raise old
                if isinstance(new, ReadError):
                    raise new
                compare = partial(_compare_arrays, old, new)
                yield LeafWork(keys[row], int(self.a.nbytes[row]), compare, True)

    def _large(self, pairs: Mapping[str, tuple[int, int]]) -> Generator[LeafWork]:
        for key, (row, other) in pairs.items():
            dtype, nbytes = self.b.tensors.dtype(other), int(self.b.nbytes[other])
            flats = self.a.flat(row), self.b.flat(other)
            for start, stop, reads in leaf_reads(*flats):
                compare = partial(self._compare_leaf, start // LEAF_NBYTES, reads, dtype)
                yield LeafWork(key, nbytes, compare if nbytes else list, stop == nbytes, flats)

    def _compare_leaf(
        self, number: int, reads: Sequence[ReadBytes], dtype: str
    ) -> list[LeafChange]:
        old, new = (read() for read in reads)
        self.progress(len(old) + len(new))
        return [compare_leaf(number, old, new, dtype)]


def _compare_arrays(old: Array, new: Array) -> list[LeafChange]:
    before, after = (bytes_of(np.ascontiguousarray(each)) for each in (old, new))
    return [
        compare_leaf(start // LEAF_NBYTES, before[start:stop], after[start:stop], new.dtype.name)
        for start, stop in block_ranges(0, len(after), LEAF_NBYTES)
    ]

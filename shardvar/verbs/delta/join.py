"""Join deltas that follow each other to one, without the base.

The mask of a leaf from the first base to the last result is the XOR of the masks of all steps. A
tensor that a delta stores whole gets the masks of later ones. So what is stored is never more than
in the deltas together, and a leaf that only one of them changes is copied as it is.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from shardvar.engine.pool import Progress, bytes_of
from shardvar.errors import COPY_AGAIN, CorruptCheckpoint
from shardvar.planning.index import take_tensors
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.arguments import check_progress
from shardvar.verbs.delta.chain import (
    PatchedTensor,
    check_follows,
    find_deltas,
    open_deltas,
    patched_tensors,
)
from shardvar.verbs.delta.contents import (
    CHANGED,
    EQUAL,
    REMOVED,
    WHOLE,
    Contents,
    Delta,
    DeltaRow,
    check_leaves,
)
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    LeafChange,
    LeafWork,
    WholeTensors,
    draft_tensors,
    find_delta_target,
    write_delta,
)
from shardvar.verbs.delta.patched import PatchedSource
from shardvar.verbs.delta.report import DeltaReport
from shardvar.verbs.locate import Path
from shardvar.wire.digests import LEAF_NBYTES
from shardvar.wire.frames import Frame, apply_mask, encode_mask


def compact_deltas(
    deltas: Path | Iterable[Path],
    path: Path,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda _nbytes: None,
) -> DeltaReport:
    """Store several deltas that follow each other as one. The base is not read.

    Parameters
    ----------
    deltas : sequence of path_like
        The deltas, in order: each was made of the result of the one before.
    path : path_like
        The delta to write.
    force : bool, default False
        Replace an existing delta.
    dry_run : bool, default False
        Write nothing, and report what would be written.
    progress : callable, optional
        Called with numbers of stored bytes as they are joined or written.

    Returns
    -------
    DeltaReport
        The report of what became of each tensor.

    Raises
    ------
    CheckpointNotFound
        If there is no delta at one of the paths.
    ArgumentError
        If the deltas do not follow each other.
    CheckpointError
        If a delta is damaged, or gives digests that are not the ones of its tensors. All that can be
        compared without the base is compared before the commit.
    UnsupportedError
        If one of them is not a delta.
    TargetExists
        If ``path`` exists and ``force`` is not set.
    StorageError
        If the disk is full, or the file system refuses.

    See Also
    --------
    delta : Make a delta of two checkpoints.

    Notes
    -----
    Law: ``apply(base, compact_deltas(deltas))`` has the bytes of ``apply(base, deltas)``.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> folder = tempfile.mkdtemp()
    >>> a, b, c, d, e, f = (os.path.join(folder, name) for name in "abcdef")
    >>> table = np.arange(52, dtype=np.float32).reshape(13, 4)
    >>> for path, row in ((a, 0), (b, 1), (c, 2)):
    ...     table[row] += 1
    ...     _ = sv.save(path, {"table": table})
    >>> _ = sv.delta(a, b, d), sv.delta(b, c, e)
    >>> sv.compact_deltas([d, e], f).tensors[0].num_changed
    8
    """
    check_progress(progress)
    with ExitStack() as stack:
        # Find and check.
        found = find_deltas(deltas)
        opened = open_deltas(found, stack)
        check_follows(opened)
        goal = find_delta_target(path, found)
        # Join.
        draft = DeltaDraft(stack.enter_context(ScratchFile()))
        parts = {each.change.key: each for each in patched_tensors(opened)}
        joined = _join_masks(parts, draft, progress)
        contents = Contents.of(_changes(opened, parts, joined), opened[-1].contents.user)
        # Write.
        source = PatchedSource.of(None, opened)
        keys = contents.whole_keys()
        objects = source.objects(keys, goal.format.name) or {}
        entries = take_tensors(source.index.entries, {*keys}.difference(objects))
        return write_delta(
            goal,
            contents,
            draft,
            WholeTensors(source, entries, objects, source.finish),
            force=force,
            dry_run=dry_run,
            num_joined=len(opened),
            progress=progress,
        )


def _changes(
    deltas: Sequence[Delta], parts: Mapping[str, PatchedTensor], changed: Mapping[str, bool]
) -> list[DeltaRow]:
    """The change of each tensor from the first base to the last result."""
    first = deltas[0].contents.changes
    found = []
    for key, part in parts.items():
        before = first[key].base if key in first else None
        kind = WHOLE if part.origin is not None else CHANGED if changed[key] else EQUAL
        change = part.change
        if kind == EQUAL and before != change.result:
            raise CorruptCheckpoint(
                f"{deltas[-1].path}: {key!r} has another digest than before, and nothing changes it.",
                COPY_AGAIN,
            )
        about = change.encoding, change.path, change.tie
        found.append(DeltaRow(key, kind, change.dtype, change.shape, before, change.result, *about))
    for key, change in first.items():
        if change.base is not None and key not in parts:
            found.append(DeltaRow(key, REMOVED, change.dtype, change.shape, change.base, None))
    return found


def _join_masks(
    parts: Mapping[str, PatchedTensor], draft: DeltaDraft, progress: Progress
) -> dict[str, bool]:
    """Keep the joined frames of tensors of the base; return if each differs at the end."""
    changed: dict[str, bool] = {}
    once, together = dict[str, PatchedTensor](), dict[str, list[PatchedTensor]]()
    for key, part in parts.items():
        if _is_joined_with_its_tie(part, parts):
            together.setdefault(str(part.change.tie), []).append(part)
        else:
            once[key] = part
    with closing(draft_tensors(draft, _leaves(once, progress))) as tensors:
        for key, leaves, drafted in tensors:
            changed[key] = bool(drafted.frames)
            if drafted.frames:
                drafted.keep(key)
            hashes = {leaf.number: leaf.after for leaf in leaves}
            for part in (once[key], *together.get(key, ())):
                with part.masks[-1].at(part.change.key):
                    check_leaves(part.change, hashes)
    firsts = {key: key if key in once else str(part.change.tie) for key, part in parts.items()}
    return {key: changed.get(first, False) for key, first in firsts.items()}


def _is_joined_with_its_tie(part: PatchedTensor, parts: Mapping[str, PatchedTensor]) -> bool:
    """Return True if a tied tensor has the masks of the other one in all deltas."""
    if part.change.tie is None:
        return False
    other = parts[part.change.tie]
    key, first = part.change.key, other.change.key
    if part.origin is not None or other.origin is not None or part.masks != other.masks:
        return False
    return all(
        each.stored_key(each.contents.changes[key]) == each.stored_key(each.contents.changes[first])
        for each in part.masks
    )


def _leaves(parts: Mapping[str, PatchedTensor], progress: Progress) -> Generator[LeafWork]:
    for key, part in parts.items():
        if part.origin is not None or not part.masks:
            continue
        deltas: dict[int, list[Delta]] = {}
        for delta in part.masks:
            for number in delta.frames(delta.contents.changes[key]).by_leaf:
                deltas.setdefault(number, []).append(delta)
        for number in sorted(deltas):
            compare = partial(_join_leaf, part.change, number, deltas[number], progress)
            yield LeafWork(key, part.change.nbytes, compare, number == max(deltas))


def _join_leaf(
    change: DeltaRow, number: int, deltas: Sequence[Delta], progress: Progress
) -> list[LeafChange]:
    """Return the change of a leaf from the first base to the last result."""
    every = [each.frames(each.contents.changes[change.key]) for each in deltas]
    frame, _ = every[-1].by_leaf[number]
    digest, body = frame.digest, b""
    nbytes = min(LEAF_NBYTES, change.nbytes - number * LEAF_NBYTES)
    masks = []
    for each, frames in zip(deltas, every, strict=True):
        with each.at(change.key):
            masks.append(frames.mask(number, nbytes, change.width))
    joined: Frame | None = frame
    if len(masks) == 1:
        body = bytes(every[0].body(number))
    else:
        mask = masks[0].copy()
        for other in masks[1:]:
            apply_mask(other, bytes_of(mask))
        joined = None
        if mask.any():
            encoding, num_changed, body = encode_mask(mask)
            joined = Frame(number, encoding, len(body), num_changed, digest)
    # The rest is reported when the joined frames are written.
    progress(max(sum(each.by_leaf[number][0].nbytes for each in every) - len(body), 0))
    return [LeafChange(number, b"", digest, joined, body)]

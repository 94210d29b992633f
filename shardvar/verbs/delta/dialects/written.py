"""Writing a delta of another program: the frames of a comparison, in the layout of a dialect.

check     that the dialect can say what changed, by name, before anything is read
compare   as ``make`` does: the frames are in a scratch file
encode    a frame of zstd for each tensor, or positions and values, in a second scratch file
write     these as tensors of safetensors, with the texts and the index of the dialect
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from shardvar.engine.pool import bytes_of
from shardvar.errors import UnsupportedError
from shardvar.formats.compressed import Compressor, new_checksum
from shardvar.formats.published import TRL_FORMAT
from shardvar.formats.safetensors.published import PublishedFormat
from shardvar.formats.safetensors.source import metadata_of_texts
from shardvar.layout.dtypes import OWN_SIZE, code
from shardvar.planning.index import OBJECTS, Metadata
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.delta.contents import CHANGED, EQUAL, WHOLE, Contents, Delta, DeltaRow
from shardvar.verbs.delta.dialects.publication import Dialect, Publication
from shardvar.verbs.delta.dialects.slime import XOR
from shardvar.verbs.delta.dialects.trl import GAPS, INDICES, VALUE
from shardvar.verbs.delta.draft import DeltaDraft, drafted_delta, leaf_reads, scratch_source
from shardvar.verbs.delta.report import DeltaReport, TensorChange
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import carry_out, plan_checkpoint, preview
from shardvar.wire.digests import LEAF_NBYTES
from shardvar.wire.set_index import DELTA_ENCODING

_MAX_POSITION = (1 << 31) - 1


# What a dialect cannot say.


def check_sayable(a: Reader, b: Reader, dialect: Dialect) -> None:
    """Raise ``UnsupportedError`` if a dialect cannot say how two checkpoints differ: by their keys,
    dtypes and shapes."""
    before, after = (Blocks.of(each).tensors for each in (a, b))
    rows_a, rows_b = before.rows(), after.rows()
    # A checksum is a text under the name of its tensor.
    free = metadata_of_texts(dict.fromkeys(rows_b, "")).user.keys() - {OBJECTS, *_TEXTS}
    for key, row in rows_b.items():
        if key not in rows_a:
            raise _unsayable(dialect, key, "is new", "has no new tensors")
        here = before.dtype(rows_a[key]), before.shape(rows_a[key])
        there = after.dtype(row), after.shape(row)
        if here[0] != there[0]:
            raise _unsayable(dialect, key, f"was {here[0]} and is {there[0]}", "has no dtypes")
        if here[1] != there[1]:
            was = f"had the shape {list(here[1])} and has {list(there[1])}"
            raise _unsayable(dialect, key, was, "has no shapes")
        if key not in free and dialect.is_folder:
            raise _unsayable(
                dialect, key, "has the name of another text", "has its checksum under that name"
            )
    for key in rows_a:
        if key not in rows_b:
            raise _unsayable(dialect, key, "is removed", "has no removed tensors")


def _unsayable(dialect: Dialect, key: str, how: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{key!r} {how}, and the dialect {dialect.name} {why}.",
        "Leave the dialect out (--dialect): a delta of shardvar has it. Or publish the whole checkpoint.",
    )


def _check_changes(changes: Sequence[DeltaRow], dialect: Dialect) -> None:
    for each in changes:
        if each.kind == EQUAL:
            continue
        if each.kind == WHOLE or OWN_SIZE[code(each.dtype)]:
            raise _unsayable(
                dialect, each.key, f"is of {each.dtype} and changed", "has only numbers"
            )
        if dialect.endings is None:
            continue
        if each.dtype != VALUE:
            raise _unsayable(dialect, each.key, f"is {each.dtype} and changed", f"has only {VALUE}")
        if each.nbytes // 2 > _MAX_POSITION:
            raise _unsayable(
                dialect, each.key, f"has {each.nbytes // 2} elements", "has positions of 32 bits"
            )


# Encoding.


@dataclass(slots=True, eq=False)
class _Encoded:
    """The tensors of the files, in a scratch file."""

    scratch: ScratchFile
    """The file."""
    stored: dict[str, tuple[str, tuple[int, ...], int]] = field(default_factory=dict)
    """The dtype, the shape and the place of each."""
    stop: int = 0
    """The first free place."""

    def append(self, data: bytes) -> None:
        """Write at the end."""
        self.scratch.write(self.stop, data)
        self.stop += len(data)


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """The changed tensors: their masks, and their new bytes."""

    delta: Delta
    """The frames."""
    blocks: Blocks
    """The tensors of the new checkpoint."""
    rows: Mapping[str, int]
    """The number of each by its key."""

    def leaves(self, change: DeltaRow) -> Iterator[tuple[int, "np.ndarray | None", memoryview]]:
        """Yield the first byte of each leaf, its mask, None if it is equal, and its new bytes."""
        frames = self.delta.frames(change)
        for start, stop, (read,) in leaf_reads(self.blocks.flat(self.rows[change.key])):
            leaf, mask = start // LEAF_NBYTES, None
            if leaf in frames.by_leaf:
                mask = frames.mask(leaf, stop - start, change.width)
            yield start, mask, read()


def _encode_masks(result: _Result, change: DeltaRow, encoded: _Encoded, algorithm: str) -> str:
    """Keep the frame of a tensor; return the checksum of its new bytes."""
    place = encoded.stop
    packer, checksum = Compressor(change.nbytes, encoded.append), new_checksum(algorithm)
    for _, mask, new in result.leaves(change):
        packer.add(bytes(len(new)) if mask is None else bytes_of(np.ascontiguousarray(mask)))
        checksum.update(new)
    packer.finish()
    encoded.stored[change.key] = "uint8", (encoded.stop - place,), place
    return checksum.hexdigest()


def _encode_values(
    result: _Result, change: DeltaRow, encoded: _Encoded, endings: tuple[str, str], count: int
) -> None:
    """Keep the positions and the values of a tensor."""
    kind = "int32" if endings == INDICES else _gap_dtype(result, change)
    width, values = np.dtype(kind).itemsize, np.dtype("<u2").itemsize
    at = encoded.stop
    # Both have a known size: places first, then values.
    value = at + count * width
    encoded.stored[change.key + endings[0]] = kind, (count,), at
    encoded.stored[change.key + endings[1]] = VALUE, (count,), value
    encoded.stop = value + count * values
    before = -1
    for start, mask, new in result.leaves(change):
        if mask is None:
            continue
        places = np.flatnonzero(mask)
        numbers = places + start // values
        if kind != "int32":
            numbers, before = np.diff(numbers, prepend=before) - 1, int(numbers[-1])
        encoded.scratch.write(at, numbers.astype(np.dtype(kind).newbyteorder("<")).tobytes())
        encoded.scratch.write(value, np.frombuffer(new, "<u2")[places].tobytes())
        at, value = at + len(places) * width, value + len(places) * values


def _gap_dtype(result: _Result, change: DeltaRow) -> str:
    """Return the narrower of two dtypes that holds all gaps."""
    before, widest = -1, 0
    for leaf in sorted(result.delta.frames(change).by_leaf):
        start = leaf * LEAF_NBYTES
        nbytes = min(LEAF_NBYTES, change.nbytes - start)
        places = np.flatnonzero(result.delta.frames(change).mask(leaf, nbytes, change.width))
        places = places + start // change.width
        widest = max(widest, int(np.diff(places, prepend=before).max()) - 1)
        before = int(places[-1])
    return "uint16" if widest <= np.iinfo(np.uint16).max else "uint32"


# Writing.

_TEXTS = (
    "version",
    "base_version",
    DELTA_ENCODING,
    "compression_format",
    "checksum_format",
    "checksum_scope",
)


def write_published(
    to: Publication,
    changes: Sequence[DeltaRow],
    draft: DeltaDraft,
    after: Reader,
    scratch: ScratchFile,
    *,
    force: bool,
    dry_run: bool,
) -> DeltaReport:
    """Write the delta that a comparison found and commit it, or only report it."""
    dialect = to.dialect
    _check_changes(changes, dialect)
    contents = Contents.of(changes, {})
    blocks = Blocks.of(after)
    result = _Result(drafted_delta(draft, contents, to.goal.path), blocks, blocks.tensors.rows())
    changed = [each for each in changes if each.kind == CHANGED]
    encoded, sums = _Encoded(scratch), dict[str, str]()
    for each in changed:
        if dialect.endings is None:
            sums[each.key] = _encode_masks(result, each, encoded, dialect.algorithm)
        else:
            count = draft.num_changed[each.key]
            _encode_values(result, each, encoded, dialect.endings, count)
    if dialect.endings and not changed:
        raise UnsupportedError(
            f"Nothing changed, and the dialect {dialect.name} has no delta without tensors.",
            "Publish nothing for this step.",
        )
    if dialect.endings is None:
        form = PublishedFormat(texts=sums, index=_index_of(to, [*sums]))
    else:
        form = PublishedFormat(texts=_texts_of_trl(to, changes, draft))
    source = scratch_source(scratch, encoded.stored)
    work = plan_checkpoint(
        replace(to.goal, format=form),
        source.index.entries,
        policy=None,
        partition=None,
        metadata=Metadata(),
        force=force,
        source=source,
    )
    written = (
        preview(work, None) if dry_run else carry_out(work, source, None, lambda _nbytes: None)
    )
    sizes = _sizes(encoded, dialect)
    tensors = tuple(_reported(each, draft, sizes) for each in changes)
    path = to.goal.storage.path if dialect.is_folder else written.path
    return DeltaReport(
        path, contents.base, contents.result, tensors, 0, dry_run, dialect=dialect.name
    )


def _index_of(to: Publication, keys: Sequence[str]) -> Callable[[str], bytes]:
    def content(file: str) -> bytes:
        names = (to.base, to.version)
        if to.dialect.has_numbers:
            names = (f"{int(to.base):06d}", f"{int(to.version):06d}")
        metadata = {
            "version": names[1],
            "base_version": names[0],
            DELTA_ENCODING: XOR,
            "compression_format": "zstd",
            "checksum_format": to.dialect.algorithm,
        }
        index = {"metadata": metadata, "weight_map": dict.fromkeys(keys, file)}
        return json.dumps(index, sort_keys=not to.dialect.has_numbers).encode()

    return content


def _texts_of_trl(
    to: Publication, changes: Sequence[DeltaRow], draft: DeltaDraft
) -> dict[str, str]:
    changed = [each for each in changes if each.kind == CHANGED]
    is_first = to.dialect.endings == INDICES
    # The first form counts all elements, the later ones those of changed tensors.
    counted = changes if is_first else changed
    total = sum(prod(each.shape) for each in counted)
    num = sum(draft.num_changed[each.key] for each in changed)
    texts = {
        "format": TRL_FORMAT,
        "version": "1",
        "sparse": "True",
        "model_version": to.version,
        "num_changed_params": str(len(changed)),
        "total_changed_elements": str(num),
        "total_elements": str(total),
        "sparsity": str(1.0 - num / max(total, 1)),
    }
    if is_first:
        return texts | {"changed_params": json.dumps([each.key for each in changed])}
    return texts | {"encoding": GAPS}


def _sizes(encoded: _Encoded, dialect: Dialect) -> dict[str, int]:
    """The stored bytes of each tensor."""
    found: dict[str, int] = {}
    for key, (dtype, shape, _) in encoded.stored.items():
        ending = next((each for each in dialect.endings or () if key.endswith(each)), "")
        key = key.removesuffix(ending)
        width = 2 if dtype == VALUE else np.dtype(dtype).itemsize
        found[key] = found.get(key, 0) + width * shape[0]
    return found


def _reported(each: DeltaRow, draft: DeltaDraft, sizes: Mapping[str, int]) -> TensorChange:
    count = draft.num_changed[each.key] if each.kind == CHANGED else None
    return TensorChange(each.key, each.kind, each.nbytes, sizes.get(each.key, 0), count)

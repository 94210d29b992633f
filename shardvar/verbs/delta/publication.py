"""Publication: a delta in the layout of another program, made of the frames of a comparison.

find      the location, and the versions of base and result: a name that follows the rule of a dialect
          has them (``weight_v000007``), otherwise the caller gives both
check     that the dialect can hold the difference, by name, before anything is read
compare   as ``make`` does: the frames are in a scratch file
encode    a frame of zstd for each tensor, or positions and values, in a second scratch file
write     these as tensors of safetensors, with the texts and the index of the dialect
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from shardvar.engine.pool import bytes_of
from shardvar.errors import ArgumentError, TargetExists, UnsupportedError
from shardvar.formats.compressed import Compressor, check_installed, new_checksum
from shardvar.formats.published import SLIME, TRL_FORMAT
from shardvar.formats.safetensors import PublishedFormat
from shardvar.formats.safetensors.names import set_index_name
from shardvar.formats.safetensors.source import metadata_of_texts
from shardvar.layout.dtypes import OWN_SIZE, code
from shardvar.pictures.words import similar
from shardvar.planning.index import OBJECTS, Metadata
from shardvar.storage.local import split_place
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.delta.contents import CHANGED, EQUAL, WHOLE, Contents, Delta, DeltaRow
from shardvar.verbs.delta.dialects import GAPS, IDX, INDICES, VALUE, XOR, marks_of
from shardvar.verbs.delta.draft import DeltaDraft, drafted_delta, leaf_reads, scratch_source
from shardvar.verbs.delta.report import DeltaReport, TensorChange
from shardvar.verbs.locate import Location, Path, check_apart
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.writing import carry_out, plan_checkpoint, preview
from shardvar.wire.digests import LEAF_NBYTES
from shardvar.wire.set_index import DELTA_ENCODING

_INDEX = set_index_name("model")
_OF_A_DELTA = re.compile(r"model-0{5,}-of-0{4,}1\.safetensors")
_VERSION = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect that is written."""

    name: str
    """The name for ``dialect=``."""
    readers: str
    """The programs that read it."""
    named: re.Pattern[str]
    example: str
    has_numbers: bool = True
    """True if versions are numbers, and each is made of the number before."""
    algorithm: str = ""
    """The checksum of each tensor; empty if the dialect has none."""
    endings: tuple[str, str] | None = None
    """The endings of keys with positions and values; None if changes are masks."""

    @property
    def is_folder(self) -> bool:
        return self.endings is None


_FOLDER = re.compile(r"weight_v(\d{6,18})", re.ASCII)
_FILE = re.compile(r"step_(\d{6,18})\.safetensors", re.ASCII)
DIALECTS = {
    each.name: each
    for each in (
        Dialect(
            "slime",
            "slime, miles, SGLang, vime",
            _FOLDER,
            "weight_v000007",
            algorithm="xxh3-128",
        ),
        Dialect("modelexpress", "ModelExpress", re.compile(r"(?!)"), "", False, "adler32"),
        Dialect("trl", "TRL, the first form", _FILE, "step_000007.safetensors", endings=INDICES),
        Dialect("trl-gaps", "TRL, later forms", _FILE, "step_000007.safetensors", endings=IDX),
    )
}
"""The dialects that are written, by name."""


def dialect_named(name: str) -> Dialect:
    found = DIALECTS.get(name)
    if found is None:
        reads = [each.name for each in DIALECTS.values() if name.lower() in each.readers.lower()]
        if reads and len(name) > 2:
            raise ArgumentError(
                f"The dialect {name!r} is not known.",
                f"{name} reads the dialect {' or '.join(reads)}.",
            )
        alike = similar(name, DIALECTS, 1)
        meant = f"Did you mean {alike[0]}? " if alike else ""
        raise ArgumentError(
            f"The dialect {name!r} is not known.", f"{meant}Choose from {', '.join(DIALECTS)}."
        )
    return found


@dataclass(frozen=True, slots=True)
class Publication:
    """The location of a delta that is to be written, and its versions."""

    dialect: Dialect
    goal: Location
    base: str
    """The version of the base."""
    version: str
    """The version that the delta makes."""


def find_publication(
    path: Path, name: str, versions: Sequence[str] | None, sources: Sequence[Location]
) -> Publication:
    """Return the location of a new delta, which is none of its sources, and its versions."""
    dialect = dialect_named(name)
    check_needs(dialect)
    goal = _find_goal(path, dialect)
    check_apart(goal, sources, "a source and the delta", "name")
    return Publication(dialect, goal, *_versions(goal, dialect, versions))


def check_needs(dialect: Dialect) -> None:
    if dialect.is_folder:
        check_installed()
    if dialect.algorithm:
        new_checksum(dialect.algorithm)


def _find_goal(path: Path, dialect: Dialect) -> Location:
    given = os.fsdecode(path)
    is_file = given.endswith(".safetensors")
    if not dialect.is_folder:
        storage, name = split_place(path)
        if not name or not is_file:
            raise ArgumentError(
                f"{given} does not end in .safetensors, and a delta of {dialect.name} is one such file.",
                f"Name it as {dialect.example}.",
            )
        return Location(PublishedFormat(), storage, name)
    storage, name = split_place(path)
    if is_file or (name and name in storage.names()):
        raise ArgumentError(
            f"{given} is a file, and a delta of {dialect.name} is a folder.",
            f"Name a folder, such as {dialect.example or 'v7'}.",
        )
    folder = split_place(os.path.join(given, ""))[0]
    goal = Location(PublishedFormat(), folder, _INDEX)
    _check_folder(goal)
    return goal


def _check_folder(goal: Location) -> None:
    """Raise ``TargetExists`` if the folder has a model: its files would be the delta's."""
    names = [each for each in goal.storage.names() if each.endswith(".safetensors")]
    # What a killed write has left: no model has a file 0 of 1.
    there = [each for each in names if not _OF_A_DELTA.fullmatch(each)]
    if _INDEX in goal.storage.names():
        with open_found(goal, dequantize=False) as reader:
            marks = marks_of(reader, goal.storage)
        if marks is not None and marks.dialect == SLIME:
            return
        there = there or [_INDEX]
    if there:
        raise TargetExists(
            f"{goal.storage.path} has {there[0]}, and no delta.", "Choose another folder."
        )


def _versions(goal: Location, dialect: Dialect, versions: Sequence[str] | None) -> tuple[str, str]:
    """Return the version of the base, and of the result: as given, or as the name says."""
    name = os.path.basename(goal.storage.path.rstrip("/")) if dialect.is_folder else goal.name
    if versions is None:
        match = dialect.named.fullmatch(name)
        if match is None:
            why = (
                f"the name {name} is not as {dialect.example}"
                if dialect.example
                else "it names both"
            )
            raise ArgumentError(
                f"The dialect {dialect.name} needs the versions of the base and of the result: {why}.",
                "Give both: versions=('6', '7') (--versions 6 7).",
            )
        versions = str(int(match[1]) - 1), match[1]
    if isinstance(versions, str) or len(versions) != 2:
        raise ArgumentError(
            f"The versions are two, and {versions!r} was given.",
            "Give the one of the base and the one of the result: versions=('6', '7').",
        )
    base, version = (str(each) for each in versions)
    if not dialect.has_numbers:
        for each in (base, version):
            if not _VERSION.fullmatch(each):
                raise ArgumentError(
                    f"The version {each!r} is not a name of letters, digits, '.', '_' and '-'.",
                    "Choose another one.",
                )
        if base == version:
            raise ArgumentError(f"Both versions are {base!r}.", "Give two.")
        return base, version
    is_number = all(
        each.isascii() and each.isdigit() and len(each) < 19 for each in (base, version)
    )
    if not is_number or int(version) != int(base) + 1:
        raise ArgumentError(
            f"A delta of {dialect.name} makes a version of the one before it, and the versions are "
            f"{base!r} and {version!r}.",
            "Give two numbers that follow each other, such as 6 and 7.",
        )
    return str(int(base)), str(int(version))


# Differences that a dialect cannot have.


_MAX_POSITION = (1 << 31) - 1


# What a dialect cannot say.


def check_sayable(a: Reader, b: Reader, dialect: Dialect) -> None:
    """Raise ``UnsupportedError`` for a difference of keys, dtypes or shapes that a dialect cannot hold."""
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
    stored: dict[str, tuple[str, tuple[int, ...], int]] = field(default_factory=dict)
    """The dtype, the shape and the place of each."""
    stop: int = 0

    def append(self, data: bytes) -> None:
        self.scratch.write(self.stop, data)
        self.stop += len(data)


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """The changed tensors: their masks, and their new bytes."""

    delta: Delta
    blocks: Blocks
    rows: Mapping[str, int]

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
    tensors = tuple(
        TensorChange(
            each.key,
            each.kind,
            each.nbytes,
            sizes.get(each.key, 0),
            draft.num_changed.get(each.key),
        )
        for each in changes
    )
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
    # The first form counts all elements, the later forms only elements of changed tensors.
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
    found: dict[str, int] = {}
    for key, (dtype, shape, _) in encoded.stored.items():
        ending = next((each for each in dialect.endings or () if key.endswith(each)), "")
        key = key.removesuffix(ending)
        width = 2 if dtype == VALUE else np.dtype(dtype).itemsize
        found[key] = found.get(key, 0) + width * shape[0]
    return found

"""Publication: a delta in the layout of another program, made of the frames of a comparison.

find      the location, and the versions of base and result: a name that follows the rule of a dialect
          has them (``weight_v000007``), or the caller gives both
check     that the dialect can hold the difference, by name, before anything is read
compare   as ``make`` does: the frames are in a scratch file
encode    a frame of zstd for each tensor, or positions and values, in a second scratch file
write     these as tensors of safetensors, with the texts and the index of the dialect
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from shardvar.engine.pool import bytes_of
from shardvar.errors import ArgumentError, TargetExists, UnsupportedError
from shardvar.formats.compressed import Compressor, check_installed, new_checksum
from shardvar.formats.published import SLIME, TRL_FORMAT
from shardvar.formats.safetensors import PublishedFormat
from shardvar.formats.safetensors.source import metadata_of_texts, set_index_name
from shardvar.formats.sets import DELTA_ENCODING
from shardvar.layout.dtypes import OWN_SIZE, code
from shardvar.pictures.words import similar
from shardvar.planning.index import OBJECTS, Metadata
from shardvar.records import dataclass, field, frozen, replace
from shardvar.storage.local import split_place
from shardvar.storage.scratch import ScratchFile
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.delta.contents import (
    CHANGED,
    EQUAL,
    WHOLE,
    Contents,
    Delta,
    DeltaReport,
    DeltaRow,
    TensorChange,
)
from shardvar.verbs.delta.dialects import GAPS, IDX, INDICES, VALUE, XOR, is_numeral, marks_of
from shardvar.verbs.delta.draft import (
    DeltaDraft,
    ScratchTensors,
    drafted_delta,
    leaf_reads,
    scratch_source,
)
from shardvar.verbs.locate import Location, Path, check_apart
from shardvar.verbs.reader import Reader, open_found
from shardvar.verbs.writing import carry_out, plan_checkpoint, preview
from shardvar.wire.digests import LEAF_NBYTES

_INDEX = set_index_name("model")
_OF_A_DELTA = re.compile(r"model-0{5,}-of-0{4,}1\.safetensors")
_VERSION = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@frozen
class Dialect:
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
            "slime", "slime, miles, SGLang, vime", _FOLDER, "weight_v000007", algorithm="xxh3-128"
        ),
        Dialect("modelexpress", "ModelExpress", re.compile(r"(?!)"), "", False, "adler32"),
        Dialect("trl", "TRL, the first form", _FILE, "step_000007.safetensors", endings=INDICES),
        Dialect("trl-gaps", "TRL, later forms", _FILE, "step_000007.safetensors", endings=IDX),
    )
}
"""The dialects that are written, by name."""


def dialect_named(name: str) -> Dialect:
    if name in DIALECTS:
        return DIALECTS[name]
    cause = f"The dialect {name!r} is not known."
    reads = [each.name for each in DIALECTS.values() if name.lower() in each.readers.lower()]
    if reads and len(name) > 2:
        raise ArgumentError(cause, f"{name} reads the dialect {' or '.join(reads)}.")
    alike = similar(name, DIALECTS, 1)
    meant = f"Did you mean {alike[0]}? " if alike else ""
    raise ArgumentError(cause, f"{meant}Choose from {', '.join(DIALECTS)}.")


@frozen
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
    if dialect.is_folder:
        check_installed()
        new_checksum(dialect.algorithm)
    goal = _find_goal(path, dialect)
    check_apart(goal, sources, "a source and the delta", "name")
    return Publication(dialect, goal, *_versions(goal, dialect, versions))


def _find_goal(path: Path, dialect: Dialect) -> Location:
    given = os.fsdecode(path)
    is_file = given.endswith(".safetensors")
    storage, name = split_place(path)
    if not dialect.is_folder:
        if not name or not is_file:
            raise ArgumentError(
                f"{given} does not end in .safetensors, and a delta of {dialect.name} is one such file.",
                f"Name it as {dialect.example}.",
            )
        return Location(PublishedFormat(), storage, name)
    if is_file or (name and name in storage.names()):
        raise ArgumentError(
            f"{given} is a file, and a delta of {dialect.name} is a folder.",
            f"Name a folder, such as {dialect.example or 'v7'}.",
        )
    goal = Location(PublishedFormat(), split_place(os.path.join(given, ""))[0], _INDEX)
    names = goal.storage.names()
    # The files of a model would be the delta's. A killed write leaves a file 0 of 1, which no model has.
    files = [each for each in names if each.endswith(".safetensors")]
    there = [each for each in files if not _OF_A_DELTA.fullmatch(each)]
    if _INDEX in names:
        with open_found(goal, dequantize=False) as reader:
            marks = marks_of(reader, goal.storage)
        if marks is not None and marks.dialect == SLIME:
            return goal
        there = there or [_INDEX]
    if there:
        cause = f"{goal.storage.path} has {there[0]}, and no delta."
        raise TargetExists(cause, "Choose another folder.")
    return goal


def _versions(goal: Location, dialect: Dialect, versions: Sequence[str] | None) -> tuple[str, str]:
    """Return the versions of the base and of the result: as given, or of the name."""
    if versions is None:
        name = os.path.basename(goal.storage.path.rstrip("/")) if dialect.is_folder else goal.name
        match = dialect.named.fullmatch(name)
        if match is None:
            example = dialect.example
            why = f"the name {name} is not as {example}" if example else "it names both"
            raise ArgumentError(
                f"The dialect {dialect.name} needs the versions of the base and of the result: {why}.",
                "Give both: versions=('6', '7') (--versions 6 7).",
            )
        versions = str(int(match[1]) - 1), match[1]
    if isinstance(versions, str) or len(versions) != 2:
        raise ArgumentError(
            f"The versions are two, and {versions!r} was given.",
            "Give the versions of the base and of the result: versions=('6', '7').",
        )
    base, version = map(str, versions)
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
    if not is_numeral(base) or not is_numeral(version) or int(version) != int(base) + 1:
        raise ArgumentError(
            f"A delta of {dialect.name} makes a version of its predecessor, and the versions are "
            f"{base!r} and {version!r}.",
            "Give two numbers that follow each other, such as 6 and 7.",
        )
    return str(int(base)), str(int(version))


# Differences that a dialect cannot have.

_MAX_POSITION = (1 << 31) - 1


def check_sayable(a: Reader, b: Reader, dialect: Dialect) -> None:
    """Raise ``UnsupportedError`` for a difference of keys, dtypes or shapes that a dialect cannot hold."""
    facts_a, facts_b = (each.entries().slices.tensors.facts() for each in (a, b))
    # A checksum is a text under the name of its tensor.
    free = metadata_of_texts(dict.fromkeys(facts_b, "")).user.keys() - {OBJECTS, *_TEXTS}
    for key, there in facts_b.items():
        if key not in facts_a:
            raise _unsayable(dialect, key, "is new", "has no new tensors")
        here = facts_a[key]
        if here[0] != there[0]:
            raise _unsayable(dialect, key, f"was {here[0]} and is {there[0]}", "has no dtypes")
        if here[1] != there[1]:
            was = f"had the shape {list(here[1])} and has {list(there[1])}"
            raise _unsayable(dialect, key, was, "has no shapes")
        if key not in free and dialect.is_folder:
            why = "has its checksum under that name"
            raise _unsayable(dialect, key, "has the name of another text", why)
    for key in facts_a:
        if key not in facts_b:
            raise _unsayable(dialect, key, "is removed", "has no removed tensors")


def _unsayable(dialect: Dialect, key: str, how: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{key!r} {how}, and the dialect {dialect.name} {why}.",
        "Leave the dialect out (--dialect): a delta of shardvar has it. Or publish the whole checkpoint.",
    )


# Encoding.


def _check_changes(changes: Sequence[DeltaRow], dialect: Dialect) -> None:
    for each in changes:
        key, dtype = each.key, each.dtype
        if each.kind == EQUAL:
            continue
        if each.kind == WHOLE or OWN_SIZE[code(dtype)]:
            raise _unsayable(dialect, key, f"is of {dtype} and changed", "has only numbers")
        if not dialect.is_folder and dtype != VALUE:
            raise _unsayable(dialect, key, f"is {dtype} and changed", f"has only {VALUE}")
        if not dialect.is_folder and each.nbytes // 2 > _MAX_POSITION:
            how = f"has {each.nbytes // 2} elements"
            raise _unsayable(dialect, key, how, "has positions of 32 bits")
    if not dialect.is_folder and all(each.kind == EQUAL for each in changes):
        raise UnsupportedError(
            f"Nothing changed, and the dialect {dialect.name} has no delta without tensors.",
            "Publish nothing for this step.",
        )


@dataclass(slots=True, eq=False)
class _Encoder:
    """Encodes changed tensors, from their masks and their new bytes, into a scratch file."""

    dialect: Dialect
    delta: Delta
    result: Blocks
    rows: Mapping[str, int]
    scratch: ScratchFile
    stored: ScratchTensors = field(default_factory=dict)
    """The dtype, the shape and the place of each tensor of the files."""
    sums: dict[str, str] = field(default_factory=dict)
    """The checksum of the new bytes of each."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes that are stored of each."""
    _stop: int = 0

    def add(self, change: DeltaRow, num_changed: int) -> None:
        begin, endings = self._stop, self.dialect.endings
        if endings is None:
            self._add_mask(change)
        else:
            self._add_values(change.key, num_changed, endings)
        self.sizes[change.key] = self._stop - begin

    def _leaves(self, key: str) -> Iterator[tuple[int, "np.ndarray | None", memoryview]]:
        """Yield the first byte of each leaf, its mask, None if it is equal, and its new bytes."""
        frames = self.delta.frames(key)
        flat = self.result.flat(self.rows[key])
        for start, _, (read,) in leaf_reads(flat):
            leaf = start // LEAF_NBYTES
            yield start, frames.mask(leaf) if leaf in frames.by_leaf else None, read()
        flat.check()

    def _append(self, data: bytes) -> None:
        self.scratch.write(self._stop, data)
        self._stop += len(data)

    def _add_mask(self, change: DeltaRow) -> None:
        key, place = change.key, self._stop
        packer = Compressor(change.nbytes, self._append)
        checksum = new_checksum(self.dialect.algorithm)
        for _, mask, new in self._leaves(key):
            packer.add(bytes(len(new)) if mask is None else bytes_of(np.ascontiguousarray(mask)))
            checksum.update(new)
        packer.finish()
        self.stored[key] = "uint8", (self._stop - place,), place
        self.sums[key] = checksum.hexdigest()

    def _add_values(self, key: str, count: int, endings: tuple[str, str]) -> None:
        kind = "int32" if endings == INDICES else self._gap_dtype(key)
        width, values = np.dtype(kind).itemsize, np.dtype("<u2").itemsize
        # Both have a known size: places first, then values.
        at = self._stop
        value = at + count * width
        self.stored[key + endings[0]] = kind, (count,), at
        self.stored[key + endings[1]] = VALUE, (count,), value
        self._stop = value + count * values
        before = -1
        for start, mask, new in self._leaves(key):
            if mask is None:
                continue
            places = np.flatnonzero(mask)
            numbers = places + start // values
            if kind != "int32":
                numbers, before = np.diff(numbers, prepend=before) - 1, int(numbers[-1])
            self.scratch.write(at, numbers.astype(np.dtype(kind).newbyteorder("<")).tobytes())
            self.scratch.write(value, np.frombuffer(new, "<u2")[places].tobytes())
            at, value = at + len(places) * width, value + len(places) * values

    def _gap_dtype(self, key: str) -> str:
        """Return the narrower of two dtypes that holds all gaps."""
        frames, before, widest = self.delta.frames(key), -1, 0
        for leaf in sorted(frames.by_leaf):
            places = np.flatnonzero(frames.mask(leaf)) + leaf * LEAF_NBYTES // frames.change.width
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
    dialect = to.dialect
    _check_changes(changes, dialect)
    contents, blocks = Contents.of(changes, {}), Blocks.of(after)
    made = drafted_delta(draft, contents, to.goal.path)
    encoder = _Encoder(dialect, made, blocks, blocks.tensors.rows(), scratch)
    changed = [each for each in changes if each.kind == CHANGED]
    for each in changed:
        encoder.add(each, draft.num_changed[each.key])
    if dialect.is_folder:
        sums = encoder.sums
        form = PublishedFormat(texts=sums, index=partial(_encode_index, to, [*sums]))
    else:
        form = PublishedFormat(texts=_texts_of_trl(to, changes, draft))
    source = scratch_source(scratch, encoder.stored)
    goal, entries = replace(to.goal, format=form), source.index.entries
    work = plan_checkpoint(
        goal, entries, policy=None, partition=None, metadata=Metadata(), force=force, source=source
    )
    written = (
        preview(work, source, None)
        if dry_run
        else carry_out(work, source, None, lambda _nbytes: None)
    )
    tensors = tuple(
        TensorChange(
            each.key,
            each.kind,
            each.nbytes,
            encoder.sizes.get(each.key, 0),
            draft.num_changed.get(each.key),
        )
        for each in changes
    )
    path = to.goal.storage.path if dialect.is_folder else written.path
    digests = contents.base, contents.result
    return DeltaReport(path, *digests, tensors, 0, dry_run, dialect=dialect.name)


def _encode_index(to: Publication, keys: Sequence[str], file: str) -> bytes:
    base, version = to.base, to.version
    if to.dialect.has_numbers:
        base, version = f"{int(base):06d}", f"{int(version):06d}"
    metadata = {
        "version": version,
        "base_version": base,
        DELTA_ENCODING: XOR,
        "compression_format": "zstd",
        "checksum_format": to.dialect.algorithm,
    }
    index = {"metadata": metadata, "weight_map": dict.fromkeys(keys, file)}
    return json.dumps(index, sort_keys=not to.dialect.has_numbers).encode()


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

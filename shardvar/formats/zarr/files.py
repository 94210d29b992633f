"""The files of a folder of Zarr or Orbax, and the names by which it is known.

Zarr    zarr.json of version 3; .zgroup, .zarray or .zmetadata of version 2
Orbax   _METADATA, the index; manifest.ocdbt, a database; _CHECKPOINT_METADATA, which a step of a
        manager has too
a step  STEP/_CHECKPOINT_METADATA, and a folder an item: STEP/default/_METADATA
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Self, TypeVar

import numpy as np

from shardvar.errors import (
    CheckpointError,
    MissingFile,
    UnsupportedError,
    replaced_error,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, FileSource, open_below
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.records import field, frozen, mutable
from shardvar.storage.concurrency import as_answered, do_all
from shardvar.storage.protocol import FileStatus, ReadableFile, Storage, Traits
from shardvar.wire.damage import distrusted, past_limit

GROUPS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
"""The files that make a folder one of Zarr, version 3 first, as zarr-python prefers them."""
TREE, DATABASE, STEP = "_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA"
MARKER = "commit_success.txt"
"""The file that Orbax writes last, to mark a complete checkpoint."""
STRINGS = "_strings.json"
"""The leaves that are strings, by key."""
DATABASE_FILE = re.compile(
    r"(ocdbt\.process_\d+/)?(manifest\.ocdbt|d/[0-9a-f]{32})|array_metadatas/process_\d+"
)
"""The paths of the files of a database, and of Orbax's description of its arrays."""
_CHUNK_NAME = r"c(?:[./]\d+)*|\d+(?:[./]\d+)*"
CHUNK = re.compile(rf"(.+?)/({_CHUNK_NAME})")
"""The path of a chunk: the folder of its array, and its name."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Part of the name of a folder that Orbax has not committed."""


def find_group(names: list[str], name: str) -> list[str]:
    """Return the description of the group or array that a name may mean, if any."""
    present = [each for each in GROUPS if each in names]
    # The folder of an unfinished writer is also found, so that opening it reports that, and not the
    # arrays in it.
    present = present or [GROUPS[0]] * is_interrupted(names, GROUPS[0])
    return present[:1] if present and name in ("", *present) else []


def find_orbax(storage: Storage, name: str) -> list[str]:
    """Return the indexes of the checkpoints that a name may mean: a folder's, or of items."""
    names = storage.names()
    own = [each for each in (TREE, DATABASE, STEP) if each in names] or [TREE] * is_interrupted(
        names, TREE
    )
    if not own or name not in ("", MARKER, *own):
        return []
    if own == [STEP]:
        items = [
            folder
            for folder in storage.folders()
            if find_orbax(storage.folder(folder), "") == [TREE]
        ]
        return [f"{item}/{TREE}" for item in items] or [TREE]
    return [TREE]


_TOKEN = r"[A-Za-z0-9]+\.tmp"


def is_interrupted(names: Iterable[str], index: str) -> bool:
    """Return True if an index stands aside."""
    return any(re.fullmatch(rf"{re.escape(index)}\.{_TOKEN}", name) for name in names)


def asides_of(names: Iterable[str], index: str) -> list[str]:
    return [
        name
        for name in names
        if re.fullmatch(rf"(chunk-\d+|{re.escape(index)})\.{_TOKEN}{JOURNAL_ENDING}", name)
    ]


def arrays_of(path: str) -> list[str]:
    """Return the folders of the arrays that a path may be a chunk of: of a/c/0/1, a/c/0, a/c, a."""
    folders, array = [], path
    while "/" in array:
        array = array.rpartition("/")[0]
        if re.fullmatch(_CHUNK_NAME, path[len(array) + 1 :]):
            folders.append(array)
    return folders


def check_finished(storage: Storage, index: str) -> None:
    """Raise ``MissingFile`` if the index of a folder stands aside, and is not in place."""
    names = storage.names()
    if index not in names and is_interrupted(names, index):
        cause = (
            f"{storage.path}: {index} is missing, since a save was interrupted while it put files "
            "in place."
        )
        raise MissingFile(
            cause, "Save it again with force=True (--force), or use another checkpoint."
        )


_MAX_STEP_NBYTES = 255
"""The longest name of a folder that the usual file systems take."""


def check_paths(keys: Sequence[str], form: str) -> None:
    """Raise ``UnsupportedError`` unless each key is the path of a folder for an array."""
    for key in keys:
        for step in key.split("/"):
            cause = ""
            if any("\ud800" <= character <= "\udfff" for character in step):
                cause = "is not UTF-8, which its JSON has"
            # Version 3 keeps names that begin with "__" for itself.
            elif (
                step in ("", ".", "..", "zarr.json")
                or step.startswith("__")
                or {*step} & {"\0", "\\"}
            ):
                cause = "cannot be the name of a folder of it"
            elif len(step.encode("utf-8", "surrogateescape")) > _MAX_STEP_NBYTES:
                cause = f"has more than {_MAX_STEP_NBYTES} bytes"
            if cause:
                raise UnsupportedError(
                    f"The format {form} cannot hold the key {key!r}: {step!r} {cause}.",
                    "Rename the tensor (--rename).",
                )
    both = sorted(set(folders_above(keys)).intersection(keys))
    if both:
        cause = (
            f"The format {form} cannot hold {both[0]!r} together with a key below it, "
            f"{both[0] + '/'!r}…"
        )
        raise UnsupportedError(cause, "Rename one of them (--rename).")


def folders_above(keys: Iterable[str]) -> list[str]:
    """Return the folders that the paths lead through, without the last one of each."""
    folders: set[str] = set()
    for path in keys:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return sorted(folders)


# The files of a checkpoint that is a tree of folders, by their paths with "/"; or the keys of a
# database in it.


Opened = TypeVar("Opened", bound=FileSource)


@frozen
class PathListing:
    names: Sequence[str]
    """The paths of all files, or the keys of the database, sorted."""
    sizes: Mapping[str, int]
    """The sizes of all files; the sizes of the values of a database are unknown."""

    def has(self, name: str) -> bool:
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def below(self, path: str) -> list[str]:
        rows = self.rows_below(path)
        return [name[len(path) + bool(path) :] for name in self.names[rows.start : rows.stop]]

    def rows_below(self, path: str) -> range:
        if not path:
            return range(len(self.names))
        # "0" is the character after "/": all paths that begin with "a/" lie before "a0".
        return range(bisect_left(self.names, f"{path}/"), bisect_left(self.names, f"{path}0"))


@frozen
class Tree:
    """A folder at one moment; refuses files that were replaced since, also in folders below."""

    root: Storage
    index: str
    """The path of the file that is replaced with the checkpoint."""
    files: Mapping[str, FileStatus]
    """All files, by sorted paths."""

    @classmethod
    def of(cls, root: Storage, index: str) -> Self:
        return cls(root, index, root.tree())

    @property
    def path(self) -> str:
        return self.root.path

    @property
    def traits(self) -> Traits | None:
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        """Open a file; raise if its path leads out of the folder, or if it was replaced."""
        try:
            file = open_below(self.root, name)
        except MissingFile:
            if self.is_replaced():
                raise replaced_error(f"{self.path}/{name}") from None
            raise
        known = self.files.get(name)
        if known is None or known.stamp != file.stamp:
            file.close()
            raise replaced_error(f"{self.path}/{name}")
        return file

    def check(self, name: str) -> None:
        """Raise ``CorruptCheckpoint`` if a file was replaced or removed; of a folder on a disk."""
        *steps, last = name.split("/")
        folder = self.root
        for step in steps:
            folder = folder.folder(step)
        known = self.files.get(name)
        if known is None or folder.stamp(last) != known.stamp:
            raise replaced_error(f"{self.path}/{name}")

    def is_replaced(self) -> bool:
        """Return True if the index was replaced; of a folder that is not on a disk, reads tell."""
        known = self.files.get(self.index)
        return (
            self.traits is None
            and known is not None
            and self.root.stamp(self.index) not in (None, known.stamp)
        )


def open_tree(root: Storage, index: str, read: Callable[[Tree], Opened]) -> Opened:
    """Return the result of ``read`` for a folder, again if the index was replaced."""
    for _ in range(ATTEMPTS):
        tree = Tree.of(root, index)
        try:
            found = read(tree)
        except CheckpointError:
            if not tree.is_replaced():
                raise
            continue
        if not tree.is_replaced():
            return found
        found.close()
    raise replaced_error(f"{root.path}/{index}")


def read_document(tree: Tree, path: str) -> bytes:
    with closing(tree.open(path)) as file:
        if file.size > MAX_TREE_NBYTES:
            raise past_limit(f"{path} has {file.size} bytes", "MAX_TREE_NBYTES")
        return file.read(0, file.size)


def read_documents(tree: Tree, paths: Sequence[str]) -> list[bytes]:
    """Return the bytes of descriptions, in order; of a bucket with many requests under way."""
    answers = dict(as_answered(lambda path: (path, read_document(tree, path)), paths, tree.traits))
    return [answers[path] for path in paths]


def check_inside(path: str, what: str = "The array") -> None:
    """Raise ``InvalidCheckpoint`` unless every step of a path is a bare name."""
    if any(step in ("", ".", "..") or "\0" in step or "\\" in step for step in path.split("/")):
        raise distrusted(f"{what} {path[:200]!r} is not in the folder of the checkpoint.")


# Ranges of files, read together: neighbours are one range, and all requests to a remote storage are
# under way at once.
#
# wanted     | a | b |   | c |                     | d  ...         |
# spans      <--------------->                     <--------------->
# requests   <--------------->                     <-----> <-----> <>    each of at most 4 MiB


_REQUEST_NBYTES = 1 << 22
"""The bytes that are read at once."""


@mutable
class _Span:
    """A range of a file that has several."""

    file: int
    start: int
    stop: int
    octets: memoryview = field(default_factory=lambda: memoryview(b""))


def read_ranges(data: DataFiles, file: Ints, start: Ints, nbytes: Ints) -> list[memoryview]:
    """Return ranges of files, in order, in memory that they and the gaps between neighbours take."""
    spans, span_of = _spans(data, file, start, nbytes)
    remote = []
    for span in spans:
        opened, count = data.open(span.file), span.stop - span.start
        # A disk gives bytes, which the decoder takes without a copy. Of a file that is too short, the
        # error names the missing bytes.
        if data.traits is None or span.stop > opened.size:
            span.octets = memoryview(opened.read(span.start, count))
        else:
            span.octets = memoryview(bytearray(count))
            remote.append(span)
    requests = [
        (span, at, min(at + _REQUEST_NBYTES, len(span.octets)))
        for span in remote
        for at in range(0, len(span.octets), _REQUEST_NBYTES)
    ]

    def read(request: tuple[_Span, int, int]) -> None:
        span, first, stop = request
        data.open(span.file).read_into(span.start + first, span.octets[first:stop])

    do_all(read, requests, data.traits, lambda request: request[2] - request[1])
    rows = zip(span_of, start.tolist(), nbytes.tolist(), strict=True)
    return [
        spans[number].octets[first - spans[number].start :][:size] for number, first, size in rows
    ]


def _spans(data: DataFiles, file: Ints, start: Ints, nbytes: Ints) -> tuple[list[_Span], list[int]]:
    traits = data.traits
    gap, waste = (0, 0) if traits is None else (traits.gap_nbytes, traits.waste_nbytes)
    spans: list[_Span] = []
    span_of = [0] * len(file)
    for row in np.lexsort((start, file)).tolist():
        number, first = int(file[row]), int(start[row])
        stop = first + int(nbytes[row])
        last = spans[-1] if spans else None
        between = 0 if last is None else max(first - last.stop, 0)
        if (
            last is not None
            and last.file == number
            and between <= min(gap, waste)
            and max(stop, last.stop) - last.start <= _REQUEST_NBYTES
        ):
            last.stop, waste = max(stop, last.stop), waste - between
        else:
            spans.append(_Span(number, first, stop))
        span_of[row] = len(spans) - 1
    return spans, span_of

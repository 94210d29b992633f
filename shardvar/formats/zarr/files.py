"""The files of a checkpoint that is a tree of folders, by their paths with "/"; or the keys of a
database in it."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

import numpy as np

from shardvar.errors import CheckpointError, InvalidCheckpoint, MissingFile, replaced_error
from shardvar.formats.files import ATTEMPTS, DataFiles, FileSource, open_below
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.storage.concurrency import as_answered, do_all
from shardvar.storage.protocol import FileStatus, ReadableFile, Storage, Traits
from shardvar.wire.damage import DISTRUST, past_limit

Opened = TypeVar("Opened", bound=FileSource)


@dataclass(frozen=True, slots=True)
class PathListing:
    """The contents of a folder."""

    names: Sequence[str]
    """The paths of all files, or the keys of the database, sorted."""
    sizes: Mapping[str, int]
    """The sizes of all files; the sizes of the values of a database are unknown."""

    def has(self, name: str) -> bool:
        """Return True if there is a file of that path."""
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def below(self, path: str) -> list[str]:
        """Return the paths of the files below a folder, in it.

        >>> PathListing(["a/.zarray", "a/0.0", "a0"], {}).below("a")
        ['.zarray', '0.0']
        """
        rows = self.rows_below(path)
        return [name[len(path) + bool(path) :] for name in self.names[rows.start : rows.stop]]

    def rows_below(self, path: str) -> range:
        """Return the range of ``names`` that lie below a folder."""
        if not path:
            return range(len(self.names))
        # "0" is the character after "/": all paths that begin with "a/" lie before "a0".
        return range(bisect_left(self.names, f"{path}/"), bisect_left(self.names, f"{path}0"))


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder at one moment: its files, also in the folders in it, are opened by their paths.

    A file that was replaced since then is refused. So all that is read is of one moment.
    """

    root: Storage
    """The folder."""
    index: str
    """The path of the file that is replaced with the checkpoint."""
    files: Mapping[str, FileStatus]
    """All files, by sorted paths."""

    @classmethod
    def of(cls, root: Storage, index: str) -> Self:
        """Return a folder as it is now."""
        return cls(root, index, root.tree())

    @property
    def path(self) -> str:
        """The folder's path, for messages."""
        return self.root.path

    @property
    def traits(self) -> Traits | None:
        """The cost of a request to the folder; None on a local disk."""
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        """Open a file; ``InvalidCheckpoint`` if its path leads out of the folder,
        ``CorruptCheckpoint`` if it was replaced."""
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
    """Return what ``read`` makes of a folder; again if the index was replaced meanwhile."""
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


def read_document(tree: Tree, path: str, most: int = MAX_TREE_NBYTES) -> bytes:
    """Return the bytes of a description."""
    file = tree.open(path)
    try:
        if file.size > most:
            raise past_limit(f"{path} has {file.size} bytes", "MAX_TREE_NBYTES")
        return file.read(0, file.size)
    finally:
        file.close()


def read_documents(tree: Tree, paths: Sequence[str]) -> list[bytes]:
    """Return the bytes of descriptions, in order; of a bucket with many requests under way."""
    found = dict(as_answered(lambda path: (path, read_document(tree, path)), paths, tree.traits))
    return [found[path] for path in paths]


def check_inside(path: str) -> None:
    """Raise ``InvalidCheckpoint`` unless every step of a path is a bare name."""
    if any(step in ("", ".", "..") or "\0" in step or "\\" in step for step in path.split("/")):
        cause = f"The array {path[:200]!r} is not in the folder of the checkpoint."
        raise InvalidCheckpoint(cause, DISTRUST)


# Ranges of files, read together: neighbours are one range, and all requests to a remote storage are
# under way at once.
#
# wanted     | a | b |   | c |                     | d  ...         |
# spans      <--------------->                     <--------------->
# requests   <--------------->                     <-----> <-----> <>    each of at most 4 MiB


_REQUEST_NBYTES = 1 << 22
"""The bytes that are read at once."""


@dataclass(slots=True)
class _Span:
    """A range of a file that has several."""

    file: int
    start: int
    stop: int
    octets: memoryview = field(default_factory=lambda: memoryview(b""))


def read_ranges(data: DataFiles, file: Ints, start: Ints, nbytes: Ints) -> list[memoryview]:
    """Return ranges of files, in order; nothing is allocated for what a file does not have.

    ``file`` are numbers of ``data``. Memory: the ranges, and the gaps between neighbours.
    """
    spans, span_of = _spans(data, file, start, nbytes)
    remote = []
    for span in spans:
        opened, count = data.open(span.file), span.stop - span.start
        # A disk gives bytes, which the decoder takes without a copy. Of a file that is too short, the
        # error says what is missing.
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
    """Return the spans that have all ranges, and the number of the span of each."""
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

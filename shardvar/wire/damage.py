"""Errors for bytes that a codec refuses, each with its remedy.

A codec knows offsets and not files; its caller names the file with ``errors.prefix_errors``.
*Malformed* bytes cannot be decoded, *invalid* ones can be decoded and break a law of their format,
*corrupt* ones disagree with their checksum.

A file that has the wrong name altogether is refused by ``foreign_file``, whose error names its
kind; a zip archive by ``foreign_archive``, which knows the names of members.

Kinds. Files go by wrong names: a page that a server sent instead of a model, a pointer instead of
the file, a model of another program. ``kind_of`` names the common kinds for errors. A guess from the
first bytes is good enough for that, and for nothing else.
To add a kind, add a row to ``_MAGICS``, or to ``_PATTERNS`` if its first bytes vary.
"""

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from shardvar.errors import (
    COPY_AGAIN,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
)
from shardvar.limits import LIMITS, MAX_KEY_NBYTES


class FileKind(NamedTuple):
    what: str  # the end of a sentence that begins with "The file is"
    remedy: str  # the way to a checkpoint, in one sentence
    is_lost: bool = False  # True if the file does not have the content that was meant to be in it


SNIFF_NBYTES = 512
"""The bytes at the beginning of a file that ``kind_of`` is given: a block of a tar archive."""

LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of files that torch.save wrote before version 1.6: a number."""

_EXPORT = "It is a program with weights inside: use the checkpoint that it was exported from."
_UNPACK = "If it holds a checkpoint, unpack it and name that."
_PICKLE = FileKind(
    "a Python pickle, which is never loaded",
    "Convert it where it was written, if you trust it: load it there and save its arrays with "
    "numpy.savez, or its tensors with torch.save.",
)
_PAGE = FileKind("a web page", "The download failed: fetch the file again.", True)
_TAR = FileKind("a tar archive", _UNPACK)
_JSON = FileKind("a JSON text", "Name the file that holds the tensors.")
_TEXT = FileKind(
    "a text", "Read its first lines: it may be the message of a server that did not send the file."
)
_ZEROS = FileKind(
    "filled with zeros at its beginning",
    "A download or a copy was interrupted: fetch it again.",
    True,
)

_MAGICS = (
    (0, b"version https://git-lfs", FileKind(
        "a Git LFS pointer instead of the file itself", "Fetch the content: `git lfs pull`.", True)),
    (0, b"# shardvar digest", FileKind(
        "a manifest of digests", "Name the checkpoint, and the manifest after --against.")),
    (0, b"\x1f\x8b", FileKind("compressed by gzip", "Unpack it: `gzip -dc FILE > NAME`, with its name without .gz.")),
    (0, b"\x28\xb5\x2f\xfd", FileKind("compressed by Zstandard", "Unpack it: `unzstd`.")),
    (0, b"\xfd7zXZ\0", FileKind("compressed by xz", "Unpack it: `unxz`.")),
    (0, b"BZh", FileKind("compressed by bzip2", "Unpack it: `bunzip2`.")),
    (0, b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (257, b"ustar", _TAR),
    (0, b"PK\x03\x04", FileKind(
        "a zip archive, such as torch.save and numpy.savez write", "Convert it, or give it its own name.")),
    (0, b"PK\x05\x06", FileKind("an empty zip archive", "Write it again: no array was in it.", True)),
    (0, b"\x93NUMPY", FileKind(
        "a single NumPy array (.npy)", "Give it its own name (.npy), or store it with numpy.savez.")),
    (0, b"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file, as Keras writes", "Give it its own name (.h5).")),
    (0, b"\x89SVX\r\n\x1a\n", FileKind("an index of shardvar", "Give it its own name (.svindex).")),
    (0, b"GGUF", FileKind("a GGUF model", "Give it its own name (.gguf).")),
    (0, b"ggml", FileKind("a model of an old form of GGML", "Convert it to GGUF with llama.cpp.")),
    (0, b"tjgg", FileKind("a model of an old form of GGML", "Convert it to GGUF with llama.cpp.")),
    (4, b"TFL3", FileKind("a TensorFlow Lite model", _EXPORT)),
    (0, b"\x08\x01\x12", FileKind(
        "the graph of a SavedModel, which holds no values", "Name the folder with variables/ in it.")),
    (0, b"PAR1", FileKind("a Parquet table", "Name the file that holds the tensors.")),
    (0, b"ARROW1", FileKind("an Arrow table", "Name the file that holds the tensors.")),
    (0, b"SQLite format 3", FileKind("an SQLite database", "Name the file that holds the tensors.")),
    (0, b"\x89PNG", FileKind("a picture", "Name the file that holds the tensors.")),
    (0, b"\xff\xd8\xff", FileKind("a picture", "Name the file that holds the tensors.")),
    (0, b"%PDF", FileKind("a PDF document", "Name the file that holds the tensors.")),
    (0, b"\x7fELF", FileKind("a program", "Name the file that holds the tensors.")),
)  # fmt: skip
"""An offset, the bytes there, and the kind that they show."""

INTERRUPTED = "The save was interrupted: take the step before it, and remove this folder."
"""The remedy for a folder of a save that was cut short."""

_PATTERNS = (
    # The size of the header, 8 bytes, and the header. It stands first, because a size may begin as
    # a pickle does. Sizes from 5 << 24 on are left out: above 100,000,000 they are refused, and the
    # file is not of the format.
    (
        rb"...[\0-\x04]\0{4}\{[\"}\s]",
        FileKind("a safetensors file", "Give it its own name (.safetensors)."),
    ),
    (rb"(?i:\s*(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|script))", _PAGE),
    (
        re.escape(LEGACY_MAGIC),
        FileKind(
            "a file of torch.save in the form before version 1.6", "Give it its own name (.pt)."
        ),
    ),
    # A pickle begins with 0x80 and the number of its protocol. Without it, it is of the protocols 0
    # and 1, which begin with the opcode of a dict, a list, a tuple or a global.
    (rb"\x80[\x02-\x05]", _PICKLE),
    (rb"\(?[dl]p0\n|[}\])]q\0|c[a-z_][\w.]*\n[A-Za-z_]\w*\n", _PICKLE),
    # ONNX: ir_version, then producer_name, graph or opset_import.
    (
        rb"\x08[\x02-\x1f](\x12[\x01-\x40][ -~]{2}|[\x3a\x42])",
        FileKind("an ONNX model", "Give it its own name (.onnx)."),
    ),
    # TensorFlow's GraphDef: a node, whose name and then op are texts.
    (
        rb"\x0a[\x80-\xff]{0,3}[\0-\x7f]\x0a[\x01-\x7f][ -~]+\x12[\x01-\x40][ -~]",
        FileKind("a TensorFlow graph", _EXPORT),
    ),
)
_IS_TEXT = rb"[\t\n\r\f -~\x80-\xff]{8,}"


def kind_of(first: bytes) -> FileKind | None:
    """Return the kind of a file that begins with ``first``; None if it is unknown or empty."""
    for offset, magic, kind in _MAGICS:
        if first.startswith(magic, offset):
            return kind
    for pattern, kind in _PATTERNS:
        if re.match(pattern, first, re.DOTALL):
            return kind
    if first and not any(first):
        return _ZEROS
    if re.fullmatch(_IS_TEXT, first):
        try:
            first[:-3].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start <= len(first) - 7:  # not only a last character that is cut
                return None
        return _JSON if first.lstrip().startswith((b"{", b"[")) else _TEXT
    return None


WRITE_AGAIN = (
    "The program that wrote the file is at fault: write the checkpoint again with another program."
)
DISTRUST = "Do not trust the source of this file."


UNPACK = "If it holds a checkpoint, unpack it (`unzip`) and name that."
"""The way to a checkpoint in a zip archive."""

_KNOWN_MEMBERS = (
    ("data.pkl", "an archive of torch.save", "Give it its own name (.pt), or use numpy.savez."),
    (
        "model.weights.h5",
        "an archive of Keras",
        "Give it its own name (.keras), or use numpy.savez.",
    ),
)
"""Names of members by which other programs' zip archives are known."""


class decoding:  # noqa: N801  # used as a function is
    """Raise a decoder's errors as ours; let ours pass, which also derive from builtins."""

    __slots__ = ("_kinds", "_make")

    def __init__(self, make: Callable[[Exception], Exception], *kinds: type[Exception]) -> None:
        self._make = make
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kinds) and not isinstance(error, ShardvarError):
            raise self._make(error) from error


malformed = partial(MalformedCheckpoint, remedy=COPY_AGAIN)
badly_written = partial(MalformedCheckpoint, remedy=WRITE_AGAIN)
incomplete = partial(IncompleteCheckpoint, remedy=COPY_AGAIN)
invalid = partial(InvalidCheckpoint, remedy=WRITE_AGAIN)
distrusted = partial(InvalidCheckpoint, remedy=DISTRUST)
corrupt = partial(CorruptCheckpoint, remedy=COPY_AGAIN)


def past_limit(what: str, name: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"{what}, which is beyond the limit of {LIMITS[name]} ({name}).", DISTRUST
    )


def check_key_nbytes(nbytes: int) -> None:
    """Raise if the longest key of a file is longer than any reader accepts."""
    if nbytes > MAX_KEY_NBYTES:
        raise past_limit(f"A key has {nbytes} bytes", "MAX_KEY_NBYTES")


def check_key(key: str, what: str = "The name of a tensor") -> None:
    """Raise if a key is longer than any reader accepts; the bytes of a short one are not counted."""
    is_long = len(key) > MAX_KEY_NBYTES // 4
    if is_long and len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_NBYTES:
        raise past_limit(f"{what} that begins with {key[:32]!r} is too long", "MAX_KEY_NBYTES")


def foreign_file(expected: str, first: bytes, size: int, why: str) -> MalformedCheckpoint:
    """Return the error for a file that begins with ``first`` and is not ``expected``."""
    if not size:
        return MalformedCheckpoint(f"The file is empty, not {expected}.", COPY_AGAIN)
    kind = kind_of(first)
    if kind:
        return MalformedCheckpoint(f"The file is {kind.what}, not {expected}.", kind.remedy)
    return MalformedCheckpoint(f"The file is not {expected}: {why}.", COPY_AGAIN)


def is_known_archive(names: Collection[str]) -> bool:
    return any(_has_member(names, known) for known, _, _ in _KNOWN_MEMBERS)


def foreign_archive(expected: str, names: Collection[str]) -> MalformedCheckpoint:
    """Return the error for a zip archive of members with these names, which is not ``expected``."""
    for known, what, remedy in _KNOWN_MEMBERS:
        if _has_member(names, known):
            return MalformedCheckpoint(f"The file is {what}, not {expected}.", remedy)
    members = ", ".join(repr(each[:100]) for each in [*names][:3])
    held = f" around {members}{', ...' * (len(names) > 3)}" if names else " without members"
    return MalformedCheckpoint(f"The file is a zip archive{held}, not {expected}.", UNPACK)


def _has_member(names: Collection[str], known: str) -> bool:
    return any(name == known or name.endswith("/" + known) for name in names)

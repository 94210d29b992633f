"""The contents of a delta: a row for each tensor, with its digests before and after.

A delta is a native checkpoint. A text in its metadata, ``shardvar.delta``, says so and names both
checkpoints by their digests. Its tensors are

    table          uint8: a JSON object with a row for each tensor of either checkpoint
    changed/KEY    uint8: the leaves that differ (``wire.digests``)
    whole/KEY      the tensor as it is in the new checkpoint: a new one, one of another dtype or
                   shape, one of strings, or one that a delta would not make smaller

The digests of all tensors give the digests of both checkpoints. So a lost or a foreign row is found
when a delta is opened, before anything else is read.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from shardvar.engine.pool import new_buffer
from shardvar.engine.read import FlatTensor
from shardvar.errors import (
    COPY_AGAIN,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.layout.dtypes import ITEMSIZES, NAMES, OWN_SIZE, PACKED_BITS, code
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.planning.index import DELTA, EntryTable
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.reader import Reader
from shardvar.wire.damage import corrupt, invalid, malformed
from shardvar.wire.digests import (
    LEAF_NBYTES,
    Frame,
    MaskWords,
    decode_frames,
    decode_mask,
    digest_of_all,
    digest_of_leaves,
    table_nbytes,
    word_nbytes,
)
from shardvar.wire.strict_json import parse_json

VERSION = 1
TABLE, CHANGED_PREFIX, WHOLE_PREFIX = "table", "changed/", "whole/"
"""The keys of a delta's tensors."""
EQUAL, CHANGED, WHOLE, REMOVED = "equal", "changed", "whole", "removed"
"""The kinds of change of a tensor."""
MAKE_AGAIN = "Copy the delta again, or make it again: `shardvar delta A B OUT`."
"""The remedy for a delta whose digests are not of its tensors."""
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class DeltaRow:
    """The change of one tensor: a row of the table."""

    key: str
    kind: str
    """``EQUAL``, ``CHANGED``, ``WHOLE`` or ``REMOVED``."""
    dtype: str
    """Its dtype after the change, or before it if it is removed."""
    shape: tuple[int, ...]
    """Its shape, likewise."""
    base: str | None
    """Its digest before; None if it is new."""
    result: str | None
    """Its digest after; None if it is removed."""
    encoding: str = ""
    """The encoding of its blocks, such as Q8_0, after the change; empty for numbers."""
    path: tuple[str | int, ...] | None = None
    """The steps to its value in a nested value, if known."""
    tie: str | None = None
    """The key of another tensor of the result, whose bytes it has: tied weights. None if it has its
    own."""

    @property
    def is_new(self) -> bool:
        return self.base is None

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor; 0 if its payload tells its own size."""
        return _nbytes(self.dtype, self.shape)

    @property
    def stored_key(self) -> str:
        """The key under which a delta has a changed or whole tensor."""
        return (CHANGED_PREFIX if self.kind == CHANGED else WHOLE_PREFIX) + self.key

    @property
    def width(self) -> int:
        """The bytes of a word of its masks."""
        return word_nbytes(int(ITEMSIZES[code(self.dtype)]))

    def to_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"key": self.key}
        try:
            self.key.encode()
        except UnicodeEncodeError:
            row = {"key_bytes": self.key.encode("utf-8", "surrogateescape").hex()}
        row |= {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}
        row |= {"base": self.base, "result": self.result}
        row |= {"encoding": self.encoding} if self.encoding else {}
        row |= {} if self.tie is None else {"tie": self.tie}
        return row | ({} if self.path is None else {"path": list(self.path)})


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of a delta, and the digests that they give."""

    changes: Mapping[str, DeltaRow]
    """The tensors of both checkpoints by key, in the order of the new one; removed ones follow."""
    base: str
    result: str
    user: Mapping[str, str]
    """The user's metadata of the new checkpoint."""

    @classmethod
    def of(cls, changes: Sequence[DeltaRow], user: Mapping[str, str]) -> "Contents":
        """The contents with the digests that follow from the tensors."""
        before, after, by_key = dict[str, str](), dict[str, str](), dict[str, DeltaRow]()
        for change in changes:
            by_key[change.key] = change
            if change.base is not None:
                before[change.key] = change.base
            if change.result is not None:
                after[change.key] = change.result
        return cls(by_key, digest_of_all(before), digest_of_all(after), user)

    @property
    def num_after(self) -> int:
        return sum(each.result is not None for each in self.changes.values())

    def whole_keys(self) -> list[str]:
        """Return the keys of the tensors that are stored whole: of tied ones, one of them."""
        changes = self.changes
        return [
            key
            for key, each in changes.items()
            if each.kind == WHOLE and (each.tie is None or changes[each.tie].kind != WHOLE)
        ]

    def mark(self) -> str:
        return json.dumps({"version": VERSION, "base": self.base, "result": self.result})

    def table(self) -> bytes:
        rows = [each.to_row() for each in self.changes.values()]
        document = {"tensors": rows, "metadata": dict(self.user)}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, mark: str, table: bytes) -> "Contents":
        """The contents by the metadata and the table of a delta; an error if they disagree."""
        base, result = _decode_mark(mark)
        document = parse_json(table, _MAX_DEPTH)
        if not isinstance(document, dict) or {*document} != {"tensors", "metadata"}:
            raise malformed("The table is not an object of tensors and metadata.")
        rows, user = document["tensors"], document["metadata"]
        if not isinstance(rows, list) or not _are_texts(user):
            raise malformed("The table's tensors are not a list, or its metadata are not texts.")
        changes = [_decode_row(number, row) for number, row in enumerate(rows)]
        found = cls.of(changes, user)
        if len(found.changes) < len(changes):
            raise invalid("The table has a key twice.")
        for each in changes:
            _check_tie(each, found.changes)
        if (found.base, found.result) != (base, result):
            raise corrupt("The digests of the tensors do not give the ones of the checkpoints.")
        return found


def _decode_mark(mark: str) -> tuple[str, str]:
    """Return the digests of both checkpoints that a mark names."""
    document = parse_json(mark.encode("utf-8", "surrogateescape"), _MAX_DEPTH)
    if not isinstance(document, dict):
        raise malformed(f"The text {DELTA!r} of the metadata is not an object.")
    version = document.get("version")
    if version != VERSION:
        raise UnsupportedError(
            f"The delta is of version {version!r}, and this release reads version {VERSION}.",
            "Update shardvar: `pip install -U shardvar`.",
        )
    base, result = document.get("base"), document.get("result")
    if not (_is_digest(base) and _is_digest(result)) or len(document) != 3:
        raise malformed(f"The text {DELTA!r} of the metadata has no two digests.")
    return str(base), str(result)


_FIELDS = {"kind", "dtype", "shape", "base", "result"}
_PRESENT = {  # kind: whether there is a digest before, and after; None for either
    EQUAL: (True, True),
    CHANGED: (True, True),
    WHOLE: (None, True),
    REMOVED: (True, False),
}


def _check_tie(change: DeltaRow, changes: Mapping[str, DeltaRow]) -> None:
    """Raise ``InvalidCheckpoint`` if a tied tensor cannot have the bytes of the other one."""
    if change.tie is None:
        return
    other = changes.get(change.tie)
    if other is None or None in (change.result, other.result) or other.tie is not None:
        raise invalid(f"{change.key!r} is tied to {change.tie!r}, which is not in the result.")
    if (other.dtype, other.shape) != (change.dtype, change.shape):
        raise invalid(f"{change.key!r} is tied to {change.tie!r}, of another dtype or shape.")
    if OWN_SIZE[code(change.dtype)]:
        raise invalid(f"{change.key!r} is tied, and is of {change.dtype}.")


def _decode_row(number: int, row: Any) -> DeltaRow:
    with prefix_errors(f"row {number} of the table"):
        if not isinstance(row, dict) or not {*row} >= _FIELDS:
            raise malformed("It lacks a field.")
        names = {*row} - _FIELDS
        if (
            not names <= {"key", "key_bytes", "encoding", "path", "tie"}
            or len(names & {"key", "key_bytes"}) != 1
        ):
            raise malformed("It has an unknown field, or no key.")
        key, kind, shape = _key_of(row), row["kind"], row["shape"]
        if kind not in _PRESENT:
            raise invalid(f"{kind!r} is not what becomes of a tensor.")
        digests = row["base"], row["result"]
        for digest, is_present in zip(digests, _PRESENT[kind], strict=True):
            is_right = digest is None or _is_digest(digest)
            if not is_right or (is_present is not None and (digest is not None) != is_present):
                raise invalid(f"{key!r} is {kind} and has wrong digests.")
        if kind == EQUAL and digests[0] != digests[1]:
            raise invalid(f"{key!r} is {kind} and has two digests.")
        if row["dtype"] not in NAMES:
            raise UnsupportedError(
                f"The dtype {row['dtype']!r} of {key!r} is not known.", "Update shardvar."
            )
        extents = _shape_of(shape)
        if _nbytes(row["dtype"], extents) > MAX_NBYTES:
            raise invalid(f"{key!r} of the shape {shape} is too large to exist.")
        if kind == CHANGED and OWN_SIZE[code(row["dtype"])]:
            raise invalid(f"{key!r} is of {row['dtype']}, which is not changed in part.")
        path = row.get("path")
        if path is not None and not _is_path(path):
            raise malformed("Its path is not a list of names and numbers.")
        encoding = row.get("encoding", "")
        if not isinstance(encoding, str):
            raise malformed("Its encoding is not a text.")
        tie = row.get("tie")
        if not isinstance(tie, str | None):
            raise malformed("Its tie is not a key.")
        steps = None if path is None else (*path,)
        return DeltaRow(key, kind, row["dtype"], extents, *digests, encoding, steps, tie)


def _key_of(row: Mapping[str, Any]) -> str:
    key = row.get("key")
    if key is None:
        try:
            key = bytes.fromhex(row["key_bytes"]).decode("utf-8", "surrogateescape")
        except (ValueError, TypeError):
            raise malformed("Its key is not in hexadecimal digits.") from None
    if not isinstance(key, str):
        raise malformed("Its key is not a text.")
    return key


def _shape_of(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise malformed("Its shape is not a list of extents.")
    if not all(type(each) is int and 0 <= each <= MAX_NBYTES for each in shape):
        raise invalid("An extent is not a number.")
    return tuple(shape)


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor, exactly: Python's integers do not overflow."""
    count, bits = prod(shape), PACKED_BITS.get(dtype)
    return int(ITEMSIZES[code(dtype)]) * count if bits is None else -(-count * bits // 8)


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and bool(_DIGEST.fullmatch(value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_path(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) in (str, int) for each in value)


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    reader: Reader
    contents: Contents
    blocks: Blocks
    rows: Mapping[str, int]
    """The number of each tensor by its key."""
    _frames: dict[str, "TensorFrames"] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.reader.path

    @contextmanager
    def at(self, key: str) -> Iterator[None]:
        with prefix_errors(f"{self.path}: {key!r}"):
            yield

    def stored(self, change: DeltaRow) -> EntryTable:
        return self.blocks.entries_of([self._row(change)])

    def stored_key(self, change: DeltaRow) -> str:
        if change.tie is not None and change.stored_key not in self.rows:
            other = self.contents.changes[change.tie]
            return other.stored_key if other.kind == change.kind else change.stored_key
        return change.stored_key

    def _row(self, change: DeltaRow) -> int:
        """The row that holds a changed or whole tensor, after comparing it with the table."""
        key = self.stored_key(change)
        row = self.rows.get(key)
        if row is None:
            raise IncompleteCheckpoint(
                f"{self.path}: The table says that {change.key!r} is {change.kind}, and there is no "
                f"{key!r}.",
                COPY_AGAIN,
            )
        tensors = self.blocks.tensors
        found = tensors.dtype(row), tensors.shape(row)
        if change.kind == WHOLE and found != (change.dtype, change.shape):
            raise invalid(
                f"{self.path}: {change.key!r} is stored as {found[0]} of {list(found[1])}, and the "
                f"table says {change.dtype} of {list(change.shape)}."
            )
        if change.kind == CHANGED and (found[0] != "uint8" or len(found[1]) != 1):
            raise invalid(f"{self.path}: The frames of {change.key!r} are not bytes.")
        return row

    def frames(self, change: DeltaRow) -> "TensorFrames":
        found = self._frames.get(change.key)
        if found is None:
            with self.at(change.key):
                found = self._frames[change.key] = _read_frames(self, change)
        return found

    def check(self) -> None:
        """Raise unless the delta has the tensors that its table says, and no others."""
        wanted = {TABLE}
        for each in self.contents.changes.values():
            if each.kind in (CHANGED, WHOLE):
                self._row(each)
                wanted.add(self.stored_key(each))
        others = self.rows.keys() - wanted
        if others:
            raise invalid(f"{self.path}: The table does not name the tensor {min(others)!r}.")


@dataclass(frozen=True, slots=True, eq=False)
class TensorFrames:
    """The frames of one changed tensor."""

    flat: FlatTensor
    by_leaf: Mapping[int, tuple[Frame, int]]
    """The frame of each leaf that differs, and the first byte of its body."""

    def body(self, leaf: int) -> memoryview:
        frame, start = self.by_leaf[leaf]
        body = new_buffer(frame.nbytes)
        self.flat.read(start, body)
        return body

    def mask(self, leaf: int, nbytes: int, width: int) -> MaskWords:
        """Return the mask of a leaf of ``nbytes`` bytes, in words of ``width``."""
        frame, _ = self.by_leaf[leaf]
        return decode_mask(frame.encoding, frame.num_changed, self.body(leaf), nbytes, width)


def _read_frames(delta: Delta, change: DeltaRow) -> TensorFrames:
    flat = FlatTensor.of(delta.reader.source, delta.stored(change))
    beginning = new_buffer(min(4, flat.nbytes))
    flat.read(0, beginning)
    table = new_buffer(table_nbytes(beginning, flat.nbytes))
    flat.read(0, table)
    frames = decode_frames(table, flat.nbytes, change.nbytes)
    hashes, by_leaf, start = dict[int, bytes](), dict[int, tuple[Frame, int]](), len(table)
    for frame in frames:
        hashes[frame.leaf] = frame.digest
        by_leaf[frame.leaf] = frame, start
        start += frame.nbytes
    check_leaves(change, hashes)
    return TensorFrames(flat, by_leaf)


def check_leaves(change: DeltaRow, leaves: Mapping[int, bytes]) -> None:
    """Raise ``CorruptCheckpoint`` if the hashes of all leaves of a new tensor give another digest."""
    if len(leaves) == -(-change.nbytes // LEAF_NBYTES):
        hashes = b"".join(map(leaves.__getitem__, range(len(leaves))))
        if digest_of_leaves(change.key, change.dtype, change.shape, hashes) != change.result:
            cause = "With the delta applied, it does not have the digest that the delta gives."
            raise CorruptCheckpoint(cause, MAKE_AGAIN)


def is_delta(reader: Reader) -> bool:
    return reader.format == "shardvar" and DELTA in reader.metadata.user


def _read_table(reader: Reader) -> bytes:
    if TABLE not in reader:
        raise IncompleteCheckpoint(f"There is no tensor {TABLE!r}.", COPY_AGAIN)
    entries = reader.find(TABLE)
    tensors = entries.slices.tensors
    if tensors.dtype(0) != "uint8" or len(tensors.shape(0)) != 1:
        raise invalid(f"The tensor {TABLE!r} does not have one axis of bytes.")
    tensor = FlatTensor.of(reader.source, entries)
    table = new_buffer(tensor.nbytes)
    tensor.read(0, table)
    tensor.check()
    return bytes(table)


def delta_of_reader(reader: Reader) -> Delta:
    """Return the delta that an open checkpoint is, after checking what its table says."""
    for key, error in reader.faults.items():
        raise error.at(f"{reader.path}: {key!r}")
    with prefix_errors(reader.path):
        contents = Contents.decode(reader.metadata.user[DELTA], _read_table(reader))
    blocks = Blocks.of(reader)
    delta = Delta(reader, contents, blocks, blocks.tensors.rows())
    delta.check()
    return delta

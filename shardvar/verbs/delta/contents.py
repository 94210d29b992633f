"""The contents of a delta: a row for each tensor, with its digests before and after.

A delta is a native checkpoint. A text in its metadata, ``shardvar.delta``, marks it and names both
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any, Self

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
from shardvar.pictures.words import count, human_size, one_line, printable, short_name
from shardvar.planning.index import DELTA, EntryTable
from shardvar.records import asdict, entity, field, fields, frozen
from shardvar.verbs.compare.blocks import Blocks
from shardvar.verbs.problems import SCHEMA
from shardvar.verbs.reader import Reader, first_fault
from shardvar.verbs.reports import WriteReport, lines_of_requests
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

__all__ = ["ApplyReport", "DeltaReport", "TensorChange"]

VERSION = 1
TABLE, CHANGED_PREFIX, WHOLE_PREFIX = "table", "changed/", "whole/"
"""The keys of a delta's tensors."""
EQUAL, CHANGED, WHOLE, REMOVED = "equal", "changed", "whole", "removed"
"""The kinds of change of a tensor."""
MAKE_AGAIN = "Copy the delta again, or make it again: `shardvar delta A B OUT`."
"""The remedy for a delta whose digests are not of its tensors."""
_DIGEST = re.compile("[0-9a-f]{64}")
_MAX_DEPTH = 8


@frozen
class DeltaRow:
    key: str
    kind: str
    """``EQUAL``, ``CHANGED``, ``WHOLE`` or ``REMOVED``."""
    dtype: str
    """Its dtype after the change, or before it if it is removed."""
    shape: tuple[int, ...]
    base: str | None
    """Its digest before; None if it is new."""
    result: str | None
    """Its digest after; None if it is removed."""
    encoding: str = ""
    """The encoding of its blocks, such as Q8_0, after the change; empty for numbers."""
    path: tuple[str | int, ...] | None = None
    """The steps to its value in a nested value, if known."""
    tie: str | None = None
    """The key of another tensor of the result, whose bytes it has: tied weights."""

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor; 0 if its payload tells its own size."""
        # Exactly: Python's integers do not overflow.
        count, bits = prod(self.shape), PACKED_BITS.get(self.dtype)
        return int(ITEMSIZES[code(self.dtype)]) * count if bits is None else -(-count * bits // 8)

    @property
    def width(self) -> int:
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


@frozen
class Contents:
    """The rows of a delta, and the digests that they give."""

    changes: Mapping[str, DeltaRow]
    """The tensors of both checkpoints by key, in the order of the new one; removed ones follow."""
    base: str
    result: str
    user: Mapping[str, str]
    """The user's metadata of the new checkpoint."""

    @classmethod
    def of(cls, changes: Sequence[DeltaRow], user: Mapping[str, str]) -> Self:
        by_key = {each.key: each for each in changes}
        before = {key: each.base for key, each in by_key.items() if each.base is not None}
        after = {key: each.result for key, each in by_key.items() if each.result is not None}
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
    def decode(cls, mark: str, table: bytes) -> Self:
        """The contents by the metadata and the table of a delta; an error if they disagree."""
        head = parse_json(mark.encode("utf-8", "surrogateescape"), _MAX_DEPTH)
        if not isinstance(head, dict):
            raise malformed(f"The text {DELTA!r} of the metadata is not an object.")
        if head.get("version") != VERSION:
            raise UnsupportedError(
                f"The delta is of version {head.get('version')!r}, and this release reads version "
                f"{VERSION}.",
                "Update shardvar: `pip install -U shardvar`.",
            )
        digests = head.get("base"), head.get("result")
        if not all(map(_is_digest, digests)) or len(head) != 3:
            raise malformed(f"The text {DELTA!r} of the metadata has no two digests.")
        document = parse_json(table, _MAX_DEPTH)
        if not isinstance(document, dict) or {*document} != {"tensors", "metadata"}:
            raise malformed("The table is not an object of tensors and metadata.")
        rows, user = document["tensors"], document["metadata"]
        are_texts = isinstance(user, dict) and all(isinstance(each, str) for each in user.values())
        if not isinstance(rows, list) or not are_texts:
            raise malformed("The table's tensors are not a list, or its metadata are not texts.")
        changes: list[DeltaRow] = []
        for number, row in enumerate(rows):
            with prefix_errors(f"row {number} of the table"):
                changes.append(_decode_row(row))
        contents = cls.of(changes, user)
        if len(contents.changes) < len(changes):
            raise invalid("The table has a key twice.")
        for change in changes:
            if change.tie is not None:
                contents._check_tie(change, change.tie)
        if (contents.base, contents.result) != digests:
            raise corrupt("The digests of the tensors do not give the checkpoints' digests.")
        return contents

    def _check_tie(self, change: DeltaRow, tie: str) -> None:
        """Raise ``InvalidCheckpoint`` if a tied tensor cannot have the bytes of the other one."""
        other = self.changes.get(tie)
        if other is None or None in (change.result, other.result) or other.tie is not None:
            raise invalid(f"{change.key!r} is tied to {tie!r}, which is not in the result.")
        if (other.dtype, other.shape) != (change.dtype, change.shape):
            raise invalid(f"{change.key!r} is tied to {tie!r}, of another dtype or shape.")
        if OWN_SIZE[code(change.dtype)]:
            raise invalid(f"{change.key!r} is tied, and is of {change.dtype}.")


_FIELDS = {"kind", "dtype", "shape", "base", "result"}
_OPTIONAL = {"key", "key_bytes", "encoding", "path", "tie"}
_PRESENT = {  # kind: whether there is a digest before, and after; None for either
    EQUAL: (True, True),
    CHANGED: (True, True),
    WHOLE: (None, True),
    REMOVED: (True, False),
}


def _decode_row(row: Any) -> DeltaRow:
    if not isinstance(row, dict) or not {*row} >= _FIELDS:
        raise malformed("It lacks a field.")
    names = {*row} - _FIELDS
    if not names <= _OPTIONAL or len(names & {"key", "key_bytes"}) != 1:
        raise malformed("It has an unknown field, or no key.")
    key, kind, dtype, shape = row.get("key"), row["kind"], row["dtype"], row["shape"]
    if key is None:
        try:
            key = bytes.fromhex(row["key_bytes"]).decode("utf-8", "surrogateescape")
        except (ValueError, TypeError, KeyError):
            raise malformed("Its key is not in hexadecimal digits.") from None
    if not isinstance(key, str):
        raise malformed("Its key is not a text.")
    if not isinstance(kind, str) or kind not in _PRESENT:
        raise invalid(f"{kind!r} is not what becomes of a tensor.")
    digests = row["base"], row["result"]
    for digest, is_present in zip(digests, _PRESENT[kind], strict=True):
        is_right = digest is None or _is_digest(digest)
        if not is_right or (is_present is not None and (digest is not None) != is_present):
            raise invalid(f"{key!r} is {kind} and has wrong digests.")
    if kind == EQUAL and digests[0] != digests[1]:
        raise invalid(f"{key!r} is {kind} and has two digests.")
    if not isinstance(dtype, str) or dtype not in NAMES:
        raise UnsupportedError(f"The dtype {dtype!r} of {key!r} is not known.", "Update shardvar.")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise malformed("Its shape is not a list of extents.")
    if not all(type(each) is int and 0 <= each <= MAX_NBYTES for each in shape):
        raise invalid("An extent is not a number.")
    encoding, path, tie = row.get("encoding", ""), row.get("path"), row.get("tie")
    if not isinstance(path, list | None) or not all(
        type(each) in (str, int) for each in path or ()
    ):
        raise malformed("Its path is not a list of names and numbers.")
    if not isinstance(encoding, str):
        raise malformed("Its encoding is not a text.")
    if not isinstance(tie, str | None):
        raise malformed("Its tie is not a key.")
    steps = None if path is None else (*path,)
    change = DeltaRow(key, kind, dtype, (*shape,), *digests, encoding, steps, tie)
    if change.nbytes > MAX_NBYTES:
        raise invalid(f"{key!r} of the shape {shape} is too large to exist.")
    if kind == CHANGED and OWN_SIZE[code(dtype)]:
        raise invalid(f"{key!r} is of {dtype}, which is not changed in part.")
    return change


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and bool(_DIGEST.fullmatch(value))


@entity
class Delta:
    reader: Reader
    contents: Contents
    blocks: Blocks
    rows: Mapping[str, int]
    """The number of each tensor by its key."""
    _frames: dict[str, "TensorFrames"] = field(default_factory=dict)

    @classmethod
    def of(cls, reader: Reader, contents: Contents) -> Self:
        blocks = Blocks.of(reader)
        return cls(reader, contents, blocks, blocks.tensors.rows())

    @property
    def path(self) -> str:
        return self.reader.path

    def at(self, key: str) -> AbstractContextManager[None]:
        return prefix_errors(f"{self.path}: {key!r}")

    def stored_key(self, key: str) -> str:
        """The key of a changed or whole tensor in the delta, or of its tie."""
        change = self.contents.changes[key]
        prefix = CHANGED_PREFIX if change.kind == CHANGED else WHOLE_PREFIX
        tie = change.tie
        if tie is None or prefix + key in self.rows:
            return prefix + key
        return prefix + (tie if self.contents.changes[tie].kind == change.kind else key)

    def row_of(self, key: str) -> int:
        """The number of the changed or whole tensor of a key, after comparing it with the table."""
        change, name = self.contents.changes[key], self.stored_key(key)
        row = self.rows.get(name)
        if row is None:
            raise IncompleteCheckpoint(
                f"{self.path}: The table says that {key!r} is {change.kind}, and there is no "
                f"{name!r}.",
                COPY_AGAIN,
            )
        dtype, shape = self.blocks.tensors.fact(row)
        if change.kind == WHOLE and (dtype, shape) != (change.dtype, change.shape):
            raise invalid(
                f"{self.path}: {key!r} is stored as {dtype} of {list(shape)}, and the table says "
                f"{change.dtype} of {list(change.shape)}."
            )
        if change.kind == CHANGED and (dtype != "uint8" or len(shape) != 1):
            raise invalid(f"{self.path}: The frames of {key!r} are not bytes.")
        return row

    def stored(self, key: str) -> EntryTable:
        return self.blocks.entries_of([self.row_of(key)])

    def frames(self, key: str) -> "TensorFrames":
        if key not in self._frames:
            with self.at(key):
                change = self.contents.changes[key]
                flat = FlatTensor.of(self.reader.source, self.stored(key))
                self._frames[key] = TensorFrames.read(flat, change)
        return self._frames[key]

    def mask(self, key: str, leaf: int) -> MaskWords:
        with self.at(key):
            return self.frames(key).mask(leaf)


@entity
class TensorFrames:
    change: DeltaRow
    flat: FlatTensor
    by_leaf: Mapping[int, tuple[Frame, int]]
    """The frame of each leaf that differs, and the first byte of its body."""

    @classmethod
    def read(cls, flat: FlatTensor, change: DeltaRow) -> Self:
        beginning = new_buffer(min(4, flat.nbytes))
        flat.read(0, beginning)
        table = new_buffer(table_nbytes(beginning, flat.nbytes))
        flat.read(0, table)
        by_leaf, start = dict[int, tuple[Frame, int]](), len(table)
        for frame in decode_frames(table, flat.nbytes, change.nbytes):
            by_leaf[frame.leaf] = frame, start
            start += frame.nbytes
        check_leaves(change, {leaf: frame.digest for leaf, (frame, _) in by_leaf.items()})
        return cls(change, flat, by_leaf)

    def body(self, leaf: int) -> memoryview:
        frame, start = self.by_leaf[leaf]
        body = new_buffer(frame.nbytes)
        self.flat.read(start, body)
        return body

    def mask(self, leaf: int) -> MaskWords:
        frame, _ = self.by_leaf[leaf]
        nbytes = min(LEAF_NBYTES, self.change.nbytes - leaf * LEAF_NBYTES)
        width = self.change.width
        return decode_mask(frame.encoding, frame.num_changed, self.body(leaf), nbytes, width)


def check_leaves(change: DeltaRow, leaves: Mapping[int, bytes]) -> None:
    """Raise ``CorruptCheckpoint`` if the hashes of all leaves of a new tensor give another digest."""
    if len(leaves) == -(-change.nbytes // LEAF_NBYTES):
        hashes = b"".join(map(leaves.__getitem__, range(len(leaves))))
        if digest_of_leaves(change.key, change.dtype, change.shape, hashes) != change.result:
            cause = "With the delta applied, it does not have the digest that the delta gives."
            raise CorruptCheckpoint(cause, MAKE_AGAIN)


def is_delta(reader: Reader) -> bool:
    return reader.format == "shardvar" and DELTA in reader.metadata.user


def check_faults(reader: Reader) -> None:
    """Raise the error of a tensor that the index does not give whole, or else of a file."""
    for key, error in reader.faults.items():
        raise error.at(f"{reader.path}: {key!r}")
    if (fault := first_fault(reader)) is not None:
        raise fault.at(reader.path)


def delta_of_reader(reader: Reader) -> Delta:
    """Return an open checkpoint as a delta; an error unless it has the tensors of its table, and no others."""
    check_faults(reader)
    with prefix_errors(reader.path):
        if TABLE not in reader:
            raise IncompleteCheckpoint(f"There is no tensor {TABLE!r}.", COPY_AGAIN)
        entries = reader.find(TABLE)
        tensors = entries.slices.tensors
        if tensors.dtype(0) != "uint8" or len(tensors.shape(0)) != 1:
            raise invalid(f"The tensor {TABLE!r} does not have one axis of bytes.")
        flat = FlatTensor.of(reader.source, entries)
        table = new_buffer(flat.nbytes)
        flat.read(0, table)
        flat.check()
        contents = Contents.decode(reader.metadata.user[DELTA], bytes(table))
    delta = Delta.of(reader, contents)
    rest = {*delta.rows} - {TABLE}
    for key, change in contents.changes.items():
        if change.kind in (CHANGED, WHOLE):
            delta.row_of(key)
            rest.discard(delta.stored_key(key))
    if rest:
        raise invalid(f"{delta.path}: The table does not name the tensor {min(rest)!r}.")
    return delta


@frozen
class TensorChange:
    """The change of one tensor, and the form that is stored."""

    key: str
    """Its name."""
    kind: str
    """``"equal"``, ``"changed"``, ``"new"``, ``"whole"`` or ``"removed"``."""
    nbytes: int
    """The bytes of the tensor; 0 if it is removed."""
    stored_nbytes: int
    """The bytes that the delta has of it."""
    num_changed: int | None = None
    """The elements that differ, of a changed tensor."""
    num_positions: int = 0
    """The leaves whose change is stored as positions and values."""
    num_masks: int = 0
    """The leaves whose change is stored as the XOR of all bytes."""
    tie: str | None = None
    """The tensor whose bytes it has in the new checkpoint: tied weights. None if it has its own."""

    def to_json(self) -> dict[str, Any]:
        """Return the change as a JSON object with stable keys."""
        return asdict(self)


@frozen
class DeltaReport:
    """Report of ``delta``."""

    path: str
    """The delta."""
    base: str
    """The digest of the checkpoint before."""
    result: str
    """The digest of the checkpoint after."""
    tensors: tuple[TensorChange, ...]
    """The change of each tensor."""
    num_joined: int = 0
    """The deltas that were joined to this one; 0 if it was made of two checkpoints."""
    dry_run: bool = False
    """True if nothing was written."""
    dialect: str = ""
    """The dialect, if it is written for another program; empty for a delta of shardvar."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """As of ``WriteReport``."""

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors of the new checkpoint."""
        return sum(each.nbytes for each in self.tensors)

    @property
    def stored_nbytes(self) -> int:
        """The bytes that the delta has of them, without its table."""
        return sum(each.stored_nbytes for each in self.tensors)

    def __fspath__(self) -> str:
        """The path, so that the report may be given where the path is asked for."""
        return self.path

    def __str__(self) -> str:
        return "\n".join(lines_of_delta(self))

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with stable keys."""
        return {
            "schema": SCHEMA,
            "path": self.path,
            "base": self.base,
            "result": self.result,
            "nbytes": self.nbytes,
            "stored_nbytes": self.stored_nbytes,
            "num_joined": self.num_joined,
            "dry_run": self.dry_run,
            "dialect": self.dialect or None,
            "requests": self.requests,
            "tensors": [each.to_json() for each in self.tensors],
        }


@frozen
class ApplyReport(WriteReport):
    """Report of ``apply``, also of one that writes nothing."""

    notes: tuple[str, ...] = ()
    """Sentences about what was compared, and what could not be."""
    already: bool = False
    """True if the target was the result already, so that nothing was written."""

    def __str__(self) -> str:
        written = () if self.already else (WriteReport.__str__(self),)
        return "\n".join([*written, *map(one_line, self.notes)])


def apply_report(written: WriteReport, notes: tuple[str, ...]) -> ApplyReport:
    values = {each.name: getattr(written, each.name) for each in fields(written)}
    return ApplyReport(**values, notes=notes)


def lines_of_delta(report: DeltaReport, name: Callable[[str], str] = printable) -> Iterator[str]:
    done = "would write" if report.dry_run else "wrote"
    joined = f" of {report.num_joined} deltas" if report.num_joined else ""
    yield f"{done} {name(report.path)}{joined}: {summary_of(report)}"
    yield from lines_of_requests(report.requests)
    for each in report.tensors:
        if each.kind == EQUAL:
            continue
        details = f": {human_size(each.stored_nbytes)} for {human_size(each.nbytes)}"
        if each.kind == REMOVED:
            details = ""
        elif each.tie is not None and not each.stored_nbytes:
            details = f": tied to {short_name(each.tie)}"
        elif each.kind == CHANGED:
            ways = []
            if each.num_positions:
                some = f"{each.num_positions:,} by positions"
                ways.append(some if each.num_masks else "positions")
            if each.num_masks:
                ways.append(f"{each.num_masks:,} of all bytes" if ways else "all bytes")
            elements = count(each.num_changed or 0, "element")
            details = f": {elements}, {details[2:]}{', XOR of ' * bool(ways)}{' and '.join(ways)}"
        yield f"{each.kind}: {short_name(each.key)}{details}"


def summary_of(report: DeltaReport) -> str:
    """One line: how many tensors changed and how, and the sizes."""
    kinds = Counter(each.kind for each in report.tensors)
    total = count(len(report.tensors), "tensor")
    words = [f"{kinds[kind]:,} {kind}" for kind in (CHANGED, "new", WHOLE, REMOVED) if kinds[kind]]
    if [*kinds] == [EQUAL] or not kinds:
        return f"no change: {total} as in the base"
    words[0] = words[0].replace(" ", f" of {total} ", 1)
    share = f" ({report.stored_nbytes / report.nbytes:.2%})" if report.nbytes else ""
    sizes = f"{human_size(report.stored_nbytes)} for {human_size(report.nbytes)}{share}"
    return f"{', '.join(words)}; {sizes.replace('%', ' %')}"

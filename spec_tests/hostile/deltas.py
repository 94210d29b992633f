"""Deltas that lie or were harmed, each next to the base that it is given."""

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from spec_tests.helpers.native_checkpoints import write
from spec_tests.helpers.native_deltas import (
    POSITIONS,
    STORED,
    Draft,
    draft,
    files_of,
    frame,
    joined,
    pieces_of,
    planes,
    stored_stream,
)
from spec_tests.hostile.case import Case
from spec_tests.hostile.npz import deflated_zeros

OLD = np.arange(99, dtype=np.int16)
NEW = OLD.copy()
NEW[[7, 50]] = -1
A = {"w": OLD, "s": np.int64(1), "gone": np.zeros(2, np.int8), "v": NEW}
B = {"w": NEW, "s": np.int64(2), "new": np.ones(3, np.float32), "v": OLD}
ROW, BODY = frame(0, OLD.tobytes(), NEW.tobytes(), 2, POSITIONS)

Change = Callable[[Draft], object]


def row(made: Draft, key: str) -> dict[str, Any]:
    return next(each for each in made.rows if each["key"] == key)


def fields(key: str, **values: Any) -> Change:
    """A row with other fields."""
    return lambda made: row(made, key).update(values)


def payload(octets: bytes) -> Change:
    """Another payload of the changed tensor."""
    return lambda made: made.tensors.update({"changed/w": np.frombuffer(octets, np.uint8)})


def body(octets: bytes, encoding: int = POSITIONS, count: int = 2, leaf: int = 0) -> Change:
    """One frame with another body, and a row that agrees with it."""
    head = struct.pack("<IIII", leaf, encoding, len(octets), count)
    return payload(joined([(head + ROW[16:], octets)]))


def sparse(gaps: list[int], values: list[int]) -> bytes:
    """The body of positions and values."""
    return stored_stream(planes(np.array(gaps, "<u4")) + planes(np.array(values, "<u2")))


def bomb(count: int) -> bytes:
    """A zlib stream of a few kilobytes with ``count`` * 258 + 1 zeros behind two elements."""
    data = planes(np.array([7, 42], "<u4")) + planes(np.array([1, 1], "<u2"))
    whole = data + bytes(count * 258 + 1)
    return b"\x78\x01" + deflated_zeros(data, count) + struct.pack(">I", zlib.adler32(whole))


def lying_result(made: Draft) -> None:
    """A digest that no tensor has, in the row and in all that follows from it."""
    row(made, "new")["result"] = "0" * 64
    digests = sorted(bytes.fromhex(each["result"]) for each in made.rows if each["result"])
    made.mark["result"] = sha256(b"".join(digests)).hexdigest()


LIES: dict[str, tuple[str, str, Change]] = {
    "version": (
        "UnsupportedError",
        "A delta of version 2: it is read as if it were of version 1.",
        lambda made: made.mark.update(version=2),
    ),
    "mark": (
        "MalformedCheckpoint",
        "The text in the metadata names no base: any base is taken for the right one.",
        lambda made: made.mark.pop("base"),
    ),
    "kind": (
        "InvalidCheckpoint",
        "What became of a tensor is 'moved': an unknown kind is taken for the last one.",
        fields("w", kind="moved"),
    ),
    "removed": (
        "InvalidCheckpoint",
        "A removed tensor has a digest in the result.",
        fields("gone", result="0" * 64),
    ),
    "equal": (
        "InvalidCheckpoint",
        "An equal tensor has two digests: it is copied, and is not the one of the result.",
        fields("s", kind="equal"),
    ),
    "row_lost": (
        "CorruptCheckpoint",
        "A row of the table is lost: a tensor of the result is missing.",
        lambda made: made.rows.pop(),
    ),
    "row_twice": (
        "InvalidCheckpoint",
        "A key has two rows: readers disagree on which of them counts.",
        lambda made: made.rows.append(made.rows[0]),
    ),
    "base_lies": (
        "CorruptCheckpoint",
        "The digest of the base does not follow from the ones of its tensors.",
        lambda made: made.mark.update(base="0" * 64),
    ),
    "result_lies": (
        "CorruptCheckpoint",
        "The digest of a tensor of the result is another one, and the table agrees with it.",
        lying_result,
    ),
    "leaf_lies": (
        "CorruptCheckpoint",
        "The hash of a leaf is another one than the frame makes.",
        payload(joined([(ROW[:16] + bytes(32), BODY)])),
    ),
    "shape_huge": (
        "InvalidCheckpoint",
        "A tensor of 2^61 x 2^61 elements: sizes overflow.",
        fields("new", shape=[1 << 61, 1 << 61]),
    ),
    "whole_lost": (
        "IncompleteCheckpoint",
        "A tensor that the table calls whole is not in the delta: zeros are returned for it.",
        lambda made: made.tensors.pop("whole/new"),
    ),
    "whole_dtype": (
        "InvalidCheckpoint",
        "A whole tensor has another dtype than the table says.",
        lambda made: made.tensors.update({"whole/new": np.ones(3, np.int32)}),
    ),
    "stranger": (
        "InvalidCheckpoint",
        "A tensor that no row names: something is hidden in it.",
        lambda made: made.tensors.update({"whole/x": np.ones(3)}),
    ),
    "encoding": (
        "InvalidCheckpoint",
        "The encoding of a frame is 9: it is taken for the last one.",
        body(BODY, encoding=9),
    ),
    "count": (
        "InvalidCheckpoint",
        "The row says 3 changed elements, and the frame has 2.",
        body(BODY, count=3),
    ),
    "count_huge": (
        "InvalidCheckpoint",
        "The row says 2^32 - 1 changed elements: 24 GB are allocated for their planes.",
        body(BODY, count=0xFFFFFFFF),
    ),
    "count_of_zeros": (
        "InvalidCheckpoint",
        "An element of the mask is 0: what changes is not what is counted.",
        body(sparse([7, 42], [0, 1])),
    ),
    "outside": (
        "InvalidCheckpoint",
        "A position behind the end of the leaf: what lies behind the tensor is overwritten.",
        body(sparse([7, 99], [1, 1])),
    ),
    "gap_overflow": (
        "InvalidCheckpoint",
        "Gaps whose sum is inside the leaf in 32 bits: positions go back.",
        body(sparse([7, 0xFFFFFFFE], [1, 1])),
    ),
    "stream_longer": (
        "InvalidCheckpoint",
        "A stream unpacks to one byte more than follows from its row.",
        body(stored_stream(bytes(13))),
    ),
    "stream_shorter": (
        "InvalidCheckpoint",
        "A stream unpacks to one byte less: the last element is taken from what lies behind.",
        body(stored_stream(bytes(11))),
    ),
    "stream_cut": (
        "InvalidCheckpoint",
        "A stream without its end: its checksum is not compared.",
        body(BODY[:-4]),
    ),
    "stream_checksum": (
        "MalformedCheckpoint",
        "The checksum of a stream is wrong.",
        body(BODY[:-1] + bytes([BODY[-1] ^ 1])),
    ),
    "stream_and_more": (
        "InvalidCheckpoint",
        "Bytes follow a stream: something is hidden in them.",
        body(BODY + b"\0"),
    ),
    "stream_foreign": ("MalformedCheckpoint", "A body that is no stream of zlib.", body(bytes(9))),
    "bomb": (
        "InvalidCheckpoint",
        "A stream of 3 KB for two elements becomes half a megabyte, and could become gigabytes.",
        body(bomb(2000)),
    ),
    "stored_short": (
        "InvalidCheckpoint",
        "A mask as it is has fewer bytes than its leaf.",
        body(bytes(196), encoding=STORED),
    ),
    "frames_claim": (
        "MalformedCheckpoint",
        "The payload of a changed tensor claims 2^32 - 1 frames: 206 GB are read.",
        payload(b"\xff" * 4 + ROW + BODY),
    ),
    "frames_cut": (
        "InvalidCheckpoint",
        "The payload ends within its last body.",
        payload(joined([(ROW, BODY)])[:-1]),
    ),
    "frames_and_more": (
        "InvalidCheckpoint",
        "Bytes follow the last body: something is hidden in them.",
        payload(joined([(ROW, BODY)]) + b"\0"),
    ),
    "frames_none": (
        "MalformedCheckpoint",
        "The payload of a changed tensor is shorter than the number of its frames.",
        payload(b"\0\0"),
    ),
    "leaf_outside": (
        "InvalidCheckpoint",
        "A frame is of leaf 1, and the tensor has one leaf.",
        body(BODY, leaf=1),
    ),
    "leaf_twice": (
        "InvalidCheckpoint",
        "Two frames are of one leaf: the second one undoes the first, or is lost.",
        payload(joined([(ROW, BODY), (ROW, BODY)])),
    ),
}

LIES |= {
    "tie_lost": (
        "InvalidCheckpoint",
        "A tensor is tied to one that is not in the result.",
        fields("w", tie="gone"),
    ),
    "tie_of_itself": (
        "InvalidCheckpoint",
        "A tensor is tied to itself: a reader looks for its bytes for ever.",
        fields("w", tie="w"),
    ),
    "tie_shape": (
        "InvalidCheckpoint",
        "A tensor is tied to one of another dtype and shape.",
        fields("w", tie="new"),
    ),
    "tie_values": (
        "CorruptCheckpoint",
        "A tensor is tied to one of other values: it gets them.",
        fields("v", tie="w"),
    ),
}

TABLES: dict[str, tuple[str, str, bytes]] = {
    "table_foreign": ("MalformedCheckpoint", "The table is not JSON.", b"\x89PNG\r\n\x1a\n"),
    "table_nested": (
        "MalformedCheckpoint",
        "Four thousand nested lists in the table: a parser that recurses leaves the stack.",
        b"[" * 4_000,
    ),
    "table_form": ("MalformedCheckpoint", "The table is a list.", b"[]"),
    "table_twice": (
        "InvalidCheckpoint",
        "The table has a name twice: readers disagree on which of them counts.",
        b'{"tensors":[],"tensors":[],"metadata":{}}',
    ),
}

BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "base_values": (
        "The base has another element, which the delta does not change: it is in the result.",
        {**A, "w": np.where(OLD == 3, 4, OLD).astype(np.int16)},
    ),
    "base_dtype": (
        "The base has another dtype of the same size: its bytes are taken for the right ones.",
        {**A, "w": OLD.view(np.uint16)},
    ),
    "base_key": ("The base has one tensor more, which the result must not have.", {**A, "x": OLD}),
    "base_lost": ("The base lacks a tensor.", {key: A[key] for key in ("s", "gone", "v")}),
}


def delta_cases() -> Iterator[Case]:
    """Each delta ``d`` has its ``base`` in the same directory."""
    right = draft(A, B, {"w": POSITIONS, "v": POSITIONS})

    def case(name: str, error: str, why: str, made: Draft, base: Any, table: Any = None) -> Case:
        files = files_of(lambda folder: made.write(folder, "d", table))
        files |= files_of(lambda folder: write(folder, "base", pieces_of(base)))
        return Case(name, "d", error, why, files)

    for name, (error, why, change) in LIES.items():
        made = replace(
            right,
            tensors=dict(right.tensors),
            rows=json.loads(json.dumps(right.rows)),
            mark=dict(right.mark),
        )
        change(made)
        yield case(name, error, why, made, A)
    for name, (error, why, table) in TABLES.items():
        yield case(name, error, why, right, A, table)
    for name, (why, base) in BASES.items():
        yield case(name, "ArgumentError", why, right, base)

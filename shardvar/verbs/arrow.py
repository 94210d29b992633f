"""Columns as a stream of Apache Arrow, in the C data interface, with no library of Arrow.

    columns --_array--> one struct, whose children are the columns --arrow_stream--> a capsule

A consumer gets pointers into memory of this process, and calls ``release`` when it needs a struct
no more. Until then ``_held`` keeps its memory.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    PYFUNCTYPE,
    c_char_p,
    c_int,
    c_int64,
    c_void_p,
    py_object,
    pythonapi,
)
from functools import partial
from itertools import count
from typing import Any

import numpy as np

_Release = CFUNCTYPE(None, c_void_p)


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_END: Any = [("release", _Release), ("private_data", c_void_p)]
_Schema._fields_ = [
    *((name, c_char_p) for name in ("format", "name", "metadata")),
    *((name, c_int64) for name in ("flags", "n_children")),
    ("children", POINTER(POINTER(_Schema))),
    ("dictionary", c_void_p),
    *_END,
]
_Array._fields_ = [
    *((name, c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
    ("dictionary", c_void_p),
    *_END,
]
_Stream._fields_ = [
    *(
        (name, CFUNCTYPE(c_int, c_void_p, POINTER(kind)))
        for name, kind in (("get_schema", _Schema), ("get_next", _Array))
    ),
    ("get_last_error", CFUNCTYPE(c_char_p, c_void_p)),
    *_END,
]

_held: dict[int, Any] = {}
"""Memory that consumers have not released, by the number in ``private_data``."""
_numbers = count(1)

_NULLABLE = 2


def _release(kind: Any, address: int) -> None:
    struct = kind.from_address(address)
    for row in range(getattr(struct, "n_children", 0)):
        child = struct.children[row].contents
        if child.release:
            child.release(ctypes.addressof(child))
    number, struct.release = struct.private_data, _Release()
    _held.pop(number)


_RELEASES = {kind: _Release(partial(_release, kind)) for kind in (_Schema, _Array, _Stream)}


def _fill(struct: Any, held: Any, **fields: Any) -> Any:
    ctypes.memset(ctypes.addressof(struct), 0, ctypes.sizeof(struct))  # a consumer's has any bytes
    for name, value in fields.items():
        setattr(struct, name, value)
    struct.release, struct.private_data = _RELEASES[type(struct)], next(_numbers)
    _held[struct.private_data] = held
    return struct


def _pointers(structs: Sequence[Any], kind: Any) -> Any:
    return (POINTER(kind) * len(structs))(*map(ctypes.pointer, structs))


def _schema(into: Any, name: str, form: str, children: Sequence[Any] = ()) -> Any:
    pointers, texts = _pointers(children, _Schema), (form.encode(), name.encode())
    return _fill(
        into, (children, pointers, texts),
        format=texts[0], name=texts[1], flags=_NULLABLE, n_children=len(children), children=pointers,
    )  # fmt: skip


def _array(into: Any, valid: Any, buffers: Sequence[Any], children: Sequence[Any] = ()) -> Any:
    """Fill an array of ``valid``, True for each value that is not null, and its other buffers."""
    bits = np.packbits(valid, bitorder="little")
    kept = [np.append(each, np.zeros(8, each.dtype)) for each in (bits, *buffers)]  # never empty
    addresses = (c_void_p * len(kept))(*(each.ctypes.data for each in kept))
    pointers = _pointers(children, _Array)
    return _fill(
        into, (children, pointers, addresses, kept),
        length=len(valid), null_count=int(len(valid) - np.count_nonzero(valid)), offset=0,
        n_buffers=len(kept), buffers=addresses, n_children=len(children), children=pointers,
    )  # fmt: skip


def _column(values: Sequence[Any], kind: str) -> Any:
    valid = np.array([each is not None for each in values], np.bool)
    if kind == "int":
        return _array(_Array(), valid, [np.array([each or 0 for each in values], np.int64)])
    parts: list[Any] = [
        (b"" if kind == "text" else []) if each is None else each for each in values
    ]
    if kind == "text":
        parts = [
            each.encode("utf-8", "replace") if isinstance(each, str) else each for each in parts
        ]
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    if kind == "text":
        return _array(_Array(), valid, [starts, np.frombuffer(b"".join(parts), np.uint8)])
    flat = np.array([each for part in parts for each in part], np.int64)
    items = _array(_Array(), np.ones(len(flat), np.bool), [flat])
    return _array(_Array(), valid, [starts], [items])


_FORMS: dict[str, Callable[[str], Any]] = {
    "int": lambda name: _schema(_Schema(), name, "l"),
    "text": lambda name: _schema(_Schema(), name, "U"),
    "ints": lambda name: _schema(_Schema(), name, "+L", [_schema(_Schema(), "item", "l")]),
}


def arrow_stream(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str]) -> object:
    """Return a capsule with a stream of one batch of ``columns``, each of the kind ``int``, ``text``
    or ``ints``; None is null."""
    batches = [len(next(iter(columns.values())))]

    def get_schema(_stream: int, into: Any) -> int:
        _schema(into.contents, "", "+s", [_FORMS[kinds[name]](name) for name in columns])
        return 0

    def get_next(_stream: int, into: Any) -> int:
        if batches:
            valid = np.ones(batches.pop(), np.bool)
            children = [_column(values, kinds[name]) for name, values in columns.items()]
            _array(into.contents, valid, [], children)
        else:
            into.contents.release = _Release()
        return 0

    stream = _Stream()
    calls = {"get_schema": get_schema, "get_next": get_next, "get_last_error": lambda _stream: None}
    forms: dict[str, Any] = {field[0]: field[1] for field in _Stream._fields_}
    kept = {name: forms[name](function) for name, function in calls.items()}
    _fill(stream, (stream, kept), **kept)
    # Without a destructor, which Python would call with an error of the consumer pending: a capsule
    # that no consumer takes keeps its columns.
    return _new_capsule(ctypes.addressof(stream), b"arrow_array_stream", None)


_new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))

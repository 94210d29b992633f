"""States of training jobs: their keys, and their plain values, in any framework.

leaves     values of a state by their keys: the steps on the way to each, joined by dots
compare    the keys, shapes and dtypes of a state and of a checkpoint, before anything is read
portions   values that are read with one plan
objects    plain values of Python, and their encodings
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np

from shardvar.engine.cast import convert_into
from shardvar.errors import READ_ERRORS, ArgumentError, UnsupportedError, prefix_errors
from shardvar.layout.dtypes import Array, Shape, dtype_name, numpy_dtype
from shardvar.records import frozen
from shardvar.verbs.reader import Reader
from shardvar.verbs.together.run import without_keys_of_some
from shardvar.wire.damage import decoding, invalid
from shardvar.wire.plain import (
    ARRAY,
    MAX_TEXT,
    NUMPY_NAMES,
    OrderedMap,
    Size,
    Tagged,
    decode_value,
    encode_value,
    too_large,
)

PORTION_NBYTES = 1 << 28
"""The bytes that are read with one plan: many requests to a bucket, and a bound of the memory of
tensors that cannot be read in place."""

_NUMPY = NUMPY_NAMES | {"str_", "bytes_"}

Steps = tuple[str | int, ...]
"""The keys of dicts and the numbers of items that lead to a leaf."""


class PlacedLeaf(Protocol):
    @property
    def path(self) -> Steps:
        """The steps that lead to it."""


L = TypeVar("L", bound=PlacedLeaf)
T = TypeVar("T")


@frozen
class LoadReport:
    """The keys that a state and a checkpoint do not share."""

    missing: tuple[str, ...]
    """The keys that only the state has; their values are as before."""
    unexpected: tuple[str, ...]
    """The keys that only the checkpoint has."""


def by_key(leaves: Iterable[L]) -> dict[str, L]:
    found: dict[str, L] = {}
    for leaf in leaves:
        key = ".".join(map(str, leaf.path))
        if key in found:
            cause = f"The state has two values with the key {key!r}."
            raise ArgumentError(cause, "Rename one of them.")
        found[key] = leaf
    return found


def unmatched_keys(
    reader: Reader, keys: Collection[str], is_strict: bool, *, count: int
) -> LoadReport:
    """Raise if ``is_strict``. Of several processes, others may have a key that only some had."""
    stored = dict.fromkeys(reader)
    missing = tuple(key for key in keys if key not in stored)
    unexpected = tuple(key for key in stored if key not in keys)
    if is_strict and (missing or unexpected):
        lacking = unexpected
        if count > 1:
            with prefix_errors(reader.path):
                lacking = without_keys_of_some(unexpected, reader.metadata.user)
        if missing or lacking:
            parts = [
                f"{what} {', '.join(map(repr, keys[:3]))}{f' and {len(keys) - 3:,} more' * (len(keys) > 3)}"
                for what, keys in ((f"{reader.path} lacks", missing), ("the state lacks", lacking))
                if keys
            ]
            cause = f"{'; '.join(parts)}."
            raise ArgumentError(
                cause[0].upper() + cause[1:], "Give the state that was saved, or strict=False."
            )
    return LoadReport(missing, unexpected)


Fact = tuple[str, Shape]
"""The dtype and the shape of a tensor."""


def check_stored_tensor(path: str, key: str, stored: Fact, given: Fact, *, cast: bool) -> None:
    (name, full), (dtype, shape) = stored, given
    if full != shape:
        cause = f"{key!r} is {list(full)} in {path}, and {list(shape)} in the state."
        raise ArgumentError(cause, "Give the state the same shape.")
    if name != dtype and not cast:
        cause = f"{key!r} is {name} in {path}, and {dtype} in the state."
        raise ArgumentError(cause, "Give the state the same dtype, or cast=True.")


def cast_array(array: Array, dtype: str, key: str) -> Array:
    """Return an array of another dtype; ``UnsupportedError`` if more than precision is lost."""
    if dtype_name(array.dtype) == dtype:
        return array
    made = np.empty(array.size, numpy_dtype(dtype))
    convert_into(made, array.reshape(-1), key)
    return made.reshape(array.shape)


def in_portions(items: Iterable[T], nbytes: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    held = 0
    for item in items:
        if held >= PORTION_NBYTES:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += nbytes(item)
    if batch:
        yield batch


# --- Plain values of Python


def encode_object(value: Any) -> bytes:
    """Sets are sorted by encoding, so that they are equal in all processes.

    >>> encode_object({"b", "a"})
    b'{"set":["a","b"]}'
    """
    text = encode_value(Tagged("text", value) if type(value) is str else _plain(value))
    if len(text) > MAX_TEXT:
        raise too_large()
    return text.encode("ascii")


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str, bytes, bytearray):
        return value
    if kind in (list, tuple):
        return kind(map(_plain, value))
    if kind is dict:
        return {_plain(key): _plain(each) for key, each in value.items()}
    if kind in (set, frozenset):
        return Tagged(kind.__name__, sorted(map(_plain, value), key=encode_value))
    if isinstance(value, np.generic) and kind.__name__ in _NUMPY:
        return value
    cause = (
        f"It is an object of the class {kind.__module__}.{kind.__qualname__}, which is not plain."
    )
    raise UnsupportedError(
        cause, "Leave it out of the state, or give its settings as plain values."
    )


def objects_of(reader: Reader, keys: Collection[str]) -> dict[str, Any]:
    """Return plain values of a checkpoint; raise if one of the keys has none."""
    held = reader.source.objects({*keys}, "") or {}
    for key in keys:
        if key not in held:
            reader.find(key)  # raises why it cannot be read
            cause = f"{key!r} is a tensor in {reader.path}, and not in the state."
            raise ArgumentError(cause, "Give the state the same kind of value.")
    values = {}
    for key in keys:
        try:
            with decoding(lambda _: invalid("An item of its set is not hashable."), TypeError):
                values[key] = _python(decode_value(held[key].decode("ascii")))
        except READ_ERRORS as error:
            raise error.at(repr(key)) from None
    return values


def _python(value: Any) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(_python, value))
    if kind is Size:
        return tuple(value)
    if kind in (dict, OrderedMap):
        pairs = {_python(key): _python(each) for key, each in value.items()}
        return pairs if kind is dict else OrderedDict(pairs)
    if kind is not Tagged:
        return value
    if value.kind in ("set", "frozenset"):
        return (set if value.kind == "set" else frozenset)(map(_python, value.value))
    if value.kind == "text":
        return value.value
    if value.kind == ARRAY:
        name, shape, octets = value.value
        dtype = np.dtype(name)
        return np.frombuffer(octets, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    cause = f"It is a {value.kind}, which only PyTorch has."
    raise UnsupportedError(cause, "Leave it out of the state.")

"""Values of a state that this process holds: tensors and plain values, and a copy of them for a save in the
background.

    tensors   the local tensors of each (``leaves``), which a copy puts into memory that is kept
              between saves, pinned if a tensor is on a GPU
    objects   plain values, encoded when the state is read; values that never change, such as numbers
              and texts, only when they are written
"""

import gc
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch

from shardvar.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from shardvar.formats.torch.items import encoding_in
from shardvar.layout.dtypes import Array
from shardvar.planning.index import MOST_TIED
from shardvar.torch.leaves import (
    DTYPES_READ,
    Leaf,
    check_has_memory,
    held_by,
    is_divided,
    local_tensors,
    memory_of,
    numeric_arrays,
)
from shardvar.verbs.background import Staging, copy_arrays, new_pages
from shardvar.verbs.together.shares import LocalShard

_CONSTANTS = frozenset({int, float, bool, complex, str, bytes, type(None)})
"""The types of values that never change, and that any format has a word for."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The classes of tensors that are nothing but their elements."""
_SMALL_NBYTES = 1 << 20
"""Up to this size PyTorch copies a tensor: one call takes less time than what threads need."""


_SMALL_TIED_NBYTES = 1 << 16
"""Tensors below this size are not tied."""


class Encoded(bytes):
    __slots__ = ()


class HeldTensor(NamedTuple):
    """A tensor of a state, and the values that this process has of it."""

    key: str
    whole: Any
    """The tensor of the state: only its shape and its placements are read in a copy."""
    local: Sequence[Any]
    """The tensors with its values in this process, or copies of these."""

    def shards(self) -> list[LocalShard]:
        """Return the regions that this process is to write."""
        held, is_writer = held_by(self.key, self.whole, self.local)
        if not is_writer:
            return []
        # A tensor that is not divided may have another shape since it was copied.
        shape = tuple((self.whole if is_divided(self.whole) else held[0].values).shape)
        return [LocalShard(each.values.detach(), each.region.offset, shape) for each in held]


@dataclass(frozen=True, slots=True, eq=False)
class HeldState:
    tensors: Sequence[HeldTensor]
    objects: Mapping[str, Any]
    """The plain values: ``Encoded``, or of a type of constants."""
    paths: Mapping[str, tuple[str | int, ...]]
    ties: Mapping[str, str] = field(default_factory=dict)
    """The keys of tensors that are another one, each with the key of the one that is written."""

    def encoded(self, format: str) -> dict[str, bytes]:
        known: dict[tuple[type, str], bytes] = {}
        found: dict[str, bytes] = {}
        for key, value in self.objects.items():
            if type(value) is Encoded:
                found[key] = bytes(value)
                continue
            # Thousands of groups of an optimizer have the same few values. The text tells 0.0 from
            # -0.0.
            mark = type(value), repr(value)
            if mark not in known:
                known[mark] = encode_plain(key, value, format)
            found[key] = known[mark]
        return found


def held_state(leaves: Mapping[str, Leaf], format: str) -> HeldState:
    """Return the values that this process holds of a state; no tensor is copied."""
    tensors, objects = [], {}
    # torch's own format has arrays as objects.
    arrays = numeric_arrays(leaves) if format != "torch" else {}
    ties: dict[str, str] = {}
    same: dict[Any, list[str]] = {}
    with torch.no_grad():
        for key, leaf in leaves.items():
            value = arrays.get(key, leaf.value)
            if isinstance(value, torch.Tensor):
                try:
                    local = local_tensors(value)
                except ArgumentError as error:
                    raise error.at(repr(key)) from None
                check_has_memory(key, local)
                mark = _identity(value, local) if format == "shardvar" else None
                others = same.setdefault(mark, []) if mark else []
                others.append(key)
                if 1 < len(others) <= MOST_TIED:
                    ties[key] = others[0]
                    continue
                tensors.append(HeldTensor(key, value, local))
            elif type(value) in _CONSTANTS:
                objects[key] = value
            else:
                objects[key] = Encoded(encode_plain(key, value, format))
    paths = {key: leaf.path for key, leaf in leaves.items()}
    return HeldState(tensors, objects, paths, ties)


def _identity(tensor: Any, local: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return a mark that only tied tensors share; None if it is unknown, or the tensor is small."""
    # The whole tensor is measured, so that all processes find the same.
    if len(local) != 1 or type(local[0]) not in _PLAIN or hasattr(tensor, "local_shards"):
        return None
    mine = local[0]
    if mine.layout is not torch.strided or not mine.numel():
        return None
    if tensor.numel() * mine.itemsize < _SMALL_TIED_NBYTES:
        return None
    spread = (tensor.device_mesh, tensor.placements, tensor.shape) if is_divided(tensor) else ()
    kind = mine.dtype, mine.shape, mine.stride(), mine.is_conj(), mine.is_neg()
    return (mine.untyped_storage().data_ptr(), mine.storage_offset(), mine.device, *kind, spread)


def encode_plain(key: str, value: Any, format: str) -> bytes:
    """Return the encoding of a plain value; in torch's format other values as ``torch.save`` has
    them."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
    except Exception as error:  # of the methods of any class
        cause = f"{key!r} is a {type(value).__name__}, which cannot be saved: {error}."
        raise ArgumentTypeError(cause, "Leave it out of the state.") from error
    try:
        return encoding_in(buffer.getvalue())
    except UnsupportedError as error:
        if format == "torch":
            return buffer.getvalue()
        raise error.at(repr(key)) from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python's garbage collector wait inside."""
    # The values of thousands of tensors make it look through all objects of the program several
    # times, which takes longer than the copy. Nothing of them is garbage yet.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Copies:
    """Copies of tensors in memory that is kept, of one state at a time."""

    def __init__(self) -> None:
        self._memory = Staging()
        self._is_pinned = False
        self._kinds: list[tuple[Any, ...]] = []
        self._places: list[Any] = []
        self._most: int | None = None

    def copy(self, tensors: Sequence[HeldTensor], most: int | None) -> list[HeldTensor]:
        """Return the tensors with copies, of at most ``most`` bytes, that are valid until the next
        call."""
        local = [each for tensor in tensors for each in tensor.local]
        kinds = [(type(t), t.dtype, t.layout, t.device, t.shape) for t in local]
        if kinds != self._kinds or most != self._most:
            self._make_places(kinds, most)
        with torch.no_grad():
            copies = self._copy(local)
        rest = iter(copies)
        return [
            HeldTensor(tensor.key, tensor.whole, [next(rest) for _ in tensor.local])
            for tensor in tensors
        ]

    def _copy(self, local: Sequence[Any]) -> list[Any]:
        large: list[tuple[Array, Array]] = []
        copies = [*self._places]
        for number, (place, tensor) in enumerate(zip(copies, local, strict=True)):
            if place is None:
                # Of a class that has its own way to copy, or to be refused.
                copies[number] = tensor.detach().clone()
                continue
            into, found = place.large, None
            if into is not None:
                found = memory_of(tensor.detach())
            if into is None or found is None:
                place.tensor.copy_(tensor, non_blocking=True)
            else:
                large.append((into, found))
            copies[number] = place.tensor
        copy_arrays([into for into, _ in large], [found for _, found in large])
        for device in {kind[3] for kind in self._kinds}:
            if device.type not in ("cpu", "meta"):
                torch.get_device_module(device).synchronize(device)
        return copies

    def _make_places(self, kinds: list[tuple[Any, ...]], most: int | None) -> None:
        self._kinds, self._places = [], []  # before other memory is made
        # A copy of the elements of such a tensor is a copy of it.
        copied = [
            kind in _PLAIN
            and dtype in DTYPES_READ
            and layout is torch.strided
            and device.type != "meta"
            for kind, dtype, layout, device, _ in kinds
        ]
        is_pinned = any(kind[3].type == "cuda" for kind in kinds)
        if is_pinned != self._is_pinned:
            self._memory = Staging(_pinned_pages if is_pinned else new_pages)
            self._is_pinned = is_pinned
        sizes = [
            kind[4].numel() * kind[1].itemsize if is_copied else 0
            for kind, is_copied in zip(kinds, copied, strict=True)
        ]
        parts = self._memory.places(sizes, most)
        self._places = [
            _Place.of(part, kind[1], kind[4]) if is_copied else None
            for part, kind, is_copied in zip(parts, kinds, copied, strict=True)
        ]
        self._kinds, self._most = kinds, most


class _Place(NamedTuple):
    """A place in the memory, as a tensor, and if it is large as an array."""

    tensor: Any
    large: Array | None
    """The same memory, if threads of ``copy_arrays`` are to fill it."""

    @classmethod
    def of(cls, part: Array, dtype: Any, shape: Any) -> Self:
        tensor = torch.from_numpy(part).view(dtype).view(shape)
        return cls(tensor, memory_of(tensor) if part.nbytes > _SMALL_NBYTES else None)


def _pinned_pages(nbytes: int) -> Array:
    memory: Array = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return memory

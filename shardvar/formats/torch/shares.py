"""The part of a tensor that the file of one rank holds: placements, and their form in a pickle.

Placements follow the rules of ``torch.distributed.tensor``. A mesh is a grid of devices. A layout
has one placement for each axis of the mesh: along that axis of the mesh, the tensor is replicated,
or one axis of the tensor is cut.

    Shard(dim)                 the indices that earlier axes of the mesh left are cut as
                               ``torch.chunk`` does
    _StridedShard(dim, f)      they are cut into f intervals, and each of those into one a device; a
                               device holds one range of each of the f, one after the other

7 rows on 4 devices by Shard(0) are 2 2 2 1, and 2 rows 1 1 0 0. 8 rows on 2 devices by
_StridedShard(0, 2) are the rows 0 1 4 5 and 2 3 6 7.

FSDP2 over tensor parallelism has the placements (_StridedShard(0, f), Shard(0)), with f the number
of parts that tensor parallelism makes. But its devices hold what comes of cutting by the *last*
axis first, and then each part by the first one in one run. For some uneven sizes the two rules
differ: 7 rows on a mesh of (3, 2). ``strided_last=False`` is the rule of the placements,
``strided_last=True`` the rule of FSDP2. The shapes of what devices hold tell which of them a tensor
obeys.

In the pickle of a rank's file stands one of these:

    a plain tensor    all of it, as other ranks have it
    a DTensor         its own part; a mesh and placements tell which
    a ShardedTensor   some parts, each with its offsets

A DTensor and a ShardedTensor are made by one call, with its class, the dtype and the full shape as
arguments:

    torch._tensor._rebuild_from_type_v2(torch._utils._rebuild_wrapper_subclass, class, arguments,
        state)

The state of a DTensor has ``_local_tensor`` and ``_spec``: the mesh, and one placement for each of
its axes. The mesh has its extents in a tensor of ranks (until torch 2.8) or in a layout, and the
place of the rank that wrote the file. The state of a ShardedTensor is a tuple that begins with its
shards and its description.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, product
from math import prod
from typing import Any

from shardvar.errors import (
    InconsistentTensor,
    InvalidCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.formats.torch.source import TensorView
from shardvar.formats.torch.values import (
    FROM_TYPE,
    OF_RANKS,
    SUBCLASS,
    StoredTensor,
    dtype_of,
    tensor_of,
    unwrapped,
)
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.records import frozen
from shardvar.wire.damage import WRITE_AGAIN, badly_written, invalid
from shardvar.wire.plain import Global, Node

Runs = list[tuple[int, int]]
"""Half-open ranges of indices along one axis, in the order in which a device keeps them."""

_MAX_RUNS = 1 << 8  # The most ranges of a device along an axis: the parts of tensor parallelism


@frozen
class Placement:
    """The placement of one axis of a mesh."""

    dim: int | None = None  # The axis of the tensor that is cut; None if the tensor is replicated
    split_factor: int | None = None  # The split factor of a strided shard; None for a plain one


@frozen
class DeviceRegion:
    offset: tuple[int, ...]  # Its first indices, in the coordinates of the whole tensor
    shape: tuple[int, ...]
    inner: tuple[int, ...]  # Its first indices in the tensor that the device keeps


@frozen
class Spread:
    """A tensor that is spread over a mesh, seen from one device."""

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    coordinate: tuple[int, ...]  # The place of the device in the mesh
    placements: tuple[Placement, ...]

    def runs(self, strided_last: bool) -> list[Runs]:
        found = []
        for dim, extent in enumerate(self.shape):
            axes = [axis for axis, placement in enumerate(self.placements) if placement.dim == dim]
            if strided_last:
                plain = [axis for axis in axes if self.placements[axis].split_factor is None]
                axes = [*plain, *(axis for axis in reversed(axes) if axis not in plain)]
            runs = [(0, extent)]
            for axis in axes:
                factor = 1 if strided_last else self.placements[axis].split_factor or 1
                runs = _cut(runs, self.mesh[axis], self.coordinate[axis], factor)
            found.append(runs)
        return found

    @property
    def may_be_fsdp(self) -> bool:
        """Return True if FSDP2 over tensor parallelism has these split factors."""
        parts: dict[int | None, int] = {}  # that plain shards make along an axis
        for extent, placement in zip(self.mesh, self.placements, strict=True):
            if placement.split_factor is None:
                parts[placement.dim] = parts.get(placement.dim, 1) * extent
        strided = [placement for placement in self.placements if placement.split_factor is not None]
        return bool(strided) and all(
            placement.split_factor == parts.get(placement.dim, 1) for placement in strided
        )


def local_shape(runs: Sequence[Runs]) -> tuple[int, ...]:
    return tuple(map(_length, runs))


def held_regions(runs: Sequence[Runs]) -> Iterator[DeviceRegion]:
    """Yield the regions that a device holds, in C order of the tensor that it keeps.

    >>> [held] = held_regions([[(4, 7)], [(0, 5)]])
    >>> held.offset, held.shape, held.inner
    ((4, 0), (3, 5), (0, 0))
    """
    count = prod(map(len, runs))
    if count > _MAX_RUNS:
        raise UnsupportedError(
            f"It lies on a device in {count} regions.", "Gather it with torch before it is saved."
        )
    starts = [[*accumulate((high - low for low, high in axis), initial=0)][:-1] for axis in runs]
    for chosen, inner in zip(product(*runs), product(*starts), strict=True):
        yield DeviceRegion(
            tuple(low for low, _ in chosen), tuple(high - low for low, high in chosen), inner
        )


def _cut(runs: Runs, count: int, index: int, factor: int) -> Runs:
    if factor * len(runs) > _MAX_RUNS:
        raise UnsupportedError(
            f"It is a strided shard of {factor} parts.", "Gather it with torch before it is saved."
        )
    length = _length(runs)
    joined: Runs = []
    for part in range(factor):
        low, high = _interval(length, factor, part)
        start, stop = (low + at for at in _interval(high - low, count, index))
        # The indices at positions [start, stop) of the runs, neighbours joined.
        position = 0
        for begin, end in runs:
            first = begin + max(start - position, 0)
            last = min(begin + stop - position, end)
            position += end - begin
            if first < last and joined and joined[-1][1] == first:
                joined[-1] = joined[-1][0], last
            elif first < last:
                joined.append((first, last))
    return joined or [(0, 0)]


def _interval(length: int, count: int, index: int) -> tuple[int, int]:
    """Return one interval of ``torch.chunk``, without making all of them."""
    size = -(-length // count)
    return min(index * size, length), min((index + 1) * size, length)


def _length(runs: Runs) -> int:
    return sum(high - low for low, high in runs)


_DTENSORS = {
    f"torch.distributed.{name}"
    for name in ("tensor.DTensor", "tensor._api.DTensor", "_tensor.DTensor", "_tensor.api.DTensor")
}
_SHARDED = {"torch.distributed._shard.sharded_tensor.api.ShardedTensor"}
_PLACEMENTS = tuple(
    f"torch.distributed.{package}.placement_types." for package in ("tensor", "_tensor")
)
_MAX_RANKS = 1 << 20
_GATHER = "Save it as a plain tensor: `tensor.full_tensor()`."

ViewOf = Callable[[StoredTensor], TensorView]


@frozen
class Share:
    dtype: str
    shape: tuple[int, ...]  # The full shape
    views: tuple[TensorView, ...]
    """The tensors that the rank keeps: one, or the shards of a ShardedTensor."""
    offsets: tuple[tuple[int, ...], ...] | None = None
    """The first indices of each shard of a ShardedTensor; None for other tensors."""
    spread: Spread | None = None  # The place of the part of a DTensor; None for other tensors

    @property
    def kind(self) -> str:
        if self.spread:
            return "a DTensor"
        return "a plain tensor" if self.is_plain else "a ShardedTensor"

    @property
    def is_plain(self) -> bool:
        """Return True if every rank should hold all of it."""
        return self.spread is None and self.offsets is None

    @property
    def words(self) -> str:
        return f"{self.kind} of {self.dtype} and shape {self.shape}"


def share_of(value: Node, rank: int | None, view: ViewOf) -> Share:
    """Return the part of a tensor in the file of a rank; ``rank`` is None if it is unknown."""
    value = unwrapped(value)
    args = value.args if type(value.args) is tuple and len(value.args) == 4 else (None,) * 4
    function, kind, described, state = args
    if value.name != FROM_TYPE or type(function) is not Global or function.name != SUBCLASS:
        tensor = tensor_of(value)
        return Share(tensor.dtype, tensor.shape, (view(tensor),))
    name = kind.name if type(kind) is Global else None
    if name not in _DTENSORS | _SHARDED:
        raise UnsupportedError(f"It is a tensor of the class {name}.", "Save it as a plain tensor.")
    if type(described) is not tuple or len(described) < 3 or type(described[1]) is not Global:
        raise badly_written("Its description has no dtype or no shape.")
    dtype, shape = dtype_of(described[1].name), sizes(described[2])
    make = _dtensor if name in _DTENSORS else _sharded
    share = make(dtype, shape, state, rank, view)
    others = [part.tensor.dtype for part in share.views if part.tensor.dtype != dtype]
    if others:
        raise InconsistentTensor(
            f"It is of dtype {dtype}, and a part of it of {others[0]}.", WRITE_AGAIN
        )
    return share


def whole_of(value: Node, view: ViewOf) -> TensorView:
    share = share_of(value, None, view)
    is_first = not any(map(any, share.offsets or ()))
    if is_first and len(share.views) == 1 and share.views[0].tensor.shape == share.shape:
        return share.views[0]
    raise UnsupportedError(f"The file holds a part of {share.words}.", OF_RANKS)


def _dtensor(
    dtype: str, shape: tuple[int, ...], state: Any, rank: int | None, view: ViewOf
) -> Share:
    fields = _attributes(state)
    local, spec = fields.get("_local_tensor"), _state(fields.get("_spec"))
    if type(local) is not Node or type(spec.get("placements")) not in (tuple, list):
        raise badly_written("It is a DTensor without a local tensor or placements.")
    extents, coordinate = _mesh(_state(spec.get("mesh")), rank)
    placements = tuple(_placement(value, len(shape)) for value in spec["placements"])
    if len(placements) != len(extents):
        raise invalid(f"It has {len(placements)} placements on a mesh of {len(extents)} axes.")
    spread = Spread(shape, extents, coordinate, placements)
    return Share(dtype, shape, (view(tensor_of(local)),), spread=spread)


def _mesh(mesh: dict[Any, Any], rank: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the extents of a mesh, and the place in it of the rank that wrote the file."""
    _check_rank(mesh.get("_rank"), rank)
    ranks = mesh.get("mesh", mesh.get("_mesh"))
    if type(ranks) is Node:
        extents = tensor_of(ranks).shape
    else:
        layout = _state(mesh.get("_layout"))
        axes, shapes = layout.get("axes"), layout.get("shape")
        if isinstance(axes, tuple):
            shapes = tuple(_state(axis).get("shape") for axis in axes)
        # An axis that was flattened has several numbers.
        extents = tuple(
            prod(sizes(shape if isinstance(shape, tuple) else (shape,), _MAX_RANKS))
            for shape in (shapes if isinstance(shapes, tuple) else (shapes,))
        )
    coordinate = sizes(mesh.get("_coordinate_on_dim"))
    if len(coordinate) != len(extents) or any(
        at >= extent for at, extent in zip(coordinate, extents, strict=True)
    ):
        cause = f"Its device is at {coordinate}, outside of a mesh of {extents}."
        raise OutOfBounds(cause, WRITE_AGAIN)
    return extents, coordinate


def _check_rank(claimed: Any, rank: int | None) -> None:
    if type(claimed) is int and rank is not None and claimed != rank:
        cause = (
            f"It says that rank {claimed} wrote it, and the name of the file that rank {rank} did."
        )
        raise InvalidCheckpoint(cause, "Give each file its own name again.")


def _placement(value: Any, rank: int) -> Placement:
    name = value.name if type(value) is Node and type(value.name) is str else ""
    kind = next(
        (name.removeprefix(package) for package in _PLACEMENTS if name.startswith(package)), name
    )
    args = value.args if name and type(value.args) is tuple else ()
    fields = dict(zip(("dim", "split_factor"), args, strict=False)) | _state(value)
    return read_placement(kind.removeprefix("_"), fields, rank)


def read_placement(kind: Any, fields: Mapping[Any, Any], rank: int) -> Placement:
    if kind == "Replicate":
        return Placement()
    if kind not in ("Shard", "StridedShard"):
        why = "Each rank holds a term of a value that was never computed."
        cause = f"It has the placement {kind or None!r}. {why if 'Partial' in str(kind) else ''}"
        raise UnsupportedError(cause.rstrip(), _GATHER)
    dim: Any = fields.get("dim")
    factor = fields.get("split_factor") if kind == "StridedShard" else None
    is_axis = type(dim) is int and -rank <= dim < rank
    if not is_axis or (kind != "Shard" and (type(factor) is not int or factor < 1)):
        raise invalid(
            f"Its placement {kind} names the axis {dim!r} of {rank}, or the split factor "
            f"{factor!r}."
        )
    return Placement(dim % rank, factor)


def _sharded(
    dtype: str, shape: tuple[int, ...], state: Any, rank: int | None, view: ViewOf
) -> Share:
    shards = state[0] if type(state) is tuple and state else None
    if type(shards) is not list:
        raise badly_written("It is a ShardedTensor without a list of shards.")
    views, offsets = [], []
    for shard in map(_state, shards):
        about, tensor = _state(shard.get("metadata")), shard.get("tensor")
        _check_rank(_state(about.get("placement")).get("_rank"), rank)
        if type(tensor) is not Node:
            raise badly_written("A shard of it has no tensor.")
        views.append(view(tensor_of(tensor)))
        offsets.append(sizes(about.get("shard_offsets")))
        held = views[-1].tensor.shape
        if held != sizes(about.get("shard_sizes")) or len(held) != len(offsets[-1]):
            raise invalid(f"A shard of it has the shape {held}, unlike its description.")
    return Share(dtype, shape, tuple(views), tuple(offsets))


def _state(value: Any) -> dict[Any, Any]:
    return _attributes(value.state) if type(value) is Node else {}


def _attributes(state: Any) -> dict[Any, Any]:
    """Return attributes; a class with slots has them as the second of two."""
    if type(state) is tuple and len(state) == 2:
        state = state[1] if state[0] is None else state[0]
    return state if isinstance(state, dict) else {}


def sizes(value: Any, most: int = MAX_NBYTES) -> tuple[int, ...]:
    """Return the integers, each at least 0 and at most ``most``, of a shape or the like."""
    if not isinstance(value, tuple | list) or len(value) > MAX_RANK:
        raise badly_written("Its shape, its offsets or its mesh are not lists of numbers.")
    if any(type(number) is not int or not 0 <= number <= most for number in value):
        raise badly_written("Its shape, its offsets or its mesh have a number out of bounds.")
    return tuple(value)

"""Codes of a quantised tensor, and the stored tensors around them.

``Coded`` answers the questions of the functions that build tensors (``schemes``): is a tensor
there, has it the dtype and the shape that the codes need, which values has a small one. An answer
that does not fit is a fault of the codes, by their key and scheme. Tensors are named without
their ``prefix``.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, prod
from typing import Any

from shardvar.engine.quantised import Packing, Plane, Quantised, values_of
from shardvar.errors import InvalidCheckpoint, ReadError, UnsupportedError
from shardvar.layout.dtypes import ITEMSIZES, Array, Shape, code
from shardvar.pictures.words import human_shape
from shardvar.records import field, frozen, mutable, replace
from shardvar.verbs.parameters import layer_of

DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes that numbers may get."""

CONFIG = "config.json"
"""The file of Hugging Face that describes a model."""

KEEP = "Leave it out with a filter, or read it as it is stored, without dequantizing."

_MOST = 1 << 56
"""The most elements of a tensor."""
ALL = 1 << 62
"""An extent of a block that has all rows, or all columns."""
E8M0 = "float8_e8m0fnu"
Block = tuple[int, int]
Step = tuple[str, Plane | float]


@frozen
class Model:
    method: str = ""  # The scheme of quantisation; empty without one
    block: Block = (128, 128)  # The rows and columns that share a scale, as in DeepSeek-V3
    dtype: str = ""  # The dtype of the model; empty if it names none
    config: str = CONFIG  # The file that names the scheme
    described: Mapping[str, Any] = field(default_factory=dict)  # The description of quantisation


@frozen
class StoredTensors:
    facts: Mapping[str, tuple[str, Shape]]  # Their dtypes and shapes
    layers: Mapping[str, list[str]]  # Their names, by layer
    model: Model
    wrong: Mapping[str, ReadError]  # The keys that cannot be read
    small: Mapping[str, Array]  # The values of small tensors that describe others
    user: Mapping[str, str]  # The metadata of the file
    torchao: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """By the key of a part: the key of its numbers, and their description."""
    comfy: Mapping[str, Any] | None = None
    """The formats of layers in ComfyUI's metadata; None without these."""
    marks: Sequence[str] = ()
    """The beginnings of the keys that a ``scaled_fp8`` of ComfyUI stands for."""


@mutable
class Coded:
    """The tensors around codes, of which a tensor is built."""

    stored: StoredTensors
    key: str  # The key of the codes
    scheme: str
    members: list[str] = field(default_factory=list)  # The keys of the tensors that were taken
    prefix: str = ""  # The beginning of their keys: the layer, unless the scheme has another one

    def __post_init__(self) -> None:
        self.prefix = self.base

    @property
    def dtype(self) -> str:
        return self.stored.facts[self.key][0]

    @property
    def shape(self) -> Shape:
        return self.stored.facts[self.key][1]

    @property
    def model(self) -> Model:
        return self.stored.model

    @property
    def base(self) -> str:
        return layer_of(self.key)[0]

    @property
    def name(self) -> str:
        return self.base[:-1]

    def has(self, name: str) -> bool:
        return self.prefix + name in self.stored.facts

    def fault(self, cause: str, remedy: str = "") -> InvalidCheckpoint:
        return InvalidCheckpoint(
            f"{self.key!r} ({self.scheme}): {cause}", f"{remedy} {KEEP}".lstrip()
        )

    def not_a_matrix(self, shape: Shape) -> InvalidCheckpoint:
        return self.fault(f"It has the shape {human_shape(shape)}, and must be a matrix.")

    def refusal(self, cause: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self.key!r} is quantised with {self.scheme}, which shardvar does not dequantize: {cause}.",
            KEEP,
        )

    def undescribed(self, cause: str = "does not describe it") -> UnsupportedError:
        return self.refusal(f"{self.model.config} {cause}")

    def key_of(self, name: str) -> str:
        return name if name == self.key else self.prefix + name

    def need(self, name: str, dtypes: Iterable[str]) -> tuple[str, Shape]:
        key = self.key_of(name)
        if key in self.stored.wrong:
            raise self.stored.wrong[key].at(repr(self.key))
        if key not in self.stored.facts:
            raise self.fault(f"{key!r} is not there.", "Add the file that has it.")
        dtype, shape = self.stored.facts[key]
        if dtype not in dtypes:
            raise self.fault(
                f"{key!r} is {dtype}, which is not one of {', '.join(sorted(dtypes))}."
            )
        self.members += [key] if key not in (self.key, *self.members) else []
        return dtype, shape

    def plane(
        self,
        name: str,
        matrix: Sequence[int],
        dtypes: Iterable[str],
        blocks: Sequence[Block] = ((1, 1),),
        **more: Any,
    ) -> Plane:
        """The plane of a tensor: one number for each block, of the first size that fits. Bytes are
        exponents, unless they have a ``packing``."""
        key, (dtype, shape) = self.key_of(name), self.need(name, dtypes)
        if dtype == "uint8":
            more = {"packing": Packing(8, values_of(E8M0))} | more
        itemsize, wanted = int(ITEMSIZES[code(dtype)]), dict[str, None]()
        for block, grid in _grids(as_matrix(matrix), blocks):
            plane = Plane(key, grid, **more, block=block)
            stored = plane.stored_shape(itemsize)
            if _long_axes(shape) == _long_axes(stored):
                return plane
            wanted[human_shape(stored)] = None
        raise self.fault(
            f"{key!r} has the shape {human_shape(shape)}, and weights of {human_shape(matrix)} "
            f"need {' or '.join(wanted)}.",
            f"The size of blocks is in {self.model.config}.",
        )

    def groups(self, name: str, extent: int, axis: int = -1) -> dict[str, Any]:
        """The fields of a plane whose blocks have an order of their own, if a tensor holds it."""
        if not self.has(name):
            return {}
        return {"groups": self.plane(name, (1, extent), {"int32", "int64"}).key, "axis": axis}

    def small(self, name: str, dtypes: Iterable[str]) -> Array:
        self.need(name, dtypes)
        if (values := self.stored.small.get(self.prefix + name)) is None:
            raise self.fault(f"The values of {self.prefix + name!r} cannot be read.")
        return values.reshape(-1)

    def number(self, name: str) -> int:
        values = self.small(name, {"int32", "int64", "uint8"})
        if values.size != 1:
            raise self.fault(
                f"{self.prefix + name!r} has {values.size} numbers, and must have one."
            )
        return int(values[0])

    def text(self, name: str) -> str:
        return self.small(name, {"uint8"}).tobytes().decode("utf-8", "replace")

    def factor(self, name: str) -> Plane:
        """One number for all, which must be finite and positive."""
        values = self.small(name, {"float32"}).tolist()
        if len(values) == 1 and not (isfinite(values[0]) and values[0] > 0):
            raise self.fault(
                f"The scale {values[0]} of {self.prefix + name!r} is not a positive number."
            )
        return replace(self.plane(name, (1, 1), {"float32"}), block=(ALL, ALL))

    def of(self, kind: str, matrix: Shape, *steps: Step, **more: Any) -> Quantised:
        """The tensor of a matrix of codes: of its shape and as the weight of the layer, without others."""
        packing = more.pop("packing", None)
        more = {"key": f"{self.base}weight", "shape": matrix} | more
        if prod(max(extent, 1) for extent in more["shape"]) > _MOST:
            raise self.fault(f"Its numbers have the shape {human_shape(more['shape'])}.")
        plane = self.plane(self.key, matrix, {self.dtype}, steps=steps, packing=packing)
        return Quantised(plane=plane, members=(self.key, *self.members), kind=kind, **more)

    def columns(self, bits: int) -> Shape:
        """The shape of the matrix whose rows are packed in the elements of its codes."""
        *rows, last = as_matrix(self.shape)
        room = 8 * int(ITEMSIZES[code(self.dtype)]) * last
        if len(self.shape) < 2 or room % bits:
            raise self.fault(f"Rows of {last} elements hold no codes of {bits} bits.")
        return (*rows, room // bits)

    def group_block(self, matrix: Shape, size: Any) -> Block:
        columns = as_matrix(matrix)[-1]
        if type(size) is not int or size < 1 or columns % size:
            raise self.fault(f"Rows of {columns} numbers are not cut by groups of {size!r}.")
        return (1, size)


def _grids(matrix: Shape, blocks: Sequence[Block]) -> Iterable[tuple[Block, Shape]]:
    *lead, rows, columns = matrix
    for height, width in blocks:
        grid = -(-rows // height), -(-columns // width)
        block = min(height, max(rows, 1)), min(width, max(columns, 1))
        yield block, (*lead, *grid)
        if height >= rows and width >= columns:  # one for several matrices
            yield block, (*(1 for _ in lead), *grid)


def _long_axes(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def is_block(block: Any) -> bool:
    """Return True for a list of two extents, as descriptions of models have it."""
    return (
        isinstance(block, list)
        and len(block) == 2
        and all(type(each) is int and each > 0 for each in block)
    )


def as_matrix(shape: Sequence[int]) -> Shape:
    return (1,) * (2 - len(shape)) + tuple(shape)


def as_object(value: Any) -> Mapping[str, Any]:
    """The value, if it is an object of JSON; an empty one for others."""
    return value if isinstance(value, dict) else {}

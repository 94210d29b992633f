"""Tensors and plain objects, from the inert nodes of a pickle, and the reverse; torch's dtypes.

A tensor is a view of a storage: an offset, a shape and strides, all in elements. The pickle makes
it by one of these calls, whose names are compared whole; a storage is a reference ("storage",
class, record, location, size):

    torch._utils._rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, flags])
    torch._utils._rebuild_tensor_v3(storage, offset, shape, strides, requires_grad, hooks, dtype[,
        flags])
    torch._utils._rebuild_parameter(tensor, requires_grad, hooks)
    torch._tensor._rebuild_from_type_v2(function, type, arguments, state)

``flags`` may mark the tensor as the conjugate, or the negative, of the stored elements. The size
of a typed storage counts elements, the size of an untyped one bytes. The location, such as "cuda:3",
tells where the tensor was.

An array of NumPy is a tensor whose elements are in the pickle. In protocol 5 it is a call of the
bytes, the dtype and the shape; in older ones an empty array, which then gets a state:

    numpy._core.multiarray._reconstruct(class, (0,), b"b"), (1, shape, dtype, is Fortran, bytes)
    numpy._core.numeric._frombuffer(bytes, dtype, shape, order)

Anything else is an object. A *plain* one is made of None, numbers, text and bytes; of lists, tuples,
dicts and sets of them; and of the few classes that programs keep with their tensors:

    torch.Size, OrderedDict       ``wire.plain`` tells them apart
    torch.dtype                   a name
    torch.device                  a call of the type, and perhaps the number
    argparse.Namespace            an instance, whose state is a dict
    scalar of NumPy               a call of a dtype and the bytes
    array of NumPy                as above: in the state of a generator of random numbers
    io.BytesIO                    an instance, whose state begins with its bytes

An object of any other class is refused, and the error names the class. Values may be nested, shared
and cyclic as the file likes, so their depth and their size are bounded while they are copied.
"""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Self

import numpy as np

from shardvar.errors import (
    CheckpointError,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.formats.leaves import is_generator_state
from shardvar.layout.dtypes import ITEMSIZES, NAMES, TORCH_ONLY, Shape, code
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.records import frozen, mutable
from shardvar.wire.damage import WRITE_AGAIN, badly_written, distrusted
from shardvar.wire.opcode_writer import Call, Instance
from shardvar.wire.plain import (
    ARRAY,
    MAX_DEPTH,
    MAX_TEXT,
    NUMPY_NAMES,
    SIZE,
    Global,
    Node,
    OrderedMap,
    Reference,
    Size,
    Tagged,
    tagged_array,
    too_large,
)

# Dtypes.
_SAME = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 "
    "complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
).split()

DTYPES = {f"torch.{name}": name for name in (*_SAME, *TORCH_ONLY)}
"""The name of a dtype, by the name that a pickle imports."""

STORAGES = {
    f"torch.{name}Storage": dtype
    for name, dtype in {
        "Half": "float16",
        "Float": "float32",
        "Double": "float64",
        "BFloat16": "bfloat16",
        "Byte": "uint8",
        "Char": "int8",
        "Short": "int16",
        "Int": "int32",
        "Long": "int64",
        "Bool": "bool",
        "ComplexFloat": "complex64",
        "ComplexDouble": "complex128",
    }.items()
}
"""The dtype of a storage, by the name of its class."""

UNTYPED_STORAGE = "torch.storage.UntypedStorage"
"""The class of a storage whose size counts bytes; the tensor names the dtype."""


def dtype_of(name: str) -> str:
    dtype = DTYPES.get(name)
    if dtype is None or dtype not in NAMES:
        cause = f"It has the dtype {name}, which shardvar does not read."
        raise UnsupportedError(cause, "Cast the tensor with torch before it is saved.")
    return dtype


# The calls that make a tensor, by their full names. They are tuples and not sets: the name of a
# call may be any value, also one that has no hash.
_TENSOR_V3 = "torch._utils._rebuild_tensor_v3"
_TENSORS = ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", _TENSOR_V3)
"""Calls whose first argument is a storage."""
WRAPPED = (
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
)
"""Calls whose first argument is a tensor."""
FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
"""The call whose arguments are another call, its class and its arguments."""
_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
"""The classes with which ``FROM_TYPE`` makes a plain tensor."""
CALLS = (*_TENSORS, *WRAPPED, FROM_TYPE)
_EMPTY_ARRAYS = ("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct")
"""The function that makes an empty array of NumPy, by its names in NumPy 2 and 1."""
_BUFFERS = ("numpy._core.numeric._frombuffer", "numpy.core.numeric._frombuffer")
"""The function that makes an array of its bytes."""
ARRAYS = (*_EMPTY_ARRAYS, *_BUFFERS)
_ARRAY_CLASSES = re.compile(
    r"numpy\.(?:ndarray|(?:matrixlib\.defmatrix\.)?matrix|(?:_?core\.)?(?:memmap\.)?memmap)"
)
"""The classes of arrays that are nothing but their elements."""
_NUMPY_DTYPE = re.compile(r"[<>=|]?(?:b1|[iu][1248]|f[248]|c8|c16|[US][0-9]{1,7})", re.ASCII)
"""The dtypes of scalars that are plain values, and of arrays, which lack texts."""
SUBCLASS = "torch._utils._rebuild_wrapper_subclass"
"""The function that makes a tensor of a subclass, such as a DTensor."""

# Remedies of errors.
_PLAIN = "Save it as a plain tensor."
OF_RANKS = (
    "Put the files of all ranks into one folder, under names such as model_world_size_4_rank_0.pt, "
    "or save it as a plain tensor: `tensor.full_tensor()`."
)


_SAVE_PARTS = (
    "Save what it holds as tensors, numbers and text; of a module, its state dict: "
    "`module.state_dict()`."
)
_SAVE_TENSOR = "Save it as a tensor: `torch.as_tensor(value)`."


def of_builtins(*names: str) -> tuple[str, ...]:
    """Return the full names of built-in functions, in Python 3 and, for protocol 2, in Python 2.

    >>> of_builtins("set")
    ('builtins.set', '__builtin__.set')
    """
    return tuple(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in names)


# Other calls.
_RUNNING = frozenset(
    "__builtin__ _pickle bdb builtins cProfile code codeop commands ctypes ftplib functools http "
    "importlib io marshal multiprocessing nt operator os pdb pickle pip posix pty pydoc runpy "
    "shelve shutil socket subprocess sys tempfile timeit types urllib webbrowser".split()
)
"""Modules of Python whose functions a pickle calls only to do harm; little of them is data."""
_HARMLESS = of_builtins("range", "xrange", "slice", "type", "object")
"""Calls of them that make a value and do nothing else."""


def strides_in_c_order(shape: Shape) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


@frozen
class StoredTensor:
    """A tensor as a view of a record; offset, shape and strides count elements."""

    # Each property is computed each time: a file has a hundred thousand tensors, and the results would
    # take several times their memory.

    dtype: str
    shape: Shape
    strides: tuple[int, ...]
    offset: int  # the first element
    record: str  # the name of the storage's record
    storage_nbytes: int
    is_conjugate: bool  # True if the elements are the conjugates of the stored ones
    is_negative: bool  # True if they are the negatives of the stored ones

    @classmethod
    def whole(cls, dtype: str, shape: Shape, record: str, nbytes: int) -> "StoredTensor":
        """Return a tensor that is all of a record, in C order."""
        return StoredTensor(
            dtype, shape, strides_in_c_order(shape), 0, record, nbytes, False, False
        )

    @property
    def itemsize(self) -> int:
        return int(ITEMSIZES[code(self.dtype)])

    @property
    def count(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def is_contiguous(self) -> bool:
        """Return True if the elements lie in C order without gaps, as they are."""
        if self.is_conjugate or self.is_negative:
            return False
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            # The stride of an axis of one element is never taken.
            if extent != 1 and stride != step:
                return not self.count
            step *= extent
        return True

    @property
    def reach(self) -> tuple[int, int]:
        """The bytes [start, stop) of the storage that elements have; (0, 0) without elements."""
        if not self.count:
            return 0, 0
        axes = zip(self.shape, self.strides, strict=True)
        last = self.offset + sum((extent - 1) * stride for extent, stride in axes)
        itemsize = self.itemsize
        return self.offset * itemsize, (last + 1) * itemsize


@frozen
class PickledArray(StoredTensor):
    """An array of NumPy, which has its elements in the pickle instead of a record."""

    content: bytes
    is_big_endian: bool


def is_tensor(value: Any) -> bool:
    """Return True if a value is a call that makes a tensor or an array of any kind."""
    return (
        type(value) is Node
        and type(value.name) is str
        and (value.name in CALLS or value.name in ARRAYS or "_rebuild_" in value.name)
    )


def unwrapped(value: Node) -> Node:
    while (
        value.name in WRAPPED
        and type(value.args) is tuple
        and value.args
        and type(value.args[0]) is Node
    ):
        value = value.args[0]
    return value


def tensor_of(value: Node) -> StoredTensor:
    """Return the tensor that a call would make; ``UnsupportedError`` for other kinds."""
    # Wrappers hold one another at most as deep as the pickle has bytes; a loop unwraps them.
    while (value := unwrapped(value)).name not in _TENSORS:
        if value.name in ARRAYS:
            return pickled_array(value)
        if type(value.args) is tuple and value.name == FROM_TYPE and len(value.args) == 4:
            function, kind, args = value.args[:3]
            name, type_name = getattr(function, "name", None), getattr(kind, "name", None)
            if type(function) is not Global or name not in CALLS or type_name not in _TYPES:
                cause = f"It is a tensor of the class {type_name}."
                raise UnsupportedError(cause, OF_RANKS if name == SUBCLASS else _PLAIN)
            value = Node(name, args)
        else:
            raise unsupported(value)
    # Version 3 has one argument more, the dtype, after the hooks; the flags come last, if at all:
    #     0 storage, 1 offset, 2 shape, 3 strides, 4 requires_grad, 5 hooks, [6 dtype,] [flags]
    has_dtype = value.name == _TENSOR_V3
    args = value.args if type(value.args) is tuple else ()
    if not 4 <= len(args) <= 7 + has_dtype or (has_dtype and len(args) < 7):
        raise badly_written(f"Its description has {len(args)} arguments.")
    storage, offset, shape, strides = args[:4]
    flags = args[6 + has_dtype] if len(args) > 6 + has_dtype else {}
    dtype, record, nbytes = _storage(storage, args[6] if has_dtype else None)
    is_placed = isinstance(shape, tuple) and isinstance(strides, tuple)
    numbers = (offset, *shape, *strides) if is_placed else (None,)
    if any(type(number) is not int or not 0 <= number <= MAX_NBYTES for number in numbers):
        raise badly_written("Its offset, shape or strides are not numbers of elements.")
    if len(shape) != len(strides) or len(shape) > MAX_RANK:
        raise badly_written(f"It has {len(shape)} axes and {len(strides)} strides.")
    if type(flags) is not dict or not all(type(key) is str for key in flags):
        raise badly_written("Its flags are not a dict.")
    unknown = flags.keys() - {"conj", "neg"}
    if unknown:
        raise UnsupportedError(
            f"It has the flags {sorted(unknown)!r}.", "Save it as a plain tensor."
        )
    if dtype in TORCH_ONLY and True in flags.values():
        cause = f"Its elements of the dtype {dtype} are stored with other signs."
        raise UnsupportedError(cause, "Save it as `tensor.resolve_conj().resolve_neg()`.")
    is_conjugate = flags.get("conj") is True and "complex" in dtype
    view = tuple(shape), tuple(strides), offset
    tensor = StoredTensor(dtype, *view, record, nbytes, is_conjugate, flags.get("neg") is True)
    _check_bounds(tensor)
    return tensor


def pickled_array(node: Node) -> PickledArray:
    args, state = node.args if type(node.args) is tuple else (), node.state
    if node.name in _BUFFERS and len(args) == 4:
        state = 1, args[2], args[1], args[3] == "F", args[0]
    elif args and type(args[0]) is Global and not _ARRAY_CLASSES.fullmatch(args[0].name):
        raise UnsupportedError(
            f"It is an array of the class {args[0].name[:200]}.",
            "Save it as `numpy.asarray(value)`.",
        )
    if type(state) is not tuple or len(state) != 5:
        raise badly_written("It is an array of NumPy without a state.")
    _, shape, described, is_reversed, content = state
    name, is_big_endian = dtype_of_numpy(described)
    if name not in NAMES:
        raise UnsupportedError(
            f"It is an array of NumPy of the dtype {name}, which shardvar does not read.",
            "Save its numbers as arrays of a numeric dtype, and the rest as lists.",
        )
    is_shape = type(shape) is tuple and len(shape) <= MAX_RANK
    if not is_shape or any(type(n) is not int or not 0 <= n <= MAX_NBYTES for n in shape):
        raise badly_written("The shape of its array is not a list of extents.")
    steps, step = list[int](), 1
    for extent in shape if is_reversed is True else shape[::-1]:
        steps.append(step)
        step *= max(extent, 1)
    nbytes = prod(shape) * int(ITEMSIZES[code(name)])
    if type(content) is not bytes or len(content) != nbytes:
        raise badly_written(f"Its array does not have the {nbytes} bytes of its shape.")
    strides = tuple(steps if is_reversed is True else steps[::-1])
    tensor = PickledArray(name, shape, strides, 0, "", nbytes, False, False, content, is_big_endian)
    _check_bounds(tensor)
    return tensor


def dtype_of_numpy(described: Any) -> tuple[str, bool]:
    """Return the name of the dtype of NumPy that a call describes, and True if it is big-endian."""
    is_dtype = type(described) is Node and described.name == "numpy.dtype"
    args, state = (described.args, described.state) if is_dtype else ((), None)
    given = args[0] if type(args) is tuple and args else ""
    # The name has no order of bytes; the state has, and the names of fields.
    fields = state if type(state) is tuple else ()
    if type(given) is Global:  # of ml_dtypes
        return given.name.removeprefix("ml_dtypes."), False
    name = given[:40] if type(given) is str else "unknown"
    if _NUMPY_DTYPE.fullmatch(name):
        name = np.dtype(name).name
    elif name.lstrip("<>=|")[:1] in _OTHER_DTYPES:
        name = f"{_OTHER_DTYPES[name.lstrip('<>=|')[:1]]} ({name})"
    return name, fields[1:2] == (">",)


_OTHER_DTYPES = {"O": "object", "V": "void, or of fields", "M": "datetime64", "m": "timedelta64"}


def _storage(reference: Any, dtype: Any) -> tuple[str, str, int]:
    """Return dtype, record and bytes of the storage that a reference means."""
    fields: Any = reference.value if type(reference) is Reference else None
    is_storage = type(fields) is tuple and len(fields) >= 5 and fields[0] == "storage"
    if not is_storage or type(fields[1]) is not Global:
        raise badly_written("It has no storage.")
    _, kind, record, _, size = fields[:5]
    if type(record) is not str or type(size) is not int or not 0 <= size <= MAX_NBYTES:
        raise badly_written("Its storage has no name or no size.")
    if dtype is None:
        name = STORAGES.get(kind.name)
        if name is None:
            raise UnsupportedError(
                f"Its storage is of the class {kind.name}.", "Save it as a plain tensor."
            )
        return name, f"data/{record}", size * int(ITEMSIZES[code(name)])
    if type(dtype) is not Global or kind.name != UNTYPED_STORAGE:
        raise badly_written("Its dtype or its storage is not one of torch's.")
    return dtype_of(dtype.name), f"data/{record}", size


def storage_of(reference: Reference) -> tuple[str, int, int]:
    """Return the key of a storage, the bytes of an element and the number of elements."""
    fields = reference.value if type(reference.value) is tuple else ()
    if len(fields) > 5 and fields[5] is not None:
        raise UnsupportedError("It has a storage that is a part of another one.", _PLAIN)
    untyped = len(fields) > 1 and type(fields[1]) is Global and fields[1].name == UNTYPED_STORAGE
    dtype = Global("torch.uint8") if untyped else None
    name, record, nbytes = _storage(reference, dtype)
    width = int(ITEMSIZES[code(name)])
    return record.removeprefix("data/"), width, nbytes // width


def _check_bounds(tensor: StoredTensor) -> None:
    """Raise if no array has the shape; ``OutOfBounds`` if an element lies beyond the storage."""
    if not tensor.count:
        # NumPy cannot hold (2**62, 0) either.
        if prod(filter(None, tensor.shape)) * tensor.itemsize > MAX_NBYTES:
            raise distrusted(f"Its shape {tensor.shape} is too large to exist.")
        return
    stop = tensor.reach[1]
    if stop > tensor.storage_nbytes:
        cause = (
            f"Its last element is number {stop // tensor.itemsize - 1} of a storage of "
            f"{tensor.storage_nbytes // tensor.itemsize}."
        )
        raise OutOfBounds(cause, WRITE_AGAIN)


def unsupported(value: Any) -> CheckpointError | UnsupportedError:
    """Return the error for an object that is not read, with its class or call."""
    if type(value) is Reference:
        return UnsupportedError("It is a storage without a tensor.", "Save a tensor that views it.")
    name = getattr(value, "name", None)
    # The result of a call that would be called again.
    while type(name) is not str and name is not None:
        # An old file describes the class of a whole module by a reference.
        is_module = type(name) is Reference and type(name.value) is tuple
        name = getattr(name.value[1:2][0] if is_module and name.value[1:] else name, "name", None)
    if name is None:
        return UnsupportedError(
            f"It is a value of the type {type(value).__name__}.", "Save a dict of tensors."
        )
    name = name[:200]
    if type(value) is Global:  # a name by itself runs nothing
        return UnsupportedError(
            f"It refers to {name}, which shardvar does not import.", "Save the name as text."
        )
    if name.partition(".")[0] in _RUNNING and name not in _HARMLESS:
        return distrusted(f"It would call {name} when it is loaded by Python; nothing was run.")
    if "_rebuild_" in name:
        return UnsupportedError(
            f"It is made by {name}, which shardvar does not read.", "Save it as a dense tensor."
        )
    remedy = _SAVE_TENSOR if name.partition(".")[0] == "numpy" else _SAVE_PARTS
    return UnsupportedError(
        f"It is an object of the class {name}, which shardvar does not make.", remedy
    )


_NAMESPACE, _DEVICE, _STREAM = "argparse.Namespace", "torch.device", "_io.BytesIO"
_SETS = {name: name.rpartition(".")[2] for name in of_builtins("set", "frozenset")}
_COMPLEX, _BYTEARRAY = of_builtins("complex"), of_builtins("bytearray")
_SCALARS = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")
"""The function that makes a scalar of NumPy, by its names in NumPy 2 and 1."""
_TORCH_DTYPE = re.compile(
    r"torch\.(?:bool|[iu]?int[0-9]{1,2}|uint[0-9]{1,2}|b?float[0-9a-z_]+|complex[0-9]+|"
    r"q(?:u?int[0-9x]+)|bits[0-9x]+)",
    re.ASCII,
)
"""The names of dtypes of torch, including ones that tensors of shardvar cannot have."""
_MAX_EXPANSION, _FREE_TEXT = 64, 1 << 16
"""Characters and items of all objects of a pickle, for each of its bytes, and of any pickle. A name
of 64 characters that comes again is a reference of two bytes."""


@mutable
class TextRoom:
    """The size that the objects of one pickle may still have; shared values could square it."""

    left: int

    @classmethod
    def of(cls, nbytes: int) -> Self:
        return cls(max(_FREE_TEXT, _MAX_EXPANSION * nbytes))


def plain_of(item: Any, room: TextRoom | None = None, has_arrays: bool = True) -> Any:
    """Return the plain value of a parsed object; raise for its first part that is not plain.
    Without ``has_arrays``, arrays of NumPy are refused outside of states of generators."""
    if room is not None and room.left <= 0:
        raise distrusted(
            f"The objects of the file have more than {_MAX_EXPANSION} times as many characters and "
            "items as their pickle has bytes."
        )
    copy = _Copy(has_arrays)
    try:
        return copy.of(item, 0)
    finally:
        # An error also took its time.
        if room is not None:
            room.left -= max(MAX_TEXT - copy.left, 1)


class _Copy:
    """The copy of a value, whose size is bounded while it is made."""

    def __init__(self, has_arrays: bool) -> None:
        self.left = MAX_TEXT
        """The characters, digits and items that may still come."""
        self.has_arrays = has_arrays

    def of(self, item: Any, depth: int) -> Any:
        kind = type(item)
        size = len(item) if kind in (str, bytes, list, tuple, Size, dict, OrderedMap) else 1
        self.left -= item.bit_length() // 4 if kind is int else size
        if self.left < 0 or depth > MAX_DEPTH:
            raise too_large()
        if item is None or kind in (bool, int, float, str, bytes):
            return item
        if kind in (list, tuple, Size, dict, OrderedMap):
            outside = self.has_arrays
            self.has_arrays |= is_generator_state(item)
            is_dict = kind in (dict, OrderedMap)
            if is_dict:
                copy = self.pairs(kind, item, depth)
            else:
                copy = kind([self.of(part, depth + 1) for part in item])
            self.has_arrays = outside
            return copy
        if kind is Global and _TORCH_DTYPE.fullmatch(item.name):
            return Tagged("torch.dtype", item.name.removeprefix("torch."))
        if kind is Node and type(item.name) is str:
            return self.made(item, depth)
        raise unsupported(item)

    def pairs(self, kind: Any, items: Mapping[Any, Any], depth: int) -> Any:
        made = kind()
        for key, value in items.items():
            name = self.of(key, depth + 1)
            if not _is_key(name):
                raise unsupported(key)
            if name in made:  # such as two scalars of NumPy, which the pickle has as two calls
                raise UnsupportedError("It is a dict of two equal keys.", "Save one of them.")
            made[name] = self.of(value, depth + 1)
        return made

    def made(self, node: Node, depth: int) -> Any:
        args, state, items = node.args, node.state, node.items
        values = args if type(args) is tuple else (args,)
        kinds = [*map(type, values)]
        if node.name in _SETS and state is None and kinds in ([], [list]) and not (kinds and items):
            held = self.of(values[0] if kinds else items or [], depth)
            return Tagged(_SETS[node.name], held)
        if node.name == _NAMESPACE and not values and items is None:
            held = self.of({} if state is None else state, depth)
            if type(held) is dict and {*map(type, held)} <= {str}:
                return Tagged(_NAMESPACE, held)
        if node.name in ARRAYS and items is None:
            return self.array(node)
        is_stream = node.name == _STREAM and not values and items is None
        if is_stream and type(state) is tuple and type((*state, None)[0]) is bytes:
            return self.of(state[0], depth)
        if state is None and items is None:
            if node.name in _COMPLEX and kinds == [float, float]:
                return complex(*values)
            if node.name in _BYTEARRAY and kinds in ([], [bytes]):
                return bytearray(*self.of(values, depth))
            if node.name in _BYTEARRAY and kinds == [str, str] and values[1] == "latin-1":
                try:
                    return bytearray(self.of(values[0], depth), "latin-1")
                except UnicodeEncodeError:
                    raise unsupported(Node("builtins.bytearray", ())) from None
            if node.name == _DEVICE and kinds in ([str], [str, int]):
                return Tagged(_DEVICE, self.of(values, depth))
            if node.name in _SCALARS and kinds == [Node, bytes]:
                self.of(values[1], depth)
                return _scalar(node, *values)
        if node.name in CALLS:
            raise UnsupportedError(
                "It is an object with a tensor in it.", "Save its tensors in dicts and lists."
            )
        raise unsupported(node)

    def array(self, node: Node) -> Tagged:
        if not self.has_arrays:
            raise UnsupportedError(
                "It is an object with an array of NumPy in it.",
                "Save its arrays in dicts and lists.",
            )
        array = pickled_array(node)
        self.of(array.content, 0)
        self.of(array.shape, 0)
        dtype = np.dtype(array.dtype).newbyteorder(">" if array.is_big_endian else "<")
        strides = [step * dtype.itemsize for step in array.strides]
        elements = np.ndarray(array.shape, dtype, array.content, 0, strides)
        stored = elements.astype(dtype.newbyteorder("<")).tobytes()
        made = tagged_array(array.dtype, array.shape, stored)
        if made is None:
            raise unsupported(node)
        return made


def _is_key(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_key, value))
    if type(value) is Tagged:
        return value.kind in ("torch.dtype", _DEVICE)
    return not isinstance(value, list | dict | bytearray)


def _scalar(node: Node, described: Node, octets: bytes) -> Any:
    name, is_big_endian = dtype_of_numpy(described)
    if name not in NUMPY_NAMES and not name.startswith(("str", "bytes")):
        raise unsupported(node)
    dtype = np.dtype(name if name in NUMPY_NAMES else described.args[0]).newbyteorder(
        ">" if is_big_endian else "<"
    )
    if len(octets) != dtype.itemsize or (dtype == np.bool and octets > b"\1"):
        raise unsupported(node)
    if dtype.kind == "S":
        return np.bytes_(octets)
    if dtype.kind == "U":
        try:
            return np.str_(octets.decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le"))
        except UnicodeDecodeError:
            raise unsupported(node) from None
    return np.frombuffer(octets, dtype).astype(dtype.newbyteorder("="))[0]


def pickled_of(value: Any) -> Any:
    """Return a plain value as ``build_pickle`` takes it, with calls for values that are not of Python.

    Law: ``plain_of(parse_pickle(build_pickle(pickled_of(value)), is_typed=True)[0])`` is the value;
    a text of Orbax is then a text.
    """
    if not isinstance(value, np.generic):
        make = _PICKLED.get(type(value))
        return value if make is None else make(value)
    if isinstance(value, np.str_):
        octets = str(value).encode("utf-32-le", "surrogatepass")
        name = f"<U{len(octets) // 4}"
    elif isinstance(value, np.bytes_):
        octets, name = bytes(value), f"S{len(value)}"
    else:
        dtype = value.dtype.newbyteorder("<")
        octets, name = np.asarray(value, dtype).tobytes(), dtype.str
    return Call(_SCALARS[0], (Call("numpy.dtype", (name, False, True)), octets))


def _dict_of(items: Mapping[Any, Any]) -> dict[Any, Any]:
    return {pickled_of(key): pickled_of(value) for key, value in items.items()}


def _named_call(value: Tagged) -> Any:
    if value.kind == "torch.dtype":
        return Global(f"torch.{value.value}")
    if value.kind == "text":
        return value.value
    if value.kind == _DEVICE:
        return Call(_DEVICE, value.value)
    if value.kind == ARRAY:
        name, shape, octets = value.value
        dtype = np.dtype(name).newbyteorder("<").str
        state = 1, shape, Call("numpy.dtype", (dtype, False, True)), False, octets
        return Call(ARRAYS[0], (Global(ARRAY), (0,), b"b"), state)
    if value.kind == _NAMESPACE:
        return Instance(_NAMESPACE, _dict_of(value.value))
    return Call(f"__builtin__.{value.kind}", ([*map(pickled_of, value.value)],))


_PICKLED: dict[type, Callable[[Any], Any]] = {
    list: lambda items: [*map(pickled_of, items)],
    tuple: lambda items: tuple(map(pickled_of, items)),
    Size: lambda items: Call(SIZE, (tuple(map(pickled_of, items)),)),
    dict: _dict_of,
    OrderedMap: lambda items: OrderedMap(_dict_of(items)),
    complex: lambda value: Call("__builtin__.complex", (value.real, value.imag)),
    bytearray: lambda value: Call("__builtin__.bytearray", (value.decode("latin1"), "latin-1")),
    Tagged: _named_call,
}

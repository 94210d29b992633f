"""Parameters: the elements of a model, which is what people call the size of a checkpoint.

Every element of a tensor of floating-point or complex numbers is a parameter, and so is every
number of a quantised tensor, unless the tensor belongs to an optimizer. Counters, masks, strings
and objects are left out, and so are the scales of packed weights (``packed``). Integers that may be
weights of an unknown scheme are not counted; they are named.

Slots are recognised by their keys, since few formats mark them: by a path component such as
``optimizer``, which PyTorch, Keras and JAX trainers write, TensorFlow's ``.OPTIMIZER_SLOT``, and
the names that optimizers give their slots. Keras stores the variables that it trains below the
optimizer, in ``_trainable_variables``; they count.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from shardvar.pictures.words import count, named
from shardvar.planning.slices import TensorTable
from shardvar.verbs.packed import find_packed

_NUMERIC = ("float", "bfloat", "complex", "qint", "quint", "int4", "int2", "uint4", "uint2")
"""Beginnings of the names of dtypes that hold weights; nothing but weights is kept in integers of
two or four bits."""

_OPTIMIZER = re.compile(
    r"(?:^|[./])(?:optimizers?|optimizer_(?:states?|weights)|opt|optim|opt_states?|"
    r"\.OPTIMIZER_SLOT)(?:[./](?!_trainable_variables/)|$)"
    r"|[./](?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)$"
    r"|/(?:Adam|Adam_1|Adagrad|Adadelta|Adadelta_1|Momentum|RMSProp|RMSProp_1|Ftrl|Ftrl_1)$"
)


_SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Integers that packed weights are held in; integers of 64 bits are ids and counters."""

_Row = tuple[str, str | None, tuple[int, ...] | None, str | None]
"""The key, the dtype, the shape and the encoding of a tensor."""


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """The parameters of some tensors."""

    counted: Mapping[str, tuple[str, int]]
    """The number of each tensor that has any, with its dtype, its encoding, or the scheme by which
    it is packed."""
    left_out: tuple[str, ...] = ()
    """The keys of matrices of small integers, which may be weights that are packed by an unknown
    scheme."""

    @property
    def total(self) -> int:
        """Their number."""
        return sum(number for _, number in self.counted.values())

    @property
    def by_dtype(self) -> dict[str, int]:
        """Their number for each dtype, encoding and scheme; the largest first."""
        found: dict[str, int] = {}
        for kind, number in self.counted.values():
            found[kind] = found.get(kind, 0) + number
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def among(self, keys: Collection[str]) -> "ParameterCount":
        """Return the count of some of the tensors."""
        counted = {key: found for key, found in self.counted.items() if key in keys}
        return ParameterCount(counted, tuple(key for key in self.left_out if key in keys))


def is_optimizer_state(key: str) -> bool:
    """Return True for a key that names a slot or another tensor of an optimizer.

    >>> is_optimizer_state("optimizer.state.w.exp_avg"), is_optimizer_state("optimizer_head/w")
    (True, False)
    """
    return _OPTIMIZER.search(key) is not None


def count_parameters(tensors: Iterable[_Row]) -> ParameterCount:
    """Count the parameters of the tensors of a checkpoint, each given by its key, dtype, shape and
    encoding.

    An encoding is the name of the blocks of a quantised tensor, whose shape counts bytes. The
    tensors of a packed layer are known only together, so ``tensors`` are all of the checkpoint;
    ``among`` takes some of them.

    >>> count = count_parameters([("w", "float32", (3, 4), None), ("b", "bfloat16", (4,), None)])
    >>> count.total, count.by_dtype
    (16, {'float32': 12, 'bfloat16': 4})
    >>> count_parameters([("w", "uint8", (2, 34), "Q8_0"), ("step", "int64", (), None)]).counted
    {'w': ('Q8_0', 64)}
    """
    rows = [row for row in tensors if not is_optimizer_state(row[0])]
    packed, scaling = find_packed({key: (dtype, shape) for key, dtype, shape, _ in rows})
    counted: dict[str, tuple[str, int]] = {}
    left_out = []
    for key, dtype, shape, encoding in rows:
        if dtype is None or shape is None or key in scaling:
            continue
        kind, number = packed.get(key) or (
            encoding or dtype,
            _num_parameters(dtype, shape, encoding),
        )
        if number:
            counted[key] = kind, number
        elif dtype in _SMALL_INTEGERS and len(shape) > 1 and 0 not in shape:
            left_out.append(key)
    return ParameterCount(counted, tuple(left_out))


def empty_note(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    """Return a sentence about weights without elements among tensors; an empty text if all have some.

    >>> empty_note({"a": ("float32", (0,)), "b": ("float32", (2,)), "c": ("int64", (0,))})
    "1 of 2 weights has no elements, as in files that ZeRO-3 wrote without gathering the weights: 'a'"
    """
    weights = {
        key: shape
        for key, (dtype, shape) in tensors.items()
        if dtype.startswith(_NUMERIC) and not is_optimizer_state(key)
    }
    empty = [key for key, shape in weights.items() if 0 in shape]
    if not empty:
        return ""
    verb = "has" if len(empty) == 1 else "have"
    return (
        f"{len(empty)} of {count(len(weights), 'weight')} {verb} no elements, as in files that ZeRO-3 "
        f"wrote without gathering the weights: {named(empty)}"
    )


def count_in(tensors: TensorTable, encodings: Mapping[str, str]) -> ParameterCount:
    """Count the parameters of the tensors of an index; ``encodings`` has the names of quantised
    blocks."""
    facts = tensors.facts().items()
    return count_parameters((key, *fact, encodings.get(key)) for key, fact in facts)


def _num_parameters(dtype: str, shape: tuple[int, ...], encoding: str | None) -> int:
    """Return the number of parameters of a tensor that is judged by itself."""
    if encoding is not None:
        from shardvar.wire.ggml import BLOCKS  # not above: few checkpoints have such blocks

        for block in BLOCKS.values():
            if block.name == encoding:
                return prod(shape) // block.nbytes * block.length
    return prod(shape) if dtype.startswith(_NUMERIC) else 0

"""Parameters: the elements of a model, which is what people call the size of a checkpoint.

Every element of a tensor of floating-point or complex numbers is a parameter, and so is every
element of a quantised tensor, unless the tensor belongs to an optimizer. Counters, masks, strings
and objects are left out.

Slots are recognised by their keys, since few formats mark them: by a path component such as
``optimizer``, which PyTorch, Keras and JAX trainers write, TensorFlow's ``.OPTIMIZER_SLOT``, and
the names that optimizers give their slots. Keras stores the variables that it trains below the
optimizer, in ``_trainable_variables``; they count.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

_NUMERIC = ("float", "bfloat", "complex", "qint", "quint", "int4", "int2", "uint4", "uint2")
"""Beginnings of the names of dtypes that hold weights; nothing but weights is kept in integers of
two or four bits."""

_OPTIMIZER = re.compile(
    r"(?:^|[./])(?:optimizers?|opt|optim|optimizer_states?|opt_states?|\.OPTIMIZER_SLOT)(?:[./](?!_trainable_variables/)|$)"
    r"|[./](?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)$"
    r"|/(?:Adam|Adam_1|Adagrad|Adadelta|Adadelta_1|Momentum|RMSProp|RMSProp_1|Ftrl|Ftrl_1)$"
)


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """The parameters of some tensors."""

    total: int
    """Their number."""
    by_dtype: dict[str, int]
    """Their number for each dtype, or for each encoding of quantised tensors; the largest first."""


def is_optimizer_state(key: str) -> bool:
    """Return True for a key that names a slot or another tensor of an optimizer.

    >>> is_optimizer_state("optimizer.state.w.exp_avg"), is_optimizer_state("optimizer_head/w")
    (True, False)
    """
    return _OPTIMIZER.search(key) is not None


def num_parameters(
    key: str, dtype: str | None, shape: tuple[int, ...] | None, encoding: str | None = None
) -> int:
    """Return the number of parameters of one tensor; 0 for a tensor that is not of the model.

    ``encoding`` names the blocks of a quantised tensor, whose shape counts bytes.

    >>> num_parameters("w", "float32", (3, 4)), num_parameters("step", "int64", ())
    (12, 0)
    >>> num_parameters("w", "uint8", (2, 34), "Q8_0")
    64
    """
    if shape is None or dtype is None or is_optimizer_state(key):
        return 0
    if encoding is not None:
        from shardvar.wire.ggml import BLOCKS  # not above: few checkpoints have such blocks

        for block in BLOCKS.values():
            if block.name == encoding:
                return prod(shape) // block.nbytes * block.length
    return prod(shape) if dtype.startswith(_NUMERIC) else 0


def count_parameters(
    tensors: Iterable[tuple[str, str | None, tuple[int, ...] | None, str | None]],
) -> ParameterCount:
    """Count the parameters of tensors, each given by its key, dtype, shape and encoding.

    >>> count_parameters([("w", "float32", (3, 4), None), ("b", "bfloat16", (4,), None)])
    ParameterCount(total=16, by_dtype={'float32': 12, 'bfloat16': 4})
    """
    counts: dict[str, int] = {}
    for key, dtype, shape, encoding in tensors:
        if number := num_parameters(key, dtype, shape, encoding):
            kind = encoding or dtype or ""
            counts[kind] = counts.get(kind, 0) + number
    ordered = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    return ParameterCount(sum(counts.values()), ordered)

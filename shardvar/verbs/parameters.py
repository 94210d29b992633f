"""Parameters: the elements of a model, which is what people call the size of a checkpoint.

Every element of a tensor of floating-point or complex numbers is a parameter, and so is every
number of a quantised tensor, unless the tensor belongs to an optimizer. Counters, masks, strings
and objects are left out, and so are the scales of packed weights (``find_packed``). Integers that
may be weights of an unknown scheme are not counted; they are named.

Slots are recognised by their keys, since few formats mark them: by a path component such as
``optimizer``, which PyTorch, Keras and JAX trainers write, TensorFlow's ``.OPTIMIZER_SLOT``, and
the names that optimizers give their slots. Keras stores the variables that it trains below the
optimizer, in ``_trainable_variables``; they count.

Packed weights have several numbers in each element. A scheme is known by the names of the tensors
of a layer, and its shapes must agree:

    GPTQ, AWQ     X.qweight int32, X.scales [groups, out], X.qzeros [groups, out * bits / 32]
    GPTQ          or with X.g_idx [in] in place of X.qzeros
    MXFP4         X_blocks uint8 [..., groups, 16], X_scales uint8 [..., groups]
    NVFP4         X.weight or X.weight_packed uint8 [out, in / 2], X.weight_scale float8 [out, in / 16]
    NF4, FP4      X.weight, X.weight.absmax, X.weight.quant_state.bitsandbytes__nf4: the bytes may go
                  by another dtype
    int8          X.weight int8 [out, in], X.SCB [out]: bitsandbytes, a number in each byte

A byte of MXFP4, NVFP4, NF4 and FP4 holds two numbers. The tensors that scale them are not counted
as parameters, and neither are the scales of weights in eight bits, such as ``X.weight_scale_inv``.
Every other tensor of small integers may be packed by a scheme that is not known here, and is so if
scales lie next to it (``find_scaling``).

``reading_key`` sorts names as a model is read: embeddings, layers in natural order, norms, heads,
and tensors of an optimizer last. A short table of well-known names decides among siblings; all
others are in natural order. Pages have this order, and lists for programs the plain natural one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.pictures.words import count, named, natural_key
from shardvar.planning.slices import TensorTable

_Shape = tuple[int, ...]
_Described = tuple[str | None, _Shape | None]
"""The dtype and the shape of a tensor."""
_Packed = tuple[str, int, list[str]] | None
"""A scheme, a number of weights, and the keys of tensors that scale them."""

_BITS = 32
"""The bits of an element of ``qweight``."""
_BLOCK = 16
"""The bytes of a block of MXFP4, and the numbers that share a scale of NVFP4."""
_STATES = {"bitsandbytes__nf4": "NF4", "bitsandbytes__fp4": "FP4"}
_FEW_BITS = r"float8.*|u?int(?:2|4|8|16|32)"
"""The dtypes of weights that need scales; integers of 64 bits are ids and counters."""
_PACKED = r"_?(?:packed|q[0-9]*|qdata|int_data|quantized)"
_WEIGHTS = (
    rf"(?i)_?(?:q_?|quantized_)?(?:weight|kernel|embedding|table|w)(?:{_PACKED})?"
    r"|_data|qdata|int_data|qvalue|codes|qidxs"
)
"""The names of tensors that layers multiply with, quantised or not."""
_SCALING = (
    r"(?i)(?:.*_)?(?:(?:w?scales?|scaling_factor|zero_points?)(?:_(?:inv|weight|input|2))?"
    r"|absmax|q?zeros?|_shift|scb|g_idx|shape)"
)
"""The names of tensors that weights need to become numbers, and of scales of activations."""
_OWN = (
    r"(?i)_?(?:(?:.*weights?|.*kernel|quant|dequant|q|(?:per_)?(?:channel|group|block))_)?"
    r"(?:w?scales?|scaling_factor)(?:_(?:inv|weight|2))?|absmax|qzeros|scb"
)
"""The names of scales of the weights, without the scales of activations."""


def find_packed(tensors: Mapping[str, _Described]) -> tuple[dict[str, tuple[str, int]], set[str]]:
    """Return the scheme and the number of weights of each packed tensor, and the keys of the
    tensors that scale any.

    >>> layer = {"q.qweight": ("int32", (8, 64)), "q.scales": ("float16", (2, 64))}
    >>> layer["q.qzeros"] = ("int32", (2, 8))
    >>> weights, scaling = find_packed(layer)
    >>> weights, sorted(scaling)
    ({'q.qweight': ('GPTQ 4-bit', 4096)}, ['q.qzeros', 'q.scales'])
    """
    weights: dict[str, tuple[str, int]] = {}
    scaling: set[str] = set()
    layers = names_by_layer(tensors)
    for key, (dtype, _) in tensors.items():
        if packed := _scheme_of(key, tensors):
            scheme, number, others = packed
            weights[key] = scheme, number
            scaling.update(others)
        for scale in find_scaling(key, dtype, layers):
            layer, _ = layer_of(scale)
            others = [each for each in layers[layer] if re.fullmatch(_SCALING, each)]
            # MLX has a bias of each group, other than the bias of the layer.
            others += ["biases"] if {"scales", "biases"} <= {*layers[layer]} else []
            scaling.update(f"{layer}{each}" for each in others)
    return weights, scaling


def layer_of(key: str) -> tuple[str, str]:
    """Return the layer with its separator, and the name in it: ``("fc/", "kernel")``."""
    start = max(map(key.rfind, "./:")) + 1
    return key[:start], key[start:]


def names_by_layer(keys: Iterable[str]) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for key in keys:
        layer, name = layer_of(key)
        layers.setdefault(layer, []).append(name)
    return layers


def find_scaling(key: str, dtype: str | None, layers: Mapping[str, list[str]]) -> list[str]:
    """Return the keys of tensors next to weights of few bits that scale them, by any scheme; none of
    other tensors, such as a mask next to the scale of a norm.

    >>> keys = ["q.weight", "q.scales", "norm.scale", "norm.mask"]
    >>> [find_scaling(key, "uint32", names_by_layer(keys)) for key in ("q.weight", "norm.mask")]
    [['q.scales'], []]
    """
    while key.endswith("._data"):  # as quanto keeps packed tensors
        key = key.removesuffix("._data")
    layer, name = layer_of(key)
    if not re.fullmatch(_FEW_BITS, dtype or "") or re.fullmatch(_SCALING, name):
        return []
    is_weight = re.fullmatch(_WEIGHTS, name) is not None
    stem = re.sub(f"_{_PACKED}$", "", name, flags=re.IGNORECASE)
    own = {f"{each}{end}" for each in (name, stem) for end in ("_scale", "_scales", "_scale_inv")}
    found = [
        f"{layer}{each}"
        for each in layers.get(layer, ())
        if each in own or (is_weight and re.fullmatch(_OWN, each))
    ]
    inner = [f"{mark}{each}" for mark in "./:" for each in layers.get(key + mark, ())]
    return found + [key + each for each in inner if re.fullmatch(_OWN, each[1:])]


def _scheme_of(key: str, tensors: Mapping[str, _Described]) -> _Packed:
    """The scheme of a packed tensor, its number of weights, and the keys next to it."""
    dtype, shape = tensors[key]
    if shape is None:
        return None
    layer, name = layer_of(key)
    if name == "qweight" and dtype == "int32" and len(shape) == 2:
        return _of_columns(layer, shape, tensors)
    elif key.endswith("_blocks") and dtype == "uint8":
        scales = f"{key.removesuffix('_blocks')}_scales"
        if shape[-1:] == (_BLOCK,) and tensors.get(scales) == ("uint8", shape[:-1]):
            return "MXFP4", 2 * prod(shape), [scales]
    elif f"{key}.absmax" in tensors or (name in ("weight", "weight_packed") and dtype == "uint8"):
        return _of_bytes(key, shape, tensors)
    elif name == "weight" and dtype == "int8":
        for scale in (f"{layer}SCB", f"{key}.SCB"):
            if shape_of(tensors, scale) == shape[:1]:
                others = [scale, f"{layer}weight_format", f"{key}_format"]
                return "int8", prod(shape), [each for each in others if each in tensors]
    return None


def _of_columns(layer: str, shape: _Shape, tensors: Mapping[str, _Described]) -> _Packed:
    scales, zeros = shape_of(tensors, f"{layer}scales"), shape_of(tensors, f"{layer}qzeros")
    index = shape_of(tensors, f"{layer}g_idx")
    others = [
        f"{layer}{name}" for name in ("scales", "qzeros", "g_idx") if f"{layer}{name}" in tensors
    ]
    if scales is None or len(scales) != 2:
        return None
    is_by_rows = scales[1] == shape[1]  # GPTQ packs columns, AWQ rows
    if zeros is not None and len(zeros) == 2 and zeros[1]:
        # The zero points of a group are as many as its scales, packed as the weights are.
        number = prod(shape) * scales[1] // zeros[1]
        bits = _BITS * zeros[1] // scales[1] if scales[1] else 0
    elif index is not None and is_by_rows and len(index) == 1 and index[0]:
        number, bits = index[0] * shape[1], _BITS * shape[0] // index[0]
    else:
        return None
    if bits and (is_by_rows or shape[1] * _BITS == scales[1] * bits):
        return f"{'GPTQ' if is_by_rows else 'AWQ'} {bits}-bit", number, others
    return None


def _of_bytes(key: str, shape: _Shape, tensors: Mapping[str, _Described]) -> _Packed:
    for state, name in _STATES.items():
        if f"{key}.quant_state.{state}" in tensors and f"{key}.absmax" in tensors:
            parts = (
                "absmax",
                "quant_map",
                "nested_absmax",
                "nested_quant_map",
                f"quant_state.{state}",
            )
            number = 2 * prod(shape) * int(ITEMSIZES[code(tensors[key][0] or "uint8")])
            return name, number, [each for part in parts if (each := f"{key}.{part}") in tensors]
    scale, scale_shape = tensors.get(f"{key.removesuffix('_packed')}_scale", ("", None))
    is_scaled = len(shape) == 2 and scale_shape == (shape[0], 2 * shape[1] // _BLOCK)
    if is_scaled and (scale or "").startswith("float8"):
        # Its scales have the same names as scales of weights in eight bits.
        return "NVFP4", 2 * prod(shape), []
    return None


def shape_of(tensors: Mapping[str, _Described], key: str) -> _Shape | None:
    return tensors[key][1] if key in tensors else None


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
    counted: Mapping[str, tuple[str, int]]
    """The number of each tensor that has any, with its dtype, its encoding, or the scheme by which
    it is packed."""
    left_out: tuple[str, ...] = ()
    """The keys of matrices of small integers, which may be weights that are packed by an unknown
    scheme."""

    @property
    def total(self) -> int:
        return sum(number for _, number in self.counted.values())

    @property
    def by_dtype(self) -> dict[str, int]:
        """Their number for each dtype, encoding and scheme; the largest first."""
        found: dict[str, int] = {}
        for kind, number in self.counted.values():
            found[kind] = found.get(kind, 0) + number
        return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))

    def among(self, keys: Collection[str]) -> "ParameterCount":
        counted = {key: found for key, found in self.counted.items() if key in keys}
        return ParameterCount(counted, tuple(key for key in self.left_out if key in keys))


def is_optimizer_state(key: str) -> bool:
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
        kind, number = encoding or dtype, prod(shape) if dtype.startswith(_NUMERIC) else 0
        if key in packed:
            kind, number = packed[key]
        elif encoding is not None:
            from shardvar.wire.ggml import BLOCKS  # not above: few checkpoints have such blocks

            for block in BLOCKS.values():
                if block.name == encoding:
                    number = prod(shape) // block.nbytes * block.length
                    break
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
    facts = tensors.facts().items()
    return count_parameters((key, *fact, encodings.get(key)) for key, fact in facts)


PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
"""Words of projections in their customary order, which is not alphabetical."""

_MOST_PARTS = 32
"""The most times that a key is cut, as in trees; the rest stays together."""

_HEAD = r"(?i)(?:.*_)?head|embed_out|outputs?|logits|classifier|score"
_EMBEDDING = r"(?i)(?:.*_)?(?:embed|embedder|embeddings?|wte|wpe)(?:_.*)?"
_NORM = r"(?i)norm|ln_f|(?:final|last)_(?:layer_?)?norm"
_PROJECTION = rf"({'|'.join(PROJECTIONS)})_proj"


def reading_key(key: str) -> tuple[Any, ...]:
    """A sort key for names in the order of a model: embeddings, layers, head, optimizer."""
    parts = key.split("/" if "/" in key else ".", _MOST_PARTS)
    return (is_optimizer_state(key), *map(_part_key, parts))


@lru_cache(maxsize=4096)
def _part_key(part: str) -> tuple[Any, ...]:
    """Return the place of a part of a key among its siblings: by its kind, and then by its name."""
    if found := re.fullmatch(_PROJECTION, part):
        return 1, PROJECTIONS.index(found[1]), natural_key(part)
    kinds = ((_HEAD, 3), (_EMBEDDING, 0), (_NORM, 2))
    kind = next((place for pattern, place in kinds if re.fullmatch(pattern, part)), 1)
    return kind, len(PROJECTIONS), natural_key(part)

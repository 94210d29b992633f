"""Parameters: the elements of a model, which is what people call the size of a checkpoint.

Every element of a tensor of floating-point or complex numbers is a parameter, and so is every
number of a quantised tensor, unless the tensor belongs to an optimizer. Counters, masks, strings
and objects are left out, and so are the scales of quantised weights. Integers that
may be weights of an unknown scheme are not counted; they are named.

Slots are recognised by their keys, since few formats mark them: by a path component such as
``optimizer``, which PyTorch, Keras and JAX trainers write, TensorFlow's ``.OPTIMIZER_SLOT``, and
the names that optimizers give their slots. Keras stores the variables that it trains below the
optimizer, in ``_trainable_variables``; they count.

Quantised weights are counted by their numbers, as the table of ``schemes`` knows them; the tensors
that scale them are not counted. Every other tensor of small integers may be packed by a scheme that
is not known, and is so if scales lie next to it (``find_scaling``).

``reading_key`` sorts names as a model is read: embeddings, layers in natural order, norms, heads,
and tensors of an optimizer last. A short table of well-known names decides among siblings; all
others are in natural order. Pages have this order, and lists for programs the plain natural one.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

from shardvar.layout.dtypes import Shape
from shardvar.pictures.words import count, named, natural_key
from shardvar.records import frozen

_Described = tuple[str | None, Shape | None]
"""The dtype and the shape of a tensor."""

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


def find_scales(tensors: Mapping[str, _Described]) -> set[str]:
    """Return the keys of tensors that scale weights of any scheme."""
    scaling: set[str] = set()
    layers = names_by_layer(tensors)
    for key, (dtype, _) in tensors.items():
        for scale in find_scaling(key, dtype, layers):
            layer, _ = layer_of(scale)
            others = [each for each in layers[layer] if re.fullmatch(_SCALING, each)]
            # MLX has a bias of each group, other than the bias of the layer.
            others += ["biases"] if {"scales", "biases"} <= {*layers[layer]} else []
            scaling.update(f"{layer}{each}" for each in others)
    return scaling


def may_be_codes(dtype: str) -> bool:
    return re.fullmatch(_FEW_BITS, dtype) is not None


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


_NUMERIC = ("float", "bfloat", "complex", "qint", "quint", "int4", "int2", "uint4", "uint2")
"""Beginnings of the names of dtypes that hold weights; nothing but weights is kept in integers of
two or four bits."""

_SLOT = r"[./](?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer)$"
_OF_TRAINER = ("callbacks.", "loops.", "lr_schedulers.")
"""Beginnings of the names of the state of a trainer, next to a model in ``state_dict``."""

_OPTIMIZER = re.compile(
    r"(?:^|[./])(?:optimizers?|optimizer_(?:states?|weights)|opt|optim|opt_states?|"
    r"\.OPTIMIZER_SLOT)(?:[./](?!_trainable_variables/)|$)"
    rf"|{_SLOT}"
    r"|/(?:Adam|Adam_1|Adagrad|Adadelta|Adadelta_1|Momentum|RMSProp|RMSProp_1|Ftrl|Ftrl_1)$"
)


_SMALL_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
"""Integers that packed weights are held in; integers of 64 bits are ids and counters."""

_Row = tuple[str, str | None, Shape | None]
"""The key, the dtype and the shape of a tensor."""


@frozen
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


def count_parameters(
    tensors: Iterable[_Row],
    packed: Mapping[str, tuple[str, Shape]] | None = None,
    scaling: Collection[str] = (),
) -> ParameterCount:
    """Count the parameters of the tensors of a checkpoint, each given by its key, dtype and shape.

    ``packed`` has the encodings and shapes of quantised tensors, and ``scaling`` the keys of tensors
    that only scale them. Scales are also known by their neighbors, so ``tensors`` are all of the
    checkpoint; ``among`` takes some of them.

    >>> count = count_parameters([("w", "float32", (3, 4)), ("b", "bfloat16", (4,))])
    >>> count.total, count.by_dtype
    (16, {'float32': 12, 'bfloat16': 4})
    >>> count_parameters([("w", "uint8", (2, 34))], {"w": ("Q8_0", (2, 32))}).counted
    {'w': ('Q8_0', 64)}
    """
    packed = packed or {}
    tensors = [*tensors]
    # Neither steps next to the slots of a parameter count, nor the state of callbacks next to a model.
    slots = {layer_of(key)[0] for key, *_ in tensors if re.search(_SLOT, key)}
    has_model = any(key.startswith("state_dict.") for key, *_ in tensors)
    rows = [
        row
        for row in tensors
        if not is_optimizer_state(row[0])
        and layer_of(row[0])[0] not in slots
        and not (has_model and row[0].startswith(_OF_TRAINER))
    ]
    scaling = find_scales({key: (dtype, shape) for key, dtype, shape in rows}) | {*scaling}
    counted: dict[str, tuple[str, int]] = {}
    left_out = []
    for key, dtype, shape in rows:
        if dtype is None or shape is None or key in scaling:
            continue
        kind, numbers = packed.get(key, (dtype, shape))
        is_counted, size = key in packed or dtype.startswith(_NUMERIC), prod(numbers)
        if is_counted and size:
            counted[key] = kind, size
        elif not is_counted and dtype in _SMALL_INTEGERS and len(shape) > 1 and 0 not in shape:
            left_out.append(key)
    return ParameterCount(counted, tuple(left_out))


def empty_note(tensors: Mapping[str, tuple[str, Shape]]) -> str:
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

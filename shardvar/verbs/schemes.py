"""Schemes of quantisation: the tensors that are made of others, and how.

A scheme is known by the names, dtypes and shapes of the tensors of a layer, and where these leave
two readings, by the description of the model. Nothing is concluded from a name only: tensors that
do not fit each other, or the description, are a fault of the key of their codes.

    X.weight              float8        X.weight_scale_inv  a number for each 128 x 128 weights
                                        X.weight_scale      one for all, for each row, or as above
    X_blocks [.., 16]     uint8         X_scales [..]       32 numbers of 4 bits, and an exponent
    X.weight_packed       int32, uint8  compressed-tensors: integers of 1 to 8 bits, NVFP4, MXFP4
    X.weight              int8          X.weight_scale, X.weight_zero_point
    X.qweight             int32         AWQ, GPTQ: X.qzeros, X.scales, X.g_idx
    X.weight              uint32        MLX: X.scales, X.biases
    X.weight              any           bitsandbytes: X.weight.quant_state.bitsandbytes__nf4, ...
                          int8          X.SCB
    X.weight              uint8         ModelOpt: X.weight_scale, X.weight_scale_2
    X._weight_qdata                     torchao: the metadata of the file has the type
    X.W_q                               HQQ: X.scale, X.zero, X.shape, X.nbits, ...
    X.weight._data                      quanto: X.weight._scale, X.weight._shift
    X.weight              float8, uint8 ComfyUI: X.comfy_quant or a tensor scaled_fp8

``_SCHEMES`` has a row for each: the function that tells if a key has codes of it, and the one that
builds the tensor (``Quantised``) or raises the fault. To add a scheme, add both.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from shardvar.engine.quantised import INTEGERS, Packing, Quantised, values_of
from shardvar.errors import CheckpointError
from shardvar.layout.dtypes import Shape
from shardvar.pictures.words import human_shape, named
from shardvar.records import replace
from shardvar.verbs.coded import (
    ALL,
    DTYPES,
    E8M0,
    Block,
    Coded,
    Step,
    StoredTensors,
    as_object,
    is_block,
)
from shardvar.verbs.parameters import layer_of
from shardvar.wire.strict_json import parse_json

COMFY = "_quantization_metadata"
"""The metadata of ComfyUI that name the formats of layers."""

EIGHT_BITS = {
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz",
}  # fmt: skip
_E4M3, _E2M1 = "float8_e4m3fn", "float4_e2m1fn"
_EXPONENTS = {E8M0, "uint8"}
_FLOATS = {"float32", "bfloat16", "float16"}
_SCALES = {*_FLOATS, *_EXPONENTS}
_FOUR_BITS = Packing(4, values_of(_E2M1))

SMALL = (
    "weight_shape", "weight_global_scale", "weight_scale_2", "quant_map", "bitsandbytes__nf4",
    "bitsandbytes__fp4", "weight_format", "comfy_quant", "nbits", "axis", "group_size", "packing",
    "compute_dtype", "shape", "quant_zero", "quant_scale", "view_as_float", "per_tensor_scale",
)  # fmt: skip
"""Ends of the names of small tensors that describe codes."""


# --- Floats of 8 and 4 bits


def _is_float8(stored: StoredTensors, key: str) -> bool:
    dtype, _ = stored.facts[key]
    names = _float8_scales(stored, key)
    if dtype in EIGHT_BITS:
        return bool(names)
    # Two numbers of 4 bits in a byte, as DeepSeek-V4 has them: only with exponents.
    is_packed = dtype in ("int8", "uint8")
    return is_packed and any(stored.facts[name][0] == E8M0 for name in names)


def _float8_scales(stored: StoredTensors, key: str) -> list[str]:
    names = [f"{key}_scale_inv", f"{key}_scale"]
    if key.endswith(".weight") or key == "weight":
        base = key.removesuffix("weight")
        names += [f"{base}scale", f"{base}qscale_weight"]
    return [name for name in names if name in stored.facts]


def _float8(m: Coded) -> Quantised:
    names = _float8_scales(m.stored, m.key)
    if len(names) > 1:
        raise m.fault(f"It has two sets of scales: {named(names)}.", "Remove one of them.")
    (name,) = names
    m.prefix = ""
    if m.dtype not in EIGHT_BITS:
        return _four_bits(m, name, _SCALES, key=m.key)
    scale_dtype, scale_shape = m.need(name, _SCALES)
    exponents = [(1, 32)] if scale_dtype in _EXPONENTS else []
    blocks = _group_blocks(m.shape, _arguments(m, "float")) or [m.model.block, *exponents]
    # One number cannot be taken for one of several blocks. Rows have scales only without "inv".
    blocks += [(ALL, ALL)] if prod(scale_shape) == 1 else []
    blocks += [] if name.endswith("_inv") else [(1, ALL)]
    return m.of("FP8", m.shape, ("*", m.plane(name, m.shape, _SCALES, blocks)), key=m.key)


def _is_blocks(stored: StoredTensors, key: str) -> bool:
    dtype, shape = stored.facts[key]
    return key.endswith(("_blocks", ".blocks")) and dtype == "uint8" and shape[-1:] == (16,)


def _blocks(m: Coded) -> Quantised:
    if len(m.shape) < 3:
        raise m.fault(f"It has the shape {human_shape(m.shape)}, and blocks are in rows.")
    m.prefix, last = m.key.removesuffix("blocks"), m.key[-len("_blocks")]
    *stack, rows, groups, _ = m.shape
    matrix = shape = (*stack, rows, groups * 32)
    # As transformers does for GPT-OSS, whose layers multiply from the left: [experts, in, out].
    is_transposed = last == "_" and len(matrix) == 3
    if is_transposed:
        shape = (*stack, groups * 32, rows)
    scale = m.plane("scales", matrix, {"uint8"}, [(1, 32)])
    return m.of("MXFP4", matrix, ("*", scale), packing=replace(_FOUR_BITS, inner=16), shape=shape,
                key=m.key[: -len("_blocks")], is_transposed=is_transposed)  # fmt: skip


def _four_bits(
    m: Coded,
    scale: str,
    dtypes: set[str],
    factor: tuple[str, str] | None = None,
    first: Sequence[Step] = (),
    *,
    is_tiled: bool = False,
    **more: Any,
) -> Quantised:
    """NVFP4 if scales have a scale themselves, the ``factor``; else MXFP4."""
    kind, size = ("NVFP4", 16) if factor else ("MXFP4", 32)
    matrix = m.columns(4)
    block = m.group_block(matrix, size)
    plane = m.plane(scale, matrix, dtypes, [block], is_tiled=is_tiled)
    if factor:
        sign, name = factor
        plane = replace(plane, steps=((sign, m.factor(name)),))
    more = {"packing": _FOUR_BITS} | more
    return m.of(kind, matrix, *first, ("*", plane), **more)


# --- compressed-tensors


def _arguments(m: Coded, kind: str) -> list[Mapping[str, Any]]:
    # The weights of the groups that may be the layer's.
    found: list[Mapping[str, Any]] = []
    for group in as_object(m.model.described.get("config_groups")).values():
        parts: Mapping[str, Any] = as_object(group)
        weights, targets = parts.get("weights", {}), parts.get("targets")
        if "strategy" in as_object(weights) and isinstance(targets, list):
            names = [str(target) for target in targets]
            if m.name in names:
                found = [weights]
                break
            found += [weights] if any(_is_target(each, m.name) for each in names) else []
    right = [weights for weights in found if weights.get("type", kind) == kind]
    if found and not right:
        raise m.fault(f"{m.model.config} does not name {kind}s for it.")
    return right


_QUANTIFIER = r"[*+?{]"


def _is_target(target: str, name: str) -> bool:
    """Return True for a class of layers, and for an expression that matches the name."""
    if not target.startswith("re:"):
        return target[:1].isupper()
    pattern = target.removeprefix("re:")
    # An expression of a file may take for ever: those that are cut short are left to the shapes.
    if len(re.findall(_QUANTIFIER, pattern)) > 4 or re.search(rf"\){_QUANTIFIER}", pattern):
        return True
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return True


def _group_blocks(numbers: Shape, groups: Sequence[Mapping[str, Any]]) -> list[Block]:
    blocks = []
    for arguments in groups:
        size = arguments.get("group_size")
        structure: Any = arguments.get("block_structure")
        strategy = arguments["strategy"]
        if strategy is None:
            strategy = "tensor" if size is None else "channel" if size == -1 else "group"
        if strategy in ("group", "tensor_group"):
            if type(size) is int and size > 0 and numbers[-1] % size == 0:
                blocks.append((1, size))
        elif strategy == "block":
            if isinstance(structure, str):
                structure = [int(each) for each in re.findall(r"\d{1,9}", structure)]
            if is_block(structure):
                blocks.append((structure[0], structure[1]))
        else:
            blocks.append((ALL if strategy == "tensor" else 1, ALL))
    return blocks


def _integers(m: Coded) -> Quantised:
    """Integers in words, whose zero points are packed along the rows, or one in each byte."""
    numbers, arguments, bits, packing = m.shape, _arguments(m, "int"), 8, None
    if len(numbers) < 2:
        raise m.not_a_matrix(numbers)
    if m.dtype == "int32":
        numbers = tuple(m.small("weight_shape", {"int64", "int32"}).tolist())
        if numbers[:-1] != m.shape[:-1] or numbers[-1] < 0:
            raise m.fault(
                f"{m.prefix + 'weight_shape'!r} is {[*numbers]}, and the words have the shape "
                f"{human_shape(m.shape)}."
            )
        fitting = [n for n in range(1, 9) if -(-numbers[-1] * n // 32) == m.shape[-1]]
        told = [each.get("num_bits") for each in arguments] or fitting
        fitting = [n for n in fitting if n in told]
        if len(fitting) != 1:
            raise m.fault(
                f"Rows of {m.shape[-1]} words hold {numbers[-1]} integers of {told} "
                "bits in none or several ways.",
                f"The number of bits is in {m.model.config}.",
            )
        (bits,) = fitting
        packing = Packing(bits, INTEGERS - (1 << bits - 1))
    elif m.model.method not in ("compressed-tensors", "modelopt"):
        raise m.undescribed("does not say so")
    blocks = _group_blocks(numbers, arguments)
    if not arguments:
        _, shape = m.need("weight_scale", _SCALES)
        count = (1, *shape)[-1]
        size = numbers[-1] // count if count else 0
        blocks = [(ALL, ALL), (1, ALL)]
        blocks += [(1, size)] if size and size * count == numbers[-1] else []
    if not blocks:
        raise m.fault(
            f"{m.model.config} names groups that do not cut rows of {numbers[-1]} numbers."
        )
    groups = m.groups("weight_g_idx", numbers[-1])
    scale = m.plane("weight_scale", numbers, _FLOATS, blocks, **groups)
    steps: list[Step] = [("*", scale)]
    is_symmetric = not arguments or any(each.get("symmetric", True) for each in arguments)
    if m.has("weight_zero_point") or not is_symmetric:
        dtype, groups["packing"] = "int8", None
        if packing:
            dtype, groups["packing"] = "int32", replace(packing, axis=-2)
        zero = m.plane("weight_zero_point", numbers, {dtype}, [scale.block], **groups)
        steps.insert(0, ("-", zero))
    return m.of(f"int{bits}", numbers, *steps, packing=packing)


def _packed(m: Coded) -> Quantised:
    if m.dtype == "int32":
        return _integers(m)
    if not m.has("weight_global_scale"):
        return _four_bits(m, "weight_scale", {"uint8"})
    return _four_bits(m, "weight_scale", {_E4M3}, ("/", "weight_global_scale"))


# --- AWQ and GPTQ


_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of each of 8 columns: they are stored in the order 0 2 4 6 1 3 5 7."""


def _columns_of_words(m: Coded) -> Quantised:
    """AWQ packs the outputs, and GPTQ the inputs; both are stored [in, out], and read [out, in]."""
    described = {**m.model.described}
    for pattern, own in as_object(described.get("dynamic")).items():
        if as_object(own) and _is_target(f"re:{pattern.removeprefix('+:')}", m.name):
            described |= own
            break
    _, stored = m.need(m.key, {"int32"})
    dtype, scales = m.need("scales", _FLOATS)
    if len(stored) != 2 or len(scales) != 2:
        raise m.not_a_matrix(stored)
    is_awq = stored[1] * 8 == scales[1] and m.model.method != "gptq"
    m.scheme, version, forms, sizes = (
        ("AWQ", "version", ("gemm", "GEMM"), (4,))
        if is_awq
        else ("GPTQ", "checkpoint_format", ("gptq", "gptq_v2"), (2, 3, 4, 8))
    )
    refusal = None
    if m.model.method != m.scheme.lower():
        refusal = m.undescribed("does not describe it, and versions of it differ")
    bits = described.get("bits", described.get("w_bit"))
    if bits is None:
        bits = 4 if is_awq else _bits_of_words(m, scales)
    form = described.get(version) or forms[0]
    if form not in forms:
        raise m.refusal(f"its layout is {form!r}")
    if type(bits) is not int or bits not in sizes:
        raise m.refusal(f"it has {bits!r} bits")
    matrix = (stored[0] if is_awq else stored[0] * 32 // bits, scales[1])
    size = described.get("group_size", described.get("q_group_size", -1))
    size = -(-matrix[0] // max(scales[0], 1)) if size == -1 or refusal else size
    groups = {} if is_awq else m.groups("g_idx", matrix[0], -2)
    if not groups and described.get("desc_act"):
        raise m.fault(
            f"The groups '{m.base}g_idx' are not there, and {m.model.config} has desc_act."
        )
    if type(size) is not int or size < 1:
        raise m.fault(f"The size of groups is {size!r}.")
    if not groups and matrix[0] % size:
        raise m.fault(f"{matrix[0]} inputs are not cut by groups of {size}.")
    scale = m.plane("scales", matrix, _FLOATS, [(size, 1)], **groups)
    zero: Any = 8.0
    if not (is_awq and described.get("zero_point") is False) or m.has("qzeros"):
        # In GPTQ's first version, field by field: a zero point of 0 is stored as all ones.
        values = (INTEGERS + 1) % (1 << bits) if form == "gptq" else INTEGERS
        groups["packing"] = Packing(bits, values, order=_AWQ if is_awq else ())
        zero = m.plane("qzeros", matrix, {"int32"}, [scale.block], **groups)
    packing = Packing(4, order=_AWQ) if is_awq else Packing(bits, axis=-2)
    return m.of(f"{m.scheme} {bits}-bit", matrix, ("-", zero), ("*", scale), packing=packing,
                shape=matrix[::-1], dtype=dtype, is_transposed=True, refusal=refusal)  # fmt: skip


def _bits_of_words(m: Coded, scales: Shape) -> int:
    """The bits of codes in GPTQ's columns of words, by the extents of their zero points or groups."""
    zeros, index = (m.stored.facts.get(m.base + name, ("", ()))[1] for name in ("qzeros", "g_idx"))
    if len(zeros) == 2 and scales[1]:
        return 32 * zeros[1] // scales[1]
    return 32 * m.shape[0] // index[0] if index[:1] > (0,) else 0


# --- MLX


_MLX = {
    "mxfp4": (4, 32, _E2M1, E8M0),
    "nvfp4": (4, 16, _E2M1, _E4M3),
    "mxfp8": (8, 32, _E4M3, E8M0),
}
"""The bits, the size of groups, and the dtypes of codes and scales of each mode of floats."""


def _mlx(m: Coded) -> Quantised:
    described = m.model.described
    own = described.get(m.name)
    own = own if isinstance(own, dict) else described
    if m.model.method != "MLX":
        raise m.undescribed()
    bits, size, mode = own.get("bits"), own.get("group_size"), own.get("mode", "affine")
    if mode not in ("affine", *_MLX):
        raise m.refusal(f"its mode is {mode!r}")
    values, kind = INTEGERS, f"{bits}-bit"
    if mode != "affine":
        own_bits, own_size, codes, scales = _MLX[mode]
        values, kind = values_of(codes), mode
        bits, size = own_bits if bits is None else bits, own_size if size is None else size
        if (bits, size) != (own_bits, own_size):
            raise m.fault(f"{mode} of {bits} bits in groups of {size} is not one of MLX.")
    if type(bits) is not int or not 1 <= bits <= 8:
        raise m.fault(f"{m.model.config} names {bits!r} bits.")
    matrix = m.columns(bits)
    blocks = [m.group_block(matrix, size)]
    if mode == "affine":
        dtype, _ = m.need("scales", _FLOATS)
        steps = [(sign, m.plane(name, matrix, _FLOATS, blocks)) for sign, name in _AFFINE]
    else:
        dtype, packing = "bfloat16", Packing(8, values_of(scales))
        steps = [("*", m.plane("scales", matrix, {"uint8"}, blocks, packing=packing))]
    return m.of(f"MLX {kind}", matrix, *steps, packing=Packing(bits, values), dtype=dtype)


_AFFINE = ("*", "scales"), ("+", "biases")


# --- bitsandbytes


_STATES = {"nf4": "NF4", "fp4": "FP4"}


def _state_of(stored: StoredTensors, key: str) -> str:
    names = (f"{key}.quant_state.bitsandbytes__{kind}" for kind in _STATES)
    return next((name for name in names if name in stored.facts), "")


def _bitsandbytes(m: Coded) -> Quantised:
    key = _state_of(m.stored, m.key)
    if not key:
        raise m.fault(f"'{m.key}.quant_state.bitsandbytes__nf4' is not there.")
    m.prefix, kind = f"{m.key}.", key.rpartition("__")[2]
    state = _parsed(m.text(key.removeprefix(m.prefix)))
    shape: Any = state.get("shape")
    size, dtype = state.get("blocksize"), state.get("dtype")
    is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not is_shape or type(size) is not int or size < 1 or state.get("quant_type") != kind:
        raise m.fault(f"{key!r} has no shape, block size or type of {kind}.")
    if dtype not in DTYPES:
        raise m.refusal(f"its numbers are {dtype!r}")
    matrix, table = (1, prod(shape)), _table(m, "quant_map", 16)
    nested = state.get("nested_blocksize")
    if nested is None:
        scale = m.plane("absmax", matrix, {"float32"}, [(1, size)])
    else:
        offset: Any = state.get("nested_offset")
        is_number = isinstance(offset, (int, float)) and abs(offset) <= 2.0**127
        if type(nested) is not int or nested < 1 or not is_number:
            raise m.fault(f"{key!r} has no size of nested blocks, or no offset.")
        packing = Packing(8, _table(m, "nested_quant_map", 256))
        scale = m.plane("absmax", matrix, {"uint8"}, [(1, size)], packing=packing)
        inner = m.plane("nested_absmax", scale.shape, {"float32"}, [(1, nested)])
        scale = replace(scale, steps=(("*", inner), ("+", offset)))
    packing = Packing(4, table, is_high_first=True)
    return m.of(_STATES[kind], matrix, ("*", scale), packing=packing, key=m.key,
                shape=tuple(shape), dtype=dtype)  # fmt: skip


def _table(m: Coded, name: str, extent: int) -> Any:
    values = m.small(name, {"float32"})
    if values.shape != (extent,) or not np.isfinite(values).all():
        raise m.fault(f"{m.prefix + name!r} is not a table of {extent} finite numbers.")
    return values.astype(np.float32)


_PER_LEVEL = 0.007874015748031496
"""float32(1 / 127), as bitsandbytes has it: SCB is the largest magnitude of a row."""


def _int8(m: Coded) -> Quantised:
    if m.has("weight_format") and m.number("weight_format"):
        raise m.refusal("its rows are not in order")
    _, rows = m.need("SCB", {"float32"})
    if rows != m.shape[:1]:
        raise m.fault(f"'{m.base}SCB' has the shape {human_shape(rows)}, not one for each row.")
    scale = m.plane("SCB", m.shape, {"float32"}, [(1, ALL)])
    return m.of("int8", m.shape, ("*", scale), ("*", _PER_LEVEL), dtype="float32")


# --- ModelOpt


def _modelopt(m: Coded) -> Quantised:
    dtype, _ = m.need("weight_scale", {*_SCALES, _E4M3})
    is_nvfp4 = dtype == _E4M3
    m.scheme = "NVFP4" if is_nvfp4 else m.scheme
    refusal = None
    if m.model.method != "modelopt":
        refusal = m.undescribed("does not name the library that wrote it")
    if is_nvfp4:
        # By + 0.0, as the library reads -0.
        factor, first = ("*", "weight_scale_2"), [("+", 0.0)]
        return _four_bits(m, "weight_scale", {_E4M3}, factor, first, refusal=refusal)
    if refusal:
        raise refusal
    if dtype == "uint8":
        return _four_bits(m, "weight_scale", {"uint8"})
    if len(m.shape) != 2:
        raise m.not_a_matrix(m.shape)
    # Two rows in each, and the numbers from -8 to 7.
    matrix = (m.shape[0] * 2, m.shape[1])
    block = m.group_block(matrix, m.model.described.get("group_size"))
    scale = m.plane("weight_scale", matrix, _FLOATS, [block])
    packing = Packing(4, (INTEGERS + 8) % 16 - 8, axis=-2)
    return m.of("int4", matrix, ("*", scale), packing=packing)


# --- torchao


_DEPTH = 16


def torchao_parts(user: Mapping[str, str]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """By the key of each part, the key of the numbers and their description in the metadata."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name, text in user.items():
        described = _parsed(text) if '"_type"' in text else {}
        if described.get("_type", "Tensor") != "Tensor":
            layer, last = layer_of(name)
            parts = described.get("_tensor_data_names")
            for part in ("qdata", *(parts if isinstance(parts, list) else ())):
                found[f"{layer}_{last}_{part}"] = name, described
    return found


def comfy_layers(user: Mapping[str, str]) -> Mapping[str, Any] | None:
    return as_object(_parsed(user[COMFY]).get("layers")) if COMFY in user else None


def _parsed(text: str) -> Mapping[str, Any]:
    """The object that JSON describes; empty for other texts, which describe none."""
    try:
        return as_object(parse_json(text.encode(), _DEPTH))
    except CheckpointError:
        return {}


def _torchao(m: Coded) -> Quantised:
    new, described = m.stored.torchao[m.key]
    kind, data = str(described["_type"]), as_object(described.get("_data"))
    m.prefix, m.scheme = m.key.removesuffix("qdata"), f"torchao ({kind})"
    if kind not in _TORCHAO:
        raise m.refusal("its type is unknown")
    codes, scale_dtypes = _TORCHAO[kind]
    dtype, matrix = m.need(m.key, codes)
    own = _named(data.get("orig_dtype", data.get("dtype")))
    size, packing = data.get("block_size"), None
    if dtype == "uint8":
        matrix, packing = m.columns(4), _FOUR_BITS
        if kind == "MXTensor" and _E2M1 not in _named(data.get("elem_dtype")):
            raise m.refusal("its elements are of another type")
    if kind in ("MXTensor", "NVFP4Tensor"):
        block = m.group_block(matrix, size if size != 16 or kind[0] == "N" else None)
    elif isinstance(size, list) and len(size) == len(matrix) and is_block(size[-2:]):
        block = size[-2], m.group_block(matrix, size[-1])[1]
    else:
        raise m.fault(f"Its block size is {size!r}.")
    parts, is_tiled = m.stored.torchao, bool(data.get("is_swizzled_scales"))
    steps: list[Step] = []
    if f"{m.prefix}zero_point" in parts:
        steps.append(("-", m.plane("zero_point", matrix, {"int8"}, [block])))
    scale = m.plane("scale", matrix, scale_dtypes, [block], is_tiled=is_tiled)
    if f"{m.prefix}per_tensor_scale" in parts:
        scale = replace(scale, steps=(("*", m.factor("per_tensor_scale")),))
    return m.of(f"torchao {kind}", matrix, *steps, ("*", scale), packing=packing, key=new,
                dtype=own if own in DTYPES else "")  # fmt: skip


_INTEGERS = {"int8"}, _FLOATS
_TORCHAO: dict[str, tuple[set[str], set[str]]] = {
    "Int8Tensor": _INTEGERS,
    "IntxUnpackedToInt8Tensor": _INTEGERS,
    "Float8Tensor": (EIGHT_BITS, _FLOATS),
    "NVFP4Tensor": ({"uint8"}, {_E4M3}),
    "MXTensor": ({"uint8", *EIGHT_BITS}, {E8M0}),
}
"""The dtypes of codes and scales of each type that is read."""


def _named(value: Any) -> str:
    return str(as_object(value).get("_data", ""))


# --- HQQ and quanto


_HQQ_META = (
    "axis", "channel_wise", "compute_dtype", "encoded_state_dict", "group_size", "nbits", "offload_meta",
    "optimize", "packing", "quant_scale", "quant_zero", "round_zero", "scale", "shape",
    "stores_quant_config", "unpack_view_dtype", "view_as_float", "zero",
)  # fmt: skip


def _hqq(m: Coded) -> Quantised:
    bits, axis, size = map(m.number, ("nbits", "axis", "group_size"))
    for name in ("quant_zero", "quant_scale", "view_as_float"):
        if m.has(name) and m.number(name):
            raise m.refusal(f"{m.base + name!r} is set")
    form, dtype = m.text("packing"), m.text("compute_dtype").removeprefix("torch.")
    shape = tuple(m.small("shape", {"int64", "int32"}).tolist())
    total = prod(shape)
    word, element, parts = ("32", "int32", 10) if bits == 3 else ("u8", "uint8", 8 // max(bits, 1))
    if bits not in (1, 2, 3, 4, 8) or axis not in (0, 1) or form != f"{bits}bit_{word}":
        raise m.refusal(f"it has {bits} bits along the axis {axis}, packed as {form!r}")
    if dtype not in DTYPES:
        raise m.refusal(f"its numbers are {dtype!r}")
    if min(shape, default=0) < 0 or size < 1 or total % size:
        raise m.fault(f"A tensor of {human_shape(shape)} is not cut by groups of {size}.")
    matrix, block = ((total // size, size), (1, ALL)) if axis else ((size, total // size), (ALL, 1))
    m.need(m.key, {element})
    zero, scale = (m.plane(name, matrix, _FLOATS, [block]) for name in ("zero", "scale"))
    members = (m.base + name for name in _HQQ_META if m.has(name))
    m.members += [key for key in members if key not in m.members]
    packing = None if bits == 8 else Packing(bits, is_high_first=True, parts=parts)
    return m.of(f"HQQ {bits}-bit", matrix, ("-", zero), ("*", scale), packing=packing, shape=shape,
                dtype=dtype)  # fmt: skip


def _quanto(m: Coded) -> Quantised:
    new = m.key.partition("._data")[0]
    dtype, stored = m.need(m.key, {"int8", "uint8", *EIGHT_BITS})
    if m.model.method != "quanto":  # others divide by scales of these names
        raise m.undescribed()
    m.prefix = f"{new}."
    scale_dtype, scales = m.need("_scale", _FLOATS)
    if not m.key.endswith("._data._data"):
        blocks = [(1, ALL), *([(ALL, ALL)] if prod(scales) == 1 else [])]
        scale = m.plane("_scale", stored, _FLOATS, blocks)
        kind = "int8" if dtype == "int8" else "FP8"
        return m.of(f"quanto {kind}", stored, ("*", scale), key=new, dtype=scale_dtype)
    name = str(m.model.described.get("weights"))
    if name not in ("qint2", "int2", "qint4", "int4"):
        raise m.undescribed("does not name int4 or int2")
    bits = int(name[-1])
    if len(stored) != 2 or len(scales) != 2 or scales[1] != 1:
        raise m.refusal("its groups are not rows")
    m.need(m.key, {"uint8"})
    matrix = (scales[0], stored[1])
    shift_dtype, _ = m.need("_shift", {"int8", *_FLOATS})
    scale = m.plane("_scale", matrix, _FLOATS, [(1, ALL)])
    shift = m.plane("_shift", matrix, {shift_dtype}, [(1, ALL)])
    steps = [("*", scale), ("-", shift)]
    steps = steps[::-1] if shift_dtype == "int8" else steps
    layer, _ = layer_of(new)
    _, bias = m.stored.facts.get(f"{layer}bias", ("", ()))
    if len(bias) != 1 or not bias[0] or prod(matrix) % bias[0]:
        raise m.refusal(f"its shape is not stored, and without '{layer}bias' nothing tells it")
    return m.of(f"quanto int{bits}", matrix, *steps, packing=Packing(bits, parts=8 // bits),
                shape=(bias[0], prod(matrix) // bias[0]), key=new, dtype=scale_dtype)  # fmt: skip


# --- ComfyUI


def _is_comfy(stored: StoredTensors, key: str) -> bool:
    layer, last = layer_of(key)
    dtype, _ = stored.facts[key]
    # Scales may lie in tiles, so a layer that its metadata leave out is not read by other rules.
    is_marked = stored.comfy is not None or any(map(key.startswith, stored.marks))
    is_named = f"{layer}comfy_quant" in stored.facts or layer[:-1] in (stored.comfy or ())
    return last == "weight" and (is_named or (is_marked and dtype in {*EIGHT_BITS, "uint8"}))


def _comfy(m: Coded) -> Quantised:
    m.need(m.key, {"uint8", "int8", *EIGHT_BITS})
    described = as_object((m.stored.comfy or {}).get(m.name))
    if m.has("comfy_quant"):
        described = _parsed(m.text("comfy_quant"))
    form = described.get("format")
    # Weights under the mark without scales are numbers.
    scale, dtypes, block, is_tiled = "scale_weight", {"float32"}, (ALL, ALL), False
    if m.has("comfy_quant") or m.stored.comfy is not None:
        is_rotated = any("convrot" in str(name) for name in (form, *described))
        if is_rotated or form not in ("float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4"):
            raise m.refusal(f"its format is {form!r}")
        m.scheme, scale = f"ComfyUI's {form}", "weight_scale"
    if form == "nvfp4":
        m.need(m.key, {"uint8"})
        return _four_bits(m, scale, {_E4M3}, ("*", "weight_scale_2"), is_tiled=True, dtype="bfloat16",
                          packing=replace(_FOUR_BITS, is_high_first=True))  # fmt: skip
    m.need(m.key, EIGHT_BITS)
    if form == "mxfp8":
        dtypes, block, is_tiled = _EXPONENTS, m.group_block(m.shape, 32), True
    steps = []
    if scale == "weight_scale" or m.has(scale):
        steps = [("*", m.plane(scale, m.shape, dtypes, [block], is_tiled=is_tiled))]
    return m.of("FP8", m.shape, *steps, dtype="bfloat16")


# --- The table


_Test = Callable[[StoredTensors, str], bool]


def _is(last: str, dtypes: set[str], *nearby: str) -> _Test:
    """A test of names and dtypes: one of the tensors ``nearby`` is in the layer, if any is given."""

    def test(stored: StoredTensors, key: str) -> bool:
        base, name = layer_of(key)
        is_near = not nearby or any(base + each in stored.facts for each in nearby)
        return name == last and stored.facts[key][0] in dtypes and is_near

    return test


_SCHEMES: dict[str, tuple[_Test, Callable[[Coded], Quantised]]] = {
    "torchao": (lambda s, k: k in s.torchao and k.endswith("qdata"), _torchao),
    "bitsandbytes (4 bits)": (lambda s, k: bool(_state_of(s, k)) or f"{k}.absmax" in s.facts, _bitsandbytes),
    "bitsandbytes (LLM.int8)": (_is("weight", {"int8"}, "SCB"), _int8),
    "ComfyUI's comfy_quant or scaled_fp8": (_is_comfy, _comfy),
    "HQQ": (_is("W_q", {"uint8", "int32"}), _hqq),
    "quanto": (lambda s, k: k.endswith("._data") and f"{k.partition('._data')[0]}._scale" in s.facts, _quanto),
    "AWQ or GPTQ": (_is("qweight", {"int32", "uint32"}, "scales", "qzeros"), _columns_of_words),
    "compressed-tensors": (_is("weight_packed", {"int32", "uint8"}), _packed),
    "MLX": (_is("weight", {"uint32"}, "scales", "biases"), _mlx),
    "MXFP4": (_is_blocks, _blocks),
    "FP8": (_is_float8, _float8),
    "ModelOpt's 4 bits": (_is("weight", {"uint8"}, "weight_scale"), _modelopt),
    "integers of 8 bits and scales": (_is("weight", {"int8"}, "weight_scale"), _integers),
}  # fmt: skip
"""Each scheme by its name: a test of a key, and the function that builds the tensor of it."""


def scheme_of(stored: StoredTensors, key: str) -> Coded | None:
    dtype, _ = stored.facts[key]
    codes = {*EIGHT_BITS, "int32", "uint32", "int8", "uint8"}
    if dtype not in codes and not _state_of(stored, key):  # bitsandbytes stores them as any dtype
        return None
    name = next((name for name, (is_one, _) in _SCHEMES.items() if is_one(stored, key)), None)
    return Coded(stored, key, name) if name else None


def build(module: Coded) -> Quantised:
    _, make = _SCHEMES[module.scheme]
    return make(module)

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
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from shardvar.engine.quantised import Packing, Plane, Quantised, values_of
from shardvar.errors import CheckpointError
from shardvar.layout.dtypes import Shape
from shardvar.pictures.words import human_shape, named
from shardvar.records import replace
from shardvar.verbs.coded import (
    ALL,
    DTYPES,
    Coded,
    StoredTensors,
    as_matrix,
    is_block,
)
from shardvar.verbs.parameters import layer_of
from shardvar.wire.strict_json import parse_json

COMFY = "_quantization_metadata"
"""The metadata of ComfyUI that name the formats of layers."""

_MX_BLOCK, _NV_BLOCK = (1, 32), (1, 16)
"""The numbers that share a scale in the formats of OCP MX, and in NVFP4."""

EIGHT_BITS = {
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz",
}  # fmt: skip
_E8M0 = "float8_e8m0fnu"
_E4M3 = "float8_e4m3fn"
_EXPONENTS = {_E8M0, "uint8"}
_FLOATS = {"float32", "bfloat16", "float16"}
_SCALES = {*_FLOATS, *_EXPONENTS}
_WORDS = {"int32", "uint32"}
_BYTES = np.arange(256, dtype=np.float32)

SMALL = (
    "weight_shape", "weight_global_scale", "weight_scale_2", "quant_map", "bitsandbytes__nf4",
    "bitsandbytes__fp4", "weight_format", "comfy_quant", "nbits", "axis", "group_size", "packing",
    "compute_dtype", "shape", "quant_zero", "quant_scale", "view_as_float", "per_tensor_scale",
)  # fmt: skip
"""Ends of the names of small tensors that describe codes."""


# --- FP8, and MX of four bits


def _is_float8(stored: StoredTensors, key: str) -> bool:
    dtype, _ = stored.facts[key]
    names = _float8_scales(stored, key)
    if dtype in EIGHT_BITS:
        return bool(names)
    # Two numbers of 4 bits in a byte, as DeepSeek-V4 has them: only with exponents.
    is_packed = dtype in ("int8", "uint8")
    return is_packed and any(stored.facts[name][0] == _E8M0 for name in names)


def _float8_scales(stored: StoredTensors, key: str) -> list[str]:
    names = [f"{key}_scale_inv", f"{key}_scale"]
    if key.endswith(".weight") or key == "weight":
        base = key.removesuffix("weight")
        names += [f"{base}{name}" for name in ("scale", "qscale_weight")]
    return [name for name in names if name in stored.facts]


def _float8(m: Coded) -> Quantised:
    dtype, shape = m.need(m.key, {*EIGHT_BITS, "int8", "uint8"})
    names = _float8_scales(m.stored, m.key)
    if len(names) > 1:
        raise m.fault(f"It has two sets of scales: {named(names)}.", "Remove one of them.")
    (name,) = names
    is_packed = dtype not in EIGHT_BITS
    numbers = (*shape[:-1], shape[-1] * 2) if is_packed else shape
    scale_dtype, scale_shape = m.need(name, _SCALES)
    is_exponent = scale_dtype in _EXPONENTS
    blocks = [_MX_BLOCK]
    if not is_packed:
        blocks = _group_blocks(m, numbers, "float") or [
            m.model.block,
            *([_MX_BLOCK] if is_exponent else []),
        ]
        # One number cannot be taken for one of several blocks. Rows have scales only without "inv".
        blocks += [(ALL, ALL)] if prod(scale_shape) == 1 else []
        blocks += [] if name.endswith("_inv") else [(1, ALL)]
    values = values_of(_E8M0) if scale_dtype == "uint8" else None
    matrix = as_matrix(numbers)
    scale = m.plane(name, matrix, _SCALES, blocks, values=values)
    packing, codes = (Packing(4), values_of("float4_e2m1fn")) if is_packed else (None, None)
    plane = Plane(m.key, matrix, packing, codes, (("*", scale),))
    return m.of(plane, "MXFP4" if is_packed else "FP8", shape=numbers, new=m.key)


def _is_blocks(stored: StoredTensors, key: str) -> bool:
    dtype, shape = stored.facts[key]
    return key.endswith(("_blocks", ".blocks")) and dtype == "uint8" and shape[-1:] == (16,)


def _blocks(m: Coded) -> Quantised:
    _, stored = m.need(m.key, {"uint8"})
    scales = f"{m.key.removesuffix('blocks')}scales"
    if len(stored) < 3:
        raise m.fault(f"It has the shape {human_shape(stored)}, and blocks are in rows.")
    numbers = (*stored[:-2], stored[-2] * 32)
    scale = m.plane(scales, as_matrix(numbers), {"uint8"}, [_MX_BLOCK], values=values_of(_E8M0))
    packing = Packing(4, inner=16)
    plane = Plane(m.key, as_matrix(numbers), packing, values_of("float4_e2m1fn"), (("*", scale),))
    # As transformers does for GPT-OSS, whose layers multiply from the left: [experts, in, out].
    is_transposed = m.key.endswith("_blocks") and len(numbers) == 3
    shape = (numbers[0], numbers[2], numbers[1]) if is_transposed else numbers
    new = m.key[: -len("_blocks")]
    return m.of(plane, "MXFP4", shape=shape, new=new, is_transposed=is_transposed)


def _nvfp4(m: Coded, scale: str, **more: Any) -> tuple[Plane, Plane]:
    _, shape = m.need(m.key, {"uint8"})
    matrix = m.columns(shape, 4, 1)
    m.group_block(matrix[-1], _NV_BLOCK[1])
    scales = m.plane(scale, matrix, {_E4M3}, [_NV_BLOCK], **more)
    return Plane(m.key, matrix, Packing(4), values_of("float4_e2m1fn")), scales


def _scaled(plane: Plane, *steps: tuple[str, Plane | float]) -> Plane:
    return replace(plane, steps=(*plane.steps, *steps))


# --- compressed-tensors


def _arguments(m: Coded, kind: str) -> list[Mapping[str, Any]]:
    # The weights of the groups that may be the layer's.
    groups = m.model.described.get("config_groups")
    found: list[Mapping[str, Any]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        targets = group.get("targets") if isinstance(group, dict) else None
        if isinstance(weights, dict) and isinstance(targets, list) and "strategy" in weights:
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


def _group_blocks(m: Coded, numbers: Shape, kind: str) -> list[tuple[int, int]]:
    blocks = []
    for arguments in _arguments(m, kind):
        strategy, size = arguments.get("strategy"), arguments.get("group_size")
        structure = arguments.get("block_structure")
        if strategy is None:
            strategy = "tensor" if size is None else "channel" if size == -1 else "group"
        if strategy in ("group", "tensor_group"):
            if type(size) is int and size > 0 and numbers[-1] % size == 0:
                blocks.append((1, size))
        elif strategy == "block":
            if isinstance(structure, str):
                structure = [int(each) for each in re.findall(r"\d{1,9}", structure)]
            if isinstance(structure, list) and is_block(structure):
                blocks.append((structure[0], structure[1]))
        else:
            blocks += [(ALL, ALL)] if strategy == "tensor" else [(1, ALL)]
    return blocks


def _integers(m: Coded) -> Quantised:
    """Integers in words, whose zero points are packed along the rows, or one in each byte."""
    dtype, stored = m.need(m.key, {"int32", "int8"})
    scale_key, zero_key = m.base + "weight_scale", m.base + "weight_zero_point"
    numbers, bits, packing, values = stored, 8, None, None
    arguments = _arguments(m, "int")
    if len(stored) < 2:
        raise m.fault(f"It has the shape {human_shape(stored)}, and must be a matrix.")
    if dtype == "int32":
        numbers = tuple(_words_shape(m, stored))
        fitting = [n for n in range(1, 9) if -(-numbers[-1] * n // 32) == stored[-1]]
        told = [each.get("num_bits") for each in arguments] or fitting
        fitting = [n for n in fitting if n in told]
        if len(fitting) != 1:
            raise m.fault(
                f"Rows of {stored[-1]} words hold {numbers[-1]} integers of {told} "
                "bits in none or several ways.",
                f"The number of bits is in {m.model.config}.",
            )
        (bits,) = fitting
        packing, values = Packing(bits), _BYTES - (1 << bits - 1)
    elif m.model.method not in ("compressed-tensors", "modelopt"):
        raise m.refusal(f"{m.model.config} does not say so")
    if arguments:
        blocks = _group_blocks(m, numbers, "int")
    else:
        _, shape = m.need(scale_key, _SCALES)
        size = numbers[-1] // shape[-1] if shape[-1:] > (0,) else 0
        blocks = [
            (ALL, ALL),
            (1, ALL),
            *([(1, size)] if size * shape[-1] == numbers[-1] else []),
        ]
    if not blocks:
        raise m.fault(
            f"{m.model.config} names groups that do not cut rows of {numbers[-1]} numbers."
        )
    index = m.base + "weight_g_idx"
    more: dict[str, Any] = {}
    if index in m.stored.facts:
        m.plane(index, (1, numbers[-1]), {"int32", "int64"})
        more = {"groups": index}
    scale = m.plane(scale_key, numbers, _FLOATS, blocks, **more)
    steps: list[tuple[str, Plane | float]] = [("*", scale)]
    is_symmetric = any(each.get("symmetric", True) for each in arguments) or not arguments
    if zero_key in m.stored.facts or not is_symmetric:
        along = None if packing is None else Packing(bits, axis=-2)
        zero_dtype = {"int8"} if packing is None else {"int32"}
        zero = m.plane(zero_key, scale.shape, zero_dtype, packing=along, values=values)
        steps.insert(0, ("-", replace(zero, block=scale.block, **more)))
    return m.of(Plane(m.key, numbers, packing, values, tuple(steps)), f"int{bits}")


def _words_shape(m: Coded, stored: Shape) -> list[int]:
    numbers: list[int] = m.small(m.base + "weight_shape", {"int64", "int32"}).reshape(-1).tolist()
    if len(numbers) != len(stored) or tuple(numbers[:-1]) != stored[:-1] or numbers[-1] < 0:
        raise m.fault(
            f"{m.base + 'weight_shape'!r} is {numbers}, and the words have the shape "
            f"{human_shape(stored)}."
        )
    return numbers


def _packed(m: Coded) -> Quantised:
    dtype, _ = m.need(m.key, {"int32", "uint8"})
    if dtype == "int32":
        return _integers(m)
    scale = m.base + "weight_scale"
    if m.has("weight_global_scale"):
        plane, scales = _nvfp4(m, scale)
        scales = _scaled(scales, ("/", m.factor(m.base + "weight_global_scale")))
        return m.of(_scaled(plane, ("*", scales)), "NVFP4")
    return _exponents(m, scale)


def _exponents(m: Coded, scale: str) -> Quantised:
    _, shape = m.need(m.key, {"uint8"})
    matrix = m.columns(shape, 4, 1)
    m.group_block(matrix[-1], _MX_BLOCK[1])
    scales = m.plane(scale, matrix, {"uint8"}, [_MX_BLOCK], values=values_of(_E8M0))
    plane = Plane(m.key, matrix, Packing(4), values_of("float4_e2m1fn"), (("*", scales),))
    return m.of(plane, "MXFP4")


# --- AWQ and GPTQ


_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of each of 8 columns: they are stored in the order 0 2 4 6 1 3 5 7."""


def _columns_of_words(m: Coded) -> Quantised:
    """AWQ packs the outputs, and GPTQ the inputs; both are stored [in, out], and read [out, in]."""
    described, method = _own(m), m.model.method
    _, stored = m.need(m.key, {"int32"})
    _, scales = m.need(m.base + "scales", _FLOATS)
    if len(stored) != 2 or len(scales) != 2:
        raise m.fault(f"It has the shape {human_shape(stored)}, and must be a matrix.")
    is_awq = stored[1] * 8 == scales[1] and method != "gptq"
    m.scheme = "AWQ" if is_awq else "GPTQ"
    refusal = None
    if method != m.scheme.lower():
        refusal = m.refusal(f"{m.model.config} does not describe it, and versions of it differ")
    bits = described.get("bits", described.get("w_bit"))
    if bits is None:
        bits = 4 if is_awq else _bits_of_words(m, stored, scales)
    form = described.get("version" if is_awq else "checkpoint_format") or (
        "gemm" if is_awq else "gptq"
    )
    if form not in (("gemm", "GEMM") if is_awq else ("gptq", "gptq_v2")):
        raise m.refusal(f"its layout is {form!r}")
    if type(bits) is not int or bits not in ((4,) if is_awq else (2, 3, 4, 8)):
        raise m.refusal(f"it has {bits!r} bits")
    matrix = (stored[0], scales[1]) if is_awq else (stored[0] * 32 // bits, scales[1])
    size = described.get("group_size", described.get("q_group_size", -1))
    size = -(-matrix[0] // max(scales[0], 1)) if size == -1 or refusal else size
    more: dict[str, Any] = {}
    if not is_awq and m.has("g_idx"):
        m.plane(m.base + "g_idx", (1, matrix[0]), {"int32", "int64"})
        more = {"groups": m.base + "g_idx", "axis": -2}
    elif described.get("desc_act"):
        raise m.fault(
            f"The groups '{m.base}g_idx' are not there, and {m.model.config} has desc_act."
        )
    elif type(size) is int and size > 0 and matrix[0] % size:
        raise m.fault(f"{matrix[0]} inputs are not cut by groups of {size}.")
    if type(size) is not int or size < 1:
        raise m.fault(f"The size of groups is {size!r}.")
    packing = Packing(4, order=_AWQ) if is_awq else Packing(bits, axis=-2)
    plane = m.plane(m.key, matrix, {"int32"}, packing=packing, values=_BYTES)
    scale = m.plane(m.base + "scales", matrix, _FLOATS, [(size, 1)], **more)
    zeros = plane.values
    if not is_awq and form == "gptq":
        # Field by field: a zero point of 0 is stored as all ones.
        zeros = np.arange(1, 257, dtype=np.float32) % (1 << bits)
    steps: tuple[tuple[str, Plane | float], ...] = (("-", 8.0), ("*", scale))
    if not (is_awq and described.get("zero_point") is False) or m.has("qzeros"):
        along = replace(packing, bits=bits, axis=-1)
        zero = m.plane(m.base + "qzeros", scale.shape, {"int32"}, packing=along, values=zeros)
        steps = (("-", replace(zero, block=scale.block, **more)), ("*", scale))
    kind, dtype = f"{m.scheme} {bits}-bit", m.stored.facts[m.base + "scales"][0]
    shape = (matrix[1], matrix[0])
    more = {"shape": shape, "dtype": dtype, "is_transposed": True, "refusal": refusal}
    return m.of(replace(plane, steps=steps), kind, **more)


def _bits_of_words(m: Coded, stored: Shape, scales: Shape) -> int:
    """The bits of codes in GPTQ's columns of words, by the extents of their zero points or groups."""
    zeros, index = (m.stored.facts.get(m.base + name, ("", ()))[1] for name in ("qzeros", "g_idx"))
    if len(zeros) == 2 and scales[1]:
        return 32 * zeros[1] // scales[1]
    return 32 * stored[0] // index[0] if index[:1] > (0,) else 0


def _own(m: Coded) -> Mapping[str, Any]:
    described = dict(m.model.described)
    dynamic = described.get("dynamic")
    for pattern, own in dynamic.items() if isinstance(dynamic, dict) else ():
        target = f"re:{pattern.removeprefix('+:')}"
        if isinstance(own, dict) and own and _is_target(target, m.name):
            return described | own
    return described


# --- MLX


def _mlx(m: Coded) -> Quantised:
    described = m.model.described
    own = described.get(m.name)
    own = own if isinstance(own, dict) else described
    if m.model.method != "MLX":
        raise m.refusal(f"{m.model.config} does not describe it")
    bits, size, mode = own.get("bits"), own.get("group_size"), own.get("mode", "affine")
    _, stored = m.need(m.key, {"uint32"})
    floats = {"mxfp4": (4, 32, "float4_e2m1fn", _E8M0), "nvfp4": (4, 16, "float4_e2m1fn", _E4M3)}
    floats["mxfp8"] = 8, 32, _E4M3, _E8M0
    if mode not in ("affine", *floats):
        raise m.refusal(f"its mode is {mode!r}")
    if mode != "affine":
        own_bits, own_size, codes, scales = floats[mode]
        bits, size = own_bits if bits is None else bits, own_size if size is None else size
        if (bits, size) != (own_bits, own_size):
            raise m.fault(f"{mode} of {bits} bits in groups of {size} is not one of MLX.")
        values = values_of(codes)
    else:
        values = _BYTES
    if type(bits) is not int or not 1 <= bits <= 8:
        raise m.fault(f"{m.model.config} names {bits!r} bits.")
    matrix = m.columns(stored, bits)
    block = m.group_block(matrix[-1], size)
    plane = m.plane(m.key, matrix, {"uint32"}, packing=Packing(bits), values=values)
    if mode != "affine":
        scale = m.plane(m.base + "scales", matrix, {"uint8"}, [block], values=values_of(scales))
        return m.of(_scaled(plane, ("*", scale)), f"MLX {mode}", dtype="bfloat16")
    scale = m.plane(m.base + "scales", matrix, _FLOATS, [block])
    bias = m.plane(m.base + "biases", matrix, _FLOATS, [block])
    dtype = m.stored.facts[scale.key][0]
    return m.of(_scaled(plane, ("*", scale), ("+", bias)), f"MLX {bits}-bit", dtype=dtype)


# --- bitsandbytes


_STATES = {"nf4": "NF4", "fp4": "FP4"}


def _state_of(stored: StoredTensors, key: str) -> str:
    names = (f"{key}.quant_state.bitsandbytes__{kind}" for kind in _STATES)
    return next((name for name in names if name in stored.facts), "")


def _bitsandbytes(m: Coded) -> Quantised:
    key = _state_of(m.stored, m.key)
    if not key:
        raise m.fault(f"'{m.key}.quant_state.bitsandbytes__nf4' is not there.")
    state = _parsed(m.text(key))
    shape, size, dtype = state.get("shape"), state.get("blocksize"), state.get("dtype")
    kind = key.rpartition("__")[2]
    shape = shape if isinstance(shape, list) else [-1]
    is_shape = all(type(each) is int and each >= 0 for each in shape)
    if not is_shape or type(size) is not int or size < 1 or state.get("quant_type") != kind:
        raise m.fault(f"{key!r} has no shape, block size or type of {kind}.")
    if dtype not in DTYPES:
        raise m.refusal(f"its numbers are {dtype!r}")
    total = prod(shape)
    matrix, packing = (1, total), Packing(4, is_high_first=True)
    table = _table(m, f"{m.key}.quant_map", 16)
    dtypes = {m.stored.facts[m.key][0]}
    plane = m.plane(m.key, matrix, dtypes, packing=packing, values=table)
    absmax = f"{m.key}.absmax"
    nested = state.get("nested_blocksize")
    if nested is None:
        scale = m.plane(absmax, matrix, {"float32"}, [(1, size)])
    else:
        offset: Any = state.get("nested_offset")
        is_number = isinstance(offset, (int, float)) and abs(offset) <= 2.0**127
        if type(nested) is not int or nested < 1 or not is_number:
            raise m.fault(f"{key!r} has no size of nested blocks, or no offset.")
        values = _table(m, f"{m.key}.nested_quant_map", 256)
        scale = m.plane(absmax, matrix, {"uint8"}, [(1, size)], values=values)
        inner = m.plane(f"{m.key}.nested_absmax", scale.shape, {"float32"}, [(1, nested)])
        scale = _scaled(scale, ("*", inner), ("+", offset))
    plane = _scaled(plane, ("*", scale))
    return m.of(plane, _STATES[kind], new=m.key, shape=tuple(shape), dtype=dtype)


def _table(m: Coded, key: str, extent: int) -> Any:
    values = m.small(key, {"float32"}).reshape(-1)
    if values.shape != (extent,) or not np.isfinite(values).all():
        raise m.fault(f"{key!r} is not a table of {extent} finite numbers.")
    return values.astype(np.float32)


_PER_LEVEL = 0.007874015748031496
"""float32(1 / 127), as bitsandbytes has it: SCB is the largest magnitude of a row."""


def _int8(m: Coded) -> Quantised:
    _, shape = m.need(m.key, {"int8"})
    if m.has("weight_format") and m.number("weight_format"):
        raise m.refusal("its rows are not in order")
    matrix = as_matrix(shape)
    _, rows = m.need(m.base + "SCB", {"float32"})
    if rows != shape[:1]:
        raise m.fault(f"'{m.base}SCB' has the shape {human_shape(rows)}, not one for each row.")
    scale = m.plane(m.base + "SCB", matrix, {"float32"}, [(1, ALL)])
    plane = Plane(m.key, matrix, steps=(("*", scale), ("*", _PER_LEVEL)))
    return m.of(plane, "int8", shape=shape, dtype="float32")


# --- ModelOpt


def _modelopt(m: Coded) -> Quantised:
    _, shape = m.need(m.key, {"uint8"})
    scale = m.base + "weight_scale"
    dtype, _ = m.need(scale, {*_SCALES, _E4M3})
    is_nvfp4 = dtype == _E4M3
    m.scheme = "NVFP4" if is_nvfp4 else m.scheme
    refusal = None
    if m.model.method != "modelopt":
        refusal = m.refusal(f"{m.model.config} does not name the library that wrote it")
    if is_nvfp4:
        plane, scales = _nvfp4(m, scale)
        scales = _scaled(scales, ("*", m.factor(m.base + "weight_scale_2")))
        # By + 0.0, as the library reads -0.
        plane = _scaled(plane, ("+", 0.0), ("*", scales))
        return m.of(plane, "NVFP4", refusal=refusal)
    if refusal:
        raise refusal
    if dtype == "uint8":
        return _exponents(m, scale)
    if len(shape) != 2:
        raise m.fault(f"It has the shape {human_shape(shape)}, and must be a matrix.")
    # Two rows in each, and the numbers from -8 to 7.
    size = m.model.described.get("group_size")
    matrix = (shape[0] * 2, shape[1])
    values = ((np.arange(256) + 8) % 16 - 8).astype(np.float32)
    block = m.group_block(matrix[1], size)
    scales = m.plane(scale, matrix, _FLOATS, [block])
    plane = Plane(m.key, matrix, Packing(4, axis=-2), values, (("*", scales),))
    return m.of(plane, "int4")


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
    layers = _parsed(user.get(COMFY, "")).get("layers")
    return None if COMFY not in user else layers if isinstance(layers, dict) else {}


def _parsed(text: str) -> Mapping[str, Any]:
    """The object that JSON describes; empty for other texts, which describe none."""
    try:
        value = parse_json(text.encode(), _DEPTH)
    except CheckpointError:
        return {}
    return value if isinstance(value, dict) else {}


def _torchao(m: Coded) -> Quantised:
    new, described = m.stored.torchao[m.key]
    kind, data = str(described["_type"]), described.get("_data")
    data = data if isinstance(data, dict) else {}
    prefix = m.key.removesuffix("qdata")
    m.scheme = f"torchao ({kind})"
    if kind not in _TORCHAO:
        raise m.refusal("its type is unknown")
    codes, scale_dtypes = _TORCHAO[kind]
    dtype, shape = m.need(m.key, codes)
    own = _named(data.get("orig_dtype" if "orig_dtype" in data else "dtype"))
    packing, values, matrix = None, None, as_matrix(shape)
    size = data.get("block_size")
    if dtype == "uint8":
        matrix = m.columns(matrix, 4, 1)
        packing, values = Packing(4), values_of("float4_e2m1fn")
        if kind == "MXTensor" and "float4_e2m1fn" not in _named(data.get("elem_dtype")):
            raise m.refusal("its elements are of another type")
    if kind in ("MXTensor", "NVFP4Tensor"):
        block = m.group_block(matrix[-1], size if size != 16 or kind[0] == "N" else None)
    elif isinstance(size, list) and len(size) == len(shape) and is_block(size[-2:]):
        block = size[-2], m.group_block(matrix[-1], size[-1])[1]
    else:
        raise m.fault(f"Its block size is {size!r}.")
    scale = m.plane(
        f"{prefix}scale",
        matrix,
        scale_dtypes,
        [block],
        is_tiled=bool(data.get("is_swizzled_scales")),
    )
    if f"{prefix}per_tensor_scale" in m.stored.torchao:
        scale = _scaled(scale, ("*", m.factor(f"{prefix}per_tensor_scale")))
    steps: list[tuple[str, Plane | float]] = [("*", scale)]
    if f"{prefix}zero_point" in m.stored.torchao:
        zero = m.plane(f"{prefix}zero_point", matrix, {"int8"}, [block])
        steps.insert(0, ("-", zero))
    plane = Plane(m.key, matrix, packing, values, tuple(steps))
    return m.of(plane, f"torchao {kind}", shape=matrix[2 - len(shape) :] if len(shape) < 2 else matrix,
                new=new, dtype=own if own in DTYPES else "")  # fmt: skip


_INTEGERS = {"int8"}, _FLOATS
_TORCHAO: dict[str, tuple[set[str], set[str]]] = {
    "Int8Tensor": _INTEGERS,
    "IntxUnpackedToInt8Tensor": _INTEGERS,
    "Float8Tensor": (EIGHT_BITS, _FLOATS),
    "NVFP4Tensor": ({"uint8"}, {_E4M3}),
    "MXTensor": ({"uint8", *EIGHT_BITS}, {_E8M0}),
}
"""The dtypes of codes and scales of each type that is read."""


def _named(value: Any) -> str:
    return str(value.get("_data", "")) if isinstance(value, dict) else ""


# --- HQQ and quanto


_HQQ_META = (
    "axis", "channel_wise", "compute_dtype", "encoded_state_dict", "group_size", "nbits", "offload_meta",
    "optimize", "packing", "quant_scale", "quant_zero", "round_zero", "scale", "shape",
    "stores_quant_config", "unpack_view_dtype", "view_as_float", "zero",
)  # fmt: skip


def _hqq(m: Coded) -> Quantised:
    bits, axis, size = m.number("nbits"), m.number("axis"), m.number("group_size")
    for name in ("quant_zero", "quant_scale", "view_as_float"):
        if m.has(name) and m.number(name):
            raise m.refusal(f"{m.base + name!r} is set")
    packing_name, dtype = m.text(m.base + "packing"), m.text(m.base + "compute_dtype")
    shape = tuple(m.small(m.base + "shape", {"int64", "int32"}).reshape(-1).tolist())
    dtype = dtype.removeprefix("torch.")
    total = prod(shape)
    if (
        bits not in (1, 2, 3, 4, 8)
        or axis not in (0, 1)
        or packing_name != f"{bits}bit_{'32' if bits == 3 else 'u8'}"
    ):
        raise m.refusal(f"it has {bits} bits along the axis {axis}, packed as {packing_name!r}")
    if dtype not in DTYPES:
        raise m.refusal(f"its numbers are {dtype!r}")
    if min(shape, default=0) < 0 or size < 1 or total % size:
        raise m.fault(f"A tensor of {human_shape(shape)} is not cut by groups of {size}.")
    matrix = (size, total // size) if axis == 0 else (total // size, size)
    packing = (
        None
        if bits == 8
        else Packing(bits, is_high_first=True, parts=10 if bits == 3 else 8 // bits)
    )
    values = _BYTES
    plane = m.plane(
        m.key, matrix, {"int32" if bits == 3 else "uint8"}, packing=packing, values=values
    )
    blocks = [(ALL, 1) if axis == 0 else (1, ALL)]
    zero, scale = (m.plane(m.base + name, matrix, _FLOATS, blocks) for name in ("zero", "scale"))
    m.members += [
        m.base + name for name in _HQQ_META if m.has(name) and m.base + name not in m.members
    ]
    return m.of(
        _scaled(plane, ("-", zero), ("*", scale)), f"HQQ {bits}-bit", shape=shape, dtype=dtype
    )


def _quanto(m: Coded) -> Quantised:
    new = m.key.partition("._data")[0]
    layer, _ = layer_of(new)
    dtype, stored = m.need(m.key, {"int8", "uint8", *EIGHT_BITS})
    scale_key, shift_key = f"{new}._scale", f"{new}._shift"
    if m.model.method != "quanto":  # others divide by scales of these names
        raise m.refusal(f"{m.model.config} does not describe it")
    scale_dtype, scales = m.need(scale_key, _FLOATS)
    if not m.key.endswith("._data._data"):
        matrix = as_matrix(stored)
        blocks = [(1, ALL), *([(ALL, ALL)] if prod(scales) == 1 else [])]
        scale = m.plane(scale_key, matrix, _FLOATS, blocks)
        kind = "int8" if dtype == "int8" else "FP8"
        plane = Plane(m.key, matrix, steps=(("*", scale),))
        return m.of(plane, f"quanto {kind}", shape=stored, new=new, dtype=scale_dtype)
    name = str(m.model.described.get("weights"))
    if name not in ("qint2", "int2", "qint4", "int4"):
        raise m.refusal(f"{m.model.config} does not name int4 or int2")
    bits = int(name[-1])
    if len(stored) != 2 or len(scales) != 2 or scales[1] != 1:
        raise m.refusal("its groups are not rows")
    matrix = (scales[0], stored[1])
    packing, values = Packing(bits, parts=8 // bits), _BYTES
    plane = m.plane(m.key, matrix, {"uint8"}, packing=packing, values=values)
    scale = m.plane(scale_key, matrix, _FLOATS, [(1, ALL)])
    shift_dtype, _ = m.need(shift_key, {"int8", *_FLOATS})
    shift = m.plane(shift_key, matrix, {shift_dtype}, [(1, ALL)])
    steps = (("-", shift), ("*", scale)) if shift_dtype == "int8" else (("*", scale), ("-", shift))
    _, bias = m.stored.facts.get(f"{layer}bias", ("", ()))
    if len(bias) != 1 or not bias[0] or prod(matrix) % bias[0]:
        raise m.refusal(f"its shape is not stored, and without '{layer}bias' nothing tells it")
    shape = (bias[0], prod(matrix) // bias[0])
    return m.of(
        _scaled(plane, *steps), f"quanto int{bits}", shape=shape, new=new, dtype=scale_dtype
    )


# --- ComfyUI


def _is_comfy(stored: StoredTensors, key: str) -> bool:
    layer, last = layer_of(key)
    dtype, _ = stored.facts[key]
    # Scales may lie in tiles, so a layer that its metadata leave out is not read by other rules.
    is_marked = stored.comfy is not None or any(map(key.startswith, stored.marks))
    is_named = f"{layer}comfy_quant" in stored.facts or layer[:-1] in (stored.comfy or ())
    return last == "weight" and (is_named or (is_marked and dtype in {*EIGHT_BITS, "uint8"}))


def _comfy(m: Coded) -> Quantised:
    _, shape = m.need(m.key, {"uint8", "int8", *EIGHT_BITS})
    matrix = as_matrix(shape)
    plane = Plane(m.key, matrix)
    described: Any = (m.stored.comfy or {}).get(m.name, {})
    if m.has("comfy_quant"):
        described = _parsed(m.text(m.base + "comfy_quant"))
    elif m.stored.comfy is None:
        m.need(m.key, EIGHT_BITS)
        # Weights under the mark without scales are numbers.
        scale = m.base + "scale_weight"
        if scale in m.stored.facts:
            plane = _scaled(plane, ("*", m.plane(scale, matrix, {"float32"}, [(ALL, ALL)])))
        return m.of(plane, "FP8", shape=shape, dtype="bfloat16")
    described = described if isinstance(described, dict) else {}
    form = described.get("format")
    is_rotated = any("convrot" in str(name) for name in (form, *described))
    if is_rotated or not isinstance(form, str) or form not in _COMFY:
        raise m.refusal(f"its format is {form!r}")
    m.scheme, scale = f"ComfyUI's {form}", m.base + "weight_scale"
    if form == "mxfp8":
        m.need(m.key, EIGHT_BITS)
        block = m.group_block(matrix[-1], _MX_BLOCK[1])
        exponents, _ = m.need(scale, _EXPONENTS)
        values = values_of(_E8M0) if exponents == "uint8" else None
        scales = m.plane(scale, matrix, _EXPONENTS, [block], values=values, is_tiled=True)
    elif form != "nvfp4":
        m.need(m.key, EIGHT_BITS)
        scales = m.plane(scale, matrix, {"float32"}, [(ALL, ALL)])
    else:
        plane, scales = _nvfp4(m, scale, is_tiled=True)
        plane = replace(plane, packing=Packing(4, is_high_first=True))
        scales = _scaled(scales, ("*", m.factor(m.base + "weight_scale_2")))
        shape = plane.shape
    return m.of(_scaled(plane, ("*", scales)), _COMFY[form], shape=shape, dtype="bfloat16")


_COMFY = {"float8_e4m3fn": "FP8", "float8_e5m2": "FP8", "mxfp8": "FP8", "nvfp4": "NVFP4"}


# --- The table


def _ends(stored: StoredTensors, key: str, last: str, dtypes: Iterable[str], *nearby: str) -> bool:
    base, name = layer_of(key)
    return (
        name == last
        and stored.facts[key][0] in dtypes
        and (not nearby or any(base + each in stored.facts for each in nearby))
    )


_Test = Callable[[StoredTensors, str], bool]
_SCHEMES: tuple[tuple[str, _Test, Callable[[Coded], Quantised]], ...] = (
    ("torchao", lambda s, k: k in s.torchao and k.endswith("qdata"), _torchao),
    (
        "bitsandbytes (4 bits)",
        lambda s, k: bool(_state_of(s, k)) or f"{k}.absmax" in s.facts,
        _bitsandbytes,
    ),
    ("bitsandbytes (LLM.int8)", lambda s, k: _ends(s, k, "weight", {"int8"}, "SCB"), _int8),
    ("ComfyUI's comfy_quant or scaled_fp8", _is_comfy, _comfy),
    ("HQQ", lambda s, k: _ends(s, k, "W_q", {"uint8", "int32"}), _hqq),
    ("quanto", lambda s, k: k.endswith("._data") and f"{k.partition('._data')[0]}._scale" in s.facts, _quanto),
    ("AWQ or GPTQ", lambda s, k: _ends(s, k, "qweight", _WORDS, "scales", "qzeros"), _columns_of_words),
    ("compressed-tensors", lambda s, k: _ends(s, k, "weight_packed", {"int32", "uint8"}), _packed),
    ("MLX", lambda s, k: _ends(s, k, "weight", {"uint32"}, "scales", "biases"), _mlx),
    ("MXFP4", _is_blocks, _blocks),
    ("FP8", _is_float8, _float8),
    ("ModelOpt's 4 bits", lambda s, k: _ends(s, k, "weight", {"uint8"}, "weight_scale"), _modelopt),
    ("integers of 8 bits and scales", lambda s, k: _ends(s, k, "weight", {"int8"}, "weight_scale"), _integers),
)  # fmt: skip
"""Each scheme: its name, a test of a key, and the function that builds the tensor of it."""


def scheme_of(stored: StoredTensors, key: str) -> Coded | None:
    if stored.facts[key][0] not in _CODES and not _state_of(stored, key):
        return None
    name = next((name for name, is_one, _ in _SCHEMES if is_one(stored, key)), None)
    return Coded(stored, key, name) if name else None


_CODES = {*EIGHT_BITS, *_WORDS, "int8", "uint8"}
"""The dtypes of codes, except in files of bitsandbytes."""


def build(module: Coded) -> Quantised:
    make = next(make for name, _, make in _SCHEMES if name == module.scheme)
    return make(module)

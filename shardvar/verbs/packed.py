"""Packed weights: the tensors of quantised layers, with several numbers in each element.

A scheme is known by the names of the tensors of a layer, and its shapes must agree:

    GPTQ, AWQ     X.qweight int32, X.scales [groups, out], X.qzeros [groups, out * bits / 32]
    GPTQ          or with X.g_idx [in] in place of X.qzeros
    MXFP4         X_blocks uint8 [..., groups, 16], X_scales uint8 [..., groups]
    NVFP4         X.weight uint8 [out, in / 2], X.weight_scale float8 [out, in / 16]
    NF4, FP4      X.weight uint8, X.weight.absmax, X.weight.quant_state.bitsandbytes__nf4
    int8          X.weight int8 [out, in], X.SCB [out]: bitsandbytes, a number in each byte

A byte of MXFP4, NVFP4, NF4 and FP4 holds two numbers. The tensors that scale them are not counted
as parameters, and neither are the scales of weights in eight bits, such as ``X.weight_scale_inv``.
Every other tensor of small integers may be packed by a scheme that is not known here.
"""

from collections.abc import Iterator, Mapping
from math import prod

_Shape = tuple[int, ...]
_Described = tuple[str | None, _Shape | None]
"""The dtype and the shape of a tensor."""

_BITS = 32
"""The bits of an element of ``qweight``."""
_BLOCK = 16
"""The bytes of a block of MXFP4, and the numbers that share a scale of NVFP4."""
_STATES = {"bitsandbytes__nf4": "NF4", "bitsandbytes__fp4": "FP4"}
_SCALES = (
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "input_scale",
    "weight_zero_point",
    "scale_inv",
)
_EIGHT_BITS = ("float8", "int8", "uint8")


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
    for key in tensors:
        for scheme, number, others in _schemes(key, tensors):
            weights[key] = scheme, number
            scaling.update(others)
            break
        scaling.update(_scales_of(key, tensors))
    return weights, scaling


def _schemes(key: str, tensors: Mapping[str, _Described]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the scheme of a tensor that is packed, its number of weights, and the keys of the
    tensors next to it."""
    dtype, shape = tensors[key]
    if shape is None:
        return
    layer, _, name = key.rpartition(".")
    if name == "qweight" and dtype == "int32" and len(shape) == 2:
        yield from _of_columns(f"{layer}.", shape, tensors)
    elif key.endswith("_blocks") and dtype == "uint8":
        scales = f"{key.removesuffix('_blocks')}_scales"
        if shape[-1:] == (_BLOCK,) and tensors.get(scales) == ("uint8", shape[:-1]):
            yield "MXFP4", 2 * prod(shape), [scales]
    elif name == "weight" and dtype == "uint8":
        yield from _of_bytes(key, shape, tensors)
    elif name == "weight" and dtype == "int8":
        for scale in (f"{layer}.SCB", f"{key}.SCB"):
            if shape_of(tensors, scale) == shape[:1]:
                others = [scale, f"{layer}.weight_format", f"{key}_format"]
                yield "int8", prod(shape), [each for each in others if each in tensors]


def _of_columns(
    layer: str, shape: _Shape, tensors: Mapping[str, _Described]
) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the scheme of a ``qweight`` of GPTQ or AWQ."""
    scales, zeros = shape_of(tensors, f"{layer}scales"), shape_of(tensors, f"{layer}qzeros")
    index = shape_of(tensors, f"{layer}g_idx")
    others = [
        f"{layer}{name}" for name in ("scales", "qzeros", "g_idx") if f"{layer}{name}" in tensors
    ]
    if scales is None or len(scales) != 2:
        return
    is_by_rows = scales[1] == shape[1]  # GPTQ packs columns, AWQ rows
    if zeros is not None and len(zeros) == 2 and zeros[1]:
        # The zero points of a group are as many as its scales, packed as the weights are.
        number, bits = (
            prod(shape) * scales[1] // zeros[1],
            _BITS * zeros[1] // scales[1] if scales[1] else 0,
        )
    elif index is not None and is_by_rows and len(index) == 1 and index[0]:
        number, bits = index[0] * shape[1], _BITS * shape[0] // index[0]
    else:
        return
    if bits and (is_by_rows or shape[1] * _BITS == scales[1] * bits):
        yield f"{'GPTQ' if is_by_rows else 'AWQ'} {bits}-bit", number, others


def _of_bytes(
    key: str, shape: _Shape, tensors: Mapping[str, _Described]
) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the scheme of a ``weight`` of bytes with two numbers each."""
    for state, name in _STATES.items():
        if f"{key}.quant_state.{state}" in tensors and f"{key}.absmax" in tensors:
            parts = (
                "absmax",
                "quant_map",
                "nested_absmax",
                "nested_quant_map",
                f"quant_state.{state}",
            )
            yield (
                name,
                2 * prod(shape),
                [f"{key}.{part}" for part in parts if f"{key}.{part}" in tensors],
            )
    scale, scale_shape = tensors.get(f"{key}_scale", ("", None))
    is_scaled = len(shape) == 2 and scale_shape == (shape[0], 2 * shape[1] // _BLOCK)
    if is_scaled and (scale or "").startswith("float8"):
        # Its scales have the same names as scales of weights in eight bits.
        yield "NVFP4", 2 * prod(shape), []


def _scales_of(key: str, tensors: Mapping[str, _Described]) -> Iterator[str]:
    """Yield the scales of a weight in eight bits."""
    layer, _, name = key.rpartition(".")
    if name == "weight" and (tensors[key][0] or "").startswith(_EIGHT_BITS):
        yield from (each for scale in _SCALES if (each := f"{layer}.{scale}") in tensors)


def shape_of(tensors: Mapping[str, _Described], key: str) -> _Shape | None:
    """Return the shape of a tensor; None if it does not exist."""
    return tensors[key][1] if key in tensors else None

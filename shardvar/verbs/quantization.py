"""Schemes of quantisation that are written (``quantize=``).

    choose    the matrices ``X.weight`` of numbers, except modules that stay
    check     each has floats, and blocks that cut its rows; else an error of its key
    wrap      a source that has codes, and their scales, in the place of these matrices
              (``engine.quantised``)

``quantization.toml`` has a table for each scheme: the tensors that a matrix becomes, the rule of what
the codes of a block share, the rule of rounding, and the description of the model that loaders
expect. The rules are here. Each is a library's, bit by bit, for numbers of the dtype that
the tensor has, and rounds to nearest: there is no calibration.

To add a scheme, add a table, and a rule if none is its own.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

import ml_dtypes
import numpy as np

from shardvar.engine.pieces import VerifiedRows
from shardvar.engine.quantised import (
    BlockItem,
    Codes,
    EncodedPart,
    EncodedSource,
    Encoder,
    Floats,
    PartRule,
    Shared,
    block_entries,
    odd,
    values_of,
)
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Ints, numpy_dtype
from shardvar.pictures.words import count, named, similar
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.records import fields, frozen
from shardvar.verbs.arguments import strings_of
from shardvar.verbs.coded import DTYPES
from shardvar.verbs.parameters import layer_of
from shardvar.verbs.reader import Reader
from shardvar.verbs.renaming import Globs, matches_any, matching, such_as
from shardvar.wire.ggml import quantize

_finfo: Any = ml_dtypes.finfo  # without types in its package
_Own = np.dtype[Any]
"""The dtype of the numbers."""
_F32, _E4M3, _E8M0 = np.float32, "float8_e4m3fn", "float8_e8m0fnu"
_LARGEST, _TINY = _F32(448), _F32(2.0**-126)
"""The largest number of float8_e4m3fn, and the least normal one of float32."""


# --- What codes share, of the largest magnitudes of blocks


def _channel(tops: Floats, own: _Own, _whole: Any, *, levels: float) -> Shared:
    # In the dtype of the numbers, as PyTorch divides.
    scale = (tops / _F32(levels)).astype(own)
    scale = np.where(scale == 0, _finfo(own).eps, scale.astype(_F32))
    return (scale.astype(own),), (("/", scale),)


def _square(tops: Floats, _own: _Own, _whole: Any, *, is_power: bool = False) -> Shared:
    factor = np.asarray(_LARGEST * (1 / tops), _F32)
    factor = np.where(np.isfinite(factor), factor, _F32(1))
    inverse: Any = 1 / factor
    if is_power:
        inverse = np.exp2(np.ceil(np.log2(np.maximum(inverse, _TINY))))
        factor, inverse = 1 / inverse, inverse.astype(_E8M0)
    return (inverse,), (("*", factor),)


def _exponent(
    tops: Floats, _own: _Own, _whole: Any, *, carry: int, less: int, divisor: int = 1, zero: int = 0
) -> Shared:
    # The carry rounds the mantissa.
    bits = (tops / _F32(divisor)).view(np.int32) + carry
    byte = np.where(tops == 0, zero, ((bits >> 23) - less).clip(0, 254)).astype(np.uint8)
    return (byte,), (("/", values_of(_E8M0)[byte]),)


def _two_scales(tops: Floats, own: _Own, whole: np.float32) -> Shared:
    one = _F32(2688) * (1 / np.maximum(whole, _TINY))  # 448 * 6
    one = one if np.isfinite(one) else _F32(1)
    scale = np.minimum((tops / _F32(6)).astype(own).astype(_F32) * one, _LARGEST).astype(_E4M3)
    scale = np.where(scale == 0, scale.dtype.type(0.125), scale)
    return (scale, one), (("/", scale.astype(_F32) / one),)


def _two_factors(tops: Floats, _own: _Own, whole: np.float32) -> Shared:
    one = whole / _F32(2688)
    scale = (tops / (6 * one)).clip(_F32(2.0**-9), _LARGEST)
    scale = np.where(tops > 0, scale, _F32(1)).astype(_E4M3)
    return (scale, one), (("/", scale.astype(_F32) * one),)


def _ends(ends: Floats, own: _Own, _whole: Any, *, most: int) -> Shared:
    # The end of the larger magnitude is a code exactly, and so is 0.
    low, high = ends
    is_low = np.abs(low) > np.abs(high)
    edge = np.where(is_low, low, high)
    scale = np.maximum((high - low) / _F32(most), _F32(1e-7)) * np.where(is_low, _F32(1), _F32(-1))
    zero = np.rint(edge / scale)
    scale, bias = np.where(zero == 0, (scale, np.zeros_like(scale)), (edge / zero, edge))
    return (scale.astype(own), bias.astype(own)), (("-", bias), ("/", scale))


# --- Rounding


def _float(numbers: Floats, own: _Own, *, is_own: bool = False, **table: Any) -> Codes:
    if is_own:
        numbers = numbers.astype(own)
        if own.itemsize == 2 and own != np.float16:
            return _table(**table).take(numbers.view(np.uint16))
        numbers = numbers.astype(_F32)
    return _table(**table).take(odd(numbers))


@lru_cache
def _table(
    dtype: str, zero: int | None = None, *, is_down: bool = False, has_one_zero: bool = False
) -> Codes:
    """[65536] the nearest float of a dtype to each bfloat16: of two the even one, or the one towards 0.
    ``zero`` is the code of 0 and -0."""
    each = (np.arange(1 << 16, dtype=np.uint32) << 16).view(_F32)
    largest = float(_finfo(numpy_dtype(dtype)).max)
    with np.errstate(invalid="ignore"):
        # A number in the middle of two has few bits: none of its neighbours comes so near.
        near = (each * _F32(1 - 2.0**-12 * is_down)).clip(-largest, largest)
        table = near.astype(dtype).view(np.uint8)
    is_zero = table & 7 == 0 if has_one_zero else each == 0
    return table if zero is None else np.where(is_zero, np.uint8(zero), table)


def _integer(
    numbers: Floats, own: _Own, *, least: int, most: int, added: int = 0, is_own: bool = False
) -> Codes:
    numbers = numbers.astype(own).astype(_F32) if is_own else numbers
    return (np.rint(numbers).clip(least, most) + added).astype(np.int16).astype(np.uint8)


_RULES: dict[str, Callable[..., Any]] = {
    "channel": _channel, "square": _square, "exponent": _exponent, "two_scales": _two_scales,
    "two_factors": _two_factors, "ends": _ends, "nothing": lambda *_: ((), ()), "float": _float,
    "integer": _integer, "blocks": lambda numbers, _own, *, name: quantize(numbers, name),
}  # fmt: skip


# --- Schemes


@frozen
class Scheme:
    encoder: Encoder
    config: Mapping[str, Any]  # What ``config.json`` gets, with empty lists for modules that stay
    leaves_uneven: bool = (
        False  # True if a matrix that blocks do not cut stays: else it is an error
    )
    has_stacks: bool = False  # True if stacked matrices of experts are quantised too


def scheme_named(name: Any) -> Scheme:
    """Return the scheme of a name such as ``int4``, or ``int4:32`` with the size of groups."""
    text = files("shardvar.verbs").joinpath("quantization.toml").read_text("utf-8")
    base, _, size = str(name).partition(":")
    usual = tomllib.loads(text.replace("GROUP", "0"))
    if base not in usual:
        near = "".join(f"Did you mean {each!r}? " for each in similar(base, usual))
        cause = f"{name!r} is not a scheme of quantisation."
        raise ArgumentError(cause, f"{near}The schemes are {', '.join(usual)}.")
    group = usual[base].get("group", 0)
    if size and not (
        group and re.fullmatch("[0-9]{2,6}", size) and int(size) and int(size) % 32 == 0
    ):
        cause = f"{base} has no groups of {size!r} numbers."
        remedy = f"Choose a multiple of 32, such as {base}:{group}." if group else f"Give {base!r}."
        raise ArgumentError(cause, remedy)
    row = tomllib.loads(text.replace("GROUP", size or str(group)))[base]
    row.pop("group", None)
    share, code = (
        partial(_RULES[row[each].pop("rule")], **row.pop(each)) for each in ("share", "code")
    )
    parts = [PartRule(*each[:2], *map(tuple, each[2:])) for each in row.pop("parts")]
    names = [each.name for each in fields(Scheme)]
    own = {each: row.pop(each) for each in ("config", *names[2:]) if each in row}
    return Scheme(Encoder(parts=parts, share=share, code=code, **row), **{"config": {}, **own})


_STAYS = re.compile(
    r"(?i).*embed.*|wte|wpe|.*norm.*|ln_.*|.*router.*|gate|.*_gate|(lm_|shared_)?head|score|classifier"
)
_STAYS_IN_GGUF = re.compile(r"(?i).*norm.*|.*gate_inp.*|position_embd|token_types|.*conv1d.*")
"""Match parts of the names of modules that stay: embeddings, norms, routers and heads; in GGUF, as
llama.cpp has it, only what it does not quantise."""
_STACK = re.compile("(?i).*exp(erts|s[./_]).*(?<!bias)")
_MOST = 1 << 24
"""The most numbers of the rows that a block is part of, which are in memory together."""


def check_not_quantised(reader: Reader) -> None:
    found = reader.logical()
    for key in (*found.kinds, *found.members) if found else ():
        raise ArgumentError(
            f"{key!r} of {reader.path} is quantised already.",
            "Dequantize first: dequantize=True (--dequantize).",
        )


def quantised(
    source: Source, stored: EntryTable, name: str, keep: Globs, lost: Collection[str] = ()
) -> tuple[EntryTable, EncodedSource]:
    """Return entries with codes in the place of matrices, and the source that makes them."""
    scheme, facts = scheme_named(name), stored.slices.tensors.facts()
    encoder, stays = scheme.encoder, dict[str, None]()
    chosen = _matrices(scheme, facts, keep, lost, stays)
    order, bounds = stored.slices.by_tensor()
    items, rows, made = list[BlockItem](), dict[str, Ints](), dict[str, tuple[str]]()
    for row, (key, (dtype, shape)) in enumerate(facts.items()):
        held = order[bounds[row] : bounds[row + 1]]
        if key not in chosen:
            items.append(BlockItem(key, dtype, shape, held))
            continue
        rows[key] = held
        base, last = layer_of(key)
        for number, part in enumerate(encoder.parts):
            # Stacked experts have no name below their own.
            new = base + part.name if last == "weight" else key + part.name.removeprefix("weight")
            if new != key and new in facts:
                raise _unsuitable(
                    key, scheme, f"{new!r} is there already.", "Or rename that tensor."
                )
            tensor = EncodedPart(key, shape, dtype, name, number)
            items.append(
                BlockItem(new, part.dtype or dtype, encoder.shape(number, shape), held, tensor)
            )
            made[new] = made[key] = (key,)
    entries, origin, numbers = block_entries(stored, items)
    notes = [f"quantised {count(len(chosen), 'tensor')} to {encoder.kind}"]
    notes += [f"kept {count(len(stays), 'tensor')}: {named(stays)}"] if stays else []
    modules = [*dict.fromkeys(["lm_head", *stays])]
    config = {
        name: {key: modules if each == [] else each for key, each in own.items()}
        for name, own in scheme.config.items()
    }
    index = TableIndex(entries, source.index.files, source.index.metadata)
    verified = VerifiedRows(source, stored)
    return entries, EncodedSource(
        verified, origin, index, numbers, rows, made, notes, encoder=encoder, config=config
    )


def _matrices(
    scheme: Scheme,
    facts: Mapping[str, tuple[str, tuple[int, ...]]],
    keep: Globs,
    lost: Collection[str],
    stays: dict[str, None],
) -> set[str]:
    """Return the keys of the matrices to quantise, and add to ``stays`` the modules of the others."""
    globs = [] if keep is None else strings_of(keep, "globs")
    module = {key: re.sub("[./]weight$", "", key) for key in (*facts, *lost)}
    for glob in globs:
        if not matching([*module, *module.values()], glob):
            raise ArgumentError(f"No tensor matches {glob!r}, so none is kept.", such_as([*facts]))
    chosen, pattern = set[str](), _STAYS_IN_GGUF if scheme.encoder.nbytes else _STAYS
    height, width = scheme.encoder.block
    for key, (dtype, shape) in facts.items():
        is_stack = scheme.has_stacks and len(shape) == 3 and _STACK.fullmatch(key)
        if not is_stack and not (layer_of(key)[1] == "weight" and len(shape) == 2):
            continue
        is_uneven = bool(shape[-2] % height or (width and shape[-1] % width))
        parts = re.split("[./]", module[key])
        if (
            matches_any(key, globs)
            or matches_any(module[key], globs)
            or any(map(pattern.fullmatch, parts))
            or 0 in shape
            or (is_uneven and scheme.leaves_uneven)
        ):
            stays[module[key]] = None
        elif is_uneven:
            cause = f"groups of {width} do not cut its rows of {shape[-1]} numbers."
            raise _unsuitable(key, scheme, cause)
        elif dtype not in DTYPES:
            cause = f"it is of {dtype}, not of {', '.join(DTYPES)}."
            raise _unsuitable(key, scheme, cause, "Or cast it, or dequantize it first.")
        elif height * shape[-1] > _MOST:
            raise _unsuitable(key, scheme, f"rows of {shape[-1]} numbers are too long.")
        else:
            chosen.add(key)
    if not chosen and not lost:
        cause = f"No tensor is quantised to {scheme.encoder.kind}"
        if stays:
            raise ArgumentError(
                f"{cause}: {named(stays)} stay.", "Choose another scheme, or a model with layers."
            )
        remedy = "Make matrices of such names with a map, or --rename."
        raise ArgumentError(f"{cause}: none is a matrix 'X.weight'.", remedy)
    return chosen


def _unsuitable(key: str, scheme: Scheme, cause: str, remedy: str = "") -> UnsupportedError:
    cause = f"{key!r} cannot be quantised to {scheme.encoder.kind}: {cause}"
    return UnsupportedError(
        cause, f"Choose it for keep= (--keep), so that it stays. {remedy}".rstrip()
    )

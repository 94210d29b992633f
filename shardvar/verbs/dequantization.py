"""Open a checkpoint with numbers in the place of quantised tensors (``dequantize=``).

    read      the names, dtypes and shapes, and the description of the model in ``config.json``
    find      the quantised tensors among them (``find_quantised``)
    wrap      a source that lists their numbers and computes these on the way
              (``engine.cast``)

Blocks of GGUF have their scales within them, and the format's own source decodes them. Another
dtype than float32 is their matter only here.

The names, dtypes and shapes tell which tensors are quantised, and how:

    X.weight              float8        X.weight_scale_inv  a number for each 128 x 128 weights
                                        X.weight_scale      one for all, for each row, or as above
    X_blocks [.., 16]     uint8         X_scales [..]       32 numbers of 4 bits, and an exponent

The numbers get the key ``X.weight`` or ``X``, and the scales are not listed. The number of weights
that share a scale is in ``config.json`` next to the checkpoint (``weight_block_size``), and so is
the dtype of the model.

A tensor of another scheme, scales without weights, weights without scales and scales of another
shape are faults of their keys: they cannot be read, and all others can.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, cast

import numpy as np

from shardvar.engine.cast import Quantised, ScaledSource
from shardvar.engine.pieces import VerifiedRows
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    InvalidCheckpoint,
    ReadError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import read_beginning
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import Ints, parse_dtype
from shardvar.layout.region import Region
from shardvar.pictures.words import count, human_shape, named
from shardvar.planning.index import (
    NO_CHECKSUM,
    EntryTable,
    TableIndex,
    concatenate_entries,
    find_faults,
)
from shardvar.planning.slices import SliceTable, TensorTable, widen
from shardvar.storage.protocol import Storage
from shardvar.verbs.joined_source import JoinedSource, RankSource
from shardvar.verbs.parameters import find_scaling, layer_of, names_by_layer
from shardvar.wire.strict_json import parse_json

DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes that numbers may get."""

CONFIG = "config.json"
"""The file of Hugging Face that describes a model."""

COMFY = "ComfyUI's _quantization_metadata"
"""The scheme of a file whose metadata have this text, and whose scales may be tiled."""

_BLOCK = (128, 128)
"""The rows and columns of a block of DeepSeek-V3 and Qwen3."""
_MX_BLOCK = (1, 32)
"""The numbers that share an exponent in the formats of OCP MX."""

_EIGHT_BITS = {
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz",
}  # fmt: skip
_EXPONENTS = {"float8_e8m0fnu", "uint8"}
_SCALES = {"float32", "bfloat16", "float16", *_EXPONENTS}

_KEEP = "Leave it out with a filter, or read it as it is stored, without dequantizing."


@dataclass(frozen=True, slots=True)
class Model:
    method: str = ""
    """The scheme of quantisation; empty without one."""
    block: tuple[int, int] = _BLOCK
    """The rows and columns that share a scale."""
    dtype: str = "bfloat16"
    config: str = CONFIG
    """The file that names the scheme."""


@dataclass(frozen=True, slots=True)
class QuantisedTensors:
    tensors: dict[str, Quantised] = field(default_factory=dict)
    """The tensors, by the keys of their weights."""
    left_out: dict[str, None] = field(default_factory=dict)
    """The keys of their scales."""
    faults: dict[str, ReadError] = field(default_factory=dict)


# --- The quantised tensors


def find_quantised(
    tensors: TensorTable, model: Model, wrong: Mapping[str, ReadError]
) -> QuantisedTensors:
    """Return the quantised tensors among some, and the faults; keys in ``wrong`` cannot be read."""
    found = QuantisedTensors()
    keys = tensors.facts()
    layers = names_by_layer(keys)
    for key, (dtype, shape) in keys.items():
        if key in wrong:
            continue
        scheme = _refused(key, dtype, keys, layers)
        scales = [] if scheme else _scales_of(key, dtype, shape, keys)
        if (
            not scheme
            and (not scales or model.method == COMFY)
            and (nearby := find_scaling(key, dtype, layers))
        ):
            scheme = _guessed(dtype, nearby, model)
        if scheme:
            found.faults[key] = UnsupportedError(
                f"{key!r} is quantised with {scheme}, which shardvar does not dequantize.",
                f"{DEQUANTIZED} {_KEEP}",
            )
        elif scales:
            try:
                _add(found, key, scales, model, keys, wrong)
            except READ_ERRORS as error:
                found.faults[key] = error
        elif dtype in _EIGHT_BITS:
            found.faults[key] = InvalidCheckpoint(
                f"{key!r} is of {dtype}, and its scales, such as {key + '_scale_inv'!r}, are not "
                "there.",
                f"Add the file that has them. Values that need no scales are cast, not dequantized. {_KEEP}",
            )
    faulty = {*wrong, *found.faults}
    for key, (dtype, _) in keys.items():
        weights = _weights_of(key, dtype)
        if weights and key not in found.left_out and faulty.isdisjoint([key, *weights]):
            is_there = weights[0] in keys
            what = (
                f"{weights[0]!r} is {keys[weights[0]][0]}"
                if is_there
                else f"there is no {weights[0]!r}"
            )
            cause = f"{key!r} holds scales, and {what}."
            found.faults[key] = (
                InvalidCheckpoint(cause, f"Add the file that has the weights. {_KEEP}")
                if model.method in KNOWN
                else UnsupportedError(
                    f"{cause} {model.config} names {model.method}.", f"{DEQUANTIZED} {_KEEP}"
                )
            )
    return found


_Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def _base(key: str) -> str:
    """The key of a module with the point: the key of its weights without ``weight``."""
    return key.removesuffix("weight") if key.endswith(".weight") or key == "weight" else f"{key}_"


def _scales_of(key: str, dtype: str, shape: tuple[int, ...], keys: _Tensors) -> list[str]:
    """The keys of the scales of weights: one if all is well."""
    base = _base(key)
    if key.endswith(("_blocks", ".blocks")):
        if dtype != "uint8" or not shape or shape[-1] != 16:
            return []
        name = f"{key.removesuffix('blocks')}scales"
        return [name]
    names = [f"{key}_scale_inv", f"{key}_scale"]
    if base != f"{key}_":
        names += [f"{base}scale", f"{base}qscale_weight"]
    there = [name for name in names if name in keys]
    if dtype in _EIGHT_BITS:
        return there
    # Two numbers of 4 bits in a byte, as DeepSeek-V4 has them: only with exponents.
    is_packed = dtype in ("int8", "uint8")
    return [name for name in there if is_packed and keys[name][0] == "float8_e8m0fnu"]


def _weights_of(key: str, dtype: str) -> list[str]:
    """The keys that the weights of scales may have, if the key is of scales."""
    for ending in (".weight_scale_inv", ".qscale_weight", ".weight_scale"):
        if key.endswith(ending):
            base = key.removesuffix(ending)
            return [f"{base}.{name}" for name in ("weight", "weight_packed", "qweight")]
    if key.endswith("_scale_inv"):
        return [key.removesuffix("_scale_inv")]
    if key.endswith(("_scales", ".scales")) and dtype == "uint8":
        return [f"{key.removesuffix('scales')}{name}" for name in ("blocks", "weight")]
    return []


def _add(
    found: QuantisedTensors,
    key: str,
    scales: list[str],
    model: Model,
    keys: _Tensors,
    wrong: Mapping[str, ReadError],
) -> None:
    """Add a tensor with its scales, or raise its fault."""
    if len(scales) > 1:
        raise InvalidCheckpoint(
            f"{key!r} has two sets of scales: {named(scales)}.", f"Remove one of them. {_KEEP}"
        )
    (name,) = scales
    if name in wrong:
        raise wrong[name].at(repr(key))
    if name not in keys:
        raise InvalidCheckpoint(
            f"{key!r} holds weights of 4 bits, and their scales {name!r} are not there.",
            f"Add the file that has them. {_KEEP}",
        )
    is_blocks = key.endswith(("_blocks", ".blocks")) and keys[key][0] == "uint8"
    new = key[: -len("_blocks")] if is_blocks else key
    if new != key and new in keys:
        raise InvalidCheckpoint(
            f"{key!r} would become {new!r}, which is there as well.", f"Remove one of them. {_KEEP}"
        )
    found.tensors[key] = _quantised(key, new, keys[key], name, keys[name], model)
    others = (f"{_base(key)}{each}" for each in ("input_scale", "activation_scale"))
    found.left_out.update(dict.fromkeys([name, *(each for each in others if each in keys)]))


def _quantised(
    key: str,
    new: str,
    weights: tuple[str, tuple[int, ...]],
    name: str,
    scales: tuple[str, tuple[int, ...]],
    model: Model,
) -> Quantised:
    """Raises ``InvalidCheckpoint`` unless the scales have the right dtype and shape."""
    (dtype, stored), (scale_dtype, shape) = weights, scales
    is_grouped, is_packed = new != key, dtype not in _EIGHT_BITS
    numbers = stored
    if is_grouped:
        # As transformers does for GPT-OSS, whose layers multiply from the left: [experts, in, out].
        numbers = (*stored[:-2], prod(stored[-2:]) * 2)
    elif is_packed:
        numbers = (*stored[:-1], stored[-1] * 2)
    is_exponent = scale_dtype in _EXPONENTS
    blocks = [_MX_BLOCK] if is_packed else [model.block, *([_MX_BLOCK] if is_exponent else [])]
    choices = [Quantised(new, key, name, numbers, block) for block in blocks]
    rows, columns = choices[0].matrix[-2:]
    whole = replace(choices[0], block=(max(rows, 1), max(columns, 1)))
    by_row = replace(whole, block=(1, max(columns, 1)))
    # One number cannot be taken for one of several blocks. Rows have scales only without "inv".
    others = [whole] if shape in ((), (1,)) and not is_packed else []
    if not name.endswith("_inv") and not is_packed:
        others += [each for each in (whole, by_row) if shape in (each.grid, each.grid[:-1])]
    fitting = [each for each in choices if each.grid == shape] + others
    if scale_dtype not in _SCALES:
        cause = f"The scales {name!r} of {key!r} are {scale_dtype}"
        raise InvalidCheckpoint(
            f"{cause}, which is not one of {', '.join(sorted(_SCALES))}.", _KEEP
        )
    if not fitting or (is_grouped and len(stored) < 3):
        wanted = " or ".join(human_shape(each.grid) for each in choices)
        cause = f"The scales {name!r} of {key!r} have the shape {human_shape(shape)}"
        size = " or ".join(f"{each[0]} x {each[1]}" for each in blocks)
        raise InvalidCheckpoint(
            f"{cause}, and weights of {human_shape(stored)} in blocks of {size} have {wanted}.",
            f"The size of blocks is weight_block_size in {CONFIG}. {_KEEP}",
        )
    tensor = fitting[0]
    size = (
        "one scale"
        if tensor.block == whole.block
        else f"blocks of {tensor.block[0]} x {tensor.block[1]}"
    )
    is_transposed = is_grouped and key.endswith("_blocks") and len(numbers) == 3
    kind = "MXFP4" if is_packed else f"FP8 with {size}" if size == "one scale" else f"FP8 in {size}"
    return replace(tensor, kind=kind, is_packed=is_packed, is_transposed=is_transposed)


DEQUANTIZED = "Blocks of GGUF, FP8 with scales and MXFP4 are dequantized."
KNOWN = ("", "fp8", "fbgemm_fp8", "gguf", "mxfp4")
"""The schemes of ``config.json`` whose tensors are all dequantized; empty without one."""

SIDE_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""The schemes that files next to ``config.json`` describe, by the names of the files."""


def method_of(described: Any, given: str = "") -> str:
    """Return the scheme that a description of quantisation names, or what it has; ``given`` for one that
    names none.

    >>> method_of({"quant_method": "fp8"}), method_of({"group_size": 64, "bits": 4}), method_of(None)
    ('fp8', 'MLX', '')
    """
    if not described:
        return ""
    if isinstance(described, str):
        return described
    if isinstance(described, dict) and described.get("quant_method"):
        return str(described["quant_method"])
    if isinstance(described, dict) and "quant_algo" in described:  # null in models without one
        return str(described["quant_algo"] or "")
    keys = described if isinstance(described, dict) else ()
    if "weight_block_size" in keys:
        return "fp8"
    return given or ("MLX" if "group_size" in keys and "bits" in keys else "an unknown scheme")


def _refused(key: str, dtype: str, keys: _Tensors, layers: Mapping[str, list[str]]) -> str:
    """The scheme of weights that are not dequantized, known by its names; empty for all others."""
    base, last = layer_of(key)
    nearby = {*layers[base], *layers.get(f"{key}.", ())}
    if last == "qweight" and dtype == "int32" and nearby & {"qzeros", "scales"}:
        return "GPTQ" if "g_idx" in nearby else "AWQ or GPTQ"
    if last == "weight_packed":
        return (
            "NVFP4" if "weight_global_scale" in nearby else "compressed-tensors (packed integers)"
        )
    if last == "W_q":
        return "HQQ"
    if key.endswith("scaled_fp8") and dtype in _EIGHT_BITS:
        return "ComfyUI's scaled_fp8"
    if "comfy_quant" in nearby and last == "weight":
        return "ComfyUI's comfy_quant"
    if f"{key}.quant_state." in layers:
        return "bitsandbytes (4 bits)"
    if dtype in ("uint8", "int8") and last == "weight":
        if nearby & {"weight_scale_2", "weight_global_scale"}:
            return "NVFP4"
        if "absmax" in nearby:
            return "bitsandbytes (4 bits)"
        if "SCB" in nearby:
            return "bitsandbytes (LLM.int8)"
        if "weight_scale" in nearby and keys[f"{base}weight_scale"][0] != "float8_e8m0fnu":
            return "integers of 8 bits and scales"
    return ""


_SCHEMES = {"scale_weight": "ComfyUI's scaled_fp8", "dequant_scale": "SmoothQuant"}
"""The schemes with scales of these names, which other weights have as well."""


def _guessed(dtype: str, scales: list[str], model: Model) -> str:
    """The scheme of weights with scales next to them that no other rule knows."""
    names = {each.rpartition(".")[2] for each in scales}
    if model.method not in KNOWN:
        return model.method
    known = next((scheme for name, scheme in _SCHEMES.items() if name in names), "")
    if dtype == "uint32" and "scales" in names:
        known = "MLX"
    return known or f"an unknown scheme ({dtype}, with {named(scales)} next to it)"


_CONFIG_NBYTES, _CONFIG_DEPTH = 1 << 24, 32
"""The bytes and the depth of the description of a model that are read at most."""


def check_dequantize(dequantize: Any) -> None:
    if not isinstance(dequantize, bool) and _parsed(dequantize) not in DTYPES:
        raise ArgumentError(
            f"dequantize={dequantize!r} is not a dtype of dequantized numbers.",
            f"Give True, or one of {', '.join(DTYPES)}.",
        )


def _parsed(given: Any) -> str:
    try:
        return parse_dtype(given)
    except UnsupportedError:
        return ""


def dequantized(source: Source, storage: Storage, dequantize: bool | str) -> Source:
    """Numbers get the dtype ``dequantize``; with True, the model's, or for GGUF float32."""
    check_dequantize(dequantize)
    encodings = source.encodings()
    source = source.dequantized()
    stored = concatenate_entries(list(source.index.scan()))
    model = read_model(storage)
    if COMFY.rpartition(" ")[2] in source.index.metadata.user:
        model = replace(model, method=COMFY)
    wrong: dict[str, ReadError] = dict(find_faults(stored.slices))
    wrong |= dict(source.index.faults.items())
    found = find_quantised(stored.slices.tensors, model, wrong)
    dtype = model.dtype if dequantize is True else _parsed(dequantize)
    if encodings and dequantize is not True and dtype != "float32":
        shapes = {
            key: stored.slices.tensors.shape(row)
            for key, row in stored.slices.tensors.rows().items()
        }
        for key in encodings.keys() & shapes.keys() - wrong.keys():
            found.tensors[key] = Quantised(key, key, None, shapes[key], kind=encodings[key])
    if not found.tensors and not found.faults:
        if model.method not in KNOWN and not encodings:
            cause = f"By {model.config}, the tensors are quantised with {model.method}, "
            raise UnsupportedError(f"{cause}which shardvar does not dequantize.", DEQUANTIZED)
        return source
    order, bounds = stored.slices.by_tensor()
    keys = stored.slices.tensors.rows()
    rows_of = {key: order[bounds[row] : bounds[row + 1]] for key, row in keys.items()}
    entries, rows, numbers = _entries(stored, rows_of, found, dtype)
    faults = dict(source.index.faults.items())
    faults |= cast(Mapping[str, CheckpointError], found.faults)
    parts = {
        each.key: (each.weights, *filter(None, (each.scales,))) for each in found.tensors.values()
    }
    kinds = [each.kind for each in found.tensors.values()]
    each = [f"{count(kinds.count(kind), 'tensor')} of {kind}" for kind in dict.fromkeys(kinds)]
    notes = [f"dequantized {', '.join(each)} to {dtype}"] if each else []
    if found.left_out:
        number = count(len(found.left_out), "tensor")
        notes.append(f"left out {number} of scales: {named(found.left_out)}")
    if model.method and model.config == CONFIG:
        notes.append(
            f"{CONFIG} still has quantization_config: remove it from a copy next to these tensors"
        )
    return ScaledSource(
        VerifiedRows(source, stored),
        TableIndex(entries, source.index.files, source.index.metadata, faults),
        rows,
        numbers,
        {key: rows_of[key] for names in parts.values() for key in names},
        parts,
        notes,
    )


def notes_of(source: Source) -> Sequence[str]:
    return source.notes if isinstance(source, ScaledSource) else ()


def keys_of_numbers(source: Source) -> tuple[str, ...]:
    """Return the keys of an open checkpoint that ``dequantized`` has given numbers."""
    if isinstance(source, JoinedSource):
        found = [key for each in source.sources for key in keys_of_numbers(each)]
        return tuple(dict.fromkeys(found))
    if isinstance(source, RankSource):
        return tuple(source.prefix + key for key in keys_of_numbers(source.inner))
    if not isinstance(source, WrappedSource):
        return ()
    own = [*source.members] if isinstance(source, ScaledSource) else []
    # The blocks of GGUF are decoded by the format's own source.
    decoded = source.inner.encodings().keys() - source.encodings().keys()
    return tuple(dict.fromkeys([*own, *sorted(decoded), *keys_of_numbers(source.inner)]))


# --- The description of the model


def read_model(storage: Storage) -> Model:
    description = _read_json(storage, CONFIG)
    levels: list[dict[str, Any]] = [description] if isinstance(description, dict) else []
    for level in levels:
        parts = (each for name, each in level.items() if name not in _QUANTIZATION)
        levels += [each for each in parts if isinstance(each, dict)]
    told = [level[name] for level in levels for name in _QUANTIZATION if level.get(name)]
    method, config = next(filter(None, map(method_of, told)), ""), CONFIG
    for name, scheme in SIDE_FILES.items():
        if not method and (described := _read_json(storage, name)):
            method, config = method_of(described, scheme), name
    named_dtypes = (level.get(name) for level in levels for name in ("dtype", "torch_dtype"))
    dtype = next((each for each in named_dtypes if each in DTYPES), Model().dtype)
    sizes = (each.get("weight_block_size") for each in told if isinstance(each, dict))
    block = next(filter(None, sizes), None)
    is_block = (
        isinstance(block, list)
        and len(block) == 2
        and all(type(each) is int and each > 0 for each in block)
    )
    size = (block[0], block[1]) if is_block and isinstance(block, list) else Model().block
    return Model(method, size, dtype, config)


_QUANTIZATION = ("quantization_config", "quantization", "compression_config")
"""The keys of descriptions of quantisation."""


def _read_json(storage: Storage, name: str) -> Any:
    if name not in storage.names():
        return None
    with prefix_errors(name):
        return parse_json(
            read_beginning(storage, name, _CONFIG_NBYTES), _CONFIG_DEPTH, allow_nan=True
        )


# --- The source that reads them


def _entries(
    stored: EntryTable, rows_of: Mapping[str, Ints], found: QuantisedTensors, dtype: str
) -> tuple[EntryTable, Ints, dict[int, Quantised]]:
    """Entries with numbers, [m] their stored rows, and the tensor of each entry with numbers."""
    tensors = stored.slices.tensors
    names, slices = list[tuple[str, str, tuple[int, ...]]](), list[tuple[Ints, Ints]]()
    rows, numbers, first = [np.zeros(0, np.int64)], dict[int, Quantised](), 0
    for row, key in enumerate(tensors.keys):
        if key in found.left_out:
            continue
        held, tensor = rows_of[key], found.tensors.get(key)
        offset, shape = stored.slices.offset[held], stored.slices.shape[held]
        if tensor is None:
            names.append((key, tensors.dtype(row), tensors.shape(row)))
        else:
            names.append((tensor.key, dtype, tensor.outside(Region.whole(tensor.shape)).shape))
            offset, shape, held = _cut_alike(tensor, offset, shape, held, tensors.shape(row))
            numbers |= dict.fromkeys(range(first, first + len(held)), tensor)
        rows.append(held)
        slices.append((offset, shape))
        first += len(held)
    table = TensorTable.of(names)
    taken = np.concatenate(rows)
    entries = stored.take(taken)
    is_number = np.zeros(first, np.bool)
    is_number[[*numbers]] = True
    plain = entries.plain & ~is_number
    rank = table.shapes.shape[1]
    offset, shape = (
        np.concatenate(
            [np.full((0, rank), fill), *(widen(each[at], rank, fill)[:, :rank] for each in slices)]
        )
        for at, fill in enumerate((0, 1))
    )
    tensor_of = np.repeat(np.arange(len(table)), list(map(len, rows[1:])))
    changed = replace(
        entries,
        slices=SliceTable.of(table, tensor_of, offset, shape, entries.slices.nbytes),
        start=np.where(plain, entries.start, np.arange(first)),
        checksum=np.where(is_number, NO_CHECKSUM, entries.checksum),
        plain=plain,
        # Runs are one table for all entries, so one tensor of numbers drops them for all.
        runs=None if numbers else entries.runs,
    )
    return changed, taken, numbers


def _cut_alike(
    tensor: Quantised, offset: Ints, shape: Ints, rows: Ints, stored: tuple[int, ...]
) -> tuple[Ints, Ints, Ints]:
    """A slice for each slice of the weights; the whole, if bytes of a block are in several."""
    rank = len(tensor.shape)
    if tensor.is_packed and len(stored) > rank and (shape[:, rank] != stored[-1]).any():
        offset, shape = np.zeros((1, rank), np.int64), np.array([tensor.shape])
        rows = rows[:1]
    else:
        # A byte has two numbers, and the bytes of a block are an axis or not.
        offset, shape = offset[:, :rank].copy(), shape[:, :rank].copy()
        if tensor.is_packed:
            factor = 2 * (stored[-1] if len(stored) > rank else 1)
            offset[:, -1] *= factor
            shape[:, -1] *= factor
    if tensor.is_transposed:
        offset, shape = (
            np.concatenate([each[:, :-2], each[:, :-3:-1]], axis=1) for each in (offset, shape)
        )
    return offset, shape, rows

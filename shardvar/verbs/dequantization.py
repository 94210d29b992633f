"""Open a checkpoint with numbers in the place of quantised tensors (``dequantize=``).

    read      the names, dtypes and shapes, small tensors that describe others, and the description
              of the model in ``config.json``
    find      the quantised tensors among them (``find_quantised``), by the table of ``schemes``
    wrap      a source that lists their numbers and computes these on the way
              (``engine.quantised``)

Blocks of GGUF have their scales within them, and the format's own source decodes them. Another
dtype than float32 is their matter only here.

The numbers get the key ``X.weight`` or ``X``, and the scales are not listed. A tensor of another
scheme, scales without weights, weights without scales and scales of another shape are faults of
their keys: they cannot be read, and all others can.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from math import prod
from typing import Any, cast

from shardvar.engine.pieces import VerifiedRows
from shardvar.engine.quantised import BlockItem, Plane, Quantised, ScaledSource, block_entries
from shardvar.engine.read import read_each
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    InvalidCheckpoint,
    ReadError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import read_beginning
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import Shape, parse_dtype
from shardvar.pictures.words import count, named
from shardvar.planning.index import (
    EntryTable,
    TableIndex,
    concatenate_entries,
    find_faults,
    take_tensors,
)
from shardvar.records import field, frozen, replace
from shardvar.storage.protocol import Storage
from shardvar.verbs.coded import CONFIG, DTYPES, KEEP, Model, StoredTensors, as_object, is_block
from shardvar.verbs.joined_source import JoinedSource, RankSource
from shardvar.verbs.parameters import find_scaling, layer_of, names_by_layer
from shardvar.verbs.schemes import (
    COMFY,
    EIGHT_BITS,
    SMALL,
    build,
    comfy_layers,
    scheme_of,
    torchao_parts,
)
from shardvar.wire.ggml import BLOCKS
from shardvar.wire.strict_json import parse_json


@frozen
class QuantisedTensors:
    tensors: dict[str, Quantised] = field(default_factory=dict)
    """The tensors, by the keys of their weights."""
    left_out: dict[str, None] = field(default_factory=dict)
    """The keys of their scales."""
    refused: dict[str, Quantised] = field(default_factory=dict)
    """Tensors whose shape is known, but not their numbers."""
    faults: dict[str, ReadError] = field(default_factory=dict)


# --- The quantised tensors


def find_quantised(stored: StoredTensors) -> QuantisedTensors:
    found, keys, model = QuantisedTensors(), stored.facts, stored.model
    right = (key for key in keys if key not in stored.wrong)
    modules = {key: each for key in right if (each := scheme_of(stored, key))}
    for key, module in modules.items():
        try:
            if model.method not in _METHODS:
                raise module.refusal(f"{model.config} names {model.method}")
            tensor = build(module)
            if tensor.refusal:
                found.refused[key] = tensor
                raise tensor.refusal
            found.tensors[key] = tensor
        except READ_ERRORS as error:
            found.faults[key] = error
    taken = {*modules, *stored.wrong, *(name for each in modules.values() for name in each.members)}
    for key, (dtype, shape) in keys.items():
        if key not in taken and (fault := _fault_of_codes(stored, key, dtype, shape)):
            found.faults[key] = fault
    _refuse_doubles(found, keys)
    for tensor in found.tensors.values():
        layer, _ = layer_of(tensor.key)
        beside = [layer + each for each in _ACTIVATIONS if layer + each in keys]
        found.left_out.update(dict.fromkeys([*tensor.members[1:], *beside]))
    found.left_out.update({f"{mark}scaled_fp8": None for mark in stored.marks})
    if found.tensors and model.method:
        found.left_out.update({key: None for key in keys if layer_of(key)[1] in _CACHED})
    faulty = {*stored.wrong, *found.faults}
    for key, (dtype, _) in keys.items():
        weights = _weights_of(key, dtype, model)
        if weights and key not in found.left_out and faulty.isdisjoint([key, *weights]):
            found.faults[key] = _fault_of_scales(stored, key, weights)
    return found


def _fault_of_codes(stored: StoredTensors, key: str, dtype: str, shape: Shape) -> ReadError | None:
    """The fault of a tensor of no known scheme, if its dtype and its name suggest codes."""
    if nearby := find_scaling(key, dtype, stored.layers):
        scheme = _guessed(dtype, nearby, stored.model)
        cause = f"{key!r} is quantised with {scheme}, which shardvar does not dequantize."
        return UnsupportedError(cause, KEEP)
    is_weight = layer_of(key)[1] == "weight" and len(shape) > 1
    is_integers = is_weight and dtype in ("int8", "uint8", "int32", "uint32")
    if (dtype in EIGHT_BITS and not key.endswith("scaled_fp8")) or (
        is_integers and stored.model.method in READ
    ):
        return InvalidCheckpoint(
            f"{key!r} is of {dtype}, and its scales, such as {key + '_scale_inv'!r}, are not there.",
            f"Add the file that has them. Values that need no scales are cast, not dequantized. {KEEP}",
        )
    return None


_ACTIVATIONS = (
    "input_scale", "output_scale", "activation_scale", "input_global_scale", "scale_input", "comfy_quant",
    "weight_shape", "weight_format",
)  # fmt: skip
"""The names of scales of activations, and of marks, next to codes."""
_CACHED = ("k_scale", "v_scale")
"""The names of scales of a cache of attention."""
_FOLDED = ("pre_quant_scale", "act_pre_scale")
"""The names of factors that were moved from the inputs into the weights."""


def _refuse_doubles(found: QuantisedTensors, keys: Collection[str]) -> None:
    by_new: dict[str, list[str]] = {}
    for key, tensor in found.tensors.items():
        by_new.setdefault(tensor.key, []).append(key)
    for new, codes in by_new.items():
        there = dict.fromkeys([*codes, *([new] if new in keys else [])])
        for key in codes if len(there) > 1 else ():
            kind = found.tensors.pop(key).kind
            cause = f"{key!r} ({kind}) would become {new!r}, which is there as well"
            rest = named([each for each in there if each != key])
            found.faults[key] = InvalidCheckpoint(
                f"{cause}: {rest}.", f"Remove one of them. {KEEP}"
            )


def _fault_of_scales(stored: StoredTensors, key: str, weights: Sequence[str]) -> ReadError:
    keys, model = stored.facts, stored.model
    there = next((each for each in weights if each in keys), None)
    what = f"{there!r} is {keys[there][0]}" if there else f"there is no {weights[0]!r}"
    cause = f"{key!r} holds scales, and {what}."
    if model.method in _METHODS:
        return InvalidCheckpoint(cause, f"Add the file that has the weights. {KEEP}")
    return UnsupportedError(
        f"{cause} {model.config} names {model.method}.", f"{DEQUANTIZED} {KEEP}"
    )


_NEXT_TO = (
    "weight_scale_inv", "qscale_weight", "weight_scale", "weight_scale_2", "weight_global_scale",
    "weight_zero_point", "weight_shape", "qzeros", "SCB", "scale_weight",
)  # fmt: skip
"""The names of tensors that mean nothing without weights in their layer."""


def _weights_of(key: str, dtype: str, model: Model) -> list[str]:
    """The keys that the weights of scales may have, if the key is of scales."""
    base, name = layer_of(key)
    if base and (name in _NEXT_TO or (name == "scales" and model.method in READ)):
        return [f"{base}{name}" for name in ("weight", "weight_packed", "qweight")]
    if key.endswith("_scale_inv"):
        return [key.removesuffix("_scale_inv")]
    if key.endswith(("_scales", ".scales")) and dtype == "uint8":
        return [f"{key.removesuffix('scales')}{name}" for name in ("blocks", "weight")]
    return []


DEQUANTIZED = "Schemes that are dequantized: docs/howto/dequantize-a-model.md."
KNOWN = ("", "fp8", "fbgemm_fp8", "gguf", "mxfp4")
"""The schemes of ``config.json`` that leave no tensor with a mark; empty without one."""
READ = (
    "compressed-tensors", "awq", "gptq", "bitsandbytes", "modelopt", "hqq", "quanto", "torchao", "MLX",
)  # fmt: skip
"""Further schemes that are dequantized."""
_METHODS = (*KNOWN, *READ)

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
    keys = as_object(described)
    if not described or isinstance(described, str):
        return described or ""
    if keys.get("quant_method"):
        return str(keys["quant_method"])
    if "quant_algo" in keys and "producer" not in keys:  # null in models without one
        return str(keys["quant_algo"] or "")
    if "weight_block_size" in keys:
        return "fp8"
    return given or ("MLX" if "group_size" in keys and "bits" in keys else "an unknown scheme")


_SCHEMES = {"scale_weight": "ComfyUI's scaled_fp8", "dequant_scale": "SmoothQuant"}
"""The schemes with scales of these names, which other weights have as well."""


def _guessed(dtype: str, scales: list[str], model: Model) -> str:
    """The scheme of weights with scales next to them that no other rule knows."""
    names = {each.rpartition(".")[2] for each in scales}
    if model.method not in KNOWN:
        return model.method
    known = next((scheme for name, scheme in _SCHEMES.items() if name in names), "")
    return known or f"an unknown scheme ({dtype}, with {named(scales)} next to it)"


_CONFIG_NBYTES, _CONFIG_DEPTH = 1 << 24, 32
"""The bytes and the depth of the description of a model that are read at most."""


def check_dequantize(dequantize: Any) -> None:
    with suppress(UnsupportedError):
        if isinstance(dequantize, bool) or parse_dtype(dequantize) in DTYPES:
            return
    raise ArgumentError(
        f"dequantize={dequantize!r} is not a dtype of dequantized numbers.",
        f"Give True, or one of {', '.join(DTYPES)}.",
    )


def dequantized(source: Source, storage: Storage, dequantize: bool | str) -> Source:
    """Numbers get the dtype ``dequantize``; with True, the model's, or for GGUF float32."""
    check_dequantize(dequantize)
    encodings = source.encodings()
    source = source.dequantized()
    stored = concatenate_entries(list(source.index.scan()))
    description = read_stored(source, stored, storage)
    model, found = description.model, find_quantised(description)
    given = "" if dequantize is True else parse_dtype(dequantize)
    if encodings and given not in ("", "float32"):
        for key in encodings.keys() & description.facts.keys() - description.wrong.keys():
            shape = description.facts[key][1]
            plane = Plane(key, (1,) * (2 - len(shape)) + shape)
            found.tensors[key] = Quantised(key, shape, plane, (key,), encodings[key])
    if not found.tensors and not found.faults:
        if model.method not in KNOWN and not encodings:
            cause = f"By {model.config}, the tensors are quantised with {model.method}, "
            remedy = f"Remove the description if they are numbers. {DEQUANTIZED}"
            raise UnsupportedError(f"{cause}and none of them is known as such.", remedy)
        return source

    order, bounds = stored.slices.by_tensor()
    keys = stored.slices.tensors.rows()
    rows_of = {key: order[bounds[row] : bounds[row + 1]] for key, row in keys.items()}
    items, kinds = list[BlockItem](), Counter[tuple[str, str]]()
    for key, (dtype, shape) in description.facts.items():
        if tensor := found.tensors.get(key):
            dtype = given or model.dtype or tensor.dtype or DTYPES[0]
            kinds[tensor.kind, dtype] += 1
            items.append(BlockItem(tensor.key, dtype, tensor.shape, rows_of[key], tensor))
        elif key not in found.left_out:
            items.append(BlockItem(key, dtype, shape, rows_of[key]))
    entries, origin, numbers = block_entries(stored, items)
    faults = dict(source.index.faults.items())
    faults |= cast(Mapping[str, CheckpointError], found.faults)
    parts = {each.key: each.members for each in found.tensors.values()}
    notes = [
        f"dequantized {count(number, 'tensor')} of {kind} to {dtype}"
        for (kind, dtype), number in kinds.items()
    ]
    # The types of quantised tensors do not describe their numbers.
    metadata = source.index.metadata
    types = {"tensor_names", COMFY, *(name for name, _ in description.torchao.values())}
    user = {key: text for key, text in metadata.user.items() if key not in types}
    folded = [key for key in description.facts if layer_of(key)[1] in _FOLDED]
    notes += [f"not applied to weights: {named(folded)}"] if folded else []
    if found.left_out:
        number = count(len(found.left_out), "tensor")
        notes.append(f"left out {number} of scales: {named(found.left_out)}")
    return ScaledSource(
        VerifiedRows(source, stored),
        origin,
        TableIndex(entries, source.index.files, replace(metadata, user=user), faults),
        numbers,
        {key: rows_of[key] for names in parts.values() for key in names if key in rows_of},
        parts,
        notes,
    )


@frozen
class LogicalTensors:
    """The numbers of quantised tensors, as a model has them."""

    kinds: dict[str, tuple[str, Shape]] = field(default_factory=dict)
    """The encoding and the shape of the numbers of each tensor that holds codes."""
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The stored tensors that scale each."""
    left_out: frozenset[str] = frozenset()
    """The keys of tensors that hold no parameters."""


def logical_tensors(source: Source, entries: EntryTable, storage: Storage | None) -> LogicalTensors:
    """Return the quantised tensors of a source as far as they are known; none is read."""
    found = LogicalTensors()
    facts = entries.slices.tensors.facts()
    blocks = {block.name: block for block in BLOCKS.values()} if source.encodings() else {}
    for key, name in source.encodings().items():
        if name in blocks and key in facts:
            *rows, nbytes = facts[key][1]
            numbers = nbytes // blocks[name].nbytes * blocks[name].length
            found.kinds[key] = name, (*rows, numbers)
    with suppress(*READ_ERRORS, StorageError):
        quantised = find_quantised(read_stored(source, entries, storage))
        for key, tensor in (quantised.tensors | quantised.refused).items():
            found.members[key] = tensor.members[1:]
            if facts[key][0] not in EIGHT_BITS:
                found.kinds[key] = tensor.kind, tensor.shape
        scales = chain(quantised.left_out, *found.members.values())
        return replace(found, left_out=frozenset(scales))
    return found


def notes_of(source: Source) -> Sequence[str]:
    return source.notes if isinstance(source, ScaledSource) else ()


def key_of_numbers(source: Source, key: str) -> str:
    """Return the key of the numbers whose codes have a key; others keep theirs."""
    members = source.members if isinstance(source, ScaledSource) else {}
    return next((new for new, (codes, *_) in members.items() if codes == key), key)


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


def read_stored(source: Source, entries: EntryTable, storage: Storage | None) -> StoredTensors:
    """Return the facts about stored tensors, and the values of small ones that describe others."""
    facts = entries.slices.tensors.facts()
    wrong: dict[str, ReadError] = dict(find_faults(entries.slices))
    wrong |= dict(source.index.faults.items())
    user = source.index.metadata.user
    names = [
        key
        for key, (dtype, shape) in facts.items()
        if layer_of(key)[1].endswith(SMALL) and prod(shape) <= _MOST_SMALL and key not in wrong
    ]
    chosen = take_tensors(entries, {*names})
    values = read_each(source, chosen) if names else []
    small = dict(zip(chosen.slices.tensors.keys, values, strict=True))
    wrong |= {key: each for key, each in small.items() if isinstance(each, ReadError)}
    return StoredTensors(
        facts,
        names_by_layer(facts),
        Model() if storage is None else read_model(storage),
        wrong,
        {key: each for key, each in small.items() if not isinstance(each, ReadError)},
        user,
        torchao_parts(user),
        comfy_layers(user),
        [key.removesuffix("scaled_fp8") for key in facts if key.endswith("scaled_fp8")],
    )


_MOST_SMALL = 1 << 12
"""The elements of a small tensor."""


def read_model(storage: Storage) -> Model:
    levels = described_parts(read_json(storage, CONFIG))
    told = [level[name] for level in levels for name in QUANTIZATION if level.get(name)]
    given = chain(((CONFIG, method_of(each), each) for each in told), _beside(storage))
    config, method, described = next((each for each in given if each[1]), (CONFIG, "", {}))
    named_dtypes = (level.get(name) for level in levels for name in ("dtype", "torch_dtype"))
    dtype = next((each for each in named_dtypes if each in DTYPES), "")
    sizes = (as_object(each).get("weight_block_size") for each in told)
    block: Any = next(filter(None, sizes), None)
    size = (block[0], block[1]) if is_block(block) else Model().block
    return Model(method, size, dtype, config, as_object(described))


def _beside(storage: Storage) -> Iterator[tuple[str, str, Any]]:
    """The descriptions in other files: their names, schemes and contents."""
    for name, scheme in SIDE_FILES.items():
        side = as_object(read_json(storage, name))
        yield name, method_of(side, scheme), as_object(side.get("quantization")) or side


QUANTIZATION = ("quantization_config", "quantization", "compression_config")
"""The keys of descriptions of quantisation."""


def described_parts(description: Any) -> list[dict[str, Any]]:
    # The object itself, and the parts of the model below it.
    levels: list[dict[str, Any]] = [description] if isinstance(description, dict) else []
    for level in levels:
        parts = (each for name, each in level.items() if name not in QUANTIZATION)
        levels += [each for each in parts if isinstance(each, dict)]
    return levels


def read_json(storage: Storage, name: str) -> Any:
    if name not in storage.names():
        return None
    with prefix_errors(name):
        return parse_json(
            read_beginning(storage, name, _CONFIG_NBYTES), _CONFIG_DEPTH, allow_nan=True
        )

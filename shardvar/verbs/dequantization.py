"""Open a checkpoint with numbers in the place of quantised tensors (``dequantize=``).

    read      the names, dtypes and shapes, and what ``config.json`` says of the model
    find      the quantised tensors among them (``verbs.quantization``)
    wrap      a source that lists their numbers and computes these on the way
              (``engine.dequantize``)

Blocks of GGUF have their scales within them, and the format's own source decodes them. Another
dtype than float32 is their matter only here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from shardvar.engine.dequantize import Quantised, ScaledSource
from shardvar.engine.verified import VerifiedRows
from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import read_beginning
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import Ints, parse_dtype
from shardvar.layout.region import Region
from shardvar.pictures.words import count, named
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex, concatenate_entries
from shardvar.planning.plan import find_faults
from shardvar.planning.slices import SliceTable, TensorTable, widen
from shardvar.storage.protocol import Storage
from shardvar.verbs.joined_source import JoinedSource
from shardvar.verbs.quantization import (
    COMFY,
    CONFIG,
    DEQUANTIZED,
    DTYPES,
    KNOWN,
    SIDE_FILES,
    Model,
    QuantisedTensors,
    find_quantised,
    method_of,
)
from shardvar.verbs.rank_source import RankSource
from shardvar.wire.strict_json import parse_json

_CONFIG_NBYTES, _CONFIG_DEPTH = 1 << 24, 32
"""The bytes and the depth of the description of a model that are read at most."""


def check_dequantize(dequantize: Any) -> None:
    """Raise ``ArgumentError`` unless it is a bool, or a dtype that numbers may get."""
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
    """Return the checkpoint with numbers in the place of quantised tensors.

    They have the dtype ``dequantize``; with True, the one of the model, and of GGUF float32.
    """
    check_dequantize(dequantize)
    encodings = source.encodings()
    source = source.dequantized()
    stored = concatenate_entries(list(source.index.scan()))
    model = read_model(storage)
    if COMFY.rpartition(" ")[2] in source.index.metadata.user:
        model = replace(model, method=COMFY)
    wrong: dict[str, CheckpointError | UnsupportedError] = dict(find_faults(stored.slices))
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
            cause = f"{model.config} says that the tensors are quantised with {model.method}, "
            raise UnsupportedError(f"{cause}which shardvar does not dequantize.", DEQUANTIZED)
        return source
    return _scaled(source, stored, found, dtype, model)


def notes_of(source: Source) -> Sequence[str]:
    """Return sentences that say what ``dequantized`` has changed; none if it was nothing."""
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


# --- What the model says


def read_model(storage: Storage) -> Model:
    """Return what ``config.json`` in a directory, and the files next to it that describe quantisation,
    say; ``MalformedCheckpoint`` if one is not JSON."""
    levels = _levels(_read_json(storage, CONFIG))
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
    """Return the value of a file of JSON; None if there is none."""
    if name not in storage.names():
        return None
    with prefix_errors(name):
        return parse_json(
            read_beginning(storage, name, _CONFIG_NBYTES), _CONFIG_DEPTH, allow_nan=True
        )


def _levels(config: Any) -> list[dict[str, Any]]:
    """Return the descriptions of a model and of its parts, such as ``text_config``."""
    levels = [config] if isinstance(config, dict) else []
    for level in levels:
        parts = (each for name, each in level.items() if name not in _QUANTIZATION)
        levels += [each for each in parts if isinstance(each, dict)]
    return levels


# --- The source that reads them


def _scaled(
    source: Source, stored: EntryTable, found: QuantisedTensors, dtype: str, model: Model
) -> ScaledSource:
    """Return the source with the numbers of the tensors that were found."""
    order, bounds = stored.slices.by_tensor()
    keys = stored.slices.tensors.rows()
    rows_of = {key: order[bounds[row] : bounds[row + 1]] for key, row in keys.items()}
    entries, rows, numbers = _entries(stored, rows_of, found, dtype)
    faults = dict(source.index.faults.items())
    faults |= cast(Mapping[str, CheckpointError], found.faults)
    parts = {
        each.key: (each.weights, *filter(None, (each.scales,))) for each in found.tensors.values()
    }
    return ScaledSource(
        VerifiedRows(source, stored),
        TableIndex(entries, source.index.files, source.index.metadata, faults),
        rows,
        numbers,
        {key: rows_of[key] for names in parts.values() for key in names},
        parts,
        _notes(found, dtype, model),
    )


def _entries(
    stored: EntryTable, rows_of: Mapping[str, Ints], found: QuantisedTensors, dtype: str
) -> tuple[EntryTable, Ints, dict[int, Quantised]]:
    """Return the entries of numbers and of other tensors, [m] the stored rows that they come from,
    and the tensor of each entry that holds numbers."""
    tensors = stored.slices.tensors
    names, slices = list[tuple[str, str, tuple[int, ...]]](), list[tuple[Ints, Ints]]()
    rows, numbers, first = [np.zeros(0, np.int64)], dict[int, Quantised](), 0
    for row, key in enumerate(tensors.keys):
        if key in found.left_out:
            continue
        mine, tensor = rows_of[key], found.tensors.get(key)
        offset, shape = stored.slices.offset[mine], stored.slices.shape[mine]
        if tensor is None:
            names.append((key, tensors.dtype(row), tensors.shape(row)))
        else:
            names.append((tensor.key, dtype, tensor.outside(Region.whole(tensor.shape)).shape))
            offset, shape, mine = _cut_alike(tensor, offset, shape, mine, tensors.shape(row))
            numbers |= dict.fromkeys(range(first, first + len(mine)), tensor)
        rows.append(mine)
        slices.append((offset, shape))
        first += len(mine)
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
    """Return the slices of numbers, one for each slice of their weights, and its row.

    There is one slice, the whole, if the bytes of a block are in several slices.
    """
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


def _notes(found: QuantisedTensors, dtype: str, model: Model) -> list[str]:
    """Return sentences that say what has changed."""
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
    return notes

"""The contents of a safetensors checkpoint, from the headers of its files and a set's index.

Contents. A header describes all tensors of its file. If the file ends too early, the whole tensors
can be read. A set is read as far as possible: the keys of a file that cannot be read, or that is not
next to the index, are faults, and the others can be read. The index decides which file has a key.
Disagreements between the files and the index are findings: a tensor in two files, a tensor or a file
that the index does not name, names and sizes that do not fit.

While a set is overwritten, its index is missing. A reader that found the index before
looks at it again after reading the headers, so that it never takes some files from the old set and
some from the new.

Payloads. All are plain, without any checksum. Elements of 4 and 6 bits are packed, and have dtypes
that say so. The first of two elements of 4 bits is in the low half of its byte. No writer has shown
yet how elements of 6 bits are packed: such tensors are copied, and their values refused.

Shards. PyTorch's distributed checkpoints have slices of larger tensors, of each rank in other files:

    __metadata__["DCP_SHARDING_INFO"]    JSON: {KEY: {"saved_offsets": [int, ...]}}
    __metadata__["DCP_VERSION"]          "1.0"

1. Group. The files of one checkpoint differ only in the numbers of their names.
2. Join. Each header has the beginnings of its slices. A tensor reaches to the end of its last
   slice, since no file has its size. That its slices cover it is a law of every index, which the
   reader checks.
3. Doubt. A tensor whose last slices are lost looks smaller, and whole. So a shard that cannot be
   read, or whose number is missing between others, makes every key a fault. A lost last shard
   leaves no trace; the findings mention it.

The file names of a safetensors checkpoint, and the names that a person may type for one.

    one file    PREFIX.safetensors
    a set       PREFIX-00001-of-00003.safetensors, …, and PREFIX.safetensors.index.json, which lists
                the file of each key
    a variant   the same with PREFIX.VARIANT for PREFIX, whose index may also be
                PREFIX.safetensors.index.VARIANT.json or, as older programs wrote it,
                PREFIX.safetensors.VARIANT.index.json, with files named
                PREFIX-00001-of-00003.VARIANT.safetensors
    shards      shard-00002-PREFIX-00001-of-00003.safetensors: the slices that rank 2, of ranks from
                1 on, had of the tensors of file 1 of 3, as PyTorch's distributed checkpoints write
                them; no index lists them

PREFIX is often ``model`` or ``diffusion_pytorch_model``, VARIANT ``fp16``, and files of a set may
have any other names. A set is named by its index, shards by the first of their files.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    MissingFile,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, check_same, first_bytes, look_into
from shardvar.formats.listing import Listing
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import SetIndex, fetch_again, is_foreign, read_set_index
from shardvar.limits import MAX_RANK
from shardvar.pictures.words import named
from shardvar.planning.index import OBJECTS, EntryTable, Metadata
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import field, mutable
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import strict_json
from shardvar.wire.damage import invalid
from shardvar.wire.digests import DIGESTS, take_digests
from shardvar.wire.safetensors_header import (
    BITS,
    PREAMBLE_NBYTES,
    Header,
    header_nbytes,
    parse_header,
    sizes_of,
)

SAFETENSORS_SUFFIX = ".safetensors"
SET_INDEX_SUFFIX = ".safetensors.index.json"

_INDEX = r"(?s)(.*)\.safetensors(\.[^.]+)?\.index(\.[^.]+)?\.json"
_PART = r"(?s)(.*)-(\d{5,})-of-(\d{5,})(\.[^.]+)?\.safetensors"
_SHARD = r"(?s)shard-(\d{5,})-(.*)-(\d{5,})-of-(\d{5,})\.safetensors"
_HUB, _ORIGINAL = ("model", "diffusion_pytorch_model"), "consolidated"
"""The prefixes that from_pretrained of Hugging Face looks for, and Mistral's for the same model."""
_DIGITS = 10
"""Ten digits are more files than can exist; a hostile name must not cost work."""


class ShardName(NamedTuple):
    prefix: str  # of all files
    num_files: int  # of each rank, at most
    rank: int  # from 1 on
    number: int  # of the file among the files of its rank, from 1 on


def set_index_name(prefix: str) -> str:
    return prefix + SET_INDEX_SUFFIX


def is_set_index(name: str) -> bool:
    return re.fullmatch(_INDEX, name) is not None


def index_name_of(name: str) -> str:
    return name if is_set_index(name) else set_index_name(prefix_of(name))


def part_name(prefix: str, number: int, count: int, digits: int = 5) -> str:
    """Return the name of a file of a set; numbers begin at 1."""
    return f"{prefix}-{number:0{digits}}-of-{count:0{digits}}{SAFETENSORS_SUFFIX}"


def new_part_names(prefix: str, count: int, names: Iterable[str]) -> list[str]:
    """Return unused names for a new set: of two sets of one count, one has a digit more."""
    there = set(names)
    for digits in range(5, _DIGITS):
        parts = [part_name(prefix, number + 1, count, digits) for number in range(count)]
        if there.isdisjoint(parts):
            break
    return parts


def split_part_name(name: str) -> tuple[str, int, int] | None:
    """Return prefix, number and count of a file of a set; None if the name is of another form.

    >>> split_part_name("model-00001-of-00003.safetensors"), split_part_name("model-00001-of-00003.fp16.safetensors")
    (('model', 1, 3), ('model.fp16', 1, 3))
    """
    match = re.fullmatch(_PART, name)
    if match is None or split_shard_name(name) or max(len(match[2]), len(match[3])) >= _DIGITS:
        return None
    return match[1] + (match[4] or ""), int(match[2]), int(match[3])


def split_shard_name(name: str) -> ShardName | None:
    """Return the parts of the name of a shard; None if the name is of another form.

    >>> split_shard_name("shard-00002-model-00001-of-00003.safetensors")
    ShardName(prefix='model', num_files=3, rank=2, number=1)
    """
    match = re.fullmatch(_SHARD, name)
    if match is None or max(len(match[1]), len(match[3]), len(match[4])) >= _DIGITS:
        return None
    return ShardName(match[2], int(match[4]), int(match[1]), int(match[3]))


def prefix_of(name: str) -> str:
    """Return the prefix of a checkpoint by any of its names; the prefix of a variant includes the
    variant.

    >>> prefix_of("model.safetensors.index.json"), prefix_of("model-00001-of-00003.safetensors"), prefix_of("model")
    ('model', 'model', 'model')
    >>> prefix_of("model.safetensors.index.fp16.json"), prefix_of("model.fp16-00001-of-00003.safetensors")
    ('model.fp16', 'model.fp16')
    """
    part, index = split_part_name(name), re.fullmatch(_INDEX, name)
    if index:
        return index[1] + (index[2] or "") + (index[3] or "")
    return part[0] if part else name.removesuffix(SAFETENSORS_SUFFIX)


def part_names_of(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if (part := split_part_name(name)) and part[0] == prefix]


def shard_names_of(name: str, names: Iterable[str]) -> list[str]:
    wanted = split_shard_name(name)
    return sorted(
        each
        for each in names
        if wanted and (found := split_shard_name(each)) and found[:2] == wanted[:2]
    )


def find_safetensors(storage: Storage, name: str) -> list[str]:
    """Return the files, the indexes of sets, and the first files of shards that a name may mean."""
    names = storage.names()
    if not name:
        return _as_on_the_hub(all_checkpoints(storage))
    if name in names:
        # A file of a set means the set, if its index exists; else it is read by itself.
        part = split_part_name(name)
        own = _indexes_of(part[0], names) if part else shard_names_of(name, names)[:1]
        own = [each for each in own if not (part and is_foreign(storage, each))]
        is_named = name.endswith(SAFETENSORS_SUFFIX) or is_set_index(name)
        return own or ([name] if is_named or _begins_with_header(storage, name) else [])
    # The name is not a file's: it is a prefix, or the name under which one file was saved that a
    # policy made a set of.
    prefix = name.removesuffix(SET_INDEX_SUFFIX).removesuffix(SAFETENSORS_SUFFIX)
    # Only files whose names begin with the prefix count, as in ``formats.table``.
    parts = [part for part in part_names_of(prefix, names) if part.startswith(prefix + "-")]
    indexes = [
        index for index in _indexes_of(prefix, names) if parts or index == set_index_name(prefix)
    ]
    single = (
        [name + SAFETENSORS_SUFFIX] if name == prefix and name + SAFETENSORS_SUFFIX in names else []
    )
    return single + indexes or (
        [set_index_name(prefix)] if orphans_of(prefix, [*parts, *indexes]) else []
    )


def orphans_of(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the files of a set whose index is missing; its name stands for them."""
    names = list(names)
    parts = [] if _indexes_of(prefix, names) else part_names_of(prefix, names)
    return [name for name in parts if (part := split_part_name(name)) and part[2] > 1]


def _indexes_of(prefix: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if is_set_index(name) and prefix_of(name) == prefix]


def _as_on_the_hub(found: list[str]) -> list[str]:
    """Return the checkpoints that from_pretrained of Hugging Face would take; else all.
    An index comes first, Mistral's original files last; adapters and variants stay."""
    for prefix in _HUB:
        if set_index_name(prefix) in found:
            return [
                name
                for name in found
                if prefix_of(name).partition(".")[0] == prefix or name.startswith("adapter_")
            ]
    has_model = any(prefix_of(name) in _HUB for name in found)
    return [name for name in found if not (has_model and prefix_of(name) == _ORIGINAL)]


def all_checkpoints(storage: Storage) -> list[str]:
    """Return the checkpoints of a directory: its sets, and files outside of sets."""
    names = storage.names()
    indexes = [name for name in names if is_set_index(name)]
    prefixes = set(map(prefix_of, indexes))
    checkpoints, loose = set(indexes), list[str]()
    shards: dict[tuple[str, int], str] = {}
    for name in names:
        part, shard = split_part_name(name), split_shard_name(name)
        if not name.endswith(SAFETENSORS_SUFFIX) or (part and part[0] in prefixes):
            continue
        if shard:
            shards.setdefault(shard[:2], name)
        elif part and part[2] > 1:
            checkpoints.add(set_index_name(part[0]))
        else:
            loose.append(name)

    # The files of a set may have any names, which only its index tells. It is read if there are
    # such files.
    def files_of(file: ReadableFile) -> set[str]:
        return set(read_set_index(file.read, file.size).weight_map.values())

    # None, so any file, if an index cannot be read.
    named = [look_into(storage, index, files_of, None) for index in indexes] if loose else []
    is_unclear = any(files is None for files in named)
    taken = {name for files in named if files for name in files}
    own = {prefix + SAFETENSORS_SUFFIX for prefix in prefixes}
    loose = [each for each in loose if each not in taken and (each in own or not is_unclear)]
    return sorted({*checkpoints, *loose, *shards.values()})


def _begins_with_header(storage: Storage, name: str) -> bool:
    """Return True if a file of another name, as in caches, begins as a safetensors file."""
    header = look_into(
        storage,
        name,
        lambda file: header_nbytes(first_bytes(file), file.size),
        None,
    )
    return header is not None


DESCRIPTION_KEY = "shardvar.description"
WRITER_KEY = "shardvar.writer"
GENERATION_KEY = "shardvar.generation"
"""The keys in ``__metadata__`` of three fields of ``Metadata``; the last one is also in the
metadata of an index."""
FORMAT_KEY, FORMAT_VALUE = "format", "pt"
"""The text in ``__metadata__`` without which loaders of Hugging Face refuse a file with other texts."""
TOTALS = ("total_size", "total_parameters")
"""The keys in the metadata of an index that count the tensors."""


_SHARDING_INFO = "DCP_SHARDING_INFO"
_LAYOUT_KEYS = (_SHARDING_INFO, "DCP_VERSION")
"""The keys in ``__metadata__`` that describe the layout of the files, and not their content."""
_MAX_DEPTH = 32
_UNKNOWN_NUMBER = "No file says how many shards there were: a lost last shard cannot be noticed."


_Row = tuple[str, str, Sequence[int], int, int]
"""The key, dtype and shape of a tensor, the number of its file, and its first byte there."""


def _whole(rows: Sequence[_Row]) -> EntryTable:
    """Return the entries by key; the tensors keep the order of the files."""
    keys, dtypes, shapes, file, start = zip(*rows, strict=True) if rows else ((),) * 5
    slices = TensorTable.of(zip(keys, dtypes, shapes, strict=True)).whole()
    order = sorted(range(len(rows)), key=keys.__getitem__)
    return _plain(slices, file, start).take(np.array(order, np.int64))


def _plain(slices: SliceTable, file: Sequence[int], start: Sequence[int]) -> EntryTable:
    return EntryTable.without_checksums(slices, np.array(start, np.int64), np.array(file, np.int64))


def read_safetensors(storage: Storage, name: str) -> Listing:
    if is_set_index(name):
        # A set that is replaced while it is read is read again.
        for _ in range(ATTEMPTS):
            listing = _try_set(storage, name)
            if listing is not None:
                return listing
            if storage.traits is not None:  # what a bucket has listed is old
                storage = storage.refreshed()
        cause = f"{storage.path}: {name} was replaced while the set was being opened."
        raise CorruptCheckpoint(cause, "Open it again when the writer is done.")
    if split_shard_name(name):
        return _read_shards(storage, name)
    listing = Listing(DataFiles(storage, [name], named=name))
    header = read_header(listing.data, 0)
    listing.entries = _whole([*_rows(listing, header, 0, header.keys)])
    listing.metadata = metadata_of_texts(header.metadata)
    return listing


def _try_set(storage: Storage, name: str) -> Listing | None:
    """Return the contents of a set; None if it was replaced since its index was read."""
    # The index: which file has each key.
    index, content = _read_index(storage, name)
    weight_map, index_metadata = content.weight_map, content.metadata
    names = sorted(set(weight_map.values()))
    listing = Listing(DataFiles(storage, names, index=name))
    keys_of: dict[str, list[str]] = {file: [] for file in names}
    for key, file in weight_map.items():
        keys_of[file].append(key)

    # The headers: a file that cannot be read, or lacks a key, is a fault of its keys only.
    rows, headers = list[_Row](), dict[str, Header]()

    def read(number: int) -> tuple[int, Header | CheckpointError | StorageError]:
        return number, _answer(storage, listing.data, number)

    answers = dict(as_answered(read, range(len(names)), storage.traits))
    for number, file in enumerate(names):
        answer = answers[number]
        if not isinstance(answer, Header):
            listing.faults.update((key, answer.at(repr(key))) for key in keys_of[file])
            continue
        headers[file] = answer
        present = set(answer.keys)
        rows += _rows(listing, answer, number, [key for key in keys_of[file] if key in present])
    listing.faults |= (absent := _absences(headers, weight_map))
    listing.entries = _whole(rows)

    # The index again: if it is another one now, the headers may come from two sets. It was kept
    # open until here, so that the file system cannot give its identity to another file. The files
    # again: another writer may write them in any order.
    try:
        check_same(storage, name, index.stamp)
        listing.data.check_in_place()
    except CorruptCheckpoint:
        index.close()
        listing.data.close()
        return None
    index.close()

    # The digests of a set are in its index: a file that was written by itself has only its own.
    metadata = {
        key: text
        for header in headers.values()
        for key, text in header.metadata.items()
        if key != DIGESTS
    }
    listing.findings += _disagreements(storage, name, headers, weight_map, absent)
    if not listing.faults:  # all tensors are described
        # Old writers stored the total as a float, and some omit it.
        nbytes = int(listing.entries.slices.nbytes.sum())
        total = index_metadata.get("total_size", nbytes)
        if type(total) not in (int, float) or total in (inf, -inf) or total != nbytes:
            cause = f"Its total_size is {total!r}, but its tensors have {nbytes} bytes."
            listing.findings.append(Finding(name, cause, True))
    for key, value in index_metadata.items():
        if key not in TOTALS:
            metadata[key] = value if type(value) is str else json.dumps(value)
    listing.metadata = metadata_of_texts(metadata)
    return listing


def read_header(data: DataFiles, number: int) -> Header:
    file = data.open(number)
    with prefix_errors(file.name):
        nbytes = header_nbytes(first_bytes(file), file.size)
        with prefix_errors(f"header at offset {PREAMBLE_NBYTES}"):
            header = parse_header(file.read(PREAMBLE_NBYTES, nbytes))
    data.judge(number, header.stop, "its header says")
    return header


def _answer(
    storage: Storage, files: DataFiles, number: int
) -> Header | CheckpointError | StorageError:
    name = files.names[number]
    try:
        # The storage refuses names that are not bare on this system; this refuses names that are
        # not safe on another system.
        if "\\" in name or "/" in name or not name.endswith(SAFETENSORS_SUFFIX):
            raise invalid(
                f"{storage.path}: the index names {name!r}, which is not a safetensors file next "
                "to it."
            )
        return read_header(files, number)
    except MissingFile as error:  # it has the name, unless all files are missing
        return error
    except (CheckpointError, StorageError) as error:
        return error.in_file(name)


def _read_index(storage: Storage, name: str) -> tuple[ReadableFile, SetIndex]:
    try:
        file = storage.open(name)
    except MissingFile as error:
        cause = f"{error.cause} It lists the file of each key of the set."
        remedy = (
            "Fetch it from the source of the set, or name one file of the set to read only that."
        )
        raise MissingFile(cause, remedy) from None
    try:
        with prefix_errors(file.name):
            return file, read_set_index(file.read, file.size)
    except BaseException:
        file.close()
        raise


def _absences(
    headers: Mapping[str, Header], weight_map: Mapping[str, str]
) -> dict[str, CheckpointError]:
    """Return the errors of keys that are not in the files where the index has them."""
    present = {file: set(header.keys) for file, header in headers.items()}
    holders = {key: file for file, keys in present.items() for key in keys}
    errors: dict[str, CheckpointError] = {}
    for key, file in weight_map.items():
        if key in present.get(file, {key}):
            continue
        cause = f"{key!r}: {file} does not hold it, as the index claims"
        remedy = fetch_again(file)
        if key in holders:
            cause += f"; {holders[key]} holds it"
            first, second = sorted((file, holders[key]))  # one sentence for both directions
            remedy = (
                f"If {first} and {second} have each other's names, rename them; else fetch both "
                "again."
            )
        errors[key] = IncompleteCheckpoint(f"{cause}.", remedy)
    return errors


def _rows(listing: Listing, header: Header, number: int, keys: Sequence[str]) -> Iterator[_Row]:
    places = _saved_offsets(header) or {}
    row_of, starts = {key: row for row, key in enumerate(header.keys)}, header.start.tolist()
    for key in keys:
        row = row_of[key]
        shape = header.shapes[row]
        if places and any(places.get(key, ())):
            listing.faults[key] = IncompleteCheckpoint(
                f"{key!r} is a slice that begins at {list(places[key])} of its tensor; the other "
                "slices are in other files.",
                "Name the folder that holds the shards of all ranks, under the names that PyTorch "
                "gave them.",
            )
        if len(shape) > MAX_RANK:
            listing.faults[key] = _too_deep(key, shape)
        else:
            yield key, header.dtypes[row], shape, number, starts[row]


def _too_deep(key: str, shape: Sequence[int]) -> UnsupportedError:
    cause = f"{key!r} has {len(shape)} axes; NumPy allows at most {MAX_RANK}."
    return UnsupportedError(cause, "Write it with fewer axes.")


def metadata_of_texts(texts: Mapping[str, str]) -> Metadata:
    user = {key: text for key, text in texts.items() if key not in _LAYOUT_KEYS}
    is_own = not {DESCRIPTION_KEY, GENERATION_KEY, DIGESTS, OBJECTS}.isdisjoint(user)
    if user.get(FORMAT_KEY) == FORMAT_VALUE and is_own:
        del user[FORMAT_KEY]  # the writer's, and not the user's
    generation = user.pop(GENERATION_KEY, "")
    digests: Mapping[str, str] = take_digests(user) if DIGESTS in user else {}
    return Metadata(
        user.pop(DESCRIPTION_KEY, ""),
        user.pop(WRITER_KEY, ""),
        user,
        generation=generation,
        digests=digests,
    )


def _disagreements(
    storage: Storage,
    name: str,
    headers: Mapping[str, Header],
    weight_map: Mapping[str, str],
    absent: Collection[str],
) -> Iterator[Finding]:
    """Yield tensors and files that the index does not name, or not there; ``absent`` are faults."""
    for file, header in headers.items():
        elsewhere = [
            key for key in header.keys if weight_map.get(key, file) != file and key not in absent
        ]
        if elsewhere:
            listed = named(sorted({weight_map[key] for key in elsewhere}))
            yield Finding(
                file, f"It holds {named(elsewhere)}, which the index lists in {listed}.", True
            )
        unnamed = [key for key in header.keys if key not in weight_map]
        if unnamed:
            yield Finding(file, f"It holds {named(unnamed)}, which the index does not name.", True)
    files = {*weight_map.values()}
    parts = [part for file in files if (part := split_part_name(file))]
    # Complete are 3 files numbered 1 to 3, and also 0 to 2: some writers begin at 0.
    for count in sorted({part[2] for part in parts}):
        numbers = {part[1] for part in parts if part[2] == count}
        if not (min(numbers) <= 1 and len(numbers) == count == max(numbers) - min(numbers) + 1):
            yield Finding(
                name,
                f"The names imply {count} files, but the index names {len(numbers)} of them.",
                True,
            )
    others = [
        file for file in storage.names() if file.endswith(SAFETENSORS_SUFFIX) and file not in files
    ]
    # A file with another number of digits is of a set that was replaced (``names.new_part_names``).
    lengths = {len(file) for file in files}
    strays = [file for file in part_names_of(prefix_of(name), others) if len(file) in lengths]
    for file in others:
        yield Finding(
            file, "It lies next to the set, and the index does not name it.", file in strays
        )


def _saved_offsets(header: Header) -> dict[str, Sequence[int]] | None:
    """Return the offsets of each slice by key; a key without offsets of the right form is left out."""
    text = header.metadata.get(_SHARDING_INFO)
    if text is None:
        return None
    info = strict_json.parse_json(text.encode("utf-8"), _MAX_DEPTH)
    if type(info) is not dict:
        raise invalid(f"{_SHARDING_INFO} is not a JSON object.")
    places: dict[str, Sequence[int]] = {}
    for key, shape in zip(header.keys, header.shapes, strict=True):
        place = info.get(key)
        offsets: Any = place.get("saved_offsets") if type(place) is dict else None
        are_integers = type(offsets) is list and set(map(type, offsets)) <= {int}
        if are_integers and len(offsets) == len(shape) and min(offsets, default=0) >= 0:
            places[key] = offsets
    return places


@mutable
class _Tensor:
    dtype: str
    shape: list[int]
    rows: list[tuple[Sequence[int], Sequence[int], int, int]] = field(default_factory=list)
    """The offset and the shape of each slice, the number of its file, and its first byte there."""


def _read_shards(storage: Storage, name: str) -> Listing:
    """Return the contents of all shards of a checkpoint, by the name of one of them."""
    names = shard_names_of(name, storage.names()) or [name]
    listing = Listing(DataFiles(storage, names))
    tensors, metadata, faults = dict[str, _Tensor](), dict[str, str](), listing.faults
    fault: CheckpointError | None = None
    for number in range(len(names)):
        try:
            header = read_header(listing.data, number)
        except CheckpointError as error:
            listing.data.note(number, fault := error)
            continue
        with prefix_errors(listing.data.open(number).name):
            offsets = _saved_offsets(header)
            if offsets is None:
                raise invalid(f"It is named as a shard, but it has no {_SHARDING_INFO}.")
        _join(tensors, faults, header, offsets, number)
        metadata |= header.metadata
    listing.data.check_in_place()
    for key, tensor in tensors.items():
        if len(tensor.shape) > MAX_RANK:
            faults[key] = _too_deep(key, tensor.shape)
        elif BITS[tensor.dtype] < 8:
            cause = f"{key!r} has the dtype {tensor.dtype}, whose elements share bytes; its slices"
            remedy = "Consolidate the checkpoint with the program that wrote it."
            faults[key] = UnsupportedError(f"{cause} cannot be joined.", remedy)
        else:
            try:
                sizes_of([key], [tensor.shape], [BITS[tensor.dtype]])
            except CheckpointError as error:
                faults[key] = error
    if fault is not None:
        if not tensors:
            raise fault
        faults |= {key: fault.at(repr(key)) for key in tensors}
    # Shards whose numbers are missing; ranks count from 1.
    parts = [part for each in names if (part := split_shard_name(each))]
    ranks = {part.rank for part in parts}
    missing = max(ranks, default=0) - len(ranks - {0})
    if missing:
        first = next(rank for rank in range(1, max(ranks) + 1) if rank not in ranks)
        lost = f"shard {first}" if missing == 1 else f"shard {first} and {missing - 1} more"
        cause = f"{storage.path} lacks {lost} of at least {max(ranks)}."
        remedy = "Copy the files of all ranks into the folder."
        for key in tensors:
            faults[key] = IncompleteCheckpoint(f"{key!r}: {cause}", remedy)
    user = {key: text for key, text in metadata.items() if key not in (*_LAYOUT_KEYS, DIGESTS)}
    listing.metadata = Metadata(user=user)
    listing.entries = _slices(tensors, faults)
    listing.findings += _oddities(names, parts)
    return listing


def _join(
    tensors: dict[str, _Tensor],
    faults: dict[str, ShardvarError],
    header: Header,
    offsets: Mapping[str, Sequence[int]],
    number: int,
) -> None:
    for row, key in enumerate(header.keys):
        dtype, shape = header.dtypes[row], header.shapes[row]
        tensor = tensors.setdefault(key, _Tensor(dtype, [0] * len(shape)))
        if key not in offsets:
            faults[key] = invalid(
                f"{key!r}: {_SHARDING_INFO} does not say where one of its slices begins."
            )
        elif (tensor.dtype, len(tensor.shape)) != (dtype, len(shape)):
            cause = (
                f"{key!r} is {tensor.dtype} with {len(tensor.shape)} axes in one shard and {dtype} "
                "with "
            )
            faults[key] = InconsistentTensor(f"{cause}{len(shape)} in another.", COPY_AGAIN)
        else:
            ends = (offset + extent for offset, extent in zip(offsets[key], shape, strict=True))
            tensor.shape = list(map(max, tensor.shape, ends))
            tensor.rows.append((offsets[key], shape, number, int(header.start[row])))


def _slices(tensors: Mapping[str, _Tensor], faults: Mapping[str, ShardvarError]) -> EntryTable:
    """Return the slices of the tensors that can be read, in the order of the keys."""
    # Tensors that lack a shard are listed with their fault.
    listed = (type(None), IncompleteCheckpoint)
    shown = {
        key: tensors[key]
        for key in sorted(tensors)
        if tensors[key].rows and type(faults.get(key)) in listed
    }
    table = TensorTable.of((key, tensor.dtype, tensor.shape) for key, tensor in shown.items())
    rows = [(number, *row) for number, tensor in enumerate(shown.values()) for row in tensor.rows]
    numbers, offset, shape, file, start = zip(*rows, strict=True) if rows else ((),) * 5
    slices = SliceTable.of(table, np.array(numbers, np.int64), *table.padded(offset, shape))
    return _plain(slices, file, start)


def _oddities(names: Sequence[str], parts: Sequence[ShardName]) -> Iterator[Finding]:
    """Yield gaps in the numbers of the files."""
    yield Finding(names[0], _UNKNOWN_NUMBER, False)
    ranks_of = Counter(part.number for part in parts)
    count, ranks = parts[0].num_files, len({part.rank for part in parts})
    if len(ranks_of) != count:
        yield Finding(
            names[0],
            f"The names imply {count} files, but only {len(ranks_of)} of them exist.",
            True,
        )
    for number, present in sorted(ranks_of.items()):
        if present < ranks:
            cause = (
                f"{present} of {ranks} shards have a file {number} of {count}: the others had none "
                "of its tensors, or "
            )
            yield Finding(names[0], f"{cause}their file is lost.", False)

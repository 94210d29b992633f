"""Sets of files that each have a table of contents, and an index in the form of Hugging Face: JSON
that names the file of each key.

    {"metadata": {"total_size": 13476835328}, "weight_map": {KEY: FILE, ...}}

Safetensors files have it, and files of ``torch.save`` and of Flax. ``metadata`` may be missing, and
may hold any JSON. Writers disagree on its numbers, so that they are compared and never needed.

A file that cannot be read, or lacks a key, is a fault of its keys and leaves the others readable. A
key that the index does not name in a file is a finding.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ShardvarError,
    StorageError,
    prefix_errors,
)
from shardvar.formats.files import look_into
from shardvar.formats.protocol import Finding
from shardvar.limits import MAX_HEADER_NBYTES
from shardvar.pictures.words import named
from shardvar.records import frozen
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import strict_json
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    check_key_nbytes,
    distrusted,
    foreign_file,
    invalid,
    malformed,
)

DELTA_ENCODING = "delta_encoding"
"""The text in the metadata of an index that makes its set a delta (``formats.published``)."""
_MAX_DEPTH = 32
INDEXED_ENDINGS = (".bin", ".safetensors", ".msgpack")
"""The endings of files whose sets have an index, NAME.bin.index.json, that a format reads."""
GAP = "[^0-9A-Za-z]{0,3}"
N_OF_M = rf"(?<!\d)(\d{{1,18}}){GAP}(?i:of){GAP}(?!0*[01](?!\d))(\d{{1,18}})(?!\d)"
"""N of M, in any spelling."""
JOINED_BY_FORMAT = r"shard-\d+-.*-of-\d+\.safetensors|.*-\d{5}-of-\d{5}\.gguf"
"""The parts that the formats safetensors and gguf join."""


@frozen
class SetIndex:
    weight_map: Mapping[str, str]
    """The file of each key; the name is not checked yet, and may lead anywhere."""
    metadata: Mapping[str, Any]


def read_json_index(read: Callable[[int, int], bytes], size: int) -> Mapping[str, Any]:
    """Return the object in an index of ``size`` bytes, read by offset and count."""
    if size > MAX_HEADER_NBYTES:
        raise malformed(f"The index has {size} bytes, more than {MAX_HEADER_NBYTES}.")
    text = read(0, size)
    if not text.lstrip().startswith((b"{", *strict_json.MARKS)):
        raise foreign_file(
            "the index of a set", text[:SNIFF_NBYTES], size, "it does not begin a JSON object"
        )
    index = strict_json.parse_json(text, _MAX_DEPTH)
    return index if type(index) is dict else {}


def read_set_index(read: Callable[[int, int], bytes], size: int) -> SetIndex:
    index = read_json_index(read, size)
    weight_map = index.get("weight_map")
    if type(weight_map) is not dict or not set(map(type, weight_map.values())) <= {str}:
        raise invalid("The index lacks a weight_map from names of tensors to names of files.")
    metadata = index.get("metadata", {})
    if type(metadata) is not dict:
        raise invalid("The metadata of the index is not a JSON object.")
    # No library writes it, and the contents of the files next to it would be passed over. Only a
    # published delta of a step that changed nothing has no tensor.
    if not weight_map and DELTA_ENCODING not in metadata:
        remedy = (
            "Fetch it again from the source of the set. Without it, each file can be opened by its "
            "own path."
        )
        raise InvalidCheckpoint("The weight_map of the index names no tensor.", remedy)
    check_key_nbytes(max(map(len, weight_map), default=0))
    return SetIndex({key: name.removeprefix("./") for key, name in weight_map.items()}, metadata)


def build_set_index(weight_map: Mapping[str, str], metadata: Mapping[str, Any]) -> bytes:
    """Return the bytes of an index, as ``save_pretrained`` of Hugging Face writes them.

    >>> print(build_set_index({"w": "model-00001-of-00002.safetensors"}, {"total_size": 4}).decode(), end="")
    {
      "metadata": {
        "total_size": 4
      },
      "weight_map": {
        "w": "model-00001-of-00002.safetensors"
      }
    }
    """
    index = {"metadata": metadata, "weight_map": weight_map}
    return (json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def name_of_set(name: str) -> str:
    """Return the name of a set by one of its files: its index, or a glob if there is never one.

    >>> name_of_set("model-00001-of-00003.safetensors"), name_of_set("m_1of2.fp16.bin"), name_of_set("m-1-of-2.npz")
    ('model.safetensors.index.json', 'm.fp16.bin.index.json', 'm-*-of-2.npz')
    """
    if name.endswith(INDEXED_ENDINGS):
        return re.sub(rf"[-_. ]?{N_OF_M}", "", name, count=1) + ".index.json"
    return re.sub(N_OF_M, lambda found: f"*{found[0][len(found[1]) :]}", name, count=1)


def whole_sets(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the sets whose files have all numbers, from 1 to N of N or from 0 on, by name.

    >>> whole_sets(["m-1-of-2.npz", "m-2-of-2.npz", "k-1-of-3.npz", "k-3-of-3.npz"])
    {'m-*-of-2.npz': ['m-1-of-2.npz', 'm-2-of-2.npz']}
    """
    sets: dict[str, dict[tuple[int, int], str]] = {}
    for name in sorted(names):
        found = re.findall(N_OF_M, name)
        if len(found) == 1 and not re.fullmatch(JOINED_BY_FORMAT, name):
            number, total = map(int, found[0])
            sets.setdefault(name_of_set(name), {})[number, total] = name
    return {
        name: [*files.values()]
        for name, files in sets.items()
        if (totals := {total for _, total in files}) == {len(files)}
        and {number for number, _ in files} in ({*range(max(totals))}, {*range(1, max(totals) + 1)})
    }


def is_foreign(storage: Storage, index: str) -> bool:
    """Return True if an index can be read and names none of the files next to it."""

    def look(file: ReadableFile) -> bool:
        named = read_set_index(file.read, file.size).weight_map.values()
        return {*named}.isdisjoint(storage.names())

    return look_into(storage, index, look, False)


def is_bare(name: str) -> bool:
    """Return True if a name stays in the folder on every system."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def fetch_again(file: str) -> str:
    """Return the remedy for a file that lacks a key, which its source may lack as well."""
    return (
        f"Fetch {file} again from the source of the set. If that lacks it as well, leave the key out "
        "with exclude= (--exclude)."
    )


def read_weight_map(storage: Storage, name: str) -> tuple[Mapping[str, str], str]:
    with closing(storage.open(name)) as file, prefix_errors(file.name):
        return read_set_index(file.read, file.size).weight_map, file.stamp


def add_files(
    storage: Storage,
    weight_map: Mapping[str, str],
    names: Sequence[str],
    add: Callable[[int, set[str]], Collection[str]],
) -> tuple[dict[str, ShardvarError], list[Finding]]:
    """Call ``add`` with each file's number and wanted keys; return faults and findings."""
    faults: dict[str, ShardvarError] = {}
    findings: list[Finding] = []
    keys_of: dict[str, set[str]] = {file: set() for file in names}
    for key, file in weight_map.items():
        keys_of[file].add(key)
    for number, file in enumerate(names):
        keys = keys_of[file]
        try:
            if not is_bare(file):
                raise distrusted(
                    f"{storage.path}: the index names {file[:200]!r}, which is not a file next to "
                    "it."
                )
            found = {*add(number, keys)}
        except (*READ_ERRORS, StorageError) as error:
            faults.update((key, error.at(repr(key))) for key in keys)
            continue
        for key in keys - found:
            cause = (
                f"{key!r}: the index says that it is in {file!r} of {storage.path}, but it is not."
            )
            faults[key] = IncompleteCheckpoint(cause, fetch_again(file))
        if found - keys:
            others = named(sorted(found - keys))
            findings.append(
                Finding(file, f"It holds {others}, which the index does not name there.", True)
            )
    return faults, findings


_WORD = "rank|shard|part|partition|worker|process|proc|device|gpu|host|node|replica|consolidated"
# A word begins at a letter that no letter is before, or at a capital: worldRank0. Of two letters, as
# in tp2, it also follows no digit: names of tempfile have all such pairs.
_PART = (
    r"(?:(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
    rf"(?i:(?:[mtp]p|local|global)?(?:{_WORD}))|(?<![A-Za-z0-9])(?i:[mtp]p)){GAP}(\d{{1,18}})(?!\d)"
)
_DECLARED = rf"(?<![A-Za-z0-9]){N_OF_M}(?![A-Za-z0-9])|[^0-9A-Za-z](?i:of)[^0-9A-Za-z]"
"""Not in the middle of letters and digits, as tempfile may have it."""


def split_numbers(name: str) -> tuple[str, tuple[int, ...]]:
    r"""Return a name with NUL for each number of a part of a save, and these numbers.

    >>> split_numbers("mp_rank_01"), split_numbers("m-1-of-2.npz"), split_numbers("depart_1")
    (('mp_rank_\x00', (1,)), ('m-\x00-of-2.npz', (1,)), ('depart_1', ()))
    """
    numbers: list[int] = []

    def take(found: re.Match[str]) -> str:
        numbers.append(int(found[1]))
        start, stop = (at - found.start() for at in found.span(1))
        return f"{found[0][:start]}\0{found[0][stop:]}"

    if re.fullmatch(JOINED_BY_FORMAT, name):
        return name, ()
    return re.sub(_PART, take, re.sub(N_OF_M, take, name)), tuple(numbers)


def is_of_several(name: str) -> bool:
    """Return True if a name has N of M, in any spelling."""
    return re.search(N_OF_M, name) is not None and not re.fullmatch(JOINED_BY_FORMAT, name)


def are_parts(names: Sequence[str]) -> bool:
    """Return True if names that differ only in the numbers of parts belong to one save.

    They do if they have N of M, or if the numbers count: from 0 on, and most of them are there, or
    from 1 on, and all are. A name without others does if it has N of M as a word.

    >>> [are_parts([f"gpu{n}" for n in numbers]) for numbers in [(0, 1), (0, 1, 3), (1, 2), (1, 4), (3,)]]
    [True, True, True, False, False]
    >>> are_parts(["m-2-of-2"]), are_parts(["tmpx2of3y"]), are_parts(["node12-rank0", "node12-rank1"])
    (True, False, True)
    """
    if is_of_several(names[0]):
        return len(names) > 1 or re.search(_DECLARED, names[0]) is not None
    return any(map(count_as_ranks, zip(*(split_numbers(each)[1] for each in names), strict=True)))


def count_as_ranks(numbers: Iterable[int]) -> bool:
    """Return True if numbers count as the ranks of processes do.

    >>> [*map(count_as_ranks, [[0, 1, 3], [1, 2], [0, 4], [1, 3], [0, 0]])]
    [True, True, False, False, False]
    """
    there = {*numbers}
    first, last = min(there), max(there)
    return len(there) > 1 and (2 * len(there) > last + 1 if first == 0 else last == len(there))


def saves_in_parts(names: Iterable[str]) -> list[list[str]]:
    """Return the names that are parts of one save, save by save.

    >>> saves_in_parts(["rank_0.npz", "rank_1.npz", "tp0.npz", "host-3.npz", "best.npz"])
    [['rank_0.npz', 'rank_1.npz']]
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        frame, numbers = split_numbers(name)
        if numbers:
            groups.setdefault(frame, []).append(name)
    return list(filter(are_parts, groups.values()))

"""The file names of a native checkpoint, and the names that a person may type for one.

    PREFIX.svindex                          the table of contents
    PREFIX.svdata-GENERATION-00002-of-00005 data file 2 of 5; there are at most 99999, so five digits are enough
    PREFIX.svneeds-TOKEN, .svgone-TOKEN     marks of saves that refer to other checkpoints (``references``)

The index gives the generation and the number of files, and its own name gives the prefix. So an
index cannot lead to another directory, and a checkpoint is renamed by renaming its files. Several
processes that save into a bucket, where nothing can be renamed, give their files generations of
their own: then the index (version 3) gives the end of each name, after ``.svdata-``. A data file of
another checkpoint in the directory has the prefix of that one (version 4), which is a bare name.
"""

import re
from collections.abc import Iterable
from functools import partial

from shardvar.errors import ArgumentError
from shardvar.formats.unfinished import JOURNAL_ENDING, SHARE_MARK, is_share_file, share_files

_INDEX_SUFFIX = ".svindex"

_GENERATION = r"[A-Za-z0-9]{1,64}"
_NAME_END = r"[A-Za-z0-9]{1,64}-[0-9]{5}-of-[0-9]{5}"
_DATA = r"(?s)(?P<prefix>.+)\.svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
_ASIDE = (
    r"(?s)(?P<prefix>.+)\.(svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}"
    + JOURNAL_ENDING
    + r"|svindex\.[A-Za-z0-9]{1,64}\.tmp|sv(?:needs|gone)-[A-Za-z0-9]{1,64})"
)
"""A data file, what may be next to one, an index under its temporary name, or a mark."""
_MARK = r"(?s)(?P<prefix>.+)\.sv(?P<kind>needs|gone)-[A-Za-z0-9]{1,64}"


def native_index_name(prefix: str) -> str:
    return prefix + _INDEX_SUFFIX


def aside_name(prefix: str, generation: str) -> str:
    """Return the temporary name under which the index is written before it replaces the old one."""
    return f"{native_index_name(prefix)}.{generation}.tmp"


def data_names(prefix: str, generation: str, count: int) -> list[str]:
    return [f"{prefix}.svdata-{generation}-{number:05}-of-{count:05}" for number in range(count)]


def native_data_name(prefix: str, end: str) -> str:
    return f"{prefix}.svdata-{end}"


def owner_of(name: str) -> str | None:
    """Return the prefix of the checkpoint that wrote a data file; None for any other file."""
    match = re.fullmatch(_DATA, name)
    return match["prefix"] if match else None


def has_neighbours(names: Iterable[str], prefix: str) -> bool:
    """Return True if a directory has indexes, data files or marks of other prefixes."""
    own = native_index_name(prefix)
    return any(
        name != own
        and (
            name.endswith(_INDEX_SUFFIX)
            or (".svdata-" in name and owner_of(name) not in (None, prefix))
            or has_marks([name])
        )
        for name in names
    )


def files_of_others(names: Iterable[str], prefix: str) -> dict[str, int]:
    owners = [owner for owner in map(owner_of, names) if owner not in (None, prefix)]
    return {owner: owners.count(owner) for owner in sorted({*filter(None, owners)})}


def has_marks(names: Iterable[str]) -> bool:
    return any(".svneeds-" in name or ".svgone-" in name for name in names)


def mark_name(prefix: str, kind: str, token: str) -> str:
    """Return the name of a mark: of the files that a save ``needs``, or that have ``gone``."""
    return f"{prefix}.sv{kind}-{token}"


def marks(names: Iterable[str], kind: str) -> list[tuple[str, str]]:
    found = [
        match
        for match in map(partial(re.fullmatch, _MARK), names)
        if match and match["kind"] == kind
    ]
    return [(match[0], match["prefix"]) for match in found]


def is_name_end(text: str) -> bool:
    return re.fullmatch(_NAME_END, text) is not None


def is_generation(text: str) -> bool:
    return re.fullmatch(_GENERATION, text) is not None


def check_generation(text: str) -> None:
    if not is_generation(text):
        raise ArgumentError(f"Invalid generation {text!r}.", "Give 1 to 64 letters and digits.")


def find_native(names: Iterable[str], name: str) -> list[str]:
    """Return the prefixes that a prefix, an index or a data file means; all for an empty name."""
    # An interpretation counts only if its index exists: data files without an index are not a
    # checkpoint.
    indexes = [file for file in names if file.endswith(_INDEX_SUFFIX) and file != _INDEX_SUFFIX]
    # The index of a share, which one process wrote, is not a checkpoint.
    indexes = [file for file in indexes if SHARE_MARK not in file or not is_share_file(file)]
    if not name:
        return [file.removesuffix(_INDEX_SUFFIX) for file in indexes]
    if native_index_name(name) in indexes:
        return [name]
    if name in indexes:
        return [name.removesuffix(_INDEX_SUFFIX)]
    data = re.fullmatch(_DATA, name)
    return [data["prefix"]] if data and native_index_name(data["prefix"]) in indexes else []


def leftovers(names: Iterable[str], prefix: str, named: Iterable[str]) -> list[str]:
    """Return the files of a prefix that its index, which names ``named``, does not name: of older
    generations, dead writers and shares. A copy of an index under another name is none of them."""
    names, kept = list(names), {native_index_name(prefix), *named}
    aside = [
        name
        for name in names
        if name not in kept and (match := re.fullmatch(_ASIDE, name)) and match["prefix"] == prefix
    ]
    return aside + share_files(names, prefix)

"""The file names of GGUF, and the names that a person may type for a checkpoint.

    model.gguf, or a file of any other name that begins with GGUF
    model-00001-of-00003.gguf, model-00002-of-00003.gguf, …, the parts of a split file

A split file is called by its first part.
"""

import re

from shardvar.errors import COPY_AGAIN, MissingFile
from shardvar.formats.files import read_beginning
from shardvar.storage.protocol import Storage
from shardvar.wire.gguf import GGUF_MAGIC

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def find_gguf(storage: Storage, name: str) -> list[str]:
    """Return the files, and the first ones of split files, that a name may mean.

    A part stands for its split file, also where the first part is missing, so that opening it says
    so.
    """
    names = storage.names()
    if not name:
        return sorted({first_of(each) for each in names if each.endswith(SUFFIX)})
    if name in names:
        is_own = (
            name.endswith(SUFFIX) or read_beginning(storage, name, len(GGUF_MAGIC)) == GGUF_MAGIC
        )
        return [first_of(name)] if is_own else []
    stem = name.removesuffix(SUFFIX)
    found = {stem + SUFFIX} & set(names)
    found |= {
        first_of(each) for each in names if (part := _PART.fullmatch(each)) and part["stem"] == stem
    }
    return sorted(found | ({name} if name in map(first_of, names) else set()))


def first_of(name: str) -> str:
    """Return the name of the first part of a split file; any other name as it is.

    >>> first_of("m-00002-of-00003.gguf"), first_of("m.gguf")
    ('m-00001-of-00003.gguf', 'm.gguf')
    """
    part = _PART.fullmatch(name)
    return f"{part['stem']}-00001-of-{part['count']}{SUFFIX}" if part else name


def parts_of(storage: Storage, name: str) -> list[str]:
    """Return the names of all parts, given the first one; ``MissingFile`` if one is missing."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    count = max(int(part["count"]), 1)
    parts = [
        f"{part['stem']}-{number:05d}-of-{part['count']}{SUFFIX}" for number in range(1, count + 1)
    ]
    missing = sorted(set(parts).difference(storage.names()))
    if missing:
        more = f" So are {len(missing) - 1} other parts." if len(missing) > 1 else ""
        raise MissingFile(
            f"{storage.path}: {missing[0]} of {count} parts is missing.{more}", COPY_AGAIN
        )
    return parts

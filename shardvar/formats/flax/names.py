"""The file names of Flax, and the names that a person may type for a checkpoint.

    flax_model.msgpack                      a file, as transformers and most programs name it
    checkpoint_300                          a file of flax.training.checkpoints for step 300
    flax_model.msgpack.index.json           the index of a set, which has the file of each key:
    flax_model-00001-of-00002.msgpack, ...  its files

A set is called by its index.
"""

import re

from shardvar.formats.files import read_beginning
from shardvar.storage.protocol import Storage

SUFFIX, INDEX_SUFFIX = ".msgpack", ".msgpack.index.json"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.msgpack", re.DOTALL)
_STEP = re.compile(r"checkpoint_\d{1,18}")
_MAP = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)[ -~]", re.DOTALL)
"""The beginning of a map whose first key is a text."""
_MAP_NBYTES = 8


def is_index(name: str) -> bool:
    """Return True if a name is the index of a set."""
    return name.endswith(INDEX_SUFFIX)


def find_flax(storage: Storage, name: str) -> list[str]:
    """Return the files, and the indexes of sets, that a name may mean.

    A set of several files whose index is missing is called by the index, so that opening it says
    so.
    """
    names = storage.names()
    if not name:
        found = {_checkpoint_of(each, names) for each in names if each.endswith(SUFFIX)}
        found |= {each for each in names if is_index(each)}
        steps = [each for each in names if _STEP.fullmatch(each)]
        # Steps of one folder are alike, so one is looked at.
        return sorted(found | {*(steps if steps and _begins_with_map(storage, steps[0]) else ())})
    if name in names:
        if name.endswith(SUFFIX) or is_index(name):
            index = _checkpoint_of(name, names)
            return [index if index in names else name]
        return [name] if _STEP.fullmatch(name) and _begins_with_map(storage, name) else []
    stem = name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX)
    found = {each for each in (stem + SUFFIX, stem + INDEX_SUFFIX) if each in names}
    found |= {
        _checkpoint_of(each, names)
        for each in names
        if (part := _PART.fullmatch(each)) and part["stem"] == stem
    }
    return sorted(found)


def _checkpoint_of(name: str, names: list[str]) -> str:
    """Return the index of the set that a file belongs to; the file itself if it is whole."""
    part = _PART.fullmatch(name)
    if part is None:
        return name
    index = part["stem"] + INDEX_SUFFIX
    return index if index in names or int(part["count"]) > 1 else name


def _begins_with_map(storage: Storage, name: str) -> bool:
    return _MAP.match(read_beginning(storage, name, _MAP_NBYTES)) is not None

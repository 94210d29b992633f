"""The lists of names in a file of Keras 2, by which the file notices what it has lost.

``layer_names`` of a group lists groups in it, and ``weight_names`` lists arrays, by their paths
from there. A list that is larger than an attribute may be has parts: ``weight_names0``,
``weight_names1`` and so on.

A name that the walk through the file did not meet may still be a link, or lie in a group that the
walk entered by another path. So each step to it is looked at; a link to somewhere else, which the
walk reported, is not followed.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, NamedTuple

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.keras.attributes import TextAttributes
from shardvar.limits import MAX_KEY_NBYTES
from shardvar.wire.damage import DISTRUST, invalid, past_limit

_LISTS = ("layer_names", "weight_names")
_LOST_NBYTES, _LOST_EXPANSION = 256, 32
"""The keys of all that is missing, and 256 bytes for each, have at most 32 bytes for each byte of
the file. Keys of Keras have some 40 bytes, and the file has the name of each."""


class NameList(NamedTuple):
    """A list, or a part of one."""

    path: str
    """The path of its group, which is empty or ends with a slash."""
    attribute: str
    """Its name."""
    names: list[bytes]
    """The names in it."""


@dataclass(slots=True)
class NameLists:
    """The lists of one file."""

    root: Any
    """The group at the top, as h5py has it."""
    attributes: TextAttributes
    """The attributes."""
    lists: list[NameList] = field(default_factory=list)
    """The ones that were read."""
    _lost_nbytes: int = 0

    def parts(self, group: Any) -> Iterator[str]:
        """Walk the names of the attributes of a group that are lists, or parts of lists."""
        for name in _LISTS:
            if self.attributes.has(group, name):
                yield name
            else:
                numbered = (f"{name}{number}" for number in count())
                yield from takewhile(lambda part: self.attributes.has(group, part), numbered)

    def add(self, path: str, group: Any, attribute: str) -> bool:
        """Read a list; return False if it cannot be read, without being damaged."""
        names = self.attributes.read(group, attribute)
        if names is None:
            return False
        self.lists.append(NameList(path, attribute, names))
        return True

    def find_lost(self, each: NameList, found: Container[str]) -> list[str]:
        """Return the keys that a list names and the file lacks; ``found`` are the walk's."""
        library, lost = self.attributes.library, []
        for name in dict.fromkeys(each.names):
            key = _key(each.path, name)
            if key in found:
                continue
            group = library.h5g.open(
                self.root, each.path.encode("utf-8", "surrogateescape") or b"/"
            )
            if not self._is_there(self.root if name.startswith(b"/") else group, name):
                lost.append(key)
                self._lost_nbytes += len(key) + _LOST_NBYTES
                if self._lost_nbytes > _LOST_EXPANSION * self.attributes.texts.nbytes:
                    raise InvalidCheckpoint(
                        "It names more than a file of this size can have had.", DISTRUST
                    )
        return lost

    def _is_there(self, group: Any, name: bytes) -> bool:
        """Return True if a path leads to an object, or to a link to somewhere else."""
        library = self.attributes.library
        *groups, last = _steps(name)
        for step in groups:
            if not group.links.exists(step):
                return False
            if group.links.get_info(step).type != library.h5l.TYPE_HARD:
                return True
            if library.h5o.get_info(group, step).type != library.h5o.TYPE_GROUP:
                return False
            group = library.h5g.open(group, step)
        return bool(group.links.exists(last))


def _key(path: str, name: bytes) -> str:
    """Return the key of a name in the group of a path, or raise if it cannot be one."""
    steps = b"/".join(_steps(name))
    if not steps:
        raise invalid(f"It has the name {name!r}, which is not a path.")
    key = ("" if name.startswith(b"/") else path) + steps.decode("utf-8", "surrogateescape")
    if (
        len(key) > MAX_KEY_NBYTES // 4
        and len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_NBYTES
    ):
        raise past_limit(f"A path that begins with {key[:32]!r} is too long", "MAX_KEY_NBYTES")
    return key


def _steps(name: bytes) -> list[bytes]:
    """Return the names in a path: HDF5 passes over empty ones and dots."""
    return [step for step in name.split(b"/") if step not in (b"", b".")]

"""One file of ``torch.save``, opened: its archive, and its values by key.

Other things that go by the names of such files are recognised by their first bytes or by the
records of the archive, and refused with a remedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardvar.errors import InvalidCheckpoint, UnsupportedError, prefix_errors
from shardvar.formats.torch.archive import PICKLE, Archive, open_archive
from shardvar.formats.torch.items import View, view_of
from shardvar.formats.torch.leaves import leaves_of
from shardvar.formats.torch.names import LEGACY_MAGIC
from shardvar.formats.torch.tensors import StoredTensor, is_tensor, unsupported
from shardvar.formats.window import Window
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    foreign_archive,
    foreign_file,
    is_known_archive,
    malformed,
)
from shardvar.wire.pickle import parse_pickle

ZIP_MAGIC = b"PK\x03\x04"

_SAVE_AGAIN = "Write it again: `torch.save(torch.load(path, weights_only=True), path)`."
_SAVE_STATE = "Save its state dict: `torch.save(torch.jit.load(path).state_dict(), other_path)`."


@dataclass(frozen=True, slots=True, eq=False)
class Unpickled:
    """The values of a file, as inert nodes, and the archive that has their storages."""

    archive: Archive
    """The archive."""
    is_big_endian: bool
    """True if the elements of its storages are big-endian."""
    leaves: Mapping[str, Any]
    """The tensors and objects by key."""
    clashes: set[str]
    """The keys that several values have."""
    nbytes: int
    """The size of the pickle."""

    def value(self, key: str) -> Any:
        """Return the value of a key; ``InvalidCheckpoint`` if there are several."""
        if key in self.clashes:
            raise InvalidCheckpoint("Two values of the file have this key.", "Rename one of them.")
        return self.leaves[key]

    def view(self, tensor: StoredTensor) -> View:
        """Return a tensor with the place of its storage."""
        return view_of(self.archive, tensor, self.is_big_endian)


def unpickle(file: ReadableFile) -> Unpickled:
    """Return the values of a file; errors name the file."""
    with prefix_errors(file.name):
        archive = _archive(file)
        data = archive.pickle()
        root, _ = parse_pickle(data)
        leaves, clashes = leaves_of(root, len(data))
        # A dict of another class may have the key "".
        if not is_tensor(root) and type(root) not in (dict, list, tuple) and leaves.get("") is root:
            raise unsupported(root)
        return Unpickled(archive, archive.is_big_endian(), leaves, clashes, len(data))


def _archive(file: ReadableFile) -> Archive:
    """Return the directory of a file, or raise what the file is instead."""
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if first.startswith(LEGACY_MAGIC):
        cause = (
            "The file has the form that torch wrote before its version 1.6, a sequence of pickles."
        )
        raise UnsupportedError(cause, _SAVE_AGAIN)
    if not first.startswith(ZIP_MAGIC):
        if file.size > 512 and file.read(257, 5) == b"ustar":
            cause = "The file is a tar archive, as torch wrote before its version 0.1.10."
            raise UnsupportedError(cause, _SAVE_AGAIN)
        raise foreign_file(
            "a file of torch.save", first, file.size, "it does not begin as a zip archive does"
        )
    archive = open_archive(Window(file).read, 0, file.size)
    if archive.has("constants.pkl") or any(name.startswith("code/") for name in archive.members):
        raise UnsupportedError(
            "The file is a TorchScript archive, which holds a program.", _SAVE_STATE
        )
    if not archive.has(PICKLE) and is_known_archive(archive.members):
        raise foreign_archive("a file of torch.save", archive.members)
    if not archive.has(PICKLE):
        raise malformed(
            f"The file is a zip archive without a record {PICKLE!r}, which torch.save did not "
            "write."
        )
    return archive

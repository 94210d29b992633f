"""Files that ``torch.save`` wrote, opened: one file, or a set with an index.

    model.pt, model.pth, model.bin, model.ckpt    an archive with one pickle
    pytorch_model.bin.index.json                  {"weight_map": {key: file}}, of a set of such
                                                  archives

The keys are the paths of the leaves of the saved value (``formats.leaves``).

Other things that go by the names of such files are recognised by their first bytes or by the
records of the archive, and refused with a remedy. A fault of a tensor is a fault of its key and
leaves the others readable.
"""

from collections.abc import Mapping
from typing import Any

from shardvar.errors import (
    READ_ERRORS,
    InvalidCheckpoint,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, check_same, first_bytes
from shardvar.formats.leaves import is_in_generator, leaves_of
from shardvar.formats.sets import add_files, read_weight_map
from shardvar.formats.torch.archive import (
    LEAVES,
    PICKLE,
    Archive,
    LostRecord,
    OldFile,
    open_archive,
    open_old,
)
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import (
    SavedContents,
    Stored,
    StoredObject,
    TensorView,
    TorchSource,
    torch_source,
    view_of,
)
from shardvar.formats.torch.values import (
    ARRAYS,
    StoredTensor,
    TextRoom,
    is_tensor,
    plain_of,
    unsupported,
)
from shardvar.records import entity
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import (
    LEGACY_MAGIC,
    foreign_archive,
    foreign_file,
    malformed,
)
from shardvar.wire.plain import decode_value
from shardvar.wire.zip import read_members

ZIP_MAGIC = b"PK\x03\x04"

_SAVE_AGAIN = "Write it again: `torch.save(torch.load(path, weights_only=True), path)`."
_SAVE_STATE = "Save its state dict: `torch.save(torch.jit.load(path).state_dict(), other_path)`."


@entity
class Unpickled:
    """The values of a file, as inert nodes, and the archive that has their storages."""

    archive: Archive | OldFile
    is_big_endian: bool
    leaves: Mapping[str, Any]
    clashes: set[str]  # The keys that several values have
    nbytes: int
    room: TextRoom
    name: str  # of the file

    def value(self, key: str) -> Any:
        if key in self.clashes:
            raise InvalidCheckpoint(
                "Two values of the file have this key, such as of the names 0 and '0'.",
                "Save them under other names. Or leave the key out with exclude= (--exclude).",
            )
        return self.leaves[key]

    def has_tensor(self, key: str) -> bool:
        """Return True for a tensor, but not for an array in the state of a generator."""
        value = self.leaves[key]
        return is_tensor(value) and not (value.name in ARRAYS and is_in_generator(key, self.leaves))

    def object(self, key: str) -> StoredObject:
        """Return an object; raise if it is not plain, or its pickle has no ``room`` for it."""
        has_arrays = is_in_generator(key, self.leaves)
        return StoredObject.of(plain_of(self.value(key), self.room, has_arrays))

    def tensor(self, key: str) -> TensorView:
        return whole_of(self.value(key), self.view)

    def stored(self, key: str, number: int) -> Stored:
        if self.has_tensor(key):
            return Stored.whole(number, self.tensor(key))
        return Stored(number, self.object(key))

    def view(self, tensor: StoredTensor) -> TensorView:
        view = view_of(self.archive, tensor, self.is_big_endian, is_placed=False)
        if isinstance(view.record, LostRecord):
            view.record.fault = view.record.fault.at(self.name)
        return view


def unpickle(data: DataFiles, number: int, *, may_be_value: bool = False) -> Unpickled:
    """Return the values of a file, which may be one without a tensor if it ``may_be_value``; note
    the fault of a file that is cut off."""
    file = data.open(number)
    with prefix_errors(file.name):
        archive, whole = _archive(file), frozenset[str]()
        fault = archive.fault if isinstance(archive, OldFile) else archive.directory.fault
        data.note(number, fault and fault.at(file.name))
        if isinstance(archive, OldFile):
            root, nbytes, is_big_endian = archive.root, archive.nbytes, archive.is_big_endian
        else:
            root, nbytes = archive.unpickled()
            is_big_endian = archive.is_big_endian()
            if archive.has(LEAVES):
                # They are keys of the pickle, which JSON has with at most six characters for each
                # byte.
                text = archive.content(LEAVES, 6 * nbytes + 2).decode("ascii", "replace")
                keys = decode_value(text)
                if type(keys) is not list or not all(type(key) is str for key in keys):
                    raise malformed(f"The record {LEAVES!r} is not a list of keys.")
                whole = frozenset(keys)
        leaves, clashes = leaves_of(root, is_tensor, nbytes, whole)
        # A dict of another class may have the key "".
        if (
            not may_be_value
            and not is_tensor(root)
            and not isinstance(root, dict | list | tuple)
            and leaves.get("") is root
        ):
            raise unsupported(root)
        room = TextRoom.of(nbytes)
        return Unpickled(archive, is_big_endian, leaves, clashes, nbytes, room, file.name)


def _archive(file: ReadableFile) -> Archive | OldFile:
    first = first_bytes(file)
    if first.startswith(LEGACY_MAGIC):
        return open_old(file)
    if first and any(magic.startswith(first) for magic in (ZIP_MAGIC, LEGACY_MAGIC[:-1])):
        raise malformed(f"The file is cut short at byte {file.size}.")
    if not first.startswith(ZIP_MAGIC):
        if file.size > 512 and file.read(257, 5) == b"ustar":
            cause = "The file is a tar archive, as torch wrote before its version 0.1.10."
            raise UnsupportedError(cause, _SAVE_AGAIN)
        raise foreign_file(
            "a file of torch.save", first, file.size, "it does not begin as a zip archive does"
        )
    archive = open_archive(file.read, 0, file.size, read_members)
    if archive.has("constants.pkl") or any(name.startswith("code/") for name in archive.members):
        raise UnsupportedError(
            "The file is a TorchScript archive, which holds a program.", _SAVE_STATE
        )
    if not archive.has(PICKLE):
        names = [member.name for members in archive.members.values() for member in members]
        raise foreign_archive("a file of torch.save", names)
    return archive


def open_file(storage: Storage, name: str) -> TorchSource:
    data = DataFiles(storage, [name], named=name)
    contents = SavedContents()
    _add(contents, 0, data, None)
    return torch_source(data, contents)


def open_set(storage: Storage, name: str) -> TorchSource:
    weight_map, stamp = read_weight_map(storage, name)
    names = sorted(set(weight_map.values()))
    data = DataFiles(storage, names, index=name)
    contents = SavedContents()
    faults, findings = add_files(
        storage,
        weight_map,
        names,
        lambda number, keys: _add(contents, number, data, keys),
    )
    contents.faults |= faults
    contents.findings += findings
    check_same(storage, name, stamp)
    data.check_in_place()
    return torch_source(data, contents)


def _add(
    contents: SavedContents, number: int, data: DataFiles, wanted: set[str] | None
) -> set[str]:
    """Add the leaves of one file, either the wanted ones or all; return the keys of all."""
    file = data.open(number)
    unpickled = unpickle(data, number)
    if not unpickled.archive.has_checksums:
        contents.unguarded |= unpickled.leaves.keys()
    short: dict[bytes, StoredObject] = {}
    for key in [key for key in unpickled.leaves if wanted is None or key in wanted]:
        try:
            stored = unpickled.stored(key, number)
            if isinstance(stored.value, StoredObject) and len(stored.value.encoding) <= _SHORT:
                # A byte of a file can make an object, which takes about 140 bytes of memory.
                first = short.setdefault(stored.value.encoding, stored.value)
                stored = Stored(number, first)
            contents.stored[key] = [stored]
        except READ_ERRORS as error:
            contents.faults[key] = error.at(file.name, repr(key))
    return set(unpickled.leaves)


_SHORT = 5  # The characters of the encodings that many objects have: null, false, small numbers

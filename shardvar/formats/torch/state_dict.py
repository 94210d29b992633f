"""Files that ``torch.save`` wrote, opened: one file, or a set with an index.

    model.pt, model.pth, model.bin, model.ckpt    an archive with one pickle
    pytorch_model.bin.index.json                  {"weight_map": {key: file}}, of a set of such
                                                  archives

The keys are the paths of the leaves of the saved value, tensors and objects, joined by dots. Dicts
are entered, and lists that hold a tensor or a dict at any depth; a list of numbers or names is one
object. These are the keys that torch.distributed.checkpoint gives the same value. An empty dict has
no leaves, and one with a key that has no text, such as a dtype of torch, is an object.

Two paths may have one text: ``{0: …}`` and ``{"0": …}``, or ``{"a.b": …}`` and ``{"a": {"b": …}}``.
Then neither is the value of that key.

Values are shared, nested and cyclic as the file likes, so nothing recurses, and the number of
leaves has a bound.

Other things that go by the names of such files are recognised by their first bytes or by the
records of the archive, and refused with a remedy. A fault of a tensor is a fault of its key and
leaves the others readable.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, check_same
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.archive import LEAVES, PICKLE, Archive, open_archive
from shardvar.formats.torch.items import StoredObject, TensorView, object_of, view_of
from shardvar.formats.torch.legacy import OldFile, open_old
from shardvar.formats.torch.names import LEGACY_MAGIC, is_bare
from shardvar.formats.torch.objects import TextRoom
from shardvar.formats.torch.places import Stored
from shardvar.formats.torch.shares import whole_of
from shardvar.formats.torch.source import SavedContents, TorchSource, torch_source
from shardvar.formats.torch.tensors import StoredTensor, is_tensor, unsupported
from shardvar.limits import MAX_NESTING
from shardvar.pictures.words import named
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import (
    DISTRUST,
    SNIFF_NBYTES,
    check_key_nbytes,
    foreign_archive,
    foreign_file,
    is_known_archive,
    malformed,
)
from shardvar.wire.inert import Node, OrderedMap
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.plain import decode_value
from shardvar.wire.set_index import read_set_index

_MIN_LEAVES, _MAX_EXPANSION, _LEAF_NBYTES = 1 << 12, 64, 4
"""Bounds: the values of any file, however small; the characters of all keys, for each byte of a
file; and the bytes of a value with its name. (An item of a list of numbers has fewer, but such a
list is one value.)"""
_MAPPINGS = {"collections.defaultdict", "collections.OrderedDict", "collections.Counter"}
_SCALARS = (int, float, bool, type(None))
_KEY_LENGTH = 256
"""The longest text in a tuple that is a key."""


def leaves_of(
    root: Any, nbytes: int = 0, whole: Collection[str] = ()
) -> tuple[dict[str, Any], set[str]]:
    """Return the leaves by key, and the keys that two leaves have.

    Values of the keys ``whole`` are not entered.
    ``nbytes`` is the size of the pickle, and bounds the number of values.

    >>> leaves_of({"a": {"b": 1}, "c": [1, 2], "a.b": 3, "d": [{"e": None}]})
    ({'a.b': 1, 'c': [1, 2], 'd.0.e': None}, {'a.b'})
    """
    entered = _entered(root)
    leaves: dict[str, Any] = {}
    clashes: set[str] = set()
    for key, value in _walk(root, entered, max(nbytes, _MIN_LEAVES), whole):
        if key in leaves:
            clashes.add(key)
        leaves.setdefault(key, value)
    check_key_nbytes(max((len(key.encode("utf-8", "surrogatepass")) for key in leaves), default=0))
    return leaves, clashes


def _walk(
    root: Any, entered: set[int], most: int, whole: Collection[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the leaves in order, with their keys."""
    # The items of each level that are still to come; the root is the one item above the first.
    left: list[tuple[str, Iterator[tuple[str, Any]]]] = [("", iter([("", root)]))]
    count = length = 0
    while left:
        prefix, items = left[-1]
        step, value = next(items, ("", left))
        if value is left:
            left.pop()
            continue
        key, depth = prefix + step, len(left) - 1
        # Values that are shared have many keys, and keys repeat the names of all levels above.
        count, length = count + 1, length + len(key)
        is_deep = depth > MAX_NESTING or length > most * _MAX_EXPANSION
        if is_deep or count > max(most // _LEAF_NBYTES, _MIN_LEAVES):
            cause = (
                f"The file describes more values than its {most} bytes can hold, or more than "
                f"{MAX_NESTING} levels of them."
            )
            raise InvalidCheckpoint(cause, DISTRUST)
        is_entered = type(value) not in (list, tuple) or id(value) in entered
        pairs = _pairs(value) if is_entered and not (depth and key in whole) else None
        if pairs is None:
            yield key, value
        else:
            left.append((f"{key}." if depth else "", iter(pairs)))


def _entered(root: Any) -> set[int]:
    """Return the identities of the lists whose items are leaves, as the items of dicts are: lists
    that lead to a dict or a tensor."""
    # Level by level every container once, with the lists that hold it; then upwards from dicts and
    # tensors. Empty containers lead nowhere: a byte of the file makes one, so none is kept.
    holders: dict[int, list[int]] = {}
    seen, leading = {id(root)}, list[int]()
    level = [root]
    for _ in range(MAX_NESTING):  # what is nested deeper is an object that cannot be read
        below = []
        for value in level:
            is_leading = False
            for each in _values(value) or ():
                values = _values(each)
                is_leading |= is_tensor(each) or (
                    values is not None and type(each) not in (list, tuple)
                )
                if not values:
                    continue
                if type(each) in (list, tuple):
                    holders.setdefault(id(each), []).append(id(value))
                if id(each) not in seen:
                    seen.add(id(each))
                    below.append(each)
            if is_leading:
                leading.append(id(value))
        level = below
    entered: set[int] = set()
    while leading:
        number = leading.pop()
        if number not in entered:
            entered.add(number)
            leading += holders.get(number, ())
    return entered


def _pairs(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the steps to the items of a container, and the items; None for everything else."""
    if type(value) in (list, tuple):
        return zip(map(str, range(len(value))), value, strict=True)
    keys, values = _named_items(value)
    return None if keys is None else zip(map(str, keys), values, strict=True)


def _values(value: Any) -> Collection[Any] | None:
    """Return the items of a container; None for everything else."""
    if type(value) in (list, tuple):
        return cast("Collection[Any]", value)
    keys, values = _named_items(value)
    return None if keys is None else values


def _named_items(value: Any) -> tuple[Sequence[Any] | None, Sequence[Any]]:
    """Return the keys and the items of a dict whose keys are names; None and nothing else."""
    if type(value) in (dict, OrderedMap):
        keys, values = [*value], [*value.values()]
    elif type(value) is Node and type(value.name) is str and value.name in _MAPPINGS:
        # A counter's items are its argument, the others' items are set afterwards.
        given = [each for each in _arguments(value) if isinstance(each, dict)]
        items = [
            *(pair for each in given for item in each.items() for pair in item),
            *(value.items or ()),
        ]
        keys, values = items[::2], items[1::2]
    else:
        return None, ()
    if not all(type(key) is str or _has_text(key) for key in keys):
        return None, ()
    return keys, values


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args if type(node.args) is tuple else ()


def _has_text(key: Any) -> bool:
    """Return True if a key that is not text is a short plain value, whose text is its name.

    >>> _has_text((1, "a")), _has_text(b"a"), _has_text(Node("torch.device", ()))
    (True, True, False)
    """
    return all(
        (type(item) in _SCALARS and (type(item) is not int or item.bit_length() <= 64))
        or (type(item) in (str, bytes) and len(item) <= _KEY_LENGTH)
        for item in (key if isinstance(key, tuple) else (key,))
    )


ZIP_MAGIC = b"PK\x03\x04"

_SAVE_AGAIN = "Write it again: `torch.save(torch.load(path, weights_only=True), path)`."
_SAVE_STATE = "Save its state dict: `torch.save(torch.jit.load(path).state_dict(), other_path)`."


@dataclass(frozen=True, slots=True, eq=False)
class Unpickled:
    """The values of a file, as inert nodes, and the archive that has their storages."""

    archive: Archive | OldFile
    """The archive, or the storages of an old file."""
    is_big_endian: bool
    """True if the elements of its storages are big-endian."""
    leaves: Mapping[str, Any]
    """The tensors and objects by key."""
    clashes: set[str]
    """The keys that several values have."""
    nbytes: int
    """The size of the pickle."""
    room: TextRoom
    """The characters and items that its objects may still have."""

    def value(self, key: str) -> Any:
        """Return the value of a key; ``InvalidCheckpoint`` if there are several."""
        if key in self.clashes:
            raise InvalidCheckpoint("Two values of the file have this key.", "Rename one of them.")
        return self.leaves[key]

    def view(self, tensor: StoredTensor) -> TensorView:
        """Return a tensor with the place of its storage."""
        return view_of(self.archive, tensor, self.is_big_endian, is_placed=False)


def unpickle(file: ReadableFile) -> Unpickled:
    """Return the values of a file; errors name the file."""
    with prefix_errors(file.name):
        archive = _archive(file)
        if isinstance(archive, OldFile):
            root, nbytes, is_big_endian = archive.root, archive.nbytes, archive.is_big_endian
            whole = frozenset[str]()
        else:
            data = archive.pickle()
            root, _ = parse_pickle(data, is_typed=True)
            nbytes, is_big_endian = len(data), archive.is_big_endian()
            whole = _whole(archive, nbytes)
        leaves, clashes = leaves_of(root, nbytes, whole)
        # A dict of another class may have the key "".
        if (
            not is_tensor(root)
            and not isinstance(root, dict | list | tuple)
            and leaves.get("") is root
        ):
            raise unsupported(root)
        return Unpickled(archive, is_big_endian, leaves, clashes, nbytes, TextRoom.of(nbytes))


def _whole(archive: Archive, most: int) -> frozenset[str]:
    """Return the keys that the archive says are one object each."""
    if not archive.has(LEAVES):
        return frozenset()
    # They are keys of the pickle, which JSON has with at most six characters for each byte.
    keys = decode_value(archive.content(LEAVES, 6 * most + 2).decode("ascii", "replace"))
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise malformed(f"The record {LEAVES!r} is not a list of keys.")
    return frozenset(keys)


def _archive(file: ReadableFile) -> Archive | OldFile:
    """Return the directory of a file, or its old form, or raise what the file is instead."""
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if first.startswith(LEGACY_MAGIC):
        return open_old(file)
    if not first.startswith(ZIP_MAGIC):
        if file.size > 512 and file.read(257, 5) == b"ustar":
            cause = "The file is a tar archive, as torch wrote before its version 0.1.10."
            raise UnsupportedError(cause, _SAVE_AGAIN)
        raise foreign_file(
            "a file of torch.save", first, file.size, "it does not begin as a zip archive does"
        )
    archive = open_archive(file.read, 0, file.size)
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


def open_file(storage: Storage, name: str) -> TorchSource:
    """Open one file."""
    data = DataFiles(storage, [name])
    contents = SavedContents()
    _add(contents, 0, data.open(0), None)
    return torch_source(data, contents)


def open_set(storage: Storage, name: str) -> TorchSource:
    """Open a set, by the name of its index."""
    weight_map, stamp = _read_index(storage, name)
    names = sorted(set(weight_map.values()))
    data = DataFiles(storage, names)
    contents = SavedContents()
    for number, file in enumerate(names):
        keys = {key for key, each in weight_map.items() if each == file}
        try:
            if not is_bare(file):
                cause = (
                    f"{storage.path}: the index names {file[:200]!r}, which is not a file next to "
                    "it."
                )
                raise InvalidCheckpoint(cause, DISTRUST)
            found = _add(contents, number, data.open(number), keys)
        except (*READ_ERRORS, StorageError) as error:
            contents.faults.update((key, error.at(repr(key))) for key in keys)
            continue
        for key in keys - found:
            cause = (
                f"{key!r}: the index says that it is in {file!r} of {storage.path}, but it is not."
            )
            contents.faults[key] = IncompleteCheckpoint(
                cause, "Fetch that file again from the source of the set."
            )
        if found - keys:
            others = named(sorted(found - keys))
            contents.findings.append(
                Finding(file, f"It holds {others}, which the index does not name there.", True)
            )
    check_same(storage, name, stamp)
    data.check_in_place()
    return torch_source(data, contents)


def _read_index(storage: Storage, name: str) -> tuple[Mapping[str, str], str]:
    """Return the file of each key of a set, and the stamp of the index."""
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            return read_set_index(file.read, file.size).weight_map, file.stamp
    finally:
        file.close()


def _add(
    contents: SavedContents, number: int, file: ReadableFile, wanted: set[str] | None
) -> set[str]:
    """Add the leaves of one file, either the wanted ones or all; return the keys of all."""
    unpickled = unpickle(file)
    if not unpickled.archive.has_checksums:
        contents.unguarded |= unpickled.leaves.keys()
    short: dict[bytes, StoredObject] = {}
    for key in [key for key in unpickled.leaves if wanted is None or key in wanted]:
        try:
            value = unpickled.value(key)
            stored = (
                Stored.whole(number, whole_of(value, unpickled.view))
                if is_tensor(value)
                else Stored(number, _once(object_of(value, unpickled.room), short))
            )
            contents.stored[key] = [stored]
        except READ_ERRORS as error:
            contents.faults[key] = error.at(file.name, repr(key))
    return set(unpickled.leaves)


_SHORT = 5
"""The characters of the encodings that many objects have: null, false, small numbers."""


def _once(found: StoredObject, short: dict[bytes, StoredObject]) -> StoredObject:
    """Return the first object with the same short encoding: a byte of a file can make one, which
    takes about 140 bytes of memory."""
    if len(found.encoding) > _SHORT:
        return found
    return short.setdefault(found.encoding, found)

"""Orbax's checkpoints as a format: a folder of Zarr arrays with an index, in a database (OCDBT) or
as plain files.

    _METADATA            the index: the leaves of the tree
    _CHECKPOINT_METADATA, commit_success.txt   what wrote it, and that it is complete
    NAME/.zarray, NAME/zarr.json, and chunks   arrays; without a database they are files
    manifest.ocdbt, d/, ocdbt.process_0/d/     the database, whose keys are the same paths

Orbax writes every chunk, so one that is absent is damage. The database has checksums of its nodes,
and a value of at most 1024 bytes is in a node; larger ones have none.

A database is written: many small arrays are a few files. As ``orbax-plain``, each chunk is a file.
"""

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    MissingFile,
    ReadError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding, Format, NewCheckpoint
from shardvar.formats.zarr import text_of
from shardvar.formats.zarr.contents import DOCUMENTS, ArrayContents, Description
from shardvar.formats.zarr.database import Database, read_values
from shardvar.formats.zarr.files import (
    DATABASE,
    MARKER,
    STEP,
    STRINGS,
    TREE,
    UNFINISHED,
    PathListing,
    Tree,
    check_finished,
    check_inside,
    find_orbax,
    open_tree,
    read_document,
    read_documents,
)
from shardvar.formats.zarr.sink import (
    WRITTEN,
    ArraysSink,
    ChunkWriter,
    build_array_v2,
    build_document,
    check_arrays,
    chunk_paths,
    files_of_chunks,
    own_files,
    remove_arrays,
)
from shardvar.formats.zarr.source import Decoder, ZarrSource
from shardvar.limits import MAX_TREE_NBYTES
from shardvar.planning.index import KEY_IMPL, Metadata
from shardvar.planning.slices import Capabilities, SliceTable, grid_steps
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.protocol import Storage
from shardvar.wire import strings
from shardvar.wire.damage import check_key_nbytes, invalid, past_limit
from shardvar.wire.plain import Tagged, decode_value, encode_value
from shardvar.wire.zarr_metadata import MAX_AXES, MAX_DOCUMENT_NBYTES, parse_object

# The index of a checkpoint of Orbax, ``_METADATA``: the leaves of a tree of Python containers.
#
#     {"tree_metadata": {"('params', 'w')": {"key_metadata": [{"key": "params", "key_type": 2}, {"key": "w", ...}],
#                                            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": false}}},
#      "use_ocdbt": true, "use_zarr3": false, "custom_metadata": {...}}
#
# A leaf's key is its path joined by dots, and its array has the same name. Orbax itself does not tell
# {"a.b": …} from {"a": {"b": …}} by these names. An empty container and None are leaves without an
# array. Strings are in one file, ``_strings.json``.
#
# Without ``_METADATA``, the arrays that are there are the leaves, and a loss cannot be noticed.

_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")
"""Types of leaves that have no array."""
_STRING = "string"


@frozen
class PyTree:
    arrays: list[str]
    """The keys of arrays."""
    strings: list[str] = field(default_factory=list)
    empty: dict[str, str] = field(default_factory=dict)
    """The keys of leaves that have no array, each with its type."""
    faults: dict[str, CheckpointError] = field(default_factory=dict)
    """Keys that two leaves have."""
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    """The steps that lead to each key; the keys of lists are numbers."""
    custom: Mapping[str, Any] = field(default_factory=dict)
    """Values that the user stored with it."""
    is_ocdbt: bool | None = None
    """True if the arrays are in a database; None if the index does not tell."""


def parse_tree(data: bytes) -> PyTree:
    """Return the leaves that an index lists.

    >>> leaf = b'{"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "np.ndarray"}}'
    >>> parse_tree(b'{"tree_metadata": {"x": %s}, "use_ocdbt": false}' % leaf).arrays
    ['a']
    """
    if len(data) > MAX_TREE_NBYTES:
        raise past_limit(f"The index has {len(data)} bytes", "MAX_TREE_NBYTES")
    index = parse_object(data, "the index of a checkpoint of Orbax")
    leaves = index.get("tree_metadata")
    if type(leaves) is not dict:
        raise invalid("The index has no tree_metadata.")
    custom, is_ocdbt = index.get("custom_metadata"), index.get("use_ocdbt")
    tree = PyTree(
        [],
        custom=custom if type(custom) is dict else {},
        is_ocdbt=is_ocdbt if type(is_ocdbt) is bool else None,
    )
    seen: set[str] = set()
    for leaf in leaves.values():
        steps = leaf.get("key_metadata") if type(leaf) is dict else None
        value = leaf.get("value_metadata") if type(leaf) is dict else None
        kind = value.get("value_type") if type(value) is dict else None
        if type(steps) is not list or type(kind) is not str:
            raise invalid("A leaf of the index lacks key_metadata or value_metadata.")
        names = [step.get("key") if type(step) is dict else None for step in steps]
        if not all(type(name) in (str, int) for name in names):
            raise invalid("A leaf of the index has a path that is not a list of names.")
        key = ".".join(map(str, names))
        # The number of an item of a list, or the name of an item of a dict.
        tree.paths[key] = tuple(
            int(text)
            if step.get("key_type") == _LIST and re.fullmatch(r"\d{1,9}", text, re.ASCII)
            else text
            for step, text in zip(steps, map(str, names), strict=True)
        )
        if key in seen and kind not in _EMPTY:
            tree.faults[key] = invalid(f"Two leaves have the key {key!r}, and one array.")
        seen.add(key)
        if kind in _EMPTY:
            tree.empty[key] = kind
        elif kind == _STRING:
            tree.strings.append(key)
        elif key not in tree.faults:
            tree.arrays.append(key)
    check_key_nbytes(max((len(key.encode("utf-8", "surrogatepass")) for key in seen), default=0))
    return tree


_DICT, _LIST = 2, 1
"""The types of the containers that a step of a path leads into."""


def _above(keys: Iterable[str]) -> set[str]:
    """Return the keys that others lead through."""
    return {
        ".".join(parts[:count])
        for parts in (key.split(".") for key in keys)
        for count in range(1, len(parts))
    }


_MAX_GAPS = 1 << 16
"""The most items that lists may lack."""


def _gaps(paths: Iterable[tuple[str | int, ...]]) -> set[tuple[str | int, ...]]:
    """Return the paths of the items that lists lack before their last ones."""
    counts: dict[tuple[str | int, ...], int] = {}
    there: set[tuple[str | int, ...]] = set()
    for path in paths:
        for place, step in enumerate(path):
            if type(step) is int:
                counts[path[:place]] = max(counts.get(path[:place], 0), step)
            there.add(path[: place + 1])
    if sum(counts.values()) - len(there) > _MAX_GAPS:
        cause = f"The format orbax cannot hold lists that lack more than {_MAX_GAPS} items."
        raise UnsupportedError(cause, "Rename the tensors (--rename).")
    items = ((*above, number) for above, count in counts.items() for number in range(count))
    return {item for item in items if item not in there}


def build_tree(
    arrays: Sequence[str],
    paths: Mapping[str, tuple[str | int, ...]],
    custom: Mapping[str, str],
    strings: Sequence[str] = (),
    is_ocdbt: bool = False,
    empty: Mapping[str, str] | None = None,
) -> bytes:
    """Return the index of arrays, of strings, and of ``empty`` leaves with their types.

    Leaves are in the order of Orbax: keys of dicts sorted, items of lists by number. A key is cut at
    its dots, unless ``paths`` has its steps. An item of a list without a key, such as an empty state of
    an optimizer, is None: Orbax counts items. ``UnsupportedError`` for a key that leads through
    another.
    """
    kinds = dict.fromkeys(arrays, "np.ndarray") | dict.fromkeys(strings, _STRING)
    # Empty leaves are neither above a key nor below one.
    above = _above(kinds)
    kinds = {
        key: kind
        for key, kind in (empty or {}).items()
        if key not in above and _above([key]).isdisjoint(kinds)
    } | kinds
    leaves, keys = {}, [*kinds]
    steps_of = {}
    for key in keys:
        steps = paths.get(key, ())
        steps_of[key] = steps if ".".join(map(str, steps)) == key else tuple(key.split("."))
    for steps in _gaps(steps_of.values()):
        key = ".".join(map(str, steps))
        steps_of[key], kinds[key] = steps, _EMPTY[0]
    order = sorted(steps_of, key=lambda key: [(type(step) is str, step) for step in steps_of[key]])
    for key in order:
        steps, kind = steps_of[key], kinds[key]
        leaves[str(tuple(map(str, steps)))] = {
            "key_metadata": [
                {"key": str(step), "key_type": _LIST if type(step) is int else _DICT}
                for step in steps
            ],
            "value_metadata": {"value_type": kind, "skip_deserialize": kind in _EMPTY},
        }
    both = sorted(_above(keys).intersection(keys))
    if both:
        cause = (
            f"The format orbax cannot hold {both[0]!r} together with keys that begin with "
            f"{both[0] + '.'!r}."
        )
        raise UnsupportedError(cause, "Rename one of them (--rename).")
    index = {
        "tree_metadata": leaves,
        "use_ocdbt": is_ocdbt,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": dict(custom) or None,
    }
    return json.dumps(index).encode()


CAPABILITIES = Capabilities(
    dtypes=WRITTEN,
    slice_dtypes=WRITTEN,
    max_slice_rank=MAX_AXES,
    atomic_overwrite=False,
    holds_objects=True,
    is_grid=True,
    folder_index=TREE,
)
"""Numbers, in chunks of one shape."""
_SIDES = frozenset({TREE, STEP, STRINGS, "_sharding", MARKER, DATABASE})
"""The files that Orbax has at the top of a checkpoint."""
RANDOM_KEYS = "array_metadatas/process_0"
"""The file where Orbax keeps facts about arrays."""
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
"""The part of Orbax that writes such a checkpoint, and restores it."""


@frozen
class OrbaxFormat(Format):
    name: str = "orbax"
    capabilities: Capabilities = CAPABILITIES
    is_plain: bool = False
    """True if chunks are written as files, and not into a database."""

    locate = staticmethod(find_orbax)

    def open(self, storage: Storage, name: str) -> ZarrSource:
        item, _, _ = name.rpartition("/")
        storage = storage.folder(item) if item else storage
        if any(UNFINISHED in step for step in storage.path.split("/")[-2:]):
            cause = f"{storage.path}: Orbax has not finished this checkpoint, or was interrupted."
            raise IncompleteCheckpoint(
                cause, "Use an earlier step, or wait for the save to finish."
            )
        check_finished(storage, TREE)
        index = DATABASE if DATABASE in storage.names() else TREE
        return open_tree(storage, index, _read_orbax)

    def lay_out(self, new: NewCheckpoint) -> ArraysSink:
        from shardvar.formats.objects import texts_with_objects  # of a write

        slices, metadata = new.assignment.slices, new.metadata
        keys = slices.tensors.keys
        texts, objects = _split_texts(metadata.objects)
        check_arrays(new, self, TREE, [*keys, *texts])
        steps = grid_steps(slices).tolist()
        arrays = {}
        for row, key in enumerate(keys):
            shape = slices.tensors.shape(row)
            document = build_array_v2(slices.tensors.dtype(row), shape, steps[row][: len(shape)])
            arrays[f"{key}/{DOCUMENTS[2]}"] = document
        paths = chunk_paths(slices, keys, version=2)
        user = texts_with_objects(replace(metadata, objects=objects))
        others = {STRINGS: build_document(texts)} if texts else {}
        others |= _random_keys(slices, steps, metadata.user)
        database = None
        if not self.is_plain:
            database = Database.of(new.assignment, paths, arrays, new.generation)
        begun = time.time_ns()

        def of_finished() -> dict[str, bytes]:
            nodes = database.build(new.storage) if database else {}
            step = {
                "item_handlers": _HANDLER,
                "metrics": {},
                "performance_metrics": {},
                "init_timestamp_nsecs": begun,
                "commit_timestamp_nsecs": time.time_ns(),
                "custom_metadata": {},
            }
            return nodes | {STEP: build_document(step)}

        return ArraysSink(
            new=new,
            paths=database.kept_files if database else files_of_chunks(new.assignment, paths),
            start=database.start if database else np.zeros(len(slices), np.int64),
            writer=ChunkWriter.of(slices, is_guarded=False),
            documents=others if database else arrays | others,
            index=TREE,
            content=build_tree(
                keys, metadata.paths, user, [*texts], not self.is_plain, metadata.empty
            ),
            sides=_SIDES,
            marker=MARKER,
            of_finished=of_finished,
            manifest=DATABASE if database else "",
        )

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the checkpoint of the folder, and not the folder."""
        remove_arrays(storage, TREE, _SIDES)

    def owned(self, folder: Storage) -> set[str]:
        return own_files(folder, TREE, _SIDES)


FORMAT = OrbaxFormat()
PLAIN = OrbaxFormat(capabilities=CAPABILITIES._replace(is_separate=True), is_plain=True)


def _random_keys(
    slices: SliceTable, steps: Sequence[Sequence[int]], user: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the file by which Orbax knows random keys of JAX; none without such keys."""
    arrays = []
    for row, key in enumerate(slices.tensors.keys):
        impl, shape = user.get(KEY_IMPL + key), list(slices.tensors.shape(row))
        if impl is not None:
            sizes = {"write_shape": shape, "chunk_shape": list(steps[row][: len(shape)])}
            about = {"param_name": key, **sizes, "ext_metadata": {"random_key_impl": impl}}
            arrays.append({"array_metadata": about})
    return {RANDOM_KEYS: build_document({"array_metadatas": arrays})} if arrays else {}


def _split_texts(objects: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the texts that Orbax restores itself, and the objects for the metadata."""
    values = {key: decode_value(each.decode("ascii")) for key, each in objects.items()}
    own = {
        key: value.value
        for key, value in values.items()
        if type(value) is Tagged and value.kind == "text"
    }
    texts = {key: value for key, value in values.items() if type(value) is str}
    return texts | own, {key: each for key, each in objects.items() if key not in own}


def _read_orbax(tree: Tree) -> "OrbaxSource":
    storage, sizes = tree.root, {path: each.nbytes for path, each in tree.files.items()}
    contents = ArrayContents()
    with prefix_errors(storage.path):
        with prefix_errors(TREE):
            pytree = parse_tree(read_document(tree, TREE)) if TREE in sizes else None
        is_ocdbt = DATABASE in sizes
        # Orbax makes no database for only strings and empty leaves.
        if pytree is not None and pytree.is_ocdbt and pytree.arrays and not is_ocdbt:
            cause = f"{TREE} has all arrays in {DATABASE}, which is missing."
            raise MissingFile(cause, "Copy the checkpoint again, with all its files.")
        listing = PathListing([*sizes], sizes)
        if is_ocdbt:
            values = contents.values = read_values(tree)
            nbytes = dict(zip(values.names, values.nbytes.tolist(), strict=True))
            listing = PathListing(values.names, nbytes)
        _add_strings(tree, pytree, contents)
        arrays = [*_arrays(tree, listing, pytree, contents)]
        if pytree is None and not arrays:
            raise _no_arrays(sizes)
        contents.add(arrays, listing)
        about = (
            Metadata(user=text_of(pytree.custom), paths=pytree.paths, empty=pytree.empty)
            if pytree is not None
            else Metadata()
        )
        index, file_sizes = contents.table(listing, about)
    data = DataFiles(tree, index.files, None if is_ocdbt else file_sizes)
    decoder = Decoder.of(storage, has_files=not is_ocdbt)
    return OrbaxSource(index, data, contents, decoder, tree)


@entity
class OrbaxSource(ZarrSource):
    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        texts = {
            key: bytes(strings.decode(payload, ())[()]).decode("utf-8", "surrogatepass")
            for key, payload in self.contents.texts.items()
            if key in keys
        }
        return {
            key: encode_value(Tagged("text", text)).encode("ascii") for key, text in texts.items()
        }

    def is_guarded(self, key: str) -> bool:
        """Return True if checksums cover every byte: of a codec, or of the database's nodes."""
        if self.contents.is_guarded(key):
            return True
        chunks, values = self.contents.by_key.get(key), self.contents.values
        if values is None or chunks is None:
            return False
        return all(values.file[values.rows[path]] < 0 for path in chunks.stored())

    @property
    def bare_index(self) -> str:
        """The index of plain chunks; the nodes of a database have checksums."""
        return TREE if self.contents.values is None else ""


def _arrays(
    tree: Tree, listing: PathListing, pytree: PyTree | None, contents: ArrayContents
) -> Iterator[Description]:
    """Yield the descriptions of the arrays in the index; missing ones are faults."""
    there: dict[str, int] = {}
    for version, document in DOCUMENTS.items():
        suffix = f"/{document}"
        there |= {
            name.removesuffix(suffix): version for name in listing.names if name.endswith(suffix)
        }
    if pytree is None:
        cause = "It is missing: arrays that were lost cannot be noticed."
        contents.findings.append(Finding(TREE, cause, True))
        pytree = PyTree([*there])
    contents.faults.update(pytree.faults)
    contents.findings += [
        Finding(key, f"It is an empty leaf ({kind}) and has no array.", False)
        for key, kind in pytree.empty.items()
    ]
    others = sorted(there.keys() - {*pytree.arrays})
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        cause = f"It does not name the array {others[0]!r}{more}."
        contents.findings.append(Finding(TREE, cause, False))
    wanted = []
    for key in pytree.arrays:
        try:
            check_inside(key)
            if key not in there:
                cause = f"The array {key!r} is missing, which the index names."
                raise MissingFile(cause, "Copy the folder again.")
            wanted.append(key)
        except READ_ERRORS as error:
            contents.faults[key] = error.at(TREE)
    documents = [f"{key}/{DOCUMENTS[there[key]]}" for key in wanted]
    values = (
        read_documents(tree, documents)
        if contents.values is None
        else contents.values.read(tree, documents, MAX_DOCUMENT_NBYTES)
    )
    for key, document, value in zip(wanted, documents, values, strict=True):
        if isinstance(value, bytes):
            yield Description(key, key, there[key], value)
        else:
            contents.faults[key] = value.at(document)


def _no_arrays(paths: Iterable[str]) -> ReadError:
    """Return the error of a folder without arrays and without their index."""
    # A step may have items of JSON and no others: each is a folder with the file ``metadata``.
    items: dict[str, set[str]] = {}
    for path in paths:
        item, slash, rest = path.partition("/")
        if slash:
            items.setdefault(item, set()).add(rest)
    if items and all(files - {MARKER} == {"metadata"} for files in items.values()):
        cause = (
            f"The step has no arrays; its items are JSON: {', '.join(map(repr, sorted(items)))}."
        )
        return UnsupportedError(cause, "Read the file `metadata` of the item.")
    return MissingFile(f"{TREE} is missing, and so are all arrays.", "Copy the checkpoint again.")


def _add_strings(tree: Tree, pytree: PyTree | None, contents: ArrayContents) -> None:
    """Add the leaves that are strings; entries missing from their file are faults."""
    if pytree is None or not pytree.strings:
        return
    values: dict[str, Any] = {}
    try:
        with prefix_errors(STRINGS):
            values = parse_object(
                read_document(tree, STRINGS), "the strings of a checkpoint of Orbax"
            )
        cause = f"{STRINGS}: The string {{!r}} is missing, which the index names."
    except CheckpointError as error:
        cause = f"{{!r}}: {error.cause}"
    for key in sorted(pytree.strings):
        if type(values.get(key)) is str:
            text = np.array(values[key].encode("utf-8", "surrogatepass"), object)
            contents.texts[key] = strings.encode(text)
        else:
            contents.faults[key] = IncompleteCheckpoint(cause.format(key), "Copy the folder again.")

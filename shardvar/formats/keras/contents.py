"""The arrays of a file of Keras, of an archive, or of a set of files.

The key of an array is its path in HDF5: ``layers/dense/vars/0``. An array that two files of a set
have is a fault of its key. The index of a set names files for the paths of layers, and not for
arrays: what a missing file would have held is named by the paths of its layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ReadError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles, check_same
from shardvar.formats.keras.archive import Span, find_span
from shardvar.formats.keras.hdf5 import Hdf5File
from shardvar.formats.keras.names import ARCHIVE_SUFFIX, INDEX_SUFFIX
from shardvar.formats.keras.walk import Dataset
from shardvar.formats.protocol import Finding
from shardvar.limits import MAX_HEADER_NBYTES
from shardvar.storage.protocol import Storage
from shardvar.wire import strict_json
from shardvar.wire.damage import (
    DISTRUST,
    SNIFF_NBYTES,
    WRITE_AGAIN,
    foreign_file,
    invalid,
    past_limit,
)
from shardvar.wire.zip import LOCAL_MAGIC

_INDEX_DEPTH = 32


@dataclass(slots=True, eq=False)
class KerasContents:
    """The arrays of all files."""

    data: DataFiles
    """The files, open."""
    opened: dict[int, Hdf5File] = field(default_factory=dict)
    """The files that h5py has open to decode some of their arrays, by number."""
    spans: dict[int, Span] = field(default_factory=dict)
    """The HDF5 bytes of each file."""
    datasets: dict[str, tuple[int, Dataset]] = field(default_factory=dict)
    """The number of the file, and the place in it, of each array that can be read."""
    rows: list[tuple[int, Dataset]] = field(default_factory=list)
    """The same in the order of the keys, without those at fault."""
    faults: dict[str, ReadError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    findings: list[Finding] = field(default_factory=list)
    """Links that were not followed, and arrays that the index of a set does not name."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Keras' version, where a file has it."""


def read_keras(storage: Storage, name: str) -> KerasContents:
    """Return the contents of the file, the archive, or the set with the index ``name``."""
    layers, stamp = _read_index(storage, name) if name.endswith(INDEX_SUFFIX) else ({}, "")
    # A model without weights has a set without files.
    names = sorted(layers) if name.endswith(INDEX_SUFFIX) else [name]
    contents = KerasContents(DataFiles(storage, names, named=name, index=name))
    try:
        for number, file in enumerate(names):
            own = layers.get(file)
            try:
                _add_file(contents, number, own)
            except READ_ERRORS as error:
                if own is None:
                    raise
                contents.faults.update((layer, error.at(repr(layer))) for layer in own)
        if stamp:
            check_same(storage, name, stamp)
            contents.data.check_in_place()
    except BaseException:
        close_all(contents)
        raise
    found = sorted(
        (key, place) for key, place in contents.datasets.items() if key not in contents.faults
    )
    contents.rows = [place for _, place in found]
    return contents


def close_all(contents: KerasContents) -> None:
    """Close the files."""
    for file in contents.opened.values():
        file.close()
    contents.data.close()


def _add_file(contents: KerasContents, number: int, layers: Sequence[str] | None) -> None:
    """Add the arrays of one file; ``layers`` are the paths that the index of a set names it for."""
    file = contents.data.open(number)
    with prefix_errors(file.name):
        is_archive = (
            file.name.endswith(ARCHIVE_SUFFIX) or file.read(0, min(4, file.size)) == LOCAL_MAGIC
        )
        span = contents.spans[number] = find_span(file, is_archive)
        opened = contents.opened[number] = Hdf5File(partial(contents.data.open, number), span)
        listing = opened.list()
    if all(dataset.start is not None for dataset in listing.datasets):
        contents.opened.pop(number).close()
    contents.attributes |= listing.attributes
    for key, fault in listing.faults.items():
        contents.faults[key] = fault.at(file.name)
    place = contents.data.names[number]
    contents.findings += [Finding(place, note, False) for note in listing.notes]
    for dataset in listing.datasets:
        if dataset.key in contents.datasets:
            other = contents.data.names[contents.datasets[dataset.key][0]]
            cause = f"{file.name}: {dataset.key!r} is in {other!r} too."
            contents.faults[dataset.key] = InvalidCheckpoint(cause, WRITE_AGAIN)
        contents.datasets[dataset.key] = number, dataset
    if layers is not None:
        _compare(contents, place, layers, [dataset.key for dataset in listing.datasets])


def _compare(
    contents: KerasContents, place: str, layers: Sequence[str], keys: Sequence[str]
) -> None:
    """Compare what the index of a set says of a file with what the file has."""
    paths = {key.rpartition("/")[0] for key in keys}
    for layer in sorted(set(layers) - paths):
        cause = (
            f"{place}: {layer!r}: The index of the set says that it has arrays here, but it has "
            "none."
        )
        contents.faults[layer] = IncompleteCheckpoint(cause, COPY_AGAIN)
    for path in sorted(paths - set(layers)):
        contents.findings.append(
            Finding(place, f"The index of the set does not name it for {path!r}.", True)
        )


def _read_index(storage: Storage, name: str) -> tuple[Mapping[str, Sequence[str]], str]:
    """Return the paths of layers of each file, and the stamp of the index."""
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            if file.size > MAX_HEADER_NBYTES:
                raise past_limit(f"The index has {file.size} bytes", "MAX_HEADER_NBYTES")
            text = file.read(0, file.size)
            if not text.lstrip().startswith(b"{"):
                why = "it does not begin a JSON object"
                raise foreign_file("the index of a set", text[:SNIFF_NBYTES], file.size, why)
            index = strict_json.parse_json(text, _INDEX_DEPTH)
            weight_map = index.get("weight_map") if type(index) is dict else None
            if type(weight_map) is not dict:
                raise invalid(
                    "The index lacks a weight_map from paths of layers to names of files."
                )
            layers: dict[str, list[str]] = {}
            for layer, files in weight_map.items():
                for each in _files(layer, files):
                    layers.setdefault(each, []).append(layer.strip("/"))
            return layers, file.stamp
    finally:
        file.close()


def _files(layer: str, files: Any) -> list[str]:
    """Return the files of a layer: one name, or a list of names of files next to the index."""
    names = [files] if isinstance(files, str) else files
    if type(names) is not list or not names or not set(map(type, names)) <= {str}:
        raise invalid(f"The weight_map has no names of files for {layer!r}.")
    for name in names:
        if name in ("", ".", "..") or set(name) & set("/\\\0"):
            raise InvalidCheckpoint(
                f"The index names {name!r}, which is not a file next to it.", DISTRUST
            )
    return names

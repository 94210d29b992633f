"""Files of Keras: recorded ones of which some bytes are changed, and archives and sets made by
hand."""

import io
import json
import struct
import zlib
from collections.abc import Iterator

from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile.case import PICTURE, Arrays, Case, Evidence, Files
from spec_tests.hostile.npz import Member, archive

WEIGHTS = (GOLDEN / "keras" / "weights_mlp" / "m.weights.h5").read_bytes()
"""Eight small arrays; the first has the shape [5, 7], and 140 bytes at 9160."""
LISTED = (GOLDEN / "keras" / "legacy_h5" / "m.h5").read_bytes()
"""A file with lists of its layers and weights."""
LINKS = (GOLDEN / "keras" / "links" / "m.weights.h5").read_bytes()
MEMBER = "model.weights.h5"


def changed(old: bytes, new: bytes) -> bytes:
    """The weights with the first occurrence of some bytes changed."""
    if old not in WEIGHTS or len(old) != len(new):
        raise AssertionError(f"{old!r} is not there")
    return WEIGHTS.replace(old, new, 1)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def keras_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes, path: str = "ck.weights.h5") -> Case:
        return Case(f"keras_{name}", path, error, why, {path: file})

    malformed, invalid, incomplete = (
        "MalformedCheckpoint",
        "InvalidCheckpoint",
        "IncompleteCheckpoint",
    )
    # The extents are stored twice, as they are and as they may become.
    for name, extent in (("huge", 1 << 56), ("overflow", 1 << 62)):
        shape = (
            u64(extent, extent, extent, extent) if name == "overflow" else u64(extent, 7, extent, 7)
        )
        why = f"An array whose first extent is 2^{extent.bit_length() - 1}, in 140 bytes."
        yield case(name, malformed, why, changed(u64(5, 7, 5, 7), shape))
    yield case(
        "small",
        invalid,
        "A shape of 112 bytes, and 140 stored.",
        changed(u64(5, 7, 5, 7), u64(4, 7, 4, 7)),
    )
    yield case(
        "outside",
        malformed,
        "An array begins behind its file.",
        changed(u64(9160, 140), u64(1 << 20, 140)),
    )
    yield case(
        "never_written",
        incomplete,
        "An array without a place, whose values are zeros to HDF5.",
        changed(u64(9160, 140), u64((1 << 64) - 1, 140)),
    )
    yield case(
        "external_link",
        "UnsupportedError",
        "A link to a file outside of the folder, and a cycle.",
        LINKS,
    )
    yield case("cut", malformed, "The end of the file is missing.", WEIGHTS[:-2000])
    yield case("empty", malformed, "A file of no bytes.", b"")
    yield case("foreign", malformed, "A picture under the name of weights.", PICTURE)
    yield from _list_cases()
    yield from _archive_cases()
    yield from _set_cases()


def _list_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, old: bytes, new: bytes) -> Case:
        if old not in LISTED or len(old) != len(new):
            raise AssertionError(f"{old!r} is not there")
        return Case(
            f"keras_list_{name}", "ck.h5", error, why, {"ck.h5": LISTED.replace(old, new, 1)}
        )

    # The names of links have zeros after them, and those in lists have not.
    lost = "IncompleteCheckpoint"
    yield case(
        "weight",
        lost,
        "A weight that a list names is under another name.",
        b"kernel\0",
        b"kernem\0",
    )
    yield case(
        "layer",
        lost,
        "A layer that a list names is under another name.",
        b"dense_12\0",
        b"dense_13\0",
    )
    first = (8, 2048, 7)  # the size of the first layer's name, its collection, and its number there
    for name, claims, error, why in (
        (
            "claims",
            ((1 << 32) - 1, 2048, 7),
            "InvalidCheckpoint",
            "A name of 2^32 - 1 bytes: HDF5 makes room for it.",
        ),
        ("outside", (8, 1 << 62, 7), "MalformedCheckpoint", "A name that begins at 2^62."),
        (
            "number",
            (8, 2048, 1 << 30),
            "MalformedCheckpoint",
            "A name that is object 2^30 of its collection.",
        ),
    ):
        yield case(name, error, why, struct.pack("<IQI", *first), struct.pack("<IQI", *claims))


def _archive_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: bytes) -> Case:
        return Case(f"keras_archive_{name}", "ck.keras", error, why, {"ck.keras": file})

    config = Member("config.json", b'{"class_name": "exec", "module": "builtins"}')
    weights = Member(MEMBER, WEIGHTS)
    yield case("empty", "IncompleteCheckpoint", "An archive without weights.", archive(config))
    yield case(
        "duplicate",
        "InvalidCheckpoint",
        "Two members have the weights: readers choose different ones.",
        archive(config, weights, weights),
    )
    other = changed(WEIGHTS[9160:9164], b"\1\2\3\4")
    yield case(
        "swapped",
        "CorruptCheckpoint",
        "The weights are not those of which the archive has the checksum.",
        archive(config, Member(MEMBER, other, crc=zlib.crc32(WEIGHTS))),
    )
    yield case(
        "foreign",
        "MalformedCheckpoint",
        "The weights are a picture.",
        archive(config, Member(MEMBER, PICTURE)),
    )
    yield case(
        "cut", "MalformedCheckpoint", "The directory is missing.", archive(config, weights)[:-60]
    )


def _set_cases() -> Iterator[Case]:
    def case(name: str, error: str, why: str, file: str, others: Files) -> Case:
        index = json.dumps({"metadata": {}, "weight_map": {"/layers/dense/vars": [file]}}).encode()
        return Case(
            f"keras_set_{name}", "ck.weights.json", error, why, {"ck.weights.json": index} | others
        )

    part = "ck_00000.weights.h5"
    for name, file in (
        ("dotdot", "../ck.h5"),
        ("absolute", "/etc/passwd"),
        ("nul", f"{part}\0.png"),
    ):
        why = f"The index of a set names the file {file!r}."
        yield case(name, "InvalidCheckpoint", why, file, {part: WEIGHTS})
    yield case("missing", "MissingFile", "The file of a layer is missing.", part, {})
    other = json.dumps({"weight_map": {"/layers/lost/vars": [part]}}).encode()
    yield Case(
        "keras_set_layer",
        "ck.weights.json",
        "IncompleteCheckpoint",
        "The file of a layer has no array of it.",
        {"ck.weights.json": other, part: WEIGHTS},
    )
    nested = b'{"weight_map": ' + b"[" * 100_000
    yield Case(
        "keras_set_nested",
        "ck.weights.json",
        "MalformedCheckpoint",
        "A hundred thousand nested lists: a parser recurses.",
        {"ck.weights.json": nested},
    )


def _make(arrays: Arrays) -> Files:
    """Weights of layers, as Keras 3 nests them."""
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as group:
        for key, array in arrays.items():
            group[f"layers/{key}/vars/0"] = array
    return {"ck.weights.h5": file.getvalue()}


EVIDENCE = {
    "keras": Evidence(
        "keras/weights_mlp/m.weights.h5", keras_cases, file="ck.weights.h5", make=_make
    )
}

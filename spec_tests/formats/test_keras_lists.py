"""The lists of names in files of Keras 2: what a file has lost is named, and lists that lie cost
little."""

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
)
from shardvar.formats.hdf5 import Hdf5Texts

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

LIBVERS = ("earliest", "v108", "v110", "latest")
LAYERS: dict[str, tuple[str, ...]] = {"drop": ()}
LAYERS |= {"dense": ("dense/kernel:0", "dense/bias:0"), "outer": ("outer/inner/kernel:0",)}


def names(texts: Sequence[str], kind: str) -> Any:
    """Names as the value of an attribute: of one size, of any size as Keras writes few, or of any
    size and UTF-8."""
    octets = [text.encode() for text in texts]
    if not texts:
        return []
    return {"fixed": np.array(octets), "bytes": octets, "text": list(texts)}[kind]


def write(path: Path, kind: str = "bytes", libver: str = "earliest", lists: bool = True) -> None:
    """Write a file as Keras 2 does."""
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group("model_weights")
        if lists:
            group.attrs["layer_names"] = names(list(LAYERS), kind)
        for layer, weights in LAYERS.items():
            inner = group.create_group(layer)
            if lists:
                inner.attrs["weight_names"] = names(weights, kind)
            for weight in weights:
                inner[weight] = np.arange(3.0)


def faults(path: Path) -> dict[str, CheckpointError]:
    with sv.open_checkpoint(path) as reader:
        return dict(reader.faults)


KEY = "model_weights/dense/dense/bias:0"


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("kind", ["fixed", "bytes", "text"])
def test_a_weight_that_a_list_names_and_the_file_lacks_is_damage(
    kind: str, libver: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-DAMAGE-1 (RFC 001): of itself; the other weights are read."""
    path = tmp_path / "m.h5"
    write(path, kind, libver)
    assert sv.verify(path).ok and sv.verify(path).notes == ()
    whole = sv.load(path)
    with h5py.File(path, "a") as file:
        del file[KEY]
    report = sv.verify(path)
    assert [(each.kind, each.key) for each in report.damages] == [("IncompleteCheckpoint", KEY)]
    with pytest.raises(
        IncompleteCheckpoint, match=r"bias:0.*The file lacks it.*'model_weights/dense/weight_names'"
    ):
        sv.load(path)
    assert sv.load(path, [key for key in whole if key != KEY]).keys() == whole.keys() - {KEY}
    main(["inspect", str(path)])
    assert KEY in capsys.readouterr().out


def test_a_list_in_parts_is_one_list(tmp_path: Path) -> None:
    """An attribute has at most 64 KiB, and Keras writes longer lists in numbered parts."""
    weights = np.array([f"block_{number}/{'k' * 60}:0".encode() for number in range(3000)])
    parts = np.array_split(weights, 4)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("dense")
        for number, part in enumerate(parts):
            group.attrs[f"weight_names{number}"] = part
        for weight in weights:
            group[weight] = np.float32(1)
        for part in parts:
            del group[part[7]]
    assert faults(tmp_path / "m.h5").keys() == {f"dense/{part[7].decode()}" for part in parts}


def test_what_a_name_reaches_in_any_way_is_not_lost(tmp_path: Path) -> None:
    """Links, groups of two paths, absolute paths, and dots."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["real/x"] = np.arange(3.0)
        file["alias"] = file["real"]
        group = file.create_group("listed")
        group["hard"] = file["real/x"]
        group["soft"] = h5py.SoftLink("/real/x")
        group["deep"] = h5py.SoftLink("/real")
        group["group"] = file["real"]
        group["away"] = h5py.ExternalLink("other.h5", "/g")
        group["dangling"] = h5py.SoftLink("/nowhere")
        group.attrs["weight_names"] = (
            "hard soft deep/x group/x away/x dangling/x /real/x /alias/x ./hard .//hard".split()
        )
    assert faults(tmp_path / "m.h5").keys() == {"listed/away"}  # a link that is not followed
    with h5py.File(tmp_path / "m.h5", "a") as file:
        lost = "/alias/y group/y hard/y group/x/y ./lost lost".split()
        file["listed"].attrs["weight_names"] = lost
    keys = {f"listed/{name}" for name in ("away", "group/y", "hard/y", "group/x/y", "lost")}
    assert faults(tmp_path / "m.h5").keys() == {"alias/y", *keys}


def test_a_name_that_is_not_a_path_is_a_fault_of_its_list(tmp_path: Path) -> None:
    for name in ("", ".", "/"):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["x"] = np.arange(3.0)
            file.attrs["weight_names"] = ["x", name]
        assert {key: type(error) for key, error in faults(tmp_path / "m.h5").items()} == {
            "weight_names": InvalidCheckpoint
        }


@pytest.mark.parametrize(
    ("libver", "value"),
    [("earliest", [1, 2]), ("earliest", h5py.Empty("f4")), ("latest", ["w"])],
    ids=["numbers", "empty", "elsewhere"],
)
def test_a_list_that_is_not_read_is_noted_and_not_damage(
    libver: str, value: Any, tmp_path: Path
) -> None:
    """Numbers, and texts of any size among so many attributes that HDF5 keeps them elsewhere."""
    with h5py.File(tmp_path / "m.h5", "w", libver=libver) as file:
        file["x"] = np.arange(3.0)
        file.attrs["weight_names"] = value
        for number in range(20):
            file.attrs[f"other_{number}"] = number
    report = sv.verify(tmp_path / "m.h5")
    is_empty = isinstance(value, h5py.Empty)
    assert report.ok and len(report.notes) == (0 if is_empty else 1)
    assert is_empty or "'weight_names'" in str(report.notes[0]), report.notes


def test_offsets_of_other_sizes_are_noted(tmp_path: Path) -> None:
    """A file may have offsets of 4 bytes, which no known writer chooses."""
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(bytes(tmp_path / "m.h5"), fcpl=plist)) as file:
        file["x"] = np.arange(3.0)
        file.attrs["weight_names"] = ["x", "lost"]
        file.attrs["keras_version"] = "2.15.0"
    report = sv.verify(tmp_path / "m.h5")
    assert report.ok and "'weight_names'" in str(report.notes[0])


TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40),
    max_size=30,
)


@given(
    libver=st.sampled_from(LIBVERS),
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    numbers=st.integers(0, 3),
    ordered=st.booleans(),
)
def test_texts_are_those_that_h5py_reads(
    libver: str,
    texts: list[list[str]],
    numbers: int,
    ordered: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("texts") / "m.h5"
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group("g", track_order=ordered)
        for number in range(numbers):
            group.attrs[f"number_{number}"] = np.arange(number, dtype="i4")
        for number, value in enumerate(texts):
            group.attrs.create(f"t{number}", np.array(value, object), dtype=h5py.string_dtype())
        header = h5py.h5o.get_info(group.id).addr
    octets = path.read_bytes()
    found = Hdf5Texts(lambda start, nbytes: octets[start : start + nbytes], len(octets))
    for number, value in enumerate(texts):
        read = found.read_texts(header, f"t{number}".encode(), len(value))
        is_elsewhere = (ordered or libver != "earliest") and len(texts) + numbers > 8
        assert read == [text.encode() for text in value] or (read is None and is_elsewhere)
    assert found.read_texts(header, b"missing", 1) is None


def test_a_text_that_claims_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """HDF5 takes the memory first: of a list, of Keras' version, and of the dtype of an array."""
    for attribute, owner in (("weight_names", "/"), ("keras_version", "/"), ("dtype", "x")):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["x"] = np.zeros(2, "V2")
            file[owner].attrs[attribute] = "a text of 21 bytes..."
        data = (tmp_path / "m.h5").read_bytes()
        claimed = data.replace(struct.pack("<I", 21), struct.pack("<I", (1 << 32) - 1))
        assert claimed != data
        (tmp_path / "m.h5").write_bytes(claimed)
        error = faults(tmp_path / "m.h5")["x" if owner == "x" else attribute]
        assert isinstance(error, (InvalidCheckpoint, MalformedCheckpoint)), error


def test_short_names_under_a_long_path_do_not_become_many_long_keys(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("p" * 60_000)
        group.attrs["weight_names"] = np.array([f"{number:04}".encode() for number in range(9000)])
    tracemalloc.start()
    try:
        (error,) = faults(tmp_path / "m.h5").values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, InvalidCheckpoint) and "of this size" in error.cause
    assert peak < (4 << 20) + 300 * (tmp_path / "m.h5").stat().st_size


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("<HHB3x", kind, len(body), 0) + body


def headed(*messages: bytes) -> bytes:
    """An object header of version 1, at the beginning of the bytes."""
    octets = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(octets)) + octets


def attribute(name: bytes, values: bytes) -> bytes:
    return message(12, struct.pack("<BxHHH", 2, len(name), 0, 0) + name + values)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\1",
        b"a picture" * 9,
        headed(message(16, struct.pack("<QQ", 16, 24))),  # it continues where it begins
        headed(message(16, struct.pack("<QQ", 1 << 63, 1 << 40))),
        headed(message(16, b"nowhere")),
        headed(message(12, b"short")),
        headed(attribute(b"w", bytes(8))),
        headed(attribute(b"w", struct.pack("<IQI", 3, 0, 1))),  # the collection is this header
        headed(attribute(b"w", struct.pack("<IQI", 3, 1 << 63, 1))),
        b"OHDR\2\3" + b"\xff" * 8,
    ],
)
def test_a_structure_that_lies_is_an_error(octets: bytes) -> None:
    """h5py has decoded the same structure before, but the bytes may have changed since."""
    texts = Hdf5Texts(lambda start, nbytes: octets[start : start + nbytes], len(octets))
    with pytest.raises((MalformedCheckpoint, InvalidCheckpoint)):
        texts.read_texts(0, b"w", 1)

"""A checkpoint that changes while it is read: a reader gets one state of it, or is told so.

Three writers come between the steps of a reader: shardvar's own, which replaces the checkpoint or
dies on the way, and two of another program, which write the files one after the other, in place or
by renaming. `test_looked_at_once` lets an own writer come before each call of each verb.
"""

import io
import os
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, replaced_error
from shardvar.formats.hdf5 import _PAGE_NBYTES as PAGE_NBYTES
from shardvar.planning.policies import BalancedPolicy
from shardvar.verbs.reader import Reader
from spec_tests.helpers.faulty_storage import Fault, Killed, failing
from spec_tests.helpers.system_calls import snapshot
from spec_tests.helpers.thoroughness import is_due

h5py = pytest.importorskip("h5py")

OLD, NEW = (
    {key: np.full((4, 3), value, np.float32) for key in ("a", "b", "c")} for value in (1, 2)
)
"""Each value of a state is the same number, so that a mixture is seen at once."""
WRITTEN = {
    "shardvar": ("ck", 2),
    "tensorflow": ("ck", 2),
    "torch": (".metadata", 2),
    "safetensors": ("ck.safetensors", 1),
    "safetensors set": ("ck.safetensors.index.json", 3),
    "npz": ("ck.npz", 1),
    "pt": ("ck.pt", 1),
    "zarr": ("ck", 0),
    "orbax": ("ck", 0),
}
"""For each written format: the name of the target, and the number of files if a policy makes
them."""


def save(folder: Path, form: str, tensors: dict[str, Any]) -> None:
    name, files = WRITTEN[form]
    policy = BalancedPolicy(files) if files > 1 else None
    form = form.removesuffix(" set")
    sv.save(folder / name, tensors, format=form, policy=policy, force=True)


def save_hdf5(path: Path, tensors: dict[str, Any], **options: Any) -> None:
    """Write a file of Keras; with ``chunks`` in ``options``, h5py decodes its arrays.

    Each object has a page for itself: those that are read at the opening are held, and what is held
    is never seen to be replaced.
    """
    octets = io.BytesIO()
    with h5py.File(octets, "w", alignment_threshold=1, alignment_interval=2 * PAGE_NBYTES) as file:
        for key, array in tensors.items():
            file.create_dataset(f"layers/{key}/vars/0", data=array, **options)
    path.write_bytes(octets.getvalue())


def save_archive(folder: Path, tensors: dict[str, Any]) -> None:
    save_hdf5(folder / "model.weights.h5", tensors)
    with zipfile.ZipFile(folder / "ck.keras", "w") as archive:
        archive.write(folder / "model.weights.h5", "model.weights.h5")
        archive.writestr("config.json", "{}")
        archive.writestr("metadata.json", "{}")
    os.unlink(folder / "model.weights.h5")


def save_zarr(folder: Path, driver: str, tensors: dict[str, Any], **place: Any) -> None:
    """Write compressed arrays, which TensorStore decodes."""
    import tensorstore

    for key, array in tensors.items():
        spec = {
            "driver": driver,
            "kvstore": {"driver": "file", "path": f"{folder}/ck/{key}/", **place},
            "metadata": {"compressor": {"id": "zlib", "level": 1}, "dimension_separator": "."},
        }
        store = tensorstore.open(
            spec, create=True, delete_existing=True, dtype=array.dtype, shape=array.shape
        ).result()
        store.write(array).result()
    (folder / "ck" / ".zgroup").write_text('{"zarr_format": 2}')


def save_ocdbt(folder: Path, tensors: dict[str, Any]) -> None:
    """Write a database, as Orbax does, without its index."""
    import tensorstore

    base = {"driver": "file", "path": f"{folder}/ck/"}
    for key, array in tensors.items():
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "ocdbt", "base": base, "path": f"{key}/"},
            "metadata": {"compressor": {"id": "zlib", "level": 1}},
        }
        store = tensorstore.open(
            spec, create=True, delete_existing=True, dtype=array.dtype, shape=array.shape
        ).result()
        store.write(array).result()


READ: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "hdf5": lambda folder, tensors: save_hdf5(folder / "ck.weights.h5", tensors),
    "hdf5 decoded": lambda folder, tensors: save_hdf5(
        folder / "ck.weights.h5", tensors, chunks=(2, 3), compression="gzip"
    ),
    "keras": save_archive,
    "zarr decoded": lambda folder, tensors: save_zarr(folder, "zarr", tensors),
    "ocdbt": save_ocdbt,
    "npy": lambda folder, tensors: np.save(folder / "ck.npy", np.stack([*tensors.values()])),
}
"""Checkpoints of other programs."""

SAVES = {form: lambda folder, tensors, form=form: save(folder, form, tensors) for form in WRITTEN}
SAVES |= READ


def check_one_state(values: list[Any], allowed: tuple[int, ...] = (1, 2)) -> None:
    """Fail if values of both states were returned."""
    seen = {float(each) for value in values for each in np.unique(value)}
    assert len(seen) <= 1 and seen <= {*allowed}, f"a mixture: {seen}"


def age(folder: Path) -> None:
    """Make the files a minute old: a system's clock ticks a few times in a hundredth of a second,
    and two files of one tick have the same time."""
    for path in folder.rglob("*"):
        time = path.stat().st_mtime_ns - 60 * 10**9
        os.utime(path, ns=(time, time))


def write_in_place(path: Path, octets: bytes) -> None:
    with open(path, "wb") as file:
        file.write(octets)


def write_aside(path: Path, octets: bytes) -> None:
    path.with_name("aside").write_bytes(octets)
    os.replace(path.with_name("aside"), path)


def read_some(reader: Reader, key: str) -> Any:
    """Return a value in one of the ways that there are to read it."""
    return reader.read(key, np.s_[1:3, :2] if reader.find(key).slices.tensors.shape(0) else None)


@pytest.mark.parametrize("write", [write_in_place, write_aside])
@pytest.mark.parametrize("form", SAVES)
def test_files_that_another_program_writes_one_by_one_are_never_read_beside_the_old(
    form: str, write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    """Exhaustive: after the opening, the first key is read after i of the files, and the others
    after j of them; in both orders of the files."""
    states = []
    for number, tensors in enumerate((OLD, NEW)):
        (tmp_path / str(number)).mkdir()
        SAVES[form](tmp_path / str(number), tensors)
        states.append(snapshot(tmp_path / str(number)))
    work = tmp_path / "work"
    told = 0
    for is_reversed in (False, True):
        names = sorted(states[1], reverse=is_reversed)
        for case, (i, j) in enumerate(combinations_with_replacement(range(len(names) + 1), 2)):
            if not is_due(case, 9) and (i, j) not in ((0, len(names)), (0, 1)):
                continue
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(tmp_path / "0", work)
            age(work)
            values = []
            with sv.open_checkpoint(work) as reader:
                keys = list(reader)
                try:
                    for name in names[:i]:
                        (work / name).parent.mkdir(parents=True, exist_ok=True)
                        write(work / name, states[1][name])
                    values.append(read_some(reader, keys[0]))
                    for name in names[i:j]:
                        (work / name).parent.mkdir(parents=True, exist_ok=True)
                        write(work / name, states[1][name])
                    values += [reader.read(key) for key in keys[1:]]
                    values.append(read_some(reader, keys[0]))
                except CheckpointError as error:
                    told += "was replaced while" in str(error)
            check_one_state(values, (1,))
    # Names of data files that a generation has are in no other checkpoint.
    assert told or write is write_aside or states[0].keys() != states[1].keys()


@pytest.mark.parametrize("form", WRITTEN)
def test_a_writer_that_dies_at_any_step_shows_a_reader_nothing_of_the_new(
    form: str, tmp_path: Path
) -> None:
    """Exhaustive: the reader has read one key, the writer dies at each of its steps, or ends."""
    for at in range(1000):
        if not is_due(at, 4):
            continue
        folder = tmp_path / str(at)
        folder.mkdir()
        save(folder, form, OLD)
        age(folder)
        inner = folder / "ck" if form in ("zarr", "orbax") else folder
        fault = Fault(at)
        values = []
        with sv.open_checkpoint(folder) as reader:
            values.append(reader.read("a"))
            with failing(inner, fault), suppress(Killed):
                save(folder, form, NEW)
            with suppress(CheckpointError):
                values += [read_some(reader, "b"), reader.read("c"), read_some(reader, "a")]
        check_one_state(values, (1,))
        if fault.taken <= at:
            break
    assert at > 3


def test_the_error_names_the_file() -> None:
    assert str(replaced_error("ck/b/0")).startswith("ck/b/0 was replaced while it was being read.")

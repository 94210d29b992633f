"""npy: what numpy.save wrote is read, and anything else is refused by name."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import AmbiguousPath, UnsupportedError
from shardvar.formats.npy import FORMAT, KEY
from shardvar.storage.local import LocalStorage
from shardvar.wire.npy import NPY_DTYPES
from spec_tests.helpers.format_protocol import read_whole, some_arrays


@given(arrays=some_arrays(sorted(NPY_DTYPES)), data=st.data())
def test_what_numpy_saved_is_read_whole_and_in_parts(
    arrays: dict[str, np.ndarray], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of any dtype, byte order and order of axes."""
    directory = tmp_path_factory.mktemp("npy")
    for array in arrays.values():
        for order in ("C", "F"):
            np.save(directory / "x.npy", np.array(array, order=order))  # type: ignore[call-overload]
            plain = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).reshape(
                array.shape
            )
            source = FORMAT.open(LocalStorage(str(directory)), "x.npy")
            found = read_whole(source)[0][KEY]
            assert (found.dtype, found.shape, found.tobytes()) == (
                plain.dtype,
                plain.shape,
                plain.tobytes(),
            )
            (entries,) = source.index.scan()
            start, stop = sorted(data.draw(st.integers(0, plain.nbytes)) for _ in range(2))
            part = bytearray(stop - start)
            source.read_into(entries, 0, start, memoryview(part))
            assert part == plain.tobytes()[start:stop]
            source.close()


def test_several_arrays_in_one_file_are_refused(tmp_path: Path) -> None:
    """numpy.load reads them one after the other; none of them is dropped here."""
    with open(tmp_path / "x.npy", "wb") as file:
        np.save(file, np.zeros(2))
        np.save(file, np.ones(2))
    with pytest.raises(UnsupportedError, match="144 bytes follow it"):
        sv.load(tmp_path / "x.npy")


def test_a_directory_means_its_arrays_only_if_it_means_nothing_else(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(2))
    assert list(sv.load(tmp_path)) == [KEY]
    np.save(tmp_path / "b.npy", np.zeros(2))
    with pytest.raises(AmbiguousPath):
        sv.load(tmp_path)
    np.savez(tmp_path / "c.npz", c=np.ones(2))
    assert list(sv.load(tmp_path)) == ["c"]

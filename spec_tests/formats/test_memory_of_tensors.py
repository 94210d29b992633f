"""A tensor takes a bounded amount of memory on its way, however small it is.

The oracle is the memory that Python allocates, at two numbers of tensors: the difference is what
the tensors take. Buffers also grow with the files, until they are full; so twice the bytes that a
tensor has in the files are allowed on top.
"""

import gc
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv

FORMATS = ("shardvar", "torch", "safetensors", "npz", "pt", "tensorflow")
COUNTS = 500, 1000
MOST_NBYTES = 1024
"""Above what the open checkpoint takes."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each number of tensors in each format."""
    folder = tmp_path_factory.mktemp("many")
    for count in COUNTS:
        tensors = {
            f"model.layers.{row // 100}.block.{row % 100}.weight": np.full(16, row, np.float32)
            for row in range(count)
        }
        for form in FORMATS:
            sv.save(folder / f"{form}-{count}" / "ck", tensors, format=form)
    return folder


def growth(function: Callable[[int], object]) -> float:
    """Return the bytes that a tensor adds to the peak of memory."""
    peaks = []
    for count in (COUNTS[0], *COUNTS):  # the first time, modules are imported
        gc.collect()
        tracemalloc.start()
        try:
            function(count)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return (peaks[2] - peaks[1]) / (COUNTS[1] - COUNTS[0])


def file_nbytes(folder: Path) -> float:
    """Return the bytes that a tensor adds to the files."""
    sizes = [
        sum(path.stat().st_size for path in Path(f"{folder}-{count}").rglob("*") if path.is_file())
        for count in COUNTS
    ]
    return (sizes[1] - sizes[0]) / (COUNTS[1] - COUNTS[0])


def open_index(path: Path) -> None:
    with sv.open_checkpoint(path) as reader:
        assert len(reader.entries())


@cache
def index_nbytes(folder: Path) -> float:
    """Return the bytes that a tensor adds to the open checkpoint."""
    return growth(lambda count: open_index(Path(f"{folder}-{count}") / "ck"))


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_reshard_takes_a_kilobyte_a_tensor_above_the_index(
    saved: Path, tmp_path: Path, form: str, direction: str
) -> None:
    source, target = ("shardvar", form) if direction == "to" else (form, "shardvar")
    index = index_nbytes(saved / source)
    whole = growth(
        lambda count: sv.reshard(
            saved / f"{source}-{count}" / "ck",
            tmp_path / f"{count}" / "ck",
            format=target,
            force=True,
        )
    )
    buffers = 2 * max(file_nbytes(saved / source), file_nbytes(saved / target))
    assert whole < index + MOST_NBYTES + buffers, (whole, index, buffers)

"""What is written is what TensorFlow would have written, and an overwrite is never seen half
done."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from shardvar.errors import ShardvarError, UnsupportedError
from shardvar.formats.tensorflow import FORMAT
from shardvar.formats.tensorflow.contents import DATA_NAME, read_bundle
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Assignment, TensorTable
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.format_protocol import read_payload
from spec_tests.helpers.tensor_bundles import (
    GOLDEN,
    open_golden,
    read_tensor,
    write_arrays,
    write_payloads,
)

OTHERWISE = {
    "slices_dash_unordered": "a slice of a whole axis is written in numbers",
    "slices_overlap": "a slice of a whole axis is written in numbers",
    "slices_with_hole": "a slice of a whole axis is written in numbers",
    "max_shard_half_unreadable": "float16 is not cut: TensorFlow could not put it together",
    "slices_of_strings": "strings are not cut: TensorFlow could not put them together",
    "v1_format_legacy": "another format",
}
RANK_8 = (1,) * 8
WRITTEN = sorted(
    path.name
    for path in GOLDEN.iterdir()
    if not path.name.startswith(("bad", "hand", "ok")) and path.name not in OTHERWISE
)


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_entries_make_the_same_files_as_tensorflow_made(name: str, tmp_path: Path) -> None:
    """Index and data files, byte for byte."""
    _, source = open_golden(name)
    entries = source.index.entries
    numbers = [int(DATA_NAME.fullmatch(file)["number"]) for file in source.index.files]  # type: ignore[index]
    file = np.array(numbers, np.int64)[entries.file]
    order = np.lexsort((entries.slices.nbytes, entries.start, file))
    count = read_bundle(source.storage, source.prefix).header.num_shards
    assignment = Assignment(entries.slices.take(order), file[order], count)
    payloads = [read_payload(source, entries, row) for row in order.tolist()]
    write_payloads(LocalStorage(str(tmp_path)), source.prefix, assignment, payloads)
    theirs = {
        path.name: path.read_bytes()
        for path in Path(source.storage.path).glob(f"{source.prefix}.*")
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == theirs


def test_an_open_bundle_keeps_its_values_while_it_is_overwritten(tmp_path: Path) -> None:
    """The second overwrite uses the names of the first files again: those that are open are still
    the old ones."""
    storage, cuts = LocalStorage(str(tmp_path)), {"t": [((0,), (2,), 0), ((2,), (2,), 1)]}
    write_arrays(storage, "ck", {"t": np.full((4,), 9, np.int32)}, cuts, 2, "g")
    source = FORMAT.open(storage, "ck")
    for round_ in range(3):
        write_arrays(storage, "ck", {"t": np.full((4,), round_, np.int32)}, cuts, 2, f"g{round_}")
        assert read_tensor(source, "t").tolist() == [9] * 4


@pytest.mark.parametrize(
    ("values", "cuts"),
    [
        ({"": np.zeros(1)}, {}),  # the header's name
        ({"\x00t": np.zeros(1)}, {}),  # a slice's name
        ({"\ud800": np.zeros(1)}, {}),
        ({"t": np.zeros(2, np.float16)}, {"t": [((0,), (1,), 0), ((1,), (1,), 0)]}),
        ({"t": np.zeros((2, *RANK_8))}, {"t": [((i, *[0] * 8), (1, *RANK_8), 0) for i in (0, 1)]}),
        ({"t": np.zeros(2)}, {"t": [((0,), (2,), 0), ((2,), (0,), 0)]}),  # an empty slice
        ({"t": np.zeros(2, ml_dtypes.float8_e8m0fnu)}, {}),  # a dtype of other frameworks
    ],
)
def test_what_tensorflow_could_not_read_is_refused_before_a_byte_is_written(
    values: Any, cuts: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError):
        write_arrays(LocalStorage(str(tmp_path)), "ck", values, cuts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "ck[1]", "back\\slash"])
def test_names_that_tensorflow_takes_for_patterns_are_refused(prefix: str, tmp_path: Path) -> None:
    nothing = TensorTable.of([]).whole()
    with pytest.raises(ShardvarError):
        FORMAT.create(
            LocalStorage(str(tmp_path)),
            prefix,
            Assignment(nothing, np.zeros(0, np.int64), 1),
            Metadata(),
            "g",
        )

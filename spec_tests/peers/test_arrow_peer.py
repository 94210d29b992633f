"""The list of tensors, as pandas and Apache Arrow read it."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.verbs import arrow

CELLS: dict[str, Any] = {
    "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    "int": st.none() | st.integers(-(2**63), 2**63 - 1),
    "ints": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1)),
}


class Stream:
    def __init__(self, columns: dict[str, list[Any]], kinds: dict[str, str]) -> None:
        self.given = columns, kinds

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return arrow.arrow_stream(*self.given)


@given(st.lists(st.tuples(*CELLS.values()), max_size=20))
def test_arrow_reads_every_cell_and_gives_the_memory_back(rows: list[tuple[Any, ...]]) -> None:
    columns = {kind: [row[place] for row in rows] for place, kind in enumerate(CELLS)}
    table = pa.table(Stream(columns, {kind: kind for kind in CELLS}))
    table.validate(full=True)
    assert table.to_pydict() == columns
    column = table.column("ints").combine_chunks()
    del table
    gc.collect()
    assert column.to_pylist() == columns["ints"]  # outlives its table
    del column
    gc.collect()
    assert not arrow._held


def test_the_tensors_of_a_checkpoint(tmp_path: Path) -> None:
    tensors = {
        "table": np.ones((13, 2)),
        "scalar": np.float32(3),
        "texts": np.array([b"x"], object),
    }
    sv.save(tmp_path / "model", tensors, partition={"table": 5})
    with sv.open_checkpoint(tmp_path / "model") as reader:
        table, frame = pa.table(reader), reader.to_pandas()
        assert table.column_names == list(frame.columns) == list(reader.columns())
        rows = frame.set_index("key").T.to_dict()
        assert {key: (row["dtype"], row["shape"]) for key, row in rows.items()} == {
            key: (each.dtype, each.shape) for key, each in reader.items()
        }
        assert {key: row["nbytes"] for key, row in rows.items()} == {
            key: each.nbytes for key, each in reader.items()
        }
        assert table.column("num_slices").to_pylist() == frame["num_slices"].to_list() == [1, 5, 1]

"""The cell of docs/notebooks/checkpoints.ipynb that needs TensorFlow, executed where it is
installed."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers import paths

NOTEBOOK = paths.DOCS / "notebooks" / "checkpoints.ipynb"


def test_tensorflow_reads_what_the_notebook_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    (source,) = [
        "".join(cell["source"]) for cell in cells if "import tensorflow" in "".join(cell["source"])
    ]
    with sv.ParameterServerStrategy(3, sv.FixedShardsPartitioner(3)).scope():
        model = sv.Module()
        model.item = sv.layers.Embedding(13, 4)
    saved = sv.Checkpoint(model=model).write(tmp_path / "saved", format="tensorflow")
    names: dict[str, Any] = {"os": os, "sv": sv, "for_tensorflow": saved}
    exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert (
        names["reader_name"].startswith("TensorFlow ") and "TensorFlow" in capsys.readouterr().out
    )
    assert np.array_equal(names["read_back"], model.item.embeddings.numpy())

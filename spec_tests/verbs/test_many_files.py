"""A save makes the names and the starts of its files once, and not once for each file."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.planning.policies import BalancedPolicy

WHOLE = ("asides", "start", "data_names", "_data_names")
"""Functions of sinks that answer for all files at once."""


def calls_of_save(path: Path, form: str, files: int) -> Counter[str]:
    """How often a save into so many files calls the functions."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name in WHOLE and "/formats/" in code.co_filename:
            calls[code.co_name] += 1

    tensors = {f"k{number:02}": np.zeros(4) for number in range(files)}
    policy = None if form == "zarr" else BalancedPolicy(files)
    sys.setprofile(note)
    try:
        report = sv.save(path, tensors, format=form, policy=policy)
    finally:
        sys.setprofile(None)
    assert report.num_files >= files
    return calls


@pytest.mark.parametrize(
    "form", ["shardvar", "tensorflow", "torch", "safetensors", "zarr", "orbax"]
)
def test_names_and_starts_are_made_a_few_times_whatever_the_number_of_files(
    form: str, tmp_path: Path
) -> None:
    few, many = (calls_of_save(tmp_path / str(files), form, files) for files in (4, 40))
    assert few == many

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


@pytest.mark.parametrize(
    "form", ["shardvar", "tensorflow", "torch", "safetensors", "zarr", "orbax"]
)
def test_names_and_starts_are_made_a_few_times_whatever_the_number_of_files(
    form: str, tmp_path: Path
) -> None:
    counts = []
    for files in (4, 40):
        tensors = {f"k{number:02}": np.zeros(4) for number in range(files)}
        policy = None if form == "zarr" else BalancedPolicy(files)
        calls: Counter[str] = Counter()

        def note(frame: FrameType, event: str, _: Any, calls: Counter[str] = calls) -> None:
            if (
                event == "call"
                and frame.f_code.co_name in WHOLE
                and "/formats/" in frame.f_code.co_filename
            ):
                calls[frame.f_code.co_name] += 1

        sys.setprofile(note)
        try:
            assert (
                sv.save(tmp_path / str(files), tensors, format=form, policy=policy).num_files
                >= files
            )
        finally:
            sys.setprofile(None)
        counts.append(calls)
    assert counts[0] == counts[1]

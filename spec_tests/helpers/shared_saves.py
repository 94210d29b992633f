"""Saves by several processes: tensors divided among them, and processes that are really others.

`python -m spec_tests.helpers.shared_saves PATH RUN PROCESS COUNT` saves the share of one process of
``demo_tensors``.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import shardvar as sv
from shardvar.planning.index import Metadata
from shardvar.testing.arrays import tilings
from shardvar.verbs.together.run import SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects
from spec_tests.helpers.hypothesis_strategies import tensor_dicts
from spec_tests.helpers.programs import ENVIRONMENT, command_of

Shares = list[dict[str, list[sv.LocalShard]]]


def shard_of(array: Any, region: sv.Region) -> sv.LocalShard:
    """Return a region of an array as what one process holds of it."""
    return sv.LocalShard(array[region.slices], region.offset, array.shape)


def given_as(shard: sv.LocalShard, made: str) -> sv.LocalShard:
    """Return a local shard whose values are there in another way: in columns, lazily, or lazily by
    rows."""
    array: Any = np.asarray(shard.array)
    if made == "array" or array.dtype.kind in "OS" or not array.ndim:
        return shard
    if made == "columns":
        return sv.LocalShard(np.asfortranarray(array), shard.offset, shard.full_shape)
    values = (lambda rows: array[rows]) if made == "rows" else (lambda: array)
    lazy = sv.lazy(array.shape, array.dtype, values, by_rows=made == "rows")
    return sv.LocalShard(lazy, shard.offset, shard.full_shape)


def demo_tensors(seed: int) -> dict[str, Any]:
    """Return tensors of which no two seeds have a value in common: cut, replicated, scalar, and
    text."""
    rng = np.random.default_rng(seed)
    return {
        "table": rng.standard_normal((13, 4)),
        "bias": rng.standard_normal(4),
        "step": np.array(seed),
        "words": np.array([b"seed", str(seed).encode()], dtype=object),
    }


def demo_share(seed: int, process: int, count: int) -> dict[str, Any]:
    """Return what one process holds of ``demo_tensors``: rows of the table, and everything else
    whole."""
    tensors = demo_tensors(seed)
    start, stop = sv.div(13, count)[process]
    return {**tensors, "table": sv.LocalShard(tensors["table"][start:stop], (start, 0), (13, 4))}


def save_one(
    path: Path | str, shares: Shares | list[dict[str, Any]], process: int, **options: Any
) -> Any:
    """Save what one of the processes holds; it does not commit unless the options say so."""
    names = {"process": process, "num_processes": len(shares), "run": "1", "commit": False}
    return sv.save_shards(path, shares[process], **names | options)


def save_all(
    path: Path | str, shares: Shares | list[dict[str, Any]], run: str, **options: Any
) -> Any:
    """Save what all processes hold, one after the other; the last one commits."""
    for process in range(len(shares)):
        is_last = process == len(shares) - 1
        report = save_one(path, shares, process, run=run, commit=is_last, **options)
    return report


def save_states(
    path: Path | str,
    held: Sequence[tuple[dict[str, Any], Metadata]],
    run: str = "1",
    form: str = "shardvar",
    **options: Any,
) -> Any:
    """Save the tensors of all processes and what they say of them, as ``save_all``."""
    for process, (tensors, about) in enumerate(held):
        chosen = {"commit": process == len(held) - 1, "timeout": 5} | options
        saved = find_run(path, run, len(held), form, options=SaveOptions(**chosen))
        report = save_with_objects(saved, process, tensors, about)
    return report


@st.composite
def divided(draw: st.DrawFn, max_processes: int = 5) -> tuple[dict[str, Any], Shares]:
    """Draw tensors, and what each of several processes holds of them: any tiling, each part in one
    process or more."""
    tensors: Mapping[str, Any] = draw(tensor_dicts(strings=True))
    count = draw(st.integers(1, max_processes))
    shares: Shares = [{} for _ in range(count)]
    for key, array in tensors.items():
        whole = [sv.Region.whole(array.shape)]
        parts = whole if array.dtype.kind == "O" else draw(tilings(array.shape))
        for part in parts:
            for process in draw(st.sets(st.integers(0, count - 1), min_size=1)):
                shares[process].setdefault(key, []).append(shard_of(array, part))
    return dict(tensors), shares


def start_process(path: Path, run: str, process: int, count: int) -> "subprocess.Popen[str]":
    """Start a process that saves its share of the tensors whose seed is the name of the run."""
    program = command_of("helpers.shared_saves", path, run, process, count)
    return subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )


def main(path: str, run: str, process: str, count: str) -> None:
    """Save one share, and wait for the commit."""
    tensors = demo_share(int(run), int(process), int(count))
    sv.save_shards(
        path, tensors, process=int(process), num_processes=int(count), run=run, timeout=60
    )
    print(sv.load(path)["step"])


if __name__ == "__main__":
    main(*sys.argv[1:])

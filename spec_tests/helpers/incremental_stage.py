"""A directory of native checkpoints that refer to each other, with what a dict says of it."""

import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.errors import CheckpointNotFound
from shardvar.formats.native import FORMAT
from shardvar.storage.local import LocalStorage

Tensors = Mapping[str, Any]

VALUES: tuple[Any, ...] = (
    np.arange(6, dtype=np.float32).reshape(3, 2),
    np.zeros((3, 2), np.float32),
    np.arange(6, dtype=np.int32).reshape(3, 2),
    np.array([b"one", b""], dtype=object),
    np.zeros((0, 4), np.float64),
    np.array(7),
)
"""Values of tensors: two that differ in bytes only, and some that differ in dtype or shape."""


def tensors(*numbers: int) -> dict[str, Any]:
    """Tensors w0, w1 ... with these values; -1 for none."""
    return {f"w{key}": VALUES[number] for key, number in enumerate(numbers) if number >= 0}


def are_equal(found: Tensors, expected: Tensors) -> bool:
    """True if keys, dtypes, shapes and all values agree."""
    return found.keys() == expected.keys() and all(
        found[key].dtype == expected[key].dtype and np.array_equal(found[key], expected[key])
        for key in expected
    )


def checkpoints(directory: Path) -> list[str]:
    """The names of the checkpoints."""
    return FORMAT.locate(LocalStorage(str(directory)), "")


def assert_whole(directory: Path, expected: Mapping[str, Tensors]) -> None:
    """Each checkpoint has what the dict says, and every byte of it is verified."""
    assert sorted(checkpoints(directory)) == sorted(expected)
    for name, wanted in expected.items():
        assert are_equal(sv.load(directory / name), wanted), name
        assert sv.verify(directory / name).ok, name


def strays(directory: Path) -> set[str]:
    """The files that no index names, but for locks."""
    storage, named = LocalStorage(str(directory)), set[str]()
    for name in checkpoints(directory):
        with closing(FORMAT.open(storage, name)) as source:
            named |= {f"{name}.svindex", *source.index.files}
    return {name for name in os.listdir(directory) if not name.endswith(".lock")} - named


def remove_all(directory: Path, names: tuple[str, ...] = ("a", "b", "c")) -> None:
    """Remove the checkpoints of these names, and what writers left of them."""
    for name in names:
        try:
            sv.remove(directory / name)
        except CheckpointNotFound:
            storage = LocalStorage(str(directory))
            with storage.lock(name):
                FORMAT.remove(storage, name)


def three(directory: Path) -> dict[str, dict[str, Any]]:
    """Three checkpoints, of which each refers to the one before."""
    model = {"a": tensors(0, 1, 2), "b": tensors(0, 1, 3), "c": tensors(0, 2, 3)}
    directory.mkdir(exist_ok=True)
    sv.save(directory / "a", model["a"], policy=sv.BalancedPolicy(3))
    sv.save(directory / "b", model["b"], base=directory / "a")
    sv.save(directory / "c", model["c"], base=directory / "b")
    return model


def save_together(path: str | Path, base: str | Path) -> None:
    """Save by two processes: the first refers to what the base has, and the second writes."""
    new = tensors(0, 2, 5)
    shares = [{"w0": new["w0"], "w1": new["w1"]}, {"w1": new["w1"], "w2": new["w2"]}]
    options: dict[str, Any] = {"num_processes": 2, "run": "2", "attempt": "1", "base": base}
    for process, share in enumerate(shares):
        sv.save_shards(path, share, process=process, commit=process == 1, timeout=0, **options)

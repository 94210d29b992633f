"""A kill at any call of ``delta`` and ``apply`` loses nothing: the old checkpoint or the new one stands,
a delta that is there is whole, and the next run finds the way free."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ShardvarError
from shardvar.verbs import locate
from shardvar.verbs.delta.dialects import publication
from spec_tests.crash.test_crash import nothing, steps
from spec_tests.helpers.faulty_storage import Fault, Killed, failing

A = {"w": np.arange(4000).astype(ml_dtypes.bfloat16), "v": np.ones(9, ml_dtypes.bfloat16)}
B = {"w": (np.arange(4000) % 7).astype(ml_dtypes.bfloat16), "v": np.ones(9, ml_dtypes.bfloat16)}
DIALECTS = {"own": None, "slime": "slime", "trl": "trl"}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forced to the disk cannot be seen without cutting the power, and takes its time."""
    monkeypatch.setattr("shardvar.storage.posix.sync", lambda descriptor: None)

    # A delta of another program meets the fault as any target does.
    def split_place(path: Any) -> Any:
        return locate.split_place(path)

    monkeypatch.setattr(publication, "split_place", split_place)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both checkpoints, and a delta of each kind."""
    folder = tmp_path_factory.mktemp("made")
    sv.save(folder / "a", A)
    sv.save(folder / "b", B)
    for name in DIALECTS:
        if name != "slime":
            publish(folder, folder, name)
    return folder


def publish(source: Path, directory: Path, name: str, **options: Any) -> Path:
    """Write the delta of a kind into a directory; one of slime is the directory."""
    path = {"own": directory / "own", "slime": directory, "trl": directory / "d.safetensors"}[name]
    if DIALECTS[name]:
        options |= {"dialect": DIALECTS[name], "versions": ("1", "2")}
    sv.delta(source / "a", source / "b", path, **options)
    return path


def makes(base: Path, delta: Path, target: Path) -> bool | None:
    """Return True if a delta makes the new checkpoint; None if it is refused."""
    try:
        sv.apply(base, delta, target, force=True)
    except ShardvarError:
        return None
    return is_one(target, B)


def is_one(path: Path, tensors: dict[str, Any]) -> bool:
    found = sv.load(path)
    return {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in tensors.items()
    }


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
def test_a_delta_that_is_killed_is_whole_or_none(
    name: str, replaced: bool, made: Path, tmp_path: Path
) -> None:
    if name == "slime":
        pytest.importorskip("zstandard")
        pytest.importorskip("xxhash")
    run: Callable[[Path], Any] = lambda at: publish(made, at, name, force=replaced)  # noqa: E731
    prepare = (lambda at: publish(made, at, name)) if replaced else nothing
    path = {"own": "own", "slime": ".", "trl": "d.safetensors"}[name]
    seen = set()
    for directory, fault in steps(tmp_path, run, prepare, Killed):
        before = makes(made / "a", directory / path, tmp_path / "out")
        assert before is not False and (before or not replaced), fault.log
        seen.add(before)
        with failing(directory, Fault(-1)):
            publish(made, directory, name, force=True)
        assert makes(made / "a", directory / path, tmp_path / "out"), fault.log
        assert not [each for each in directory.rglob("*") if each.name.endswith(".tmp")], fault.log
    assert True in seen


@pytest.mark.parametrize("name", ["own", "trl"])
def test_an_apply_in_place_that_is_killed_leaves_the_old_or_the_new(
    name: str, made: Path, tmp_path: Path
) -> None:
    delta = made / {"own": "own", "trl": "d.safetensors"}[name]

    def run(directory: Path) -> None:
        sv.apply(directory / "ck", delta, directory / "ck", force=True)

    def prepare(directory: Path) -> None:
        sv.save(directory / "ck", A)

    seen = set()
    for directory, fault in steps(tmp_path, run, prepare, Killed):
        is_old = is_one(directory / "ck", A)
        assert is_old or is_one(directory / "ck", B), fault.log
        seen.add(is_old)
        if is_old:
            with failing(directory, Fault(-1)):
                run(directory)
        assert is_one(directory / "ck", B), fault.log
    assert seen == {True, False}

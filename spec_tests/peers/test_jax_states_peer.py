"""``shardvar.jax.save`` and ``load``: any pytree, any sharding, any number of processes."""

import json
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.jax_laws import LAWS, run_laws
from spec_tests.helpers.jax_training import run_training

for name in ("jax", "flax", "optax", "orbax.checkpoint"):
    pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each law."""
    return run_laws(tmp_path_factory.mktemp("laws"))


@pytest.mark.parametrize("law", LAWS)
def test_on_eight_devices(law: str, broken: dict[str, str]) -> None:
    assert broken.keys() == LAWS.keys()
    assert broken[law] == ""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that a training of two processes has saved into, and the losses after that."""
    folder = tmp_path_factory.mktemp("kept")
    losses = {*run_training("keep", folder, 2, "2x2")}
    assert len(losses) == 1
    return folder, losses.pop()


@pytest.mark.parametrize(("count", "meshes"), [(2, "2x2"), (1, "1x2,4x1")])
def test_a_training_resumes_on_another_mesh(
    kept: tuple[Path, str], count: int, meshes: str
) -> None:
    """The state is that of the run that goes on, bit for bit, and so are the losses on the same
    mesh. Other meshes may add in another order. Orbax's folder has the same keys and values."""
    folder, losses = kept
    for printed in run_training("resume", folder, count, meshes):
        assert len(printed.splitlines()) == len(meshes.split(","))
        for line in printed.splitlines():
            assert line == losses or meshes != "2x2"
            assert np.allclose(json.loads(line), json.loads(losses), rtol=1e-5)
    assert sv.diff(folder / "ck", folder / "orbax").equal


def test_a_process_that_dies_or_lacks_an_array_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    printed, _ = run_training("faulty", tmp_path, 2, "2x1")
    lines = printed.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("'both' lacks [1:2, 0:3]. It is held by process 0.")
    assert all(line.startswith("Process 1 of 2 did not save within 1 s.") for line in lines[1:])
    assert [*sv.load(tmp_path / "old")] == ["on_one", "w"]
    assert not sv.newest_checkpoint(tmp_path).endswith("new")

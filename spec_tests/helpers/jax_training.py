"""Training jobs of JAX on several processes, whose states are saved and loaded by all of them.

`python -m spec_tests.helpers.jax_training JOB FOLDER RANK COUNT MESH` is one process of a job. MESH is the shape of the
mesh over the devices of all processes, such as ``2x2``: the batch is divided over the first axis, and the weights over
both. Several meshes, joined by commas, are one after the other:

    keep     train, save with ``shardvar.jax.save`` in FOLDER/ck and with Orbax in FOLDER/orbax, write the whole state
             to FOLDER/whole.npz, train on, and print the losses
    resume   load FOLDER/ck and FOLDER/orbax, compare both with the whole state, train on, and print the losses
    faulty   save in FOLDER/old; save an array of both processes that one of them lacks; save over it and in
             FOLDER/new while the last process is killed before its share
"""

import os
import re
import socket
import sys
import traceback
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from spec_tests.helpers.programs import command_of, run_together

KILLED = 9
"""The exit code of a process that is killed."""
_PRINTED = re.compile(r"^(?:Process .*|.*both.*|\[[-0-9., e]*\])$", re.MULTILINE)
"""What jobs print: errors, and lists of losses."""
SIZES = 8, 16, 4
"""The features before, between and after the two layers."""


def shape_of(mesh: str) -> tuple[int, ...]:
    """Return the shape of a mesh.

    >>> shape_of("4x2")
    (4, 2)
    """
    return tuple(map(int, mesh.split("x")))


def run_training(job: str, folder: Path, count: int, mesh: str) -> list[str]:
    """Run all processes of a job at once; return what each has printed."""
    devices = max(int(np.prod(shape_of(each))) for each in mesh.split(",")) // count
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (folder / "coordinator").write_text(f"127.0.0.1:{free.getsockname()[1]}")
    flags = f"--xla_force_host_platform_device_count={devices}"
    printed = run_together(
        [
            command_of("helpers.jax_training", job, folder, rank, count, mesh)
            for rank in range(count)
        ],
        {count - 1: KILLED} if job == "faulty" else (0,),
        more={"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    # Gloo prints to the same place, and in the middle of lines.
    return ["\n".join(_PRINTED.findall(each)) for each in printed]


class Run:
    """Two layers with dropout, AdamW of Optax, and what a trainer keeps with them."""

    def __init__(self, mesh: str) -> None:
        import jax
        import optax
        from jax.sharding import AxisType, Mesh

        shape = shape_of(mesh)
        devices = np.asarray(jax.devices()[: int(np.prod(shape))]).reshape(shape)
        self.mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01))
        self.like = self._like()
        self.state: dict[str, Any] = {}

    def _make(self) -> dict[str, Any]:
        import jax

        keys = jax.random.split(jax.random.key(7), 4)
        weights = [
            {"w": jax.random.normal(key, shape) / 3, "b": jax.numpy.zeros(shape[1])}
            for key, shape in zip(keys[:2], pairwise(SIZES), strict=True)
        ]
        return {"params": weights, "opt": self.optimizer.init(weights), "key": keys}

    def _like(self) -> dict[str, Any]:
        """Return the state without values, with the shardings that it is to have."""
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        def described(array: Any) -> Any:
            names = zip(array.shape[:2], ("model", "data"), strict=False)
            spec = [name if extent % self.mesh.shape[name] == 0 else None for extent, name in names]
            sharding = NamedSharding(self.mesh, PartitionSpec(*spec))
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

        made = jax.tree.map(described, jax.eval_shape(self._make))
        return made | {"step": 0, "name": ""}

    def begin(self) -> None:
        """Make the state of step 0."""
        import jax

        arrays = {key: each for key, each in self.like.items() if key not in ("step", "name")}
        shardings = jax.tree.map(lambda each: each.sharding, arrays)
        made = jax.jit(self._make, out_shardings=shardings)()
        self.state = made | {"step": 0, "name": "a run"}

    def train(self, stop: int) -> list[float]:
        """Train up to a step; return the losses."""
        import jax
        import optax
        from jax.sharding import NamedSharding, PartitionSpec

        def loss_of(weights: Any, batch: Any, key: Any) -> Any:
            first, second = weights
            inner = jax.nn.relu(batch @ first["w"] + first["b"])
            inner *= jax.random.bernoulli(key, 0.75, inner.shape)
            return ((inner @ second["w"] + second["b"]) ** 2).mean()

        def step_of(state: Any, batch: Any) -> Any:
            weights, key = state["params"], state["key"]
            loss, slopes = jax.value_and_grad(loss_of)(weights, batch, key[0])
            changes, opt = self.optimizer.update(slopes, state["opt"], weights)
            made = {"params": optax.apply_updates(weights, changes), "opt": opt}
            return loss, made | {"key": jax.vmap(jax.random.fold_in, (0, None))(key, 1)}

        losses = []
        arrays = {key: each for key, each in self.like.items() if key not in ("step", "name")}
        places = jax.tree.map(lambda each: each.sharding, arrays)
        jitted = jax.jit(step_of, out_shardings=(None, places))
        spread = NamedSharding(self.mesh, PartitionSpec("data"))
        while self.state["step"] < stop:
            numbers = np.random.default_rng(self.state["step"])
            whole = numbers.normal(size=(8, SIZES[0])).astype(np.float32)
            batch = jax.make_array_from_callback(whole.shape, spread, whole.__getitem__)
            loss, made = jitted({key: self.state[key] for key in arrays}, batch)
            self.state |= made
            self.state["step"] += 1
            losses.append(float(loss))
        return losses


def whole_of(state: Any) -> dict[str, Any]:
    """Return the whole arrays of a state by their paths in JAX; all processes call this together."""
    import jax
    from jax.experimental import multihost_utils

    found = {}
    for path, value in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(value, jax.Array):
            is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
            data = jax.random.key_data(value) if is_key else value
            found[jax.tree_util.keystr(path)] = np.asarray(
                multihost_utils.process_allgather(data, tiled=True)
            )
        else:
            found[jax.tree_util.keystr(path)] = np.asarray(value)
    return found


def check_equal(state: Any, whole: Any) -> None:
    """Raise unless a state has the whole arrays, bit for bit."""
    found = whole_of(state)
    assert found.keys() == {*whole}
    for key, array in found.items():
        assert (array.dtype, array.shape) == (whole[key].dtype, whole[key].shape), key
        assert array.tobytes() == whole[key].tobytes(), key


def keep(folder: Path, mesh: str, rank: int) -> None:
    """Train, save, and train on."""
    import orbax.checkpoint as ocp

    import shardvar.jax

    run = Run(mesh)
    run.begin()
    run.train(3)
    shardvar.jax.save(folder / "ck", run.state, run="3")
    ocp.PyTreeCheckpointer().save(folder / "orbax", run.state)
    whole = whole_of(run.state)
    if rank == 0:
        np.savez(folder / "whole.npz", **whole)
    print(run.train(6))


def resume(folder: Path, mesh: str) -> None:
    """Load what was saved into a new state, and train on."""
    import jax

    import shardvar.jax

    whole = np.load(folder / "whole.npz")
    for shape in mesh.split(","):
        run = Run(shape)
        for path in (folder / "orbax", folder / "ck"):
            run.state = shardvar.jax.load(path, run.like)
            check_equal(run.state, whole)
            for made, wanted in zip(*map(jax.tree.leaves, (run.state, run.like)), strict=True):
                assert type(made) is type(wanted) or made.sharding == wanted.sharding
        print(run.train(6))


def faulty(folder: Path, rank: int, count: int) -> None:
    """Save; save an array that another process lacks; save again while the last process is killed."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

    import shardvar.jax
    from shardvar.errors import IncompleteCheckpoint

    last = jax.devices()[-1]
    values = np.arange(3, dtype=np.float32)
    alone = jax.make_array_from_callback(
        (3,), SingleDeviceSharding(last), values.__getitem__, dtype=values.dtype
    )
    spread = NamedSharding(jax.make_mesh((count,), ("x",)), PartitionSpec("x"))
    both = jax.make_array_from_callback((count, 3), spread, np.ones((count, 3)).__getitem__)
    state = {"w": jax.numpy.zeros(3), "on_one": alone}
    shardvar.jax.save(folder / "old", state, run="1")
    lacking = state | ({"both": both} if rank == 0 else {})
    try:
        shardvar.jax.save(folder / "old", lacking, run="2", timeout=60.0)
    except IncompleteCheckpoint as error:
        print(error)
    if rank == count - 1:
        os._exit(KILLED)
    for name in ("old", "new"):
        try:
            shardvar.jax.save(folder / name, state, run="3", timeout=1.0)
        except IncompleteCheckpoint as error:
            print(error)


def main(job: str, folder: Path, rank: int, count: int, mesh: str) -> None:
    """Run one process of a job."""
    import jax

    warnings.simplefilter("ignore")
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize((folder / "coordinator").read_text(), count, rank)
    if job == "faulty":
        faulty(folder, rank, count)
        return
    if job == "keep":
        keep(folder, mesh, rank)
    else:
        resume(folder, mesh)
    if count > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("done")


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # JAX waits for processes that are dead

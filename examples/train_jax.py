"""Train with weights that are divided over the devices of all processes, and save every second step.
Kill it, and start it again on any number of processes: it goes on from the newest whole step.

    python examples/train_jax.py RUN_FOLDER NUMBER_OF_STEPS
    python examples/train_jax.py RUN_FOLDER NUMBER_OF_STEPS COORDINATOR NUMBER_OF_PROCESSES PROCESS
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardvar as sv
import shardvar.jax

folder, last, *job = sys.argv[1:]
if job:
    jax.distributed.initialize(job[0], int(job[1]), int(job[2]))
mesh = Mesh(jax.devices(), ("devices",))
optimizer = optax.adamw(0.01)


def begin() -> dict[str, Any]:
    """Return the state of a run that begins."""
    first, second = jax.random.split(jax.random.key(0))
    weights = {
        "in": jax.random.normal(first, (16, 64)) / 4,
        "out": jax.random.normal(second, (64, 8)) / 8,
    }
    return {"weights": weights, "optimizer": optimizer.init(weights)}


def divided(array: Any) -> NamedSharding:
    """Return the sharding of an array: its first axis is divided over all devices."""
    return NamedSharding(mesh, PartitionSpec(*["devices"] * bool(array.ndim)))


def one_step(state: dict[str, Any], key: Any) -> tuple[Any, dict[str, Any]]:
    """Return the loss of a step, and the state after it."""
    # Each device computes with whole weights, so that sums have one order on any mesh.
    whole = NamedSharding(mesh, PartitionSpec())
    weights = jax.lax.with_sharding_constraint(state["weights"], whole)
    batch = jax.random.normal(key, (8, 16))

    def loss_of(weights: dict[str, Any]) -> Any:
        made = jax.nn.relu(batch @ weights["in"]) @ weights["out"]
        return jnp.square(made - batch[:, :8]).mean()

    loss, slopes = jax.value_and_grad(loss_of)(weights)
    slopes = jax.lax.with_sharding_constraint(slopes, whole)
    changes, memory = optimizer.update(slopes, state["optimizer"], state["weights"])
    made = {"weights": optax.apply_updates(state["weights"], changes), "optimizer": memory}
    return loss, jax.lax.with_sharding_constraint(made, shardings)


train = jax.jit(one_step)
like = jax.eval_shape(begin)
shardings = jax.tree.map(divided, like)
with sv.SavedSteps(folder, using=shardvar.jax, keep_last=2, keep_best=1) as steps:
    found = steps.restore(
        jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), like, shardings
        )
    )
    state = found.loaded if found else jax.jit(begin, out_shardings=shardings)()
    for step in range(found.number + 1 if found else 1, int(last) + 1):
        loss, state = train(state, jax.random.key(step))
        if jax.process_index() == 0:
            print(step, loss.item(), flush=True)
        if step % 2 == 0 or step == int(last):
            steps.save(step, state, value=loss.item())

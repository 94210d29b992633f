"""R-POLICY-3-restore: Orbax casts what it restores to the dtype that is asked for, and loses its
fractions."""

import sys
import tempfile

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

with (
    tempfile.TemporaryDirectory() as path,
    ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
):
    checkpointer.save(f"{path}/model", args=ocp.args.StandardSave({"w": jnp.array([1.5, 2.5])}))
    wanted = {"w": jnp.zeros(2, jnp.int32)}
    try:
        came = checkpointer.restore(f"{path}/model", args=ocp.args.StandardRestore(wanted))["w"]
    except (TypeError, ValueError) as error:
        sys.exit(print(f"JAX {jax.__version__}, Orbax {ocp.__version__} refuses: {error}"))
print(
    f"JAX {jax.__version__}, Orbax {ocp.__version__}: [1.5, 2.5] was saved, and {came} is "
    f"restored as {came.dtype}"
)
sys.exit(1)

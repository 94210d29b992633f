"""R-CKPT-1-few, R-CKPT-1-empty: Orbax does not save an array without elements."""

import sys
import tempfile

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

with (
    tempfile.TemporaryDirectory() as path,
    ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
):
    try:
        checkpointer.save(f"{path}/model", args=ocp.args.StandardSave({"w": jnp.zeros((0, 3))}))
    except ValueError as error:
        print(
            f"JAX {jax.__version__}, Orbax {ocp.__version__}: an array of 0 rows is refused: "
            f"{error}"
        )
        sys.exit(1)
print(f"JAX {jax.__version__}, Orbax {ocp.__version__}: an array of 0 rows was saved")

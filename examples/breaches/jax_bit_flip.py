"""R-DAMAGE-1-flip: bits of an Orbax checkpoint's values are flipped, one at a time, and restored
without a word."""

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

saved = np.random.default_rng(1).normal(size=1000).astype(np.float32)
with (
    tempfile.TemporaryDirectory() as path,
    ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
):
    checkpointer.save(f"{path}/model", args=ocp.args.StandardSave({"w": jax.numpy.asarray(saved)}))
    file = max(
        (one for one in Path(path).rglob("*") if one.is_file()), key=lambda one: one.stat().st_size
    )
    data = file.read_bytes()
    for at in range(1000, 3000, 250):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            came = checkpointer.restore(
                f"{path}/model", args=ocp.args.StandardRestore({"w": np.zeros_like(saved)})
            )["w"]
        except ValueError:
            continue
        if wrong := int((came != saved).sum()):
            told = f"a bit of byte {at} was flipped, and {wrong} values are wrong without an error"
            print(f"JAX {jax.__version__}, Orbax {ocp.__version__}: {told}")
            sys.exit(1)
print(f"JAX {jax.__version__}, Orbax {ocp.__version__}: every flipped bit was noticed")

"""V-REFUSE-2-constraint: a sharding constraint that does not divide is dropped: each device holds
all of it."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

halves = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
try:
    jax.device_put(jnp.arange(3.0), halves)
except ValueError as error:
    print(f"JAX {jax.__version__}, device_put refuses: {str(error).partition(',')[0]} ...")
try:
    array = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, halves))(jnp.arange(3.0))
except ValueError as error:
    sys.exit(print(f"JAX {jax.__version__}, a constraint refuses too: {error}"))
print(
    f"JAX {jax.__version__}, a constraint to two halves of 3: "
    f"{[s.data.tolist() for s in array.addressable_shards]}"
)
sys.exit(1)

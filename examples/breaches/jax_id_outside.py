"""JAX makes up rows that are not there, and drops writes to them.

R-VAR-1-outside, R-ID-1, R-ID-1-sparse-read, R-ID-1-scatter.
"""

import sys

import jax
import jax.numpy as jnp

table, ids = jnp.array([1.0, 2.0]), jnp.array([7])
try:
    taken = jnp.take(table, ids, axis=0)
    print(
        f"JAX {jax.__version__}, row 7 of [1, 2]: table[7] is {table[7]}, and jnp.take gives "
        f"{taken}"
    )
    print(f"JAX {jax.__version__}, 100 added to row 7 of [1, 2]: {table.at[ids].add(100.0)}")
    print(f"JAX {jax.__version__}, row 7 of [1, 2] set to 100: {table.at[ids].set(100.0)}")
except IndexError as error:
    sys.exit(print(f"JAX {jax.__version__} refuses: {error}"))
sys.exit(1)

"""R-VAR-2-assign: one row is assigned to a variable of four without a word, and stands in all of
them."""

import sys

import jax
import jax.numpy as jnp

table = jnp.array([1.0, 2.0, 3.0, 4.0])
try:
    table = table.at[...].set(jnp.array([101.0]))
except ValueError as error:
    sys.exit(print(f"JAX {jax.__version__} refuses: {error}"))
print(f"JAX {jax.__version__}: one row was assigned, and four are held: {table}")
sys.exit(1)

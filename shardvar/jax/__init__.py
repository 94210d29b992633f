"""The face for training loops in JAX; importing it imports jax (extra ``jax``).

``save`` and ``load`` take any pytree of arrays with any sharding, and need no messages between
processes.
"""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("jax", "jaxlib"):
        raise
    from shardvar.extras import missing_extra

    raise missing_extra("shardvar.jax needs JAX, which is not installed.", "jax") from None

from shardvar.jax.leaves import gather_integers as gather
from shardvar.jax.pytrees import job_processes as processes
from shardvar.jax.pytrees import load_pytree as load
from shardvar.jax.pytrees import save_pytree as save
from shardvar.verbs.training.states import LoadReport

__all__ = ["LoadReport", "gather", "load", "processes", "save"]

"""Recordings of TensorFlow's sharded variables as JSON, and this engine's results for the same
inputs.

The recordings lie in `spec_tests/golden/variables`. One module a group. A module offers

    OPS     op -> function(inputs) that does the same here and returns what the recording's `expected` describes
    LAWS    op -> function(expected), for ops whose recordings may have no inputs: what the law in the op's
            name gives for the values of the answer
    RULES   the deviations that the group knows, each a `Rule` whose id stands in docs/deviations.md

Another layer adds a group by adding a module and its name to `GROUPS`; a group of ops for a group
that exists already (lookups in div_mod) is added to that group's `OPS`.
"""

from importlib import import_module
from types import ModuleType

GROUPS = (
    "checkpoint", "constructor", "creation", "div_mod", "getitem", "gradients", "initializers", "losses", "operators",
    "optimizers", "partitioners", "rng", "scatter_assign", "sparse_lookups", "tf1_partitioned", "variable_semantics",
)  # fmt: skip
"""The groups, each the name of its module here."""


def group_module(group: str) -> ModuleType | None:
    """Return the module of a group, or None for a group without one."""
    return import_module(f"{__name__}.{group}") if group in GROUPS else None

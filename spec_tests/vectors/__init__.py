"""Vectors: what TensorFlow did with sharded variables, as JSON, and what this engine makes of the same inputs.

One module a group. A module offers

    OPS     op -> function(inputs) that does the same here and returns what the vector's ``expected`` describes
    RULES   the deviations that the group knows, each a ``Rule`` whose id stands in docs/deviations.md

Another layer adds a group by adding a module and its name to ``GROUPS``; a group of ops for a group that exists already
(lookups in div_mod) is added to that group's ``OPS``.
"""

from importlib import import_module
from types import ModuleType

GROUPS: dict[str, str] = {
    "checkpoint": "checkpoint",
    "constructor": "constructor",
    "creation": "creation",
    "div_mod": "div_mod",
    "getitem": "getitem",
    "gradients": "gradients",
    "initializers": "initializers",
    "losses": "losses",
    "operators": "operators",
    "optimizers": "optimizers",
    "partitioners": "partitioners",
    "rng": "rng",
    "scatter_assign": "scatter_assign",
    "sparse_lookups": "sparse_lookups",
    "tf1_partitioned": "tf1_partitioned",
    "variable_semantics": "variable_semantics",
}
"""Group -> its module here."""


def group_module(group: str) -> ModuleType | None:
    """The module of a group, or None where no layer has one yet."""
    return import_module(f"vectors.{GROUPS[group]}") if group in GROUPS else None

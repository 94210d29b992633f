"""Sharded variables and their checkpoints as plain functions: a book to read from top to bottom.

Each function is one rule. Above it stands the sentence of the RFC, or the name of the framework,
that it obeys. A function without either defines a word that the rules use, such as ``indices``.
Bodies are the shortest that are right: they loop, list indices one by one and copy whole arrays, and
no function is fast. The rest of shardvar is fast, and tests hold each of its functions to the one
here. The book imports only NumPy and the standard library.

    1   partitions       which part of a tensor holds which indices: div, grids, regions
    2   partitioners     from shapes and bytes to numbers of parts
    3   variables        a sharded variable as a list of arrays: read, index, assign, scatter
    4   random_words     the words that random values are made of
    5   initial_values   seeded shards, each drawn by itself (``decimals`` has its logarithms and sines)
    6   lookups          rows by ids, bags of ids, balanced rows
    7   losses           sampled losses over many classes
    8   gradients        the shards' parts of a gradient
    9   optimizers       steps and slots
    10  checkpoints      slices, and the tensors that are made of them again
    11  policies         which slices share a file, and what a policy must not do
    12  meshes           what each device holds: DTensor, JAX, FSDP, Megatron
    13  redistribution   what must move between two layouts
    14  histories        reads and writes in time, and the orders that they may take
    15  strategies       creators, placement, copies, heuristics; whole or as shards

Functions expect arguments that make sense, and raise ``ValueError``, ``IndexError`` or ``KeyError``
only where a sentence demands a refusal. Ranges are half-open. A region is an offset and a shape.
"""

from shardvar.spec import (
    checkpoints,
    decimals,
    gradients,
    histories,
    initial_values,
    lookups,
    losses,
    meshes,
    optimizers,
    partitioners,
    partitions,
    policies,
    random_words,
    redistribution,
    strategies,
    variables,
)

__all__ = [
    "checkpoints",
    "decimals",
    "gradients",
    "histories",
    "initial_values",
    "lookups",
    "losses",
    "meshes",
    "optimizers",
    "partitioners",
    "partitions",
    "policies",
    "random_words",
    "redistribution",
    "strategies",
    "variables",
]

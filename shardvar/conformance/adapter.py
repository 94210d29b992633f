"""Adapters: any class that has some of the methods below; each method is optional.

    pytest --pyargs shardvar.conformance --adapter mypackage.adapter:Adapter

An adapter connects an implementation to the kit. It is constructed without arguments and needs no
base class. Arrays are NumPy's in both directions. The rules of a method that it lacks are **not
claimed**: the report says so and never counts them as kept. A method may raise
``NotImplementedError`` for inputs that the implementation does not support (a dtype, an operation):
these inputs are not claimed. Any other exception is a refusal: it keeps the rules that ask for one
and breaks all others. This is a complete adapter, of an implementation that keeps a list of arrays:

    import numpy as np

    class Adapter:
        def create(self, value, num_shards):                 # any object will do as a handle
            return np.array_split(value.copy(), num_shards)

        def read(self, handle):
            return np.concatenate(handle)

        def lookup(self, handle, ids):
            return np.concatenate(handle)[ids]

        def assign(self, handle, value):                     # writes return the new handle, or None: changed in place
            return np.array_split(value, len(handle))

``shape`` is a tuple of integers, ``dtype`` a NumPy dtype (bfloat16 and its like come from
ml_dtypes), ``ids`` an int64 array, and rows are indices of axis 0. The implementation chooses how
rows are spread over ``num_shards`` shards, except where a method says otherwise.

``mesh`` is the shape of a mesh, whose devices are counted in C order. ``placements`` has an entry
for each of its axes: the axis of the tensor that it cuts, None for copies, or ``("strided", axis,
split_factor)``. ``spec`` has an entry for each axis of the tensor: a tuple of ``names`` of the mesh
axes that cut it.

==========================================================  ==========================================================
1 partitioning
``div(length, num_shards)``                                 the (start, stop) of each shard:
                                                            ``num_shards`` pairs
``owner(ids, length, num_shards)``                          two arrays like ``ids``: the shard of
                                                            each, its row there
``regions(shape, counts)``                                  the (offset, shape) of each part of a
                                                            grid, in C order
``fixed_shards(shape, dtype, num_shards)``                  a partitioner: how many parts along each
                                                            axis
``min_size(shape, dtype, min_shard_bytes, max_shards)``     a partitioner: as many parts as can hold
                                                            that much each
``max_size(shape, dtype, max_shard_bytes, max_shards)``     a partitioner: as few parts as exceed it
                                                            nowhere
2 variables and indexing
``create(value, num_shards)``                               a handle of a sharded variable that
                                                            holds ``value``
``create_uneven(value, sizes)``                             the same, in shards of ``sizes`` rows
``create_partitioned(value, counts)``                       the same, for a partitioner that
                                                            answered ``counts`` per axis
``read(handle)``                                            the whole value
``shards(handle)``                                          the value of each shard, in order
``index(handle, key)``                                      ``variable[key]``: a tuple of integers,
                                                            slices, ``...``, None, or of one list or
                                                            array of rows, or a mask
``matmul(left, handle)``                                    the product of an array and the variable
3 lookup and updates
``lookup(handle, ids)``                                     the rows of the ids, by the embedding
                                                            lookup
``sparse_read(handle, ids)``                                the same by the variable's own method,
                                                            or gather
``lookup_clipped(handle, ids, max_norm)``                   the rows, each clipped to an l2 norm
``lookup_bags(handle, bags, weights, combiner)``            a row a bag of ids, combined by sum,
                                                            mean or sqrtn; weights are lists like
                                                            the bags, or None
``assign(handle, value)``                                   the variable holds ``value``
``assign_add(handle, value)``, ``assign_sub(…)``            the variable holds the sum, the
                                                            difference
``scatter(handle, op, ids, rows)``                          op: add, sub, mul, div, min, max,
                                                            update; operands of one row are applied
                                                            in the order of the ids
4 initialization
``initialize(kind, shape, dtype, num_shards, seed)``        the values of the shards; kind: zeros,
                                                            ones, random_uniform (-0.05 to 0.05),
                                                            random_normal (mean 0, deviation 0.05),
                                                            truncated_normal (the same, between -0.1
                                                            and 0.1), glorot_uniform (up to sqrt(6 /
                                                            (in + out)): the last two axes, each times
                                                            the product of all before them)
``initialize_whole(function, shape, dtype, num_shards)``    the same by a callable ``function(shape,
                                                            dtype)``
``initialize_parts(function, shape, dtype, num_shards)``    the same by a partition-aware callable
                                                            ``function(shape, dtype, part_shape, part_offset)``
5 optimizers
``optimize(kind, value, num_shards, gradients)``            the value after a step a gradient: an
                                                            array, or (ids, rows); kind: sgd,
                                                            momentum (0.9), adagrad, adam; the rate
                                                            is 0.1 without Nesterov's momentum,
                                                            Adam's betas 0.9 and 0.999, any epsilon
                                                            of at most 1e-7
``optimize_uneven(kind, value, sizes, gradients)``          the same, in shards of ``sizes`` rows
``slots(kind, value, num_shards, gradients)``               after them: {slot: the values of its
                                                            shards}
``slots_uneven(kind, value, sizes, gradients)``             the same, in shards of ``sizes`` rows
6 checkpoint save and elastic restore
``save(path, tensors, num_shards)``                         write {key: array}, each in so many
                                                            slices, under a new path; a file, a
                                                            directory or a prefix, but nothing next
                                                            to it
``restore(path, templates, num_shards)``                    {key: array} into variables of so many
                                                            shards; templates are arrays of the
                                                            right shape and dtype, filled with junk
``restore_uneven(path, templates, sizes)``                  the same, into variables in shards of
                                                            ``sizes`` rows
``list_tensors(path)``                                      {key: (shape, dtype's name)}
``read_rows(path, key, start, stop)``                       some rows of a tensor
``save_parts(path, key, shape, dtype, parts)``              write one tensor from parts: (offset,
                                                            array) pairs
7 policies
``save_limited(path, tensors, num_shards, max_nbytes)``     as save; no file holds more bytes of
                                                            payload
``file_nbytes(path)``                                       the bytes of payload that each file
                                                            holds
``save_by_callback(path, tensors, callback, description)``  as save; ``callback(tensors)`` gives for
                                                            each file a list of (key, first row,
                                                            rows); scalars have first row 0
``description(path)``                                       the description that was saved
8 robustness against damaged checkpoints
(``save`` and ``restore``)                                  the kit damages what ``save`` wrote;
                                                            ``restore``, called in another process,
                                                            must raise or give the right values
9 meshes and placements
``mesh_parts(value, mesh, placements)``                     the array that each device of a mesh
                                                            holds
``mesh_slices(shape, mesh, placements)``                    the (offset, shape) that is stated for
                                                            each device
``mesh_gather(parts, shape, mesh, placements)``             the whole value, from the array of each
                                                            device
``mesh_move(value, mesh, source, target)``                  the array of each device, after
                                                            ``value`` was placed by ``source`` and
                                                            redistributed to ``target``
``mesh_move_joined(value, mesh, source, target)``           the same answer; the mesh has two axes,
                                                            and its library may also know them as one
                                                            axis of ``mesh[0] * mesh[1]`` devices
                                                            (PyTorch's ``_flatten``), through which a
                                                            redistribution may go. ``source`` and
                                                            ``target`` are of the two axes
``mesh_reduce(terms, mesh, axis, op, placements)``          the array of each device; ``axis`` of
                                                            the mesh was pending, its devices held
                                                            ``terms``; op: sum, avg, min, max
``spec_parts(value, mesh, names, spec)``                    the array of each device, by names for
                                                            each tensor axis
``spec_constrained(value, mesh, names, spec)``              the same, constrained within a compiled
                                                            function
``fsdp_parts(value, mesh)``                                 the array of each device: FSDP over
                                                            tensor parallelism on a mesh (dp, tp);
                                                            both cut axis 0
``fsdp_shapes(shape, mesh)``                                the shape that is stated for each device
                                                            then
``hsdp_parts(value, mesh, fsdp_axis, tp_axis)``             the array of each device of a mesh
                                                            (copies, dp, tp): FSDP of one axis of
                                                            the tensor over tensor parallelism of
                                                            the same or another one, or None
10 training across layouts
``save_training(path, kind, values, layout, gradients)``    train {key: array} by one optimizer, a
                                                            step for each {key: gradient}, and write
                                                            all that it takes to go on; ``layout``
                                                            is a number of shards, or the list of
                                                            their rows
``resume_training(path, kind, templates, layout, …)``       restore these variables and their
                                                            optimizer, make a step for each of the
                                                            ``gradients``; {key: value}
``resumed_slots(path, kind, templates, layout, …)``         the same; {key: {slot: the values of its
                                                            shards}}
==========================================================  ==========================================================
"""

from importlib import import_module
from traceback import extract_tb
from typing import Any

from shardvar.errors import ArgumentError

__all__ = [
    "METHODS",
    "load_adapter",
    "methods_of",
    "strangers_of",
]

LEVEL_OF = {
    method: level
    for level, methods in enumerate((
        "div owner regions fixed_shards min_size max_size",
        "create create_uneven create_partitioned read shards index matmul",
        "lookup sparse_read lookup_clipped lookup_bags assign assign_add assign_sub scatter",
        "initialize initialize_whole initialize_parts",
        "optimize optimize_uneven slots slots_uneven",
        "save restore restore_uneven list_tensors read_rows save_parts",
        "save_limited file_nbytes save_by_callback description",
        "",
        "mesh_parts mesh_slices mesh_gather mesh_move mesh_move_joined mesh_reduce spec_parts spec_constrained "
        "fsdp_parts fsdp_shapes hsdp_parts",
        "save_training resume_training resumed_slots",
    ), 1)
    for method in methods.split()
}  # fmt: skip
"""The level of each method of the table above."""

METHODS = frozenset(LEVEL_OF)


def load_adapter(spec: str) -> Any:
    """Construct and return an adapter.

    Parameters
    ----------
    spec : str
        Its name, ``"package.module:Name"``. An instance is taken as it is.

    Returns
    -------
    object
        The adapter.

    Raises
    ------
    ArgumentError
        If there is no such module, or no such name in it, or it cannot be constructed.

    Examples
    --------
    >>> type(load_adapter("shardvar.conformance.adapters.numpy:Adapter")).__name__
    'Adapter'
    """
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise ArgumentError(f"Invalid adapter {spec!r}.", "Give package.module:Name.")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        # An import that fails inside the adapter's module is the adapter's error, and keeps its
        # traceback.
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ArgumentError(
            f"Cannot import {error.name!r}, the module of the adapter {spec!r}.",
            "Install it, or run pytest in its directory.",
        ) from error
    if not hasattr(module, name):
        raise ArgumentError(
            f"The module {module_name!r} has no {name!r}.", "Give the name of the adapter's class."
        )
    made = getattr(module, name)
    # An instance is taken as it is: a module may construct its adapter with arguments and give it a
    # name.
    try:
        return made() if callable(made) else made
    except Exception as error:
        *_, last = extract_tb(error.__traceback__)
        raise ArgumentError(
            f"Cannot construct the adapter {spec!r}: {type(error).__name__}: {error} "
            f"(line {last.lineno} of {last.filename}).",
            "It is called without arguments. For one that needs some, give the name of an "
            "instance.",
        ) from error


def methods_of(adapter: Any) -> frozenset[str]:
    """Return the names of an adapter's methods that a rule may need.

    Parameters
    ----------
    adapter : object
        The adapter.

    Examples
    --------
    >>> class Little:
    ...     def div(self, length, num_shards): ...
    ...     def helper(self): ...
    >>> sorted(methods_of(Little()))
    ['div']
    """
    # ``callable``, so that a subclass can withdraw a method of its base by setting it to None.
    return frozenset(name for name in METHODS if callable(getattr(adapter, name, None)))


def strangers_of(adapter: Any) -> list[str]:
    """Return the public methods of an adapter that no rule needs: helpers, or misspelt names.

    Parameters
    ----------
    adapter : object
        The adapter.
    """
    # A misspelt name, such as look_up for lookup, would otherwise only make a rule "not claimed".
    public = {
        name
        for name in dir(adapter)
        if not name.startswith("_") and callable(getattr(adapter, name, None))
    }
    return sorted(public - METHODS)

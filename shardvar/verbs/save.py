"""Save: arrays as a checkpoint.

find    the location of the target
plan    the arrays as a source with one entry each; slices, files and copies through
        ``verbs.writing``
move    arrays to files; one that lies in memory as its payload does is written from there
commit  the index last
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar._version import __version__
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import code
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.planning.slices import TensorTable, pad
from shardvar.records import replace
from shardvar.verbs.arguments import (
    as_array,
    check_mapping,
    check_policy,
    named_arguments,
    stored_dtype,
    texts_of,
)
from shardvar.verbs.lazy import as_values
from shardvar.verbs.locate import Path, find_target
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.writing import Partitions, carry_out, plan_checkpoint

WRITER = f"shardvar {__version__}"
"""The name and version that checkpoints keep of the program that wrote them."""


@named_arguments
def save(
    path: Path,
    tensors: Mapping[str, npt.ArrayLike],
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    metadata: Mapping[str, str] | None = None,
    digest: bool = False,
    force: bool = False,
    base: Path | None = None,
) -> WriteReport:
    """Write arrays as a checkpoint and commit it.

    Parameters
    ----------
    path : path_like
        The checkpoint to write: a prefix; for formats of one file its name, for formats of folders
        the folder; or a URL. With ``safetensors``, a path without that ending is a folder. An empty
        folder means a checkpoint in it.
    tensors : mapping of str to array_like
        The arrays by key, of any strides and byte order. Object arrays of ``bytes`` are string
        tensors. An array may be lazy: a value that is not an ``ndarray`` and has a shape and a dtype,
        such as ``reader[key]``, an array of Zarr, HDF5 or Dask, or the result of ``sv.lazy``.
    format : str, optional
        The name of a format that ``shardvar formats`` lists, ``'orbax-plain'`` or ``'universal'``. By
        default the ending of ``path`` decides (``.safetensors``, ``.npz``, ``.pt``, ``.zarr``,
        ``.index``); without one it is ``'shardvar'``.
    policy : policy, optional
        The policy that decides which slices share a file, such as ``MaxShardSizePolicy``.
    partition : partition or mapping of str to partition, optional
        The slices into which tensors are cut: a number of parts along the first axis, counts per
        axis, a ``PartitionSpec``, a ``Partition``, a ``Layout``, whose regions are stored once
        each, or a partitioner. A mapping has globs of keys. A partitioner is called as ``p(shape,
        dtype)`` or, if it takes three arguments, as ``p(num_shards, shape, dtype)``; ``num_shards``
        is the number of tasks that hold the tensors, 1 for arrays.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    digest : bool, default False
        Keep the digests of the tensors (``sv.digest``) in the checkpoint, for ``sv.verify``. Only
        the formats ``shardvar`` and ``safetensors`` have a place for them.
    force : bool, default False
        Replace an existing checkpoint also where the format cannot do that in one step.
    base : path_like, optional
        A checkpoint in the same directory, such as the previous step. Tensors whose key, dtype, shape
        and bytes it has are not written: the new checkpoint refers to the files that hold them. They
        keep the slices that they have there. Only the format ``'shardvar'`` can do this.

    Returns
    -------
    WriteReport
        The report of what was written.

    Raises
    ------
    TargetExists
        If a checkpoint exists that cannot be replaced in one step, and ``force`` is not set.
    UnsupportedError
        If the format cannot hold a tensor, or the digests.
    ArgumentTypeError
        If a value is not an array, or an argument has another wrong type.
    ArgumentError
        If the partition, the policy or the metadata do not fit the tensors or the format.
    CheckpointError
        If the base is damaged, or was replaced or removed while this was saved.
    StorageError
        If the disk is full, the file system refuses, or another writer holds the checkpoint
        (``LockHeld``).

    Notes
    -----
    An existing checkpoint of the same format is replaced in one step where the format can do that.
    With a base, tensors are compared by their digests, which the new checkpoint carries; of a base
    without digests the bytes are read. ``sv.remove`` and overwriting keep the files that other
    checkpoints of the directory refer to; ``sv.reshard`` writes a checkpoint that refers to none.
    Memory: the arrays, and a few blocks of 4 MiB. A lazy array is made once, when it is written,
    and dropped before the next one is made. Zarr and HDF5 are read some rows at a time, unless the
    array is cut along another axis. What a lazy array gives must have the shape and the dtype that
    it announces; otherwise nothing is written.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> sv.save(path, {"table": np.ones((13, 4), np.float32)}, partition=5).num_slices
    5
    """
    # Find.
    target = find_target(path, format, otherwise="shardvar")
    check_policy(policy)
    # Plan.
    source, about = source_of(tensors), Metadata(writer=WRITER, user=texts_of(metadata))
    entries = source.index.entries
    if base is not None:
        from shardvar.verbs.compare.claims import (  # only with a base
            compare_with_base,
            partition_of,
        )

        keys = entries.slices.tensors.keys
        entries, references, digests = compare_with_base(base, target, source)
        about = replace(about, references=references, digests=digests)
        partition = partition_of(partition, keys, entries.slices.tensors.keys)
    work = plan_checkpoint(
        target,
        entries,
        policy=policy,
        partition=partition,
        metadata=about,
        force=force,
        source=source,
    )
    if base is not None:
        from shardvar.verbs.compare.claims import check_unchanging  # only with a base

        work = check_unchanging(work)
    elif digest:
        from shardvar.verbs.compare.claims import digest_arrays  # only where digests are kept

        work = digest_arrays(replace(work, replace_atomically=True), source)
    # Check, move and commit.
    return carry_out(replace(work, replace_atomically=True))


def source_of(tensors: Mapping[str, npt.ArrayLike]) -> ArraySource:
    check_mapping(tensors, "keys to arrays")
    keys = list(tensors)
    arrays = [
        as_array(key, value) if type(value) is np.ndarray else as_values(key, value)
        for key, value in tensors.items()
    ]
    codes: dict[np.dtype[Any], int] = {}
    column = np.zeros(len(keys), dtype=np.int64)
    for row, (key, array) in enumerate(zip(keys, arrays, strict=True)):
        number = codes.get(array.dtype)
        if number is None:
            number = codes[array.dtype] = code(stored_dtype(key, array))
        column[row] = number
    check_keys(keys)
    ranks, shapes = pad([array.shape for array in arrays], fill=1)
    return array_source(TensorTable(keys, column, ranks, shapes).whole(), arrays)


def check_keys(keys: Sequence[Any]) -> None:
    for key in keys:
        if not isinstance(key, str):
            raise ArgumentError(f"The key {key!r} is a {type(key).__name__}.", "Keys are strings.")
    try:
        "".join(keys).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"A key has the character {error.object[error.start]!r}, which no file can hold.",
            "Rename the tensor.",
        ) from None

"""Save arrays as a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar._version import __version__
from shardvar.checkpoint.arguments import as_array, check_mapping, check_policy, dtype_of, texts_of
from shardvar.checkpoint.locate import Path, find_target
from shardvar.checkpoint.reports import WriteReport
from shardvar.checkpoint.writing import Partitions, carry_out, draft
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import code
from shardvar.planning.index import Metadata
from shardvar.planning.policies import Policy
from shardvar.planning.slices import TensorTable, pad

WRITER = f"shardvar {__version__}"
"""The name and version that checkpoints keep of the program that wrote them."""


def save(
    path: Path,
    tensors: Mapping[str, npt.ArrayLike],
    *,
    format: str | None = None,
    policy: Policy | None = None,
    partition: Partitions = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> WriteReport:
    """Write arrays as a checkpoint and commit it; a report of what was written.

    ``path`` is a prefix, or for formats of one file its name. ``format`` is the name of a format; without it the ending
    of ``path`` tells (``.safetensors``, ``.npz``), and ``"shardvar"`` is what it is otherwise. ``partition`` says into
    which slices tensors are cut: a number of parts along the first axis, counts per axis, a ``PartitionSpec``, a
    ``Partition``, a partitioner ``(shape, dtype) -> counts``, or a mapping from globs of keys to these. ``policy`` says
    which slices share a file.

    Arrays may have any strides and byte order; what is stored is their values. Object arrays of ``bytes`` are string
    tensors. A checkpoint that stands there is replaced in one step; ``TargetExists`` where the format cannot do that,
    unless ``force`` is set. ``UnsupportedError`` for what the format cannot hold; ``StorageError`` for a full disk.
    Nothing is left behind by an error. Memory: the arrays, and a few blocks of 4 MiB.

    >>> import numpy as np, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> save(path, {"table": np.ones((13, 4), np.float32)}, partition=5).num_slices
    5
    """
    target = find_target(path, format, otherwise="shardvar")
    check_policy(policy)
    source = source_of(tensors)
    work = draft(
        target,
        source.index.entries,
        policy=policy,
        partition=partition,
        metadata=Metadata(writer=WRITER, user=texts_of(metadata)),
        force=force,
        replace_atomically=True,
        source=source,
    )
    return carry_out(work, source, None, lambda _nbytes: None)


def source_of(tensors: Mapping[str, npt.ArrayLike]) -> ArraySource:
    """The arrays of a mapping as a source, one whole tensor each."""
    check_mapping(tensors, "keys to arrays")
    keys = list(tensors)
    arrays = [as_array(key, value) for key, value in tensors.items()]
    codes: dict[np.dtype[Any], int] = {}
    column = np.zeros(len(keys), dtype=np.int64)
    for row, (key, array) in enumerate(zip(keys, arrays, strict=True)):
        number = codes.get(array.dtype)
        if number is None:
            number = codes[array.dtype] = code(dtype_of(key, array))
        column[row] = number
    check_keys(keys)
    ranks, shapes = pad([array.shape for array in arrays], fill=1)
    return array_source(TensorTable(keys, column, ranks, shapes).whole(), arrays)


def check_keys(keys: Sequence[Any]) -> None:
    """Raise ``ArgumentError`` unless all keys are text that can be stored."""
    for key in keys:
        if not isinstance(key, str):
            raise ArgumentError(f"The key {key!r} is a {type(key).__name__}.", "Keys are strings.")
    try:
        "".join(keys).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"A key has the character {error.object[error.start]!r}, which no file can hold.", "Rename the tensor."
        ) from None

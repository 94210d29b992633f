"""sv.export: objects in the form in which they are served, in which nothing says how they were sharded.

R-EXPORT-1 (RFC 000): "being able to be saved to SavedModel as a single variable for fast inference". A sharded variable
is written as one whole tensor: its shards are read where they lie and put side by side in the file, so that the single
variable exists nowhere else. RFC 000: "The single variable will not be initialized at saving time (since no one reads
it), and it will be restored to the full value at loading time."

It is a checkpoint like any other, with one more fact in its graph of objects: which variables are not trainable.
"""

from collections.abc import Mapping
from typing import Any

from shardvar.checkpoint.arguments import CheckpointOptions, policy_of, texts_of
from shardvar.checkpoint.locate import Path, find_target
from shardvar.checkpoint.objects.containers import node_of
from shardvar.checkpoint.objects.image import Manner, hold_image
from shardvar.checkpoint.reports import WriteReport
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.planning.policies import Policy
from shardvar.tracking import ObjectGraph


def export(
    obj: Any,
    path: Path,
    *,
    as_shards: bool = False,
    policy: Policy | None = None,
    options: CheckpointOptions | None = None,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> WriteReport:
    """Write an object with all that it reaches for serving, and commit it; a report of what was written.

    ``obj`` is a module, a variable, another trackable object, or a dictionary or list of these. Each sharded variable
    is one whole tensor, or with ``as_shards`` a slice a shard, for serving in parts. The other arguments and the errors
    are those of ``sv.save``; ``options`` may have the policy instead. ``sv.load_exported`` reads it.

    R-EXPORT-4 (RFC 000): "Users can also choose to save sharded variable as it is by specifying a SaveOption."

    Nobody writes the variables meanwhile: their values are not copied, but read where they lie. Memory: a few blocks of
    4 MiB, whatever the size of a variable.

    >>> import os, tempfile
    >>> from shardvar.variables import create_sharded_variable
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> report = export({"w": create_sharded_variable([1.0, 2.0, 3.0, 4.0], 4)}, path)
    >>> report.num_tensors, report.num_slices
    (2, 2)
    """
    if not isinstance(as_shards, bool):
        raise ArgumentTypeError(f"as_shards is {as_shards!r}.", "Give True or False.")
    root = node_of(obj, {})
    if root is None:
        raise ArgumentTypeError(f"A {type(obj).__name__} has no variables.", "Give a module, or another trackable.")
    manner = Manner(policy_of(policy, options), texts_of(metadata), force, is_for_serving=True, as_shards=as_shards)
    with hold_image(ObjectGraph.of(root), find_target(path, format, otherwise="shardvar"), manner) as image:
        if not image.trackables:
            raise ArgumentError("There is nothing to export.", "Build the model first: variables may come with a call.")
        return image.write()

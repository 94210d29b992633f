"""Objects that a checkpoint holds in addition to its tensors, and that ``reshard`` carries along.

    between distributed           as they are, of any class
      checkpoints of PyTorch
    to a format that holds        plain ones, as their encodings (``wire.plain``); ``formats.objects``
      objects                     says where each format has them
    to any other                  as string tensors of their literals, if it holds strings; else
                                  refused by name, and a filter leaves them out

TensorFlow's graph of objects is a string tensor that only TensorFlow reads. A format without
strings leaves it out, and the report says so.

An object of a class that is not plain is refused by name. One that would run code when it is loaded
is never carried.
"""

from collections.abc import Collection, Mapping

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Format
from shardvar.layout.dtypes import STRING
from shardvar.planning.policies.max_shard_size import OBJECT_GRAPH_KEY
from shardvar.verbs.reader import Reader


def find_objects(reader: Reader, form: Format, keys: Collection[str]) -> Mapping[str, bytes]:
    """Return the objects among ``keys`` to write into a checkpoint of the format ``form``.

    The others are written as string tensors, or refused.
    """
    if not form.capabilities.holds_objects:
        return {}
    # An object of a class that is not read may be carried. Any other fault is one of the
    # checkpoint.
    faults = reader.faults
    readable = set(keys)
    for key, fault in faults.items():
        if not isinstance(fault, UnsupportedError):
            readable.discard(key)
    return reader.source.objects(readable, form.name) or {}


def graph_left_out(reader: Reader, form: Format, keys: Collection[str]) -> tuple[str, ...]:
    """Return the key of TensorFlow's graph of objects if ``form`` cannot hold it next to the other
    keys; else nothing."""
    tensors = reader.entries().slices.tensors
    row = tensors.rows().get(OBJECT_GRAPH_KEY) if OBJECT_GRAPH_KEY in keys else None
    is_text = row is not None and tensors.dtype(row) == STRING
    is_left_out = is_text and STRING not in form.capabilities.dtypes and len(keys) > 1
    return (OBJECT_GRAPH_KEY,) * is_left_out

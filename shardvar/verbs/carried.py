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

Digests of tensors are carried as well, where they were compared or computed (``compare.claims``).
"""

from collections.abc import Callable, Collection, Mapping

from shardvar.errors import UnsupportedError
from shardvar.formats.leaves import is_in_generator
from shardvar.formats.protocol import Format
from shardvar.layout.dtypes import STRING
from shardvar.pictures.words import named
from shardvar.planning.index import EntryTable, take_tensors
from shardvar.planning.policies.max_shard_size import OBJECT_GRAPH_KEY
from shardvar.verbs.reader import Reader
from shardvar.verbs.writing import WritePlan

_ARRAY = b'{"numpy.ndarray"'
"""The beginning of the encoding of an array of NumPy."""

Carry = Callable[..., tuple[WritePlan, str]]
"""Gives a write the digests that it is to carry, as ``compare.claims.Claims.carry``."""


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
    found = reader.source.objects(readable, form.name) or {}
    names = dict.fromkeys(found, "")
    for key, encoding in found.items():
        # A distributed checkpoint of PyTorch does not say which of its objects are arrays. In a
        # pickle they stay arrays.
        if (
            form.name not in ("torch", "pt")
            and encoding.startswith(_ARRAY)
            and not is_in_generator(key, names)
        ):
            cause = (
                f"{key!r} is an array of NumPy, which {reader.path} keeps as an object: it would"
            )
            remedy = "Save it as a tensor, or leave it out with exclude= (--exclude)."
            raise UnsupportedError(f"{cause} become a text.", remedy)
    return found


def graph_left_out(reader: Reader, form: Format, keys: Collection[str]) -> tuple[str, ...]:
    """Return the key of TensorFlow's graph of objects if ``form`` cannot hold it next to the other
    keys; else nothing."""
    tensors = reader.entries().slices.tensors
    row = tensors.rows().get(OBJECT_GRAPH_KEY) if OBJECT_GRAPH_KEY in keys else None
    is_text = row is not None and tensors.dtype(row) == STRING
    is_left_out = is_text and STRING not in form.capabilities.dtypes and len(keys) > 1
    return (OBJECT_GRAPH_KEY,) * is_left_out


def find_carry(reader: Reader, is_asked: bool, is_stored: bool, keep_going: bool) -> Carry | None:
    """Return what gives a reshard its digests; None if the source carries none, and none are asked
    for. ``is_stored`` is True if the keys are the ones of the file."""
    if not is_asked and not reader.metadata.has_digests:
        return None
    from shardvar.verbs.compare.claims import Claims  # only where digests are carried

    return Claims(reader, is_stored, is_asked, keep_going).carry


def readable_entries(reader: Reader, kept: set[str], objects: set[str]) -> EntryTable:
    """The entries of the kept keys, without the objects; raises the fault of any."""
    wrong = {
        key: error for key, error in reader.faults.items() if key in kept and key not in objects
    }
    for first, error in wrong.items():
        if not isinstance(error, UnsupportedError):
            raise error.at().in_file(error.file)
        others = [key for key, each in wrong.items() if key != first and type(each) is type(error)]
        cause, leave = error.cause, " Or leave it out with exclude= (--exclude)."
        if others:
            cause += f" Nor can {named(others)} be converted."
            leave = " Or leave them out with exclude= (--exclude)."
        raise type(error)(cause, error.remedy + leave).in_file(error.file)
    return take_tensors(reader.entries(), kept - objects)

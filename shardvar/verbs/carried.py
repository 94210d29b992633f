"""Objects that a checkpoint holds in addition to its tensors, and that ``reshard`` carries along.

    to a format that has objects  as they are, of any class, or made of plain values; a
                                  file of torch.save gets plain ones, and Orbax text
    to one that holds strings     plain objects become string tensors of their Python literals, as
                                  they are read
    to one that keeps metadata    the literals become the user's metadata
    to any other                  refused by name; a filter leaves them out

An object that would run code when it is loaded is never carried.
"""

from collections.abc import Collection, Mapping

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Format
from shardvar.layout.dtypes import STRING
from shardvar.verbs.reader import Reader


def find_objects(
    reader: Reader, form: Format, keys: Collection[str]
) -> tuple[Mapping[str, bytes], list[str]]:
    """Return the objects to write as they are, and the keys of those whose text becomes metadata.

    ``form`` is the format to write; the other objects among ``keys`` are written as string tensors,
    or refused.
    """
    # An object of a class that is not read may be carried. Any other fault is one of the
    # checkpoint.
    faults = reader.faults
    readable = set(keys)
    for key, fault in faults.items():
        if not isinstance(fault, UnsupportedError):
            readable.discard(key)
    carried = reader.source.objects(readable, form.name)
    if carried is None:
        return {}, []
    if not form.capabilities.keeps_metadata:
        return carried, []
    tensors, rest = reader.entries().slices.tensors, set(keys).difference(carried)
    return carried, [
        key for row, key in enumerate(tensors.keys) if key in rest and tensors.dtype(row) == STRING
    ]


def read_texts(reader: Reader, keys: Collection[str]) -> dict[str, str]:
    """Return the user's metadata with the text of objects added to it."""
    user = dict(reader.metadata.user)
    for key in keys:
        text = bytes(reader.read(key)[()]).decode("utf-8", "surrogateescape")
        if user.setdefault(key, text) != text:
            raise ArgumentError(
                f"{key!r} is both an object and a key of the metadata.",
                "Leave it out with a filter.",
            )
    return user

"""Hard limits: what shardvar reads and writes at most, for any claim of a file. The one table of
them.

A limit bounds a cost that would otherwise grow faster than the file: a key that thousands of others
repeat in part, a product of a million factors, a name that a message repeats. Each is far above
what any real checkpoint needs, and its reason stands below it. SECURITY.md has the same table for
people, and a test compares the two.

An error about a limit names it: ``wire.damage.past_limit`` builds it from the name of the constant.
To change a limit, change it here and there; to add one, add both.
"""

from types import MappingProxyType
from typing import Final

MAX_KEY_NBYTES: Final = (1 << 16) - 1
"""Bytes of a key in UTF-8: a zip archive, such as npz, counts them in 16 bits."""

MAX_KEY_EXPANSION: Final = 32
"""Bytes of all keys of a table block of TensorFlow, for each byte of the block, and of all keys or
paths of a node of Orbax's databases. A key stores only
the end that differs from the key before it, and every 16th key is whole, so that 16 keys have at most 16
times the bytes that they take."""

MAX_PAYLOAD_EXPANSION: Final = 16
"""Bytes of all payloads of a data file, for each byte of the file, above 1 MiB in all files: the
same bytes may have several names, but a small file must not become a thousand large arrays."""

MAX_VIEW_EXPANSION: Final = 256
"""Bytes of all tensors of files of torch.save, for each byte of their storages, above 64 MiB.
Tensors may share a storage, and repeat its elements. A layer that is used by all others has as many
names as the model has layers, and a mask of a byte may have the square of the longest sequence."""

MAX_RANK: Final = 64
"""Axes of a tensor, as in NumPy 2."""

MAX_DEVICES: Final = 1 << 20
"""Devices of a mesh or a cluster: a million, more than ten times as many as the largest job has. A
layout has columns of them."""

MAX_PARTS: Final = 1 << 22
"""Parts that tensors are cut into, in all: four million. Each is an entry, and a plan of so many
takes some 3 GiB."""

MAX_NBYTES: Final = 1 << 62
"""Bytes of a tensor, and any of its extents: sums and differences of two of them fit in 64 bits."""

MAX_NODES: Final = 1 << 24
"""Objects of a graph: ten times as many as the largest model has variables and slots."""

MAX_FILES: Final = 99_999
"""Data files of a native checkpoint: their numbers have five digits."""

MAX_RUN_NBYTES: Final = 1 << 30
"""Bytes of a run of the native format, which is read whole to verify any part of it."""

MAX_SHARED_NBYTES: Final = 1 << 20
"""Bytes of a block of a native index that has more than one entry. Decoded columns are some 25
times as large."""

MAX_BLOCK_NBYTES: Final = 1 << 26
"""Bytes of a block of a native index, and of its metadata: a tensor is in one block."""

MAX_TABLE_NBYTES: Final = 1 << 28
"""Bytes of the table of a native index: enough for a terabyte of blocks."""

MAX_NAMES: Final = 64
"""Names in a block of a native index: msgpack decodes deep maps before any check."""

MAX_SNAPPY_RATIO: Final = 22
"""Bytes that a byte of snappy becomes: a copy of 3 bytes puts out 64, more than any other element
for its size."""

MAX_INFLATION: Final = 1032
"""Bytes that a byte of deflate becomes: at best, 258 bytes for 2 bits."""

MAX_DIRECTORY_NBYTES: Final = 1 << 29
"""Bytes of the central directory of an npz archive: some million members."""

MAX_NPY_HEADER_NBYTES: Final = 10_000
"""Bytes of the header of an array in npz, as in NumPy."""

MAX_HEADER_NBYTES: Final = 100_000_000
"""Bytes of a safetensors header, and of the index of a set, as in the real library."""

MAX_METADATA_NBYTES: Final = 1 << 28
"""Bytes of the index of a distributed checkpoint of PyTorch: a million slices take some 160 MiB."""

MAX_PICKLE_NBYTES: Final = 1 << 26
"""Bytes of the pickle of a file of torch.save, without long texts: half a million tensors."""

MAX_ARRAYS_NBYTES: Final = 1 << 32
"""Bytes of arrays of NumPy in such a pickle, in addition: they are read whole."""

MAX_OBJECTS_NBYTES: Final = 1 << 26
"""Bytes of the objects that a checkpoint carries in its metadata: half a million settings."""

MAX_NESTING: Final = 100
"""Levels of values that are searched for tensors in a pickle, and unfinished values in each other
while it is read: 212 pickles of torch and its trainers have at most 17 and 9."""

MAX_GGUF_HEADER_NBYTES: Final = 1 << 28
"""Bytes of the metadata and the list of tensors of a GGUF file: a tokenizer of a million words
takes some 64 MiB."""

MAX_TREE_NBYTES: Final = 1 << 27
"""Bytes of Orbax's ``_METADATA``, and of the description of a Zarr group: 300,000 arrays."""

MAX_CODEC_EXPANSION: Final = 1 << 15
"""Bytes from a compressed byte of Zarr or Orbax: zstd makes 128 KiB of 4 bytes."""

MAX_NODE_EXPANSION: Final = 256
"""Bytes that the nodes of a database of Orbax become in memory, for each byte of them and of
``_METADATA``, above 64 MiB. The nodes of equal arrays of zeros take a byte a tensor; the index has
some 150 for each."""

MAX_ABSENT_FILES: Final = 1 << 16
"""Files that are absent from all arrays of a Zarr group, read as the fill value, above
16 (``MAX_PAYLOAD_EXPANSION``) for each file that there is."""

MAX_FILL_NBYTES: Final = 1 << 30
"""Bytes that these files would have, above 16 for each byte of the files that there are."""

MAX_STATE_NBYTES: Final = 1 << 26
"""Bytes of the state file of a directory of checkpoints: half a million paths."""

MAX_MANIFEST_NBYTES: Final = 1 << 27
"""Bytes of a manifest of digests: at 100 bytes a line, a million tensors."""

MAX_MESSAGE_LENGTH: Final = 2000
"""Characters of the cause or the remedy of an error, of a finding, and of a line of a log; the
middle is left out."""

MAX_WORD_LENGTH: Final = 300
"""Characters of a key or any other word in a message; the middle is left out."""

MAX_NAMED: Final = 8
"""Keys that a message names; it counts the others."""

MAX_SUGGESTED_LENGTH: Final = 200
"""Characters of a misspelled name for which similar ones are looked for, which takes the square of
the length."""

LIMITS = MappingProxyType(
    {name: value for name, value in globals().items() if name.isupper() and type(value) is int}
)
"""The table: name -> value."""

"""What counts against a limit of bytes: the elements, as TensorFlow counts them.

Neither the object graph counts, which is the checkpoint's own and cannot be cut, nor the lengths that stand in front of
strings: with them, a limit that TensorFlow keeps in n files would take more here.
"""

import numpy as np

from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.planning.slices import SliceTable

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""TensorFlow's key for the graph of objects, a string."""

_CHECKSUM_NBYTES = 4
"""The checksum that stands between the lengths of strings and the strings."""


def weights_of(slices: SliceTable) -> Ints:
    """[m] the bytes of each slice that count against a limit."""
    weights = slices.nbytes.copy()
    for row in np.flatnonzero(slices.codes() == code(STRING)).tolist():
        count = int(np.prod(slices.shape[row]))
        weights[row] = 0 if slices.key(row) == OBJECT_GRAPH_KEY else strings_nbytes(int(weights[row]), count)
    return weights


def strings_nbytes(payload_nbytes: int, count: int) -> int:
    """The bytes of so many strings of one length in a payload; the lengths of others are not known without reading.

    A length takes a byte for every seven of its bits. Exact for one string, and where all are shorter than 128 bytes.

    >>> strings_nbytes(4 + 3 * 1 + 6, 3), strings_nbytes(4 + 2 + 300, 1)
    (6, 300)
    """
    rest = payload_nbytes - _CHECKSUM_NBYTES
    for digits in range(1, 10):
        if rest - count * digits < count << 7 * digits:
            break
    return max(0, rest - count * digits)

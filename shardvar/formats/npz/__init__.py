"""npz, NumPy's zip of arrays, read more carefully than NumPy reads it.

contents    what the archive's directory and the arrays' headers say, and what is wrong with it
streams     arrays that do not lie in the file as they are in memory
source      reading payloads
sink        writing an archive
archive     the format itself
"""

from shardvar.formats.npz.archive import FORMAT, NpzFormat

__all__ = ["FORMAT", "NpzFormat"]

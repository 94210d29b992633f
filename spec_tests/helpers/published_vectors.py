"""The published vectors as files, for tests that open them by a path: unpacked once a process."""

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from shardvar import vectors


@cache
def unpacked() -> Path:
    """Return a directory with every file of the vectors; it is removed when the process ends."""
    directory = Path(mkdtemp(prefix="vectors-")).resolve()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name in vectors.names():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(vectors.read(name))
    return directory

"""The search for cyclic garbage, paused while many objects are made that are all kept."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the search for cyclic garbage. The search would take as long as making the objects.
    Python counts references all the same; only cycles wait, for as long as the block takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

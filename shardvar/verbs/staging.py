"""Staging: values copied into memory that is kept from one save to the next.

    places    one buffer, cut into a place for each value; it is allocated again only for values
              that do not fit it, or that leave most of it empty
    copy      values of the host into their places, the large ones by several threads

A save in the background copies the values of a training loop, which then goes on. Memory that was
used before is copied into several times faster than fresh memory, whose pages the system must make
first.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from shardvar.engine.pool import run_all
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import read_integer
from shardvar.pictures.words import human_size

_ALIGNMENT = 64
"""The places begin at multiples of a line of the cache, which any dtype is aligned to."""
_MOST_EMPTY = 2
"""A buffer that is larger than so many times its values is given back."""
_PORTION_NBYTES = 8 << 20
"""The bytes that a thread copies at a time."""


def new_pages(nbytes: int) -> Array:
    """Return new memory of the host as bytes."""
    return np.empty(nbytes, np.uint8)


class Staging:
    """The memory of one save at a time.

    Parameters
    ----------
    new_buffer : callable, optional
        Returns a new buffer of so many bytes, as an array of uint8; memory that is pinned for a
        device, for example.
    """

    def __init__(self, new_buffer: Callable[[int], Array] = new_pages) -> None:
        self._new_buffer = new_buffer
        self._buffer = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """The size of the memory that is kept."""
        return self._buffer.nbytes

    def places(self, nbytes: Sequence[int], most: int | None = None) -> list[Array]:
        """Return a place for each value, as an array of uint8; the places of before are used again.

        Parameters
        ----------
        nbytes : sequence of int
            The sizes of the values.
        most : int, optional
            The most bytes to keep; without a limit by default.

        Returns
        -------
        list of ndarray
            The places, which are valid until the next call.

        Raises
        ------
        ArgumentError
            If the values need more.
        """
        starts = [0, *accumulate(-(-each // _ALIGNMENT) * _ALIGNMENT for each in nbytes)]
        need = starts[-1]
        if most is not None and need > (most := read_integer(most, "staging_nbytes")):
            raise ArgumentError(
                f"The values take {human_size(need)} in memory until they are saved, and staging_nbytes "
                f"is {human_size(most)}.",
                "Give more, or save without background.",
            )
        if not need <= self.nbytes <= max(need * _MOST_EMPTY, _PORTION_NBYTES):
            self._buffer = np.empty(0, np.uint8)  # before the next one is made
            self._buffer = self._new_buffer(need)
        buffer = self._buffer
        return [buffer[start : start + each] for start, each in zip(starts, nbytes, strict=False)]

    def copy(self, arrays: Sequence[Array], most: int | None = None) -> list[Array]:
        """Return copies of arrays, in C order, in the places of before; otherwise as ``places``."""
        places = self.places([each.nbytes for each in arrays], most)
        copies = [
            place.view(each.dtype).reshape(each.shape)
            for place, each in zip(places, arrays, strict=True)
        ]
        copy_arrays(copies, arrays)
        return copies

    def clear(self) -> None:
        """Give the memory back."""
        self._buffer = np.empty(0, np.uint8)


def copy_arrays(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    """Copy arrays into arrays of their shapes and dtypes; large ones by several threads.

    NumPy copies without Python's global lock. Arrays are cut along their first axis.
    """
    large: list[tuple[Array, Array]] = []
    for target, source in zip(targets, sources, strict=True):
        if source.nbytes <= _PORTION_NBYTES or not source.ndim:
            np.copyto(target, source)
            continue
        rows = max(_PORTION_NBYTES * len(source) // source.nbytes, 1)
        portions = [slice(start, start + rows) for start in range(0, len(source), rows)]
        large += [(target[each], source[each]) for each in portions]
    if large:
        run_all(_copy, large)


def _copy(pair: tuple[Array, Array]) -> None:
    """Copy one array into another one."""
    np.copyto(*pair)

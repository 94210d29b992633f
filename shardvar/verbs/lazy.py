"""Arrays whose values are read when they are needed."""

from abc import ABC, abstractmethod
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region


class LazyArray(ABC):
    """An array of a known shape that is read by ``np.asarray``, and each time again."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape."""

    @abstractmethod
    def numpy(self) -> Array:
        """The values, as a fresh array."""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return Region.whole(self.shape).size

    def __len__(self) -> int:
        if not self.shape:
            cause = f"{self!r} has no axes and therefore no length."
            raise ArgumentTypeError(cause, "Ask for its size, which is 1.")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:  # as NumPy's protocol has it
            raise ArgumentError(f"An array of {self!r} is always a copy.", "Leave copy out.")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

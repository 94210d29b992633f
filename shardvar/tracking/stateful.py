"""Stateful: an object that says itself what it saves, and takes it back.

The state of a variable is its value, that of most objects the state of their children. Whatever else has state (a
vocabulary, the position in an input, a schedule) says so by two methods. Each array that it names is a tensor of the
checkpoint, under the key ``path/.ATTRIBUTES/name``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from shardvar.tracking.trackable import Trackable


class Stateful(Trackable, ABC):
    """A trackable object with a state of its own beside that of its children.

    >>> import numpy as np
    >>> class Vocabulary(Stateful):
    ...     def __init__(self, words):
    ...         self.words = words
    ...
    ...     def state(self):
    ...         return {"words": np.array(self.words, dtype=object)}
    ...
    ...     def restore_state(self, values):
    ...         self.words = list(values["words"])
    >>> vocabulary = Vocabulary([b"a"])
    >>> vocabulary.restore_state(Vocabulary([b"b", b"c"]).state())
    >>> vocabulary.words
    [b'b', b'c']
    """

    @abstractmethod
    def state(self) -> Mapping[str, npt.ArrayLike]:
        """The arrays to save, by names of this object's own choice.

        Asked for once a save, in the thread that saves, before the values of variables are taken; the arrays are copied
        then. Asked for before a restore too: it is what is given back to ``restore_state`` where a restore fails.
        """

    @abstractmethod
    def restore_state(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the arrays of a checkpoint, of whatever dtype and shape they were stored with, under their names.

        Called once a restore, before any variable is written. Raise any error to refuse them, and have changed nothing
        then: the whole checkpoint is refused, and objects that took theirs before are given back what they had.
        """

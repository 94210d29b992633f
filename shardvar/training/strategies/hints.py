"""Hints: what a user knows better than a strategy about the variables that it mirrors.

R-HINT-1 (RFC 002): "we will allow users to provide some hints for performance improvement on embedding variables ...
e.g. whether to mirror the variable on host or not, whether to cast its updates to dense tensors or not." A hint changes
where a variable lives and what crosses between devices, never a value. None leaves the choice to the strategy.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """What a strategy obeys.

    >>> Hints(mirror_on_host=True) | Hints(cast_updates_to_dense=False)
    Hints(mirror_on_host=True, cast_updates_to_dense=False)
    """

    mirror_on_host: bool | None = None
    """True: one copy on each host. False: one on each replica."""
    cast_updates_to_dense: bool | None = None
    """True: sparse updates are made dense and reduced. False: their rows are gathered."""

    def __or__(self, other: "Hints") -> "Hints":
        """These hints, overridden by those that ``other`` gives."""
        return Hints(
            self.mirror_on_host if other.mirror_on_host is None else other.mirror_on_host,
            self.cast_updates_to_dense if other.cast_updates_to_dense is None else other.cast_updates_to_dense,
        )

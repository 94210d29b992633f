"""Hints of a user about mirrored variables, and RFC 002's heuristics that choose them.

R-HINT-1 (RFC 002): "we will allow users to provide some hints for performance improvement on
embedding variables ... e.g. whether to mirror the variable on host or not, whether to cast its
updates to dense tensors or not." A hint changes where a variable lives and what crosses between
devices, never a value. None leaves the choice to the strategy.

The heuristics compare sizes and explain the choice in words; they change nothing by themselves.
Strategies mirror on devices without a hint, and ``hints_for`` turns the heuristics into hints.

    mirror or shard           does a copy fit where it would live
    host or device            does it fit a device, and how much of it is touched in a step
    sparse update or dense    which moves fewer bytes: gathering rows from all replicas, or reducing
                              the whole
"""

from math import prod
from typing import Any

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Shape
from shardvar.layout.shard_counts import element_nbytes
from shardvar.records import frozen


@frozen
class Hints:
    """Hints that a strategy follows for the variables created in ``hint_scope``.

    ``hints | other`` are these hints, overridden by the hints that ``other`` gives.

    Parameters
    ----------
    mirror_on_host : bool, optional
        True: one copy on each host. False: one on each replica. None leaves the choice to the
        strategy.
    cast_updates_to_dense : bool, optional
        True: sparse updates are made dense and reduced. False: their rows are gathered.

    Examples
    --------
    >>> Hints(mirror_on_host=True) | Hints(cast_updates_to_dense=False)
    Hints(mirror_on_host=True, cast_updates_to_dense=False)
    """

    mirror_on_host: bool | None = None
    cast_updates_to_dense: bool | None = None

    def __or__(self, other: "Hints") -> "Hints":
        """Return these hints, overridden by the hints that ``other`` gives."""
        return Hints(
            self.mirror_on_host if other.mirror_on_host is None else other.mirror_on_host,
            self.cast_updates_to_dense
            if other.cast_updates_to_dense is None
            else other.cast_updates_to_dense,
        )


# Heuristics.


_ID_NBYTES = 8
"""Size of the id that is sent with each row, an int64."""
_FILL_SHARE = 0.5
"""Largest share of a device that a variable takes: its gradient and the slots of its optimizer also
live there."""
_STRING_NBYTES = 16
"""Size that a string counts as, the same as for partitioners."""


@frozen
class Choice:
    """The answer of a heuristic."""

    decision: str
    """``mirror`` or ``shard``; ``host`` or ``device``; ``sparse`` or ``dense``."""
    reason: str
    """The reason in words, with the numbers that were compared."""


@frozen
class Workload:
    """A variable, and how much of it a step touches.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like
        The dtype of the variable.
    rows_a_step : int, optional
        The number of rows that one replica looks up and updates in a step; None for all, as a dense
        layer does.
    num_replicas : int, default 1
        The number of replicas that compute at once.

    Raises
    ------
    ArgumentError
        If `num_replicas` is below 1, or `rows_a_step` is negative.
    """

    shape: Shape
    dtype: Any
    rows_a_step: int | None = None
    num_replicas: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.num_replicas < 1 or (self.rows_a_step is not None and self.rows_a_step < 0):
            raise ArgumentError(
                f"Invalid workload {self}.", "Give num_replicas >= 1 and rows_a_step >= 0."
            )

    @property
    def nbytes(self) -> int:
        """The bytes of the whole variable."""
        return prod(self.shape) * element_nbytes(self.dtype, _STRING_NBYTES)

    @property
    def step_nbytes(self) -> int:
        """The bytes of the rows that a replica touches in a step; repeated rows count again."""
        if self.rows_a_step is None or not self.shape:
            return self.nbytes
        return self.rows_a_step * self.nbytes // max(1, self.shape[0])


def choose_mirror_or_shard(load: Workload, device_memory: int, host_memory: int) -> Choice:
    """Choose to mirror a variable that fits a host, and to shard one that does not.

    R-HEUR-1 (RFC 002): "mirroring could be cheaper than sharding in terms of communication cost
    since it requires smaller number of communications although it transfers more data"; R-HEUR-2:
    "For large embeddings that cannot be fit in a single host, ParameterServerStrategy should be
    preferred".

    Parameters
    ----------
    load : Workload
        The variable.
    device_memory : int
        The bytes of a device.
    host_memory : int
        The bytes of a host.

    Examples
    --------
    >>> choose_mirror_or_shard(Workload((1000, 64), "float32"), 1 << 30, 8 << 30).decision
    'mirror'
    """
    # A host of 8 GiB has room for 4 GiB: the gradient, or one optimizer slot, is as large as the
    # variable itself.
    room = int(max(device_memory, host_memory) * _FILL_SHARE)
    if load.nbytes > room:
        return Choice(
            "shard",
            f"{load.nbytes} bytes do not fit a single host, which has room for {room} bytes.",
        )
    return Choice(
        "mirror",
        f"{load.nbytes} bytes fit the {room} bytes of one task, and mirroring needs fewer "
        "messages.",
    )


def choose_host_or_device(load: Workload, device_memory: int) -> Choice:
    """Choose the device for a variable that fits it, and the host for one that does not.

    R-HEUR-3 (RFC 002): "When an embedding variable is small, it may benefit from being mirrored on
    devices. Lookup can be performed local to each device"; R-HEUR-4: "when an embedding variable is
    sufficiently large, we will place it on host memory", "at the cost of transferring embeddings
    from host to devices".

    See ``choose_mirror_or_shard`` for the parameters.
    """
    room = int(device_memory * _FILL_SHARE)
    if load.nbytes <= room:
        return Choice(
            "device",
            f"{load.nbytes} bytes fit the {room} bytes of a device, where lookups move nothing.",
        )
    cost = 2 * load.step_nbytes  # rows come to the device for the lookup, and their updates go back
    return Choice(
        "host",
        f"{load.nbytes} bytes do not fit the {room} bytes of a device; a step moves {cost} "
        "instead.",
    )


def choose_sparse_or_dense(load: Workload) -> Choice:
    """Choose the form of an update that moves fewer bytes.

    R-HEUR-5 (RFC 002): "When updates to an embedding are not very sparse, converting them to dense
    updates and applying allreduce ... can be faster", and "when an embedding variable is smaller
    than some threshold we will cast their gradients to dense tensors". The threshold is where both
    cost the same: to gather, each replica sends its rows and their ids to all others; to reduce,
    each sends 2 (n - 1) / n of the whole (scatter, then gather).

    Parameters
    ----------
    load : Workload
        The variable, and the rows of it that a step touches.

    Examples
    --------
    >>> few, many = Workload((1000, 4), "float32", 10, 4), Workload((1000, 4), "float32", 900, 4)
    >>> choose_sparse_or_dense(few).decision, choose_sparse_or_dense(many).decision
    ('sparse', 'dense')
    """
    if load.rows_a_step is None:
        return Choice("dense", "Every row is touched in a step.")
    # Of 1000 rows of 4 float32 (16,000 bytes) on 4 replicas: 10 rows a step cost 3 * (160 + 80) =
    # 720 bytes to gather, 900 rows 64,800; to reduce the whole costs 2 * 3 * 16,000 / 4 = 24,000 in
    # either case.
    others = load.num_replicas - 1
    if not others:
        return Choice(
            "sparse",
            "There is one replica: nothing is exchanged, and the rows need not be made dense.",
        )
    gathered = others * (load.step_nbytes + load.rows_a_step * _ID_NBYTES)
    reduced = 2 * others * load.nbytes // load.num_replicas
    compared = (
        f"a replica sends {gathered} bytes to gather {load.rows_a_step} rows, {reduced} to reduce "
        "the whole."
    )
    return Choice("sparse" if gathered < reduced else "dense", f"In a step {compared}")


def hints_for(load: Workload, device_memory: int) -> Hints:
    """Return the hints that the heuristics choose.

    R-HEUR-6 (RFC 002): "Add heuristics in Distribution Strategy to auto-set performance improvement
    hints, such as whether to place an embedding on host or whether to cast sparse updates to dense
    tensors."

    Parameters
    ----------
    load : Workload
        The variable, and the rows of it that a step touches.
    device_memory : int
        The bytes of a device.

    Examples
    --------
    >>> hints_for(Workload((1 << 20, 64), "float32", 100, 8), device_memory=1 << 20)
    Hints(mirror_on_host=True, cast_updates_to_dense=False)
    """
    return Hints(
        mirror_on_host=choose_host_or_device(load, device_memory).decision == "host",
        cast_updates_to_dense=choose_sparse_or_dense(load).decision == "dense",
    )

"""The sizes of what is saved, planned and read."""

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one run."""

    table_rows: int = 2_097_152
    """Rows of 64 float32 of the large table: 512 MiB."""
    tiny_count: int = 20_000
    """Tensors of 16 floats."""
    index_entries: int = 1_000_000
    """Entries of the index in which one tensor is looked up."""
    partial_rows: int = 1_000_000
    """Rows of 64 float32 of the tensor of which a part is read: 256 MB."""
    reshard_nbytes: int = 2 * GIB
    """What is resharded."""
    reshard_large_nbytes: int = 8 * GIB
    """What is resharded to see that memory does not grow."""
    plan_slices: int = 1_000_000
    """Slices of a plan, before and after."""
    mesh_side: int = 64
    """Devices along each of the two axes of a mesh."""
    sharded_rows: int = 1_000_000
    """Rows of 64 float32 of the sharded variable."""
    training_users: int = 200_000
    """Users of the model that is trained; items are half as many."""
    map_nbytes: int = 10 * GIB
    """What is opened as a memory map."""
    object_count: int = 256
    """Tensors of 2 MiB of the model whose optimizer keeps two slots beside each."""
    variable_count: int = 100_000
    """Variables of 16 floats of the model that has very many."""
    growth_tensors: int = 1_000_000
    """Tensors at the end of a curve, and so on below."""
    growth_nbytes: int = 16 * GIB
    """Bytes."""
    growth_files: int = 4096
    """Files."""
    growth_slices: int = 100_000
    """Slices of one tensor."""
    growth_workers: int = 16
    """Workers."""
    loaded_nbytes: int = GIB
    """A folder that loaders of inference engines load."""
    latency_slices: int = 1_000
    """Slices that are read from a store that answers late."""
    joint_processes: int = 512
    """Processes that save one checkpoint."""
    seconds: float = 4.0
    """Time for the pairs of one ratio; up to twice as long where fewer than five pairs fit into
    it."""
    processes: int = 9
    """Fresh processes for one figure of start-up."""


FULL = Sizes()

QUICK = Sizes(
    table_rows=131_072,
    tiny_count=2_000,
    index_entries=50_000,
    partial_rows=100_000,
    reshard_nbytes=GIB // 8,
    reshard_large_nbytes=GIB // 2,
    plan_slices=50_000,
    sharded_rows=100_000,
    training_users=20_000,
    map_nbytes=GIB,
    object_count=16,
    variable_count=5_000,
    growth_tensors=10_000,
    growth_nbytes=GIB // 16,
    growth_files=64,
    growth_slices=1_000,
    growth_workers=4,
    loaded_nbytes=GIB // 16,
    latency_slices=200,
    joint_processes=8,
    seconds=1.0,
    processes=3,
)
"""For a look at whether everything runs; the targets are meant for the full sizes."""

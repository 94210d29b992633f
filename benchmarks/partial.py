"""A small part of a large tensor: what is read for it, and what memory it takes, in a fresh
process."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.child import Growth, call, read_nbytes
from benchmarks.figures import Figure
from benchmarks.peers import PEERS, import_tensorflow
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB

EXTRA_READ_TARGET = 1.0
GROWTH_TARGET = 16.0
PART = 9375
"""Rows of 64 floats: 2.4 MB."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the part."""
    rows = setting.sizes.partial_rows
    subject = f"2.4 MB of a {rows * 256 // 10**6} MB tensor"
    room = setting.disk.room("partial")
    for name, part in (("shardvar", read_ours), ("TensorFlow", read_tensorflow), ("DCP", read_dcp)):
        if not call(write, name, str(room), rows):
            yield skipped(subject, name, f"{name} is not installed")
            continue
        read, grown = call(part, str(room), rows)
        targets = (EXTRA_READ_TARGET, GROWTH_TARGET) if name == "shardvar" else (None, None)
        if read is not None:
            extra = (read - PART * 256) / MIB
            yield Figure(f"{subject}: read beyond it", name, "disk", extra, "MiB", targets[0])
        yield Figure(f"{subject}: memory grows", name, "disk", grown / MIB, "MiB", targets[1])


def write(name: str, room: str, rows: int) -> bool:
    """Save the tensor with a library; False where it is not installed."""
    import shardvar as sv

    arrays = {"table": np.random.default_rng(0).standard_normal((rows, 64), np.float32)}
    if name == "shardvar":
        sv.save(Path(room, "model"), arrays)
        return True
    try:
        peer = PEERS[name]()
    except ImportError:
        return False
    directory = Path(room, name)
    directory.mkdir()
    peer.save(directory, peer.prepare(arrays))
    return True


def read_ours(room: str, rows: int) -> tuple[int | None, int]:
    """(bytes read, growth of memory), opening included."""
    import shardvar as sv

    sv.save(Path(room, "warm"), {"table": np.zeros((400, 64))})
    with sv.open_checkpoint(Path(room, "warm")) as reader:
        reader.read("table", np.s_[1:3])
    read, growth = read_nbytes(), Growth()
    with sv.open_checkpoint(Path(room, "model")) as reader:
        part = reader.read("table", np.s_[rows // 3 : rows // 3 + PART])
    _check(part)
    return _read_since(read), growth.nbytes()


def read_tensorflow(room: str, rows: int) -> tuple[int | None, int]:
    """The same with TensorFlow's kernel."""
    library = import_tensorflow()
    library.constant(0)
    read, growth = read_nbytes(), Growth()
    (part,) = library.raw_ops.RestoreV2(
        prefix=str(Path(room, "TensorFlow", "model")),
        tensor_names=["table/.ATTRIBUTES/VARIABLE_VALUE"],
        shape_and_slices=[f"{rows} 64 {rows // 3},{PART}:-"],
        dtypes=[library.float32],
    )
    _check(part.numpy())
    return _read_since(read), growth.nbytes()


def read_dcp(room: str, rows: int) -> tuple[int | None, int]:
    """The same with DCP, planned as for a shard of a sharded tensor."""
    import torch
    from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlan, load
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    class PartPlanner(DefaultLoadPlanner):
        """Asks for the part alone."""

        def create_local_plan(self) -> LoadPlan:
            zero, size, first = (
                torch.Size(numbers) for numbers in ((0, 0), (PART, 64), (rows // 3, 0))
            )
            stored = MetadataIndex("table", zero, 0)
            return LoadPlan(
                [ReadItem(LoadItemType.TENSOR, MetadataIndex("part"), zero, stored, first, size)]
            )

    state = {"part": torch.zeros(PART, 64)}
    read, growth = read_nbytes(), Growth()
    load(state, checkpoint_id=Path(room, "DCP"), planner=PartPlanner(), no_dist=True)
    _check(state["part"].numpy())
    return _read_since(read), growth.nbytes()


def _check(part: np.ndarray) -> None:
    if part.shape != (PART, 64) or not part.any():
        raise ValueError("That is not the part.")


def _read_since(before: int | None) -> int | None:
    after = read_nbytes()
    return None if before is None or after is None else after - before

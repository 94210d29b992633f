"""PyTorch's distributed checkpoints: load, save, open and convert them, against PyTorch itself and
``cp``."""

import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from benchmarks.child import call, peak_nbytes, read_nbytes
from benchmarks.figures import Figure
from benchmarks.peers import PEERS, Arrays, Peer, find_peer
from benchmarks.places import emptied, sync_tree
from benchmarks.reshard import COPY
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run
from shardvar.planning.policies import BalancedPolicy

LOAD_TARGET, TINY_TARGET, OPEN_TARGET, SAVE_TARGET = 0.5, 0.15, 1.5, 0.8
SHARDS_TARGET = 1.0
CONVERT_TARGET, PEAK_TARGET, EXTRA_READ_TARGET = 1.5, 256.0, 1.0
PART = 9375
"""Rows of 64 floats: 2.4 MB."""
SLICES = 4
"""Slices of each tensor of the index that is opened."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of distributed checkpoints."""
    peer = find_peer("DCP")
    if peer is None:
        yield skipped("distributed checkpoints", "DCP", "DCP is not installed")
        return
    rows, count = setting.sizes.table_rows, setting.sizes.tiny_count
    rng = np.random.default_rng(0)
    model = {
        f"layer.{number}": rng.standard_normal((rows // 16, 64), np.float32) for number in range(16)
    }
    yield from _beside_dcp(
        setting, f"{rows * 256 // MIB} MiB in 16 tensors", peer, model, LOAD_TARGET
    )
    tiny = {f"layer.{number}.bias": rng.standard_normal(16, np.float32) for number in range(count)}
    yield from _beside_dcp(setting, f"{count} x 16 floats", peer, tiny, TINY_TARGET)
    yield from _restore_shards(setting, 64, (1024, 256), 2)
    yield from _restore_shards(setting, 64, (1024, 256), 3)
    yield from _restore_shards(setting, 200, (64, 64), 2)
    yield _open(setting, count)
    yield from _convert(setting)
    yield _read_part(setting)


def _beside_dcp(
    setting: Setting, what: str, peer: Peer, arrays: Arrays, load_target: float
) -> Iterator[Figure]:
    """Save the arrays, and load what DCP saved."""
    place = setting.quiet
    state = peer.prepare(arrays)
    ours, theirs = place.room("ours"), place.room("theirs")
    save = Run(lambda: sv.save(ours / "ck", arrays, format="torch"), emptied(ours))
    yield setting.ratio(
        f"save {what}",
        "dcp.save",
        place,
        save,
        Run(lambda: peer.save(theirs, state), emptied(theirs)),
        SAVE_TARGET,
    )
    loaded = sv.load(theirs)
    if any(not np.array_equal(loaded[key], array) for key, array in arrays.items()):
        raise AssertionError("What DCP saved was read as something else.")
    del loaded
    load = Run(lambda: sv.load(theirs))
    yield setting.ratio(
        f"load {what}", "dcp.load", place, load, Run(lambda: peer.load(theirs, state)), load_target
    )
    place.room("ours"), place.room("theirs")


def _restore_shards(
    setting: Setting, count: int, shape: tuple[int, int], ranks: int
) -> Iterator[Figure]:
    """Restore the shards of the first rank, as FSDP2 places them, from what two ranks have saved:
    ``read_many`` into the tensors against ``dcp.load`` of DTensors, in one process without others.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rng = np.random.default_rng(0)
    arrays = {f"layer.{n}.weight": rng.standard_normal(shape, np.float32) for n in range(count)}
    folder = setting.quiet.room("shards") / "ck"
    sv.save(folder, arrays, format="torch", partition=2, policy=BalancedPolicy(2))
    placements = [sv.layouts.Shard(0)]
    (region, *_) = sv.layouts.dtensor(shape, sv.Mesh((ranks,)), placements).regions(0)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (ranks,))
        state = {
            key: DTensor.from_local(
                torch.zeros(region.shape),
                mesh,
                [Shard(0)],
                run_check=False,
                shape=torch.Size(shape),
                stride=(shape[1], 1),
            )
            for key in arrays
        }
        out = [state[key].to_local().numpy() for key in arrays]
        requests = [(key, region) for key in arrays]

        def restore() -> None:
            with sv.open_checkpoint(folder) as reader:
                reader.read_many(requests, out=out)

        def check() -> None:
            if any(
                not np.array_equal(a, arrays[key][region.slices])
                for key, a in zip(arrays, out, strict=True)
            ):
                raise AssertionError("A shard was restored as something else.")
            for array in out:
                array.fill(0)

        def theirs() -> None:
            dcp.load(state, checkpoint_id=folder, no_dist=True)

        for each in (restore, theirs):
            each()
            check()
        what = f"restore {count} shards of {shape[0]} x {shape[1]}, 2 ranks to {ranks}"
        yield setting.ratio(
            what, "dcp.load", setting.quiet, Run(restore), Run(theirs), SHARDS_TARGET
        )
    finally:
        dist.destroy_process_group()
        setting.quiet.room("shards")


def _open(setting: Setting, count: int) -> Figure:
    """Open a checkpoint of which only the index has contents, against unpickling the index."""
    folder = setting.quiet.room("index")
    octets = _index_of(count)
    (folder / ".metadata").write_bytes(octets)
    with (folder / "__0_0.distcp").open("wb") as file:
        file.truncate(count * SLICES * 2048)
    theirs = Run(lambda: pickle.loads(octets))  # noqa: S301 - made above
    ours = Run(lambda: sv.open_checkpoint(folder).source.close())  # noqa: PLW0108 - it is opened again each time
    return setting.ratio(
        f"open {count} x {SLICES} slices", "pickle.loads", setting.quiet, ours, theirs, OPEN_TARGET
    )


def _index_of(count: int) -> bytes:
    """The index of tensors in slices, by PyTorch's own classes."""
    import torch
    from torch.distributed.checkpoint import filesystem, metadata

    described: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for number in range(count):
        offsets = [torch.Size([rank * 2, 0]) for rank in range(SLICES)]
        described[f"layer.{number}.weight"] = metadata.TensorStorageMetadata(
            metadata.TensorProperties(torch.float32),
            torch.Size([2 * SLICES, 4]),
            [metadata.ChunkStorageMetadata(offset, torch.Size([2, 4])) for offset in offsets],
        )
        for rank, offset in enumerate(offsets):
            place = filesystem._StorageInfo("__0_0.distcp", (number * SLICES + rank) * 2048, 2048)
            stored[metadata.MetadataIndex(f"layer.{number}.weight", offset, rank)] = place
    paths = {key: tuple(key.split(".")) for key in described}
    return pickle.dumps(metadata.Metadata(described, paths, stored, version="1.0.0"))


def _convert(setting: Setting) -> Iterator[Figure]:
    """Distributed checkpoint to a set of safetensors files, against ``cp`` of the same bytes; and
    the memory."""
    nbytes, place = setting.sizes.reshard_nbytes, setting.quiet
    subject = f"convert {nbytes / GIB:g} GiB to 4 safetensors files"
    if not place.has_room_for(2 * nbytes):
        yield skipped(subject, "cp", f"no room for {2 * nbytes / GIB:g} GiB in {place.name}")
        return
    source, target = place.room("source"), place.room("target")
    call(write_source, str(source), nbytes)
    files = sorted(map(str, (source / "ck").iterdir()))

    def copy() -> None:
        subprocess.run([*COPY, *files, str(target)], check=True)
        sync_tree(target)

    ours, theirs = (
        Run(lambda: _to_safetensors(source, target), emptied(target)),
        Run(copy, emptied(target)),
    )
    yield setting.ratio(subject, "cp and fsync", place, ours, theirs, CONVERT_TARGET)
    emptied(target)()
    peak = call(peak_of_convert, str(source), str(target))
    yield Figure(
        f"{subject}: peak memory of the process", "", place.name, peak / MIB, "MiB", PEAK_TARGET
    )
    place.room("source"), place.room("target")


def _to_safetensors(source: Path, target: Path) -> None:
    sv.reshard(source / "ck", target / "model.safetensors", policy=BalancedPolicy(4))


def write_source(room: str, nbytes: int) -> None:
    """Save a model of 32 tensors of random numbers in four slices each with DCP's layout."""
    rows = nbytes // 32 // 256
    some = np.random.default_rng(0).standard_normal((rows, 64), np.float32)
    arrays = {f"layer.{number}": some for number in range(32)}
    sv.save(Path(room, "ck"), arrays, format="torch", partition=4, policy=BalancedPolicy(4))


def peak_of_convert(source: str, target: str) -> int:
    """The most memory of a process that converts and does nothing else."""
    _to_safetensors(Path(source), Path(target))
    return peak_nbytes()


def _read_part(setting: Setting) -> Figure:
    """A part of a large tensor: what is read beyond it, opening included."""
    rows, place = setting.sizes.partial_rows, setting.disk
    room = place.room("part")
    call(write_part, str(room), rows)
    extra = call(read_part, str(room), rows)
    subject = f"2.4 MB of a {rows * 256 // 10**6} MB tensor: read beyond it"
    if extra is None:
        return skipped(subject, "", "this system does not count bytes")
    return Figure(subject, "", place.name, extra / MIB, "MiB", EXTRA_READ_TARGET)


def write_part(room: str, rows: int) -> None:
    """Save the tensor with DCP."""
    peer = PEERS["DCP"]()
    arrays = {"table": np.random.default_rng(0).standard_normal((rows, 64), np.float32)}
    peer.save(Path(room, "ck"), peer.prepare(arrays))


def read_part(room: str, rows: int) -> int | None:
    """Bytes read beyond the part; modules are imported and read before."""
    sv.save(Path(room, "warm"), {"table": np.zeros((4, 64))}, format="torch")
    with sv.open_checkpoint(Path(room, "warm")) as reader:
        reader.read("table", np.s_[1:3])
    before = read_nbytes()
    with sv.open_checkpoint(Path(room, "ck")) as reader:
        reader.read("table", np.s_[rows // 2 : rows // 2 + PART])
    after = read_nbytes()
    return None if before is None or after is None else after - before - PART * 256

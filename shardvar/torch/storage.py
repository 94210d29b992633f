"""A reader and a writer of ``torch.distributed.checkpoint``: any checkpoint into the plan of its ``load``,
and the plan of its ``save`` as one checkpoint of many shares.

    read_metadata   each process opens the checkpoint; its index becomes torch's ``Metadata``
    plan            torch's planner intersects the needed regions with the stored ones
    read_data       the regions of the plan are read, compared with their checksums, and copied
                    into the tensors of the state

A key that cannot be read is listed as an object, so that the planner asks for it, and ``read_data``
raises its error. Otherwise the planner would call it missing, or leave it out of a partial load.

    plan         torch's planner decides which process writes what; process 0 draws the attempt
    write_data   each process writes its items as a share of the checkpoint (``verbs.together``)
    finish       process 0 proves that the shares of the attempt are whole, and commits them

The attempt goes to the processes with their plans. torch's planners may keep a plan, and use it in
the next save: so each process counts the uses of its plan, and the count is a part of the attempt.
"""

import io
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.metadata import Metadata as TorchMetadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from shardvar.errors import ArgumentError, ShardvarError, StorageError, UnsupportedError
from shardvar.formats.torch.archive import item_of
from shardvar.formats.torch.source import encoding_in
from shardvar.layout.dtypes import has_values, numpy_dtype, to_round_once
from shardvar.layout.region import Region
from shardvar.planning.index import Metadata
from shardvar.planning.slices import TensorTable
from shardvar.records import entity, mutable, replace
from shardvar.torch.leaves import as_tensor, memory_of, torch_dtype
from shardvar.verbs.arguments import check_string, texts_of
from shardvar.verbs.lazy import lazy
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.locate import Path
from shardvar.verbs.reader import Reader, check_verify
from shardvar.verbs.together.fence import commit_left
from shardvar.verbs.together.run import Run, SaveOptions, find_run
from shardvar.verbs.together.shares import LocalShard, save_with_objects
from shardvar.verbs.training.states import in_portions

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import (
        LoadPlan,
        LoadPlanner,
        ReadItem,
        SavePlan,
        SavePlanner,
        WriteItem,
    )
    from torch.futures import Future


@entity
class TensorTarget:
    """A region that is read, and its place in the state."""

    key: str
    name: str
    """Its dtype."""
    region: Region
    tensor: Any


class StorageReader(dcp.StorageReader):  # type: ignore[misc]
    """A reader of ``torch.distributed.checkpoint.load`` for every checkpoint that shardvar reads.

    Parameters
    ----------
    path : path_like
        The checkpoint, in any format, as for ``sv.open_checkpoint``: a path or a URL.
    verify : {'full', 'auto'}, default 'full'
        With ``'full'``, compare all that is read with checksums. If the format has one only of a
        whole slice, the slice is read whole, as torch's own reader does. With ``'auto'``, read only
        the part that is needed, and compare no such checksum.
    cast : bool, default False
        Cast tensors to the dtypes of the state, as torch's own reader does. By default a dtype that
        differs is an error.
    trusted : bool, default False
        Give torch also objects of classes that are not plain, as a distributed checkpoint of
        PyTorch has them. torch unpickles them, which runs the code that they contain.

    Raises
    ------
    ArgumentError
        If ``verify`` has another value.

    Notes
    -----
    Each process opens the checkpoint and reads only what its part of the plan needs. Plain objects,
    such as settings of an optimizer, are encoded again from their values, so that nothing in a file
    is run.

    Examples
    --------
    ``dcp.load(state, storage_reader=StorageReader("s3://bucket/step-1000"))``
    """

    def __init__(
        self, path: Path, *, verify: str = "full", cast: bool = False, trusted: bool = False
    ) -> None:
        check_string(verify, "ways to verify")
        check_verify(verify)
        self._path, self._verify, self._cast, self._trusted = path, verify, cast, trusted
        self._reader: Reader | None = None

    @property
    def checkpoint_id(self) -> Path:
        """The path of the checkpoint."""
        return self._path

    # The rest is called by torch: torch's StorageReader documents it.

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return True

    def reset(self, checkpoint_id: Path | None = None) -> None:
        self._close()
        if checkpoint_id:
            self._path = checkpoint_id

    # torch passes `rank` for a second try only to a function with an argument named `kwargs`. There
    # is no second way to open a checkpoint.
    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
        return metadata_of(self._opened())

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        self._opened()

    def prepare_local_plan(self, plan: "LoadPlan") -> "LoadPlan":
        return plan

    def prepare_global_plan(self, plans: "list[LoadPlan]") -> "list[LoadPlan]":
        return plans

    def read_data(self, plan: "LoadPlan", planner: "LoadPlanner") -> "Future[None]":
        try:
            reader = self._opened()
            objects = [each for each in plan.items if each.type == LoadItemType.BYTE_IO]
            items = items_of(reader, [each.storage_index.fqn for each in objects], self._trusted)
            for item in objects:
                planner.load_bytes(item, io.BytesIO(items[item.storage_index.fqn]))
            tensors = reader.listed().slices.tensors
            rows = tensors.rows()
            targets = (
                (item, self._target(reader.path, item, tensors, rows, planner))
                for item in plan.items
                if item.type != LoadItemType.BYTE_IO
            )
            for batch in in_portions(targets, lambda pair: int(pair[1].tensor.nbytes)):
                fill_tensors(reader, [target for _, target in batch], self._verify)
                for item, target in batch:
                    planner.commit_tensor(item, target.tensor)
        finally:
            self._close()
        done: Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _target(
        self,
        path: str,
        item: "ReadItem",
        tensors: TensorTable,
        rows: Mapping[str, int],
        planner: "LoadPlanner",
    ) -> TensorTarget:
        key, first = item.storage_index.fqn, item.storage_index.offset
        name = tensors.dtype(rows[key])
        tensor = planner.resolve_tensor(item).detach()
        if tensor.dtype != torch_dtype(name) and not self._cast:
            other = str(tensor.dtype).removeprefix("torch.")
            raise ArgumentError(
                f"{key!r} is {name} in {path}, and {other} in the state.",
                "Give the state the dtype of the checkpoint, or StorageReader cast=True.",
            )
        start = [one + more for one, more in zip(first, item.storage_offsets, strict=True)]
        region = Region(start, item.lengths)
        if tuple(tensor.shape) != region.shape:
            cause = (
                f"{key!r} has a region of {region.shape}, and {tuple(tensor.shape)} in the plan."
            )
            raise ArgumentError(cause, "Report it to the author of the planner.")
        return TensorTarget(key, name, region, tensor)

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = open_checkpoint(self._path)
        return self._reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def metadata_of(reader: Reader) -> Any:
    slices, faults = reader.listed().slices, reader.listed_faults()
    tensors = slices.tensors
    chunks: list[list[Any]] = [[] for _ in tensors.keys]
    ranks = tensors.ranks[slices.tensor].tolist()
    columns = slices.tensor.tolist(), slices.offset.tolist(), slices.shape.tolist(), ranks
    for tensor, offset, shape, rank in zip(*columns, strict=True):
        chunk = ChunkStorageMetadata(torch.Size(offset[:rank]), torch.Size(shape[:rank]))
        chunks[tensor].append(chunk)
    found: dict[str, Any] = {}
    for row, key in enumerate(tensors.keys):
        dtype = torch_dtype(tensors.dtype(row))
        if dtype is not None:
            properties, size = TensorProperties(dtype), torch.Size(tensors.shape(row))
            found[key] = TensorStorageMetadata(properties, size, chunks[row])
        else:
            found[key] = BytesStorageMetadata()
    found |= {key: BytesStorageMetadata() for key in faults}
    paths: Mapping[str, Any] | None = dict(reader.metadata.paths) or None
    place = StorageMeta(checkpoint_id=reader.path)
    return TorchMetadata(found, paths, {}, place, dcp.filesystem.CURRENT_DCP_VERSION)


def fill_tensors(reader: Reader, targets: Iterable[TensorTarget], verify: str) -> None:
    """Read regions into tensors: in place, if these are on the CPU and have the dtype."""
    for batch in in_portions(targets, lambda target: int(target.tensor.nbytes)):
        places = [
            memory_of(each.tensor) if each.tensor.dtype == torch_dtype(each.name) else None
            for each in batch
        ]
        regions = [(each.key, each.region) for each in batch]
        arrays = reader.read_many(regions, verify, out=places)
        for each, place, array in zip(batch, places, arrays, strict=True):
            if place is not None:
                continue
            dtype = str(each.tensor.dtype).removeprefix("torch.")
            if has_values(dtype):  # torch rounds float64 to bfloat16 by way of float32
                array = to_round_once(array, numpy_dtype(dtype))
            each.tensor.copy_(as_tensor(array, each.name))


def items_of(reader: Reader, keys: Collection[str], trusted: bool) -> dict[str, bytes]:
    """Return objects as streams of ``torch.save``; raise for other values, and untrusted objects."""
    held = reader.source.objects({*keys}, "torch" if trusted else "") or {}
    for key in keys:
        fault = reader.index.faults.get(key)
        # Also of a trusted checkpoint no object is given on that would call a function of a system.
        is_refused = fault is not None and not isinstance(fault, UnsupportedError)
        if key not in held or is_refused:
            raise _unreadable(reader, key)
    return {key: item_of(held[key]) for key in keys}


def _unreadable(reader: Reader, key: str) -> Exception:
    try:
        name = reader.find(key).slices.dtype(0)
    except UnsupportedError as error:
        if not reader.source.objects([key], "torch"):
            raise
        remedy = "If you trust the checkpoint, give trusted=True: torch runs the code of the class."
        return UnsupportedError(error.cause, f"{error.remedy} {remedy}")
    if torch_dtype(name) is not None:
        cause = f"{key!r} is a tensor in {reader.path}, and not in the state."
        return ArgumentError(cause, "Give the state the same kind of value.")
    cause = f"{key!r} in {reader.path} has the dtype {name}, which the reader cannot give PyTorch."
    return UnsupportedError(cause, "Leave it out of the state, or read it with sv.load.")


_RUN = "torch.distributed.checkpoint"
"""The run of all saves: their attempts tell them apart."""
_SMALL_NBYTES = 1 << 16
"""The size up to which tensors are taken at once: thousands of them are written together."""
_SECONDS = 30.0
"""Time for a file system to show to process 0 what the others have written."""


@mutable(eq=True)
class SharePlan:
    """The part of one process, which goes to it with its plan."""

    process: int
    count: int
    token: str
    uses: int = 0

    @property
    def attempt(self) -> str:
        """The attempt of the last save that has used the plan."""
        return f"{self.token}-{self.uses}"


class StorageWriter(dcp.StorageWriter):  # type: ignore[misc]
    """A writer of ``torch.distributed.checkpoint.save``, on disks and in buckets, with checksums.

    Parameters
    ----------
    path : path_like
        The checkpoint, the same in every process: a path or a URL.
    format : str, default 'torch'
        The format: ``'torch'``, which torch's own reader also reads, or ``'shardvar'``.
    metadata : mapping of str to str, optional
        Texts to keep in the checkpoint.
    overwrite : bool, default True
        Replace a checkpoint that is there, or raise ``TargetExists`` when torch saves.

    Raises
    ------
    ArgumentTypeError
        If the metadata are not texts.

    Notes
    -----
    Process 0 commits when all processes have written their shares, and these are whole: no slice is
    missing, and none overlaps another. Until then the checkpoint that was there stays, and a
    process that dies leaves none that looks whole. Tensors are copied from their devices one at a
    time. In the native format objects must be plain values, such as settings.

    Examples
    --------
    ``dcp.save(state, storage_writer=StorageWriter("s3://bucket/step-1000"))``
    """

    def __init__(
        self,
        path: Path,
        *,
        format: str = "torch",
        metadata: "Mapping[str, str] | None" = None,
        overwrite: bool = True,
    ) -> None:
        check_string(format, "names of formats")
        self._overwrite = overwrite
        self._path, self._format, self._texts = path, format, texts_of(metadata)
        self._part = SharePlan(0, 1, "")

    @property
    def checkpoint_id(self) -> Path:
        """The path of the checkpoint."""
        return self._path

    # The rest is called by torch: torch's StorageWriter documents it.

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        return True

    def reset(self, checkpoint_id: Path | None = None) -> None:
        if checkpoint_id:
            self._path = checkpoint_id

    def set_up_storage_writer(
        self, is_coordinator: bool, *_args: Any, use_collectives: bool = True, **kwargs: Any
    ) -> None:
        if not use_collectives:
            cause = "With use_collectives=False each process writes an index for itself."
            raise UnsupportedError(cause, "Leave it out, or call sv.save_shards.")

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self._path)

    def prepare_local_plan(self, plan: "SavePlan") -> "SavePlan":
        return plan

    def prepare_global_plan(self, plans: "list[SavePlan]") -> "list[SavePlan]":
        token, count = secrets.token_hex(8), len(plans)
        parts = [SharePlan(process, count, token) for process in range(count)]
        return [replace(plan, storage_data=part) for plan, part in zip(plans, parts, strict=True)]

    def write_data(self, plan: "SavePlan", planner: "SavePlanner") -> "Future[list[WriteResult]]":
        part = self._part = plan.storage_data
        part.uses += 1
        tensors: dict[str, list[LocalShard]] = {}
        objects: dict[str, bytes] = {}
        results = []
        for item in plan.items:
            key = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                objects[key] = self._object(key, planner.resolve_data(item).getvalue())
                nbytes = len(objects[key])
            else:
                tensors.setdefault(key, []).append(_shard_of(item, planner))
                nbytes = _nbytes_of(item.tensor_data)
            results.append(WriteResult(item.index, nbytes, part.attempt))
        steps = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        paths: dict[str, tuple[str | int, ...]] = {}
        for key in (*tensors, *objects):
            path = steps.get(key)
            if isinstance(path, tuple) and all(type(step) in (str, int) for step in path):
                paths[key] = path
        about = Metadata(user=self._texts, paths=paths, objects=objects)
        save_with_objects(self._run(), part.process, tensors, about)
        done: Future[list[WriteResult]] = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: "list[list[WriteResult]]") -> None:
        attempts = {each.storage_data for written in results for each in written}
        others = sorted(attempts - {self._part.attempt})
        if others:
            cause = f"A process wrote {self._path} in the attempt {others[0]}, not {self._part.attempt}."
            raise StorageError(cause, "Use a new planner in all processes, and save again.")
        commit_left(self._run())
        # torch returns them from its save.
        metadata.version, metadata.storage_meta = (
            dcp.filesystem.CURRENT_DCP_VERSION,
            self.storage_meta(),
        )

    def _run(self) -> Run:
        part = self._part
        options = SaveOptions(overwrite=self._overwrite, commit=False, timeout=_SECONDS)
        return find_run(self._path, _RUN, part.count, self._format, part.attempt, options=options)

    def _object(self, key: str, octets: bytes) -> bytes:
        if self._format == "torch" and octets.startswith(b"PK"):
            return octets
        try:
            return encoding_in(octets)
        except ShardvarError as error:
            raise error.at(repr(key)) from None


def _shard_of(item: "WriteItem", planner: "SavePlanner") -> LocalShard:
    """Return the region of an item; values of large ones are made when they are written."""
    key, about = item.index.fqn, item.tensor_data
    if _nbytes_of(about) <= _SMALL_NBYTES:
        return LocalShard(planner.resolve_data(item).detach(), about.chunk.offsets, about.size)
    resolve: Callable[[WriteItem], Any] = planner.resolve_data
    try:
        name = str(about.properties.dtype).removeprefix("torch.")
        array = lazy(about.chunk.sizes, name, resolve, item)
    except UnsupportedError as error:
        raise error.at(repr(key)) from None
    return LocalShard(array, about.chunk.offsets, about.size)


def _nbytes_of(data: Any) -> int:
    return int(data.chunk.sizes.numel() * data.properties.dtype.itemsize)

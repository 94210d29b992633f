"""Write the plan of ``torch.distributed.checkpoint.save`` as one checkpoint of many shares.

    plan         torch's planner decides which process writes what; process 0 draws the attempt
    write_data   each process writes its items as a share of the checkpoint (``verbs.together``)
    finish       process 0 proves that the shares of the attempt are whole, and commits them

The attempt goes to the processes with their plans. torch's planners may keep a plan, and use it in
the next save: so each process counts the uses of its plan, and the count is a part of the attempt.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from shardvar.errors import ShardvarError, StorageError, UnsupportedError
from shardvar.formats.torch.items import encoding_in
from shardvar.planning.index import Metadata
from shardvar.verbs.arguments import check_string, texts_of
from shardvar.verbs.lazy import lazy
from shardvar.verbs.locate import Path
from shardvar.verbs.together.fence import commit_left
from shardvar.verbs.together.run import Run, SaveOptions, find_run
from shardvar.verbs.together.shares import LocalShard, save_with_objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
    from torch.futures import Future

_RUN = "torch.distributed.checkpoint"
"""The run of all saves: their attempts tell them apart."""
_SMALL_NBYTES = 1 << 16
"""The size up to which tensors are taken at once: thousands of them are written together."""
_SECONDS = 30.0
"""Time for a file system to show to process 0 what the others have written."""


@dataclass(slots=True)
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
    ) -> None:
        check_string(format, "names of formats")
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
        known = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        paths = {key: known[key] for key in (*tensors, *objects) if _is_path(known.get(key))}
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

    def _run(self) -> Run:
        part = self._part
        options = SaveOptions(commit=False, timeout=_SECONDS)
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


def _is_path(path: object) -> bool:
    return isinstance(path, tuple) and all(type(step) in (str, int) for step in path)

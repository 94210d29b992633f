"""Planners of ``torch.distributed.checkpoint`` that save and load the slices of several ranks in one process.

``parts`` are by key the ``(offset, tensor)`` pairs of the slices; a key without parts is saved and loaded whole.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

Parts = Mapping[str, Sequence[tuple[tuple[int, ...], Any]]]


def chunks(tensor: Any, num_shards: int) -> list[tuple[tuple[int, ...], Any]]:
    """The slices of a tensor in so many shards, which DTensor cuts by ``torch.chunk``; views of it."""
    if not tensor.ndim or not len(tensor):
        return [((0,) * tensor.ndim, tensor)]
    slices = tensor.chunk(num_shards)
    return [((number * len(slices[0]), *[0] * (tensor.ndim - 1)), one) for number, one in enumerate(slices)]


def save(path: str, state: Mapping[str, Any], parts: Parts) -> None:
    """Write a checkpoint of slices."""
    from torch.distributed.checkpoint import FileSystemWriter, save

    writer = FileSystemWriter(path, single_file_per_rank=False)
    save(dict(state), storage_writer=writer, planner=_planners()[0](parts), no_dist=True)


def load(path: str, state: Mapping[str, Any], parts: Parts) -> None:
    """Read slices into the tensors of ``parts``, which are views of those of ``state``."""
    from torch.distributed.checkpoint import load

    load(state, checkpoint_id=path, planner=_planners()[1](parts), no_dist=True)


@cache
def _planners() -> tuple[Any, Any]:
    from torch.distributed.checkpoint import ChunkStorageMetadata, DefaultLoadPlanner, DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadPlan, WriteItemType
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class SavePlanner(DefaultSavePlanner):  # type: ignore[misc]
        def __init__(self, parts: Parts) -> None:
            super().__init__()
            self._parts = parts

        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            return dataclasses.replace(plan, items=[one for item in plan.items for one in self._sliced(item)])

        def _sliced(self, item: Any) -> list[Any]:
            if item.index.fqn not in self._parts:
                return [item]
            return [
                dataclasses.replace(
                    item,
                    type=WriteItemType.SHARD,
                    index=MetadataIndex(item.index.fqn, offset),
                    tensor_data=dataclasses.replace(item.tensor_data, chunk=_chunk(offset, tensor)),
                )
                for offset, tensor in self._parts[item.index.fqn]
            ]

        def lookup_object(self, index: Any) -> Any:
            if index.fqn not in self._parts:
                return super().lookup_object(index)
            return dict(self._parts[index.fqn])[tuple(index.offset or ())]

    class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]
        def __init__(self, parts: Parts) -> None:
            super().__init__()
            self._parts = parts

        def create_local_plan(self) -> Any:
            items = [one for one in super().create_local_plan().items if one.dest_index.fqn not in self._parts]
            for key, parts in self._parts.items():
                wanted = [_chunk(offset, tensor) for offset, tensor in parts]
                items += create_read_items_for_chunk_list(key, self.metadata.state_dict_metadata[key], wanted)
            return LoadPlan(items)

        def lookup_tensor(self, index: Any) -> Any:
            if index.fqn not in self._parts:
                return super().lookup_tensor(index)
            return dict(self._parts[index.fqn])[tuple(index.offset or ())]

    def _chunk(offset: Sequence[int], tensor: Any) -> Any:
        return ChunkStorageMetadata(type(tensor.shape)(offset), tensor.shape)

    return SavePlanner, LoadPlanner

"""Ids, regions, partitions, texts of slices, policies."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.partition import check_tiles
from shardvar.layout.region import format_slice_text, parse_slice_text
from shardvar.layout.shard_counts import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from shardvar.planning.policies import BalancedPolicy

Inputs = Mapping[str, Any]


def region(told: Inputs) -> sv.Region:
    return sv.Region([int(each) for each in told["offset"]], [int(each) for each in told["shape"]])


def tell(found: sv.Region) -> dict[str, Any]:
    return {"offset": list(found.offset), "shape": list(found.shape)}


def _owner(inputs: Inputs) -> Any:
    ids = np.array([int(each) for each in inputs["ids"]], np.int64)
    shard, row = sv.div_owner(ids, int(inputs["length"]), inputs["num_shards"])
    return {"shard": shard.tolist(), "row": row.tolist()}


def _intersect(inputs: Inputs) -> Any:
    found = region(inputs["a"]).intersect(region(inputs["b"]))
    return None if found is None else tell(found)


def _subtract(inputs: Inputs) -> Any:
    pieces = region(inputs["a"]).subtract(region(inputs["b"]))
    return sorted(
        list(index)
        for piece in pieces
        for index in product(*(range(s.start, s.stop) for s in piece.slices))
    )


def _coverage(inputs: Inputs) -> Any:
    try:
        check_tiles(inputs["shape"], [region(part) for part in inputs["parts"]])
    except sv.errors.LayoutError as error:
        words = {"reaches out": "outside", "overlap": "overlap", "no part holds": "hole"}
        return next(verdict for words, verdict in words.items() if words in error.cause)
    return "tiled"


def _partition(inputs: Inputs) -> Any:
    spec = sv.PartitionSpec(inputs["partitions"], inputs["splits"])
    return [
        tell(part) for part in sv.Partition.from_sizes(inputs["shape"], spec.sizes(inputs["shape"]))
    ]


def _parts(make: Callable[..., Any]) -> Callable[[Inputs], Any]:
    def op(inputs: Inputs) -> Any:
        numbers = {
            key: value for key, value in inputs.items() if key not in ("shape", "dtype", "axis")
        }
        numbers = {key: value if value is None else int(value) for key, value in numbers.items()}
        return make(**numbers)(
            [int(each) for each in inputs["shape"]], inputs["dtype"], axis=inputs["axis"]
        )

    return op


def _parse(inputs: Inputs) -> Any:
    shape, found = parse_slice_text(inputs["text"])
    return {"shape": list(shape), "region": tell(found)}


def _policy(make: Callable[[Inputs], Any]) -> Callable[[Inputs], Any]:
    """Files as lists of slices, each sorted by the order of the tensors and then by place."""

    def op(inputs: Inputs) -> Any:
        given = []
        for told in inputs["tensors"]:
            value = np.zeros(told["shape"], numpy_dtype(told["dtype"]))
            key = told["key"]
            given.append(
                sv.ShardableTensor(value, value.dtype, told["device"], key, value.shape, "", key)
            )
        files = []
        for file in make(inputs)(given):
            slices = []
            for key, parts in file.items():
                for spec, value in parts.items():
                    box = (
                        sv.Region.whole(value.shape)
                        if not spec
                        else parse_slice_text(spec, empty=True)[1]
                    )
                    slices.append({"key": key, **tell(box)})
            files.append(slices)
        return files

    return op


OPS: dict[str, Callable[[Inputs], Any]] = {
    "div": lambda inputs: [
        list(each) for each in sv.div(int(inputs["length"]), inputs["num_shards"])
    ],
    "chunk": lambda inputs: [
        list(each) for each in sv.chunk(int(inputs["length"]), inputs["num_shards"])
    ],
    "div_owner": _owner,
    "intersect": _intersect,
    "subtract": _subtract,
    "coverage": _coverage,
    "partition": _partition,
    "fixed_shards": _parts(FixedShardsPartitioner),
    "min_size": _parts(MinSizePartitioner),
    "max_size": _parts(MaxSizePartitioner),
    "parse_slice_text": _parse,
    "format_slice_text": lambda inputs: format_slice_text(
        [int(each) for each in inputs["shape"]], region(inputs["region"])
    ),
    "max_shard_size": _policy(lambda inputs: sv.MaxShardSizePolicy(inputs["max_shard_size"])),
    "balanced": _policy(lambda inputs: BalancedPolicy(inputs["num_files"])),
    "by_task": _policy(lambda inputs: sv.ShardByTaskPolicy()),
    "by_device": _policy(lambda inputs: sv.ShardByDevicePolicy()),
}

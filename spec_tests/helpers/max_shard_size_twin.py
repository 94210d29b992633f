"""TensorFlow's MaxShardSizePolicy as a twin in plain Python, and tensors to hold shardvar's against
it."""

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

import shardvar as sv
from shardvar.layout.dtypes import numpy_dtype

Shards = list[dict[str, list[str]]]


Tensors = list[tuple[str, str, tuple[int, ...]]]


def specs_of(shards: Any, empty: bool = True) -> Shards:
    """The texts of slices of each file, by key, without those of empty tensors where TensorFlow
    drops these."""
    found = [
        {
            key: [spec for spec, value in parts.items() if empty or value.size]
            for key, parts in shard.items()
        }
        for shard in shards
    ]
    kept = [{key: specs for key, specs in shard.items() if specs} for shard in found]
    return [shard for shard in kept if shard]


def twin(tensors: Tensors, limit: int) -> Shards | None:
    """TensorFlow's answer; None where it loops for ever."""
    shards: Shards = [{}]
    large: Shards = []
    remaining = limit
    for key, dtype, shape in tensors:
        item = numpy_dtype(dtype).itemsize
        if not shape:
            if item > limit:
                large.append({key: [""]})
                continue
            if item > remaining:
                shards.append({})
                remaining = limit
            shards[-1].setdefault(key, []).append("")
            remaining -= item
            continue
        offset, left = [0] * len(shape), list(shape)

        def text(
            size: list[int], shape: tuple[int, ...] = shape, offset: list[int] = offset
        ) -> str:
            pairs = ":".join(f"{o},{s}" for o, s in zip(offset, size, strict=True))
            return f"{' '.join(map(str, shape))} {pairs}"

        while prod(left) * item > remaining:
            counts: list[float] = []
            for extent in left:
                per = remaining // (prod(left) // extent * item)
                counts.append(-(-extent // per) if per else float("inf"))
            axis = counts.index(min(counts))
            if counts[axis] == float("inf"):
                if remaining == limit:
                    return None
                shards.append({})
                remaining = limit
                continue
            size = list(left)
            size[axis] = -(-left[axis] // int(counts[axis]))
            shards[-1].setdefault(key, []).append(text(size))
            remaining -= prod(size) * item
            offset[axis] += size[axis]
            left[axis] -= size[axis]
            if not remaining:
                shards.append({})
                remaining = limit
        if prod(left):
            shards[-1].setdefault(key, []).append(text(left))
            remaining -= prod(left) * item
    return (shards if shards[0] else []) + large


many_tensors = st.lists(
    st.tuples(
        st.sampled_from(["int8", "float16", "float32", "float64", "complex128"]),
        st.lists(st.integers(0, 7), max_size=4).map(tuple),
    ),
    max_size=6,
).map(lambda rows: [(f"t{number}", *row) for number, row in enumerate(rows)])


def answer(tensors: Tensors, policy: sv.MaxShardSizePolicy) -> Any:
    values = [(key, np.zeros(shape, numpy_dtype(dtype))) for key, dtype, shape in tensors]
    return policy([sv.ShardableTensor(x, x.dtype, "", key, x.shape, "", key) for key, x in values])

"""Sharding callbacks that change values."""

from typing import Any

import numpy as np

import shardvar as sv


class Negating(sv.ShardingCallback):
    """Negates all values."""

    description = "Negates."

    def __call__(self, tensors: Any) -> Any:
        return [
            {each.checkpoint_key: {each.slice_spec: -np.asarray(each.tensor)}} for each in tensors
        ]

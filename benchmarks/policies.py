"""The cost of a policy in a save, relative to a save without one: many tiny tensors, and a few
large ones."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting
from benchmarks.timing import Run, compare

MANY_TARGET = 1.5
"""At most this, where there is next to nothing in each tensor."""
LARGE_TARGET = 1.02
"""At most this, where writing takes the time."""
LARGE_PAIRS = 4
"""Times the seconds for pairs, where two percent are to be told from noise."""
LARGE_NBYTES = 2 << 20
"""The bytes of a large tensor."""
LIMIT_FILES = 10
"""Files that the limit makes of the tensors."""


class OneByOne(sv.ShardingCallback):
    """A user's callback: a loop over all tensors, which looks at each and puts all in one file."""

    description = "Looks at every tensor."

    def __call__(
        self, shardable_tensors: Sequence[sv.ShardableTensor], /
    ) -> list[dict[str, dict[str, Any]]]:
        """All in one file."""
        shard: dict[str, dict[str, Any]] = {}
        for each in shardable_tensors:
            shard.setdefault(each.checkpoint_key, {})[each.slice_spec] = each.tensor
        return [shard]


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of policies."""
    count = setting.sizes.variable_count
    values = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    tiny = {f"layer_{row:06d}.bias": values[row].copy() for row in range(count)}
    yield from _beside_none(
        setting, f"{count} x 16 floats", tiny, MANY_TARGET, setting.sizes.seconds
    )
    count = setting.sizes.object_count
    large = {f"layer_{row}": np.ones(LARGE_NBYTES // 4, np.float32) for row in range(count)}
    yield from _beside_none(
        setting, f"{count} x 2 MiB", large, LARGE_TARGET, setting.sizes.seconds * LARGE_PAIRS
    )


def _beside_none(
    setting: Setting, subject: str, arrays: dict[str, Any], target: float, seconds: float
) -> Iterator[Figure]:
    path = setting.quiet.path / "policies" / "model"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbytes = sum(array.nbytes for array in arrays.values())
    policies: dict[str, Any] = {
        "AllInOnePolicy": sv.AllInOnePolicy(),
        "MaxShardSizePolicy": sv.MaxShardSizePolicy(max(nbytes // LIMIT_FILES, 1)),
        "a callback": OneByOne(),
    }
    without = Run(lambda: sv.save(path, arrays))
    for name, policy in policies.items():
        found = compare(Run(partial(sv.save, path, arrays, policy=policy)), without, seconds)
        subject_of = f"save {subject} with {name}"
        yield Figure(
            subject_of, "no policy", setting.quiet.name, found.ratio, "x", target, str(found)
        )

"""Hypothesis strategies, an oracle's comparison and a state machine, for tests of sharded data
structures.

    from hypothesis import given
    from shardvar.testing import assert_matches_oracle, ids, sharded_variables

    @given(st.data())
    def test_lookup(data):
        sharded, full = data.draw(sharded_variables())
        rows = data.draw(ids(len(full)))
        assert_matches_oracle(my_lookup(sharded.variables, rows), full[rows])

The drawn values are small and odd, since laws rarely break by size: they break at zero rows, at
rank 0, at empty shards, at ids that repeat and are out of order. Every value shrinks to a plain
case that still fails: fewer rows, fewer shards, ids near 0, values 1, 2, 3.

Hypothesis comes with the extra ``testing``. The assertions need only NumPy:

    from shardvar.testing import assert_checkpoints_equal

    def test_conversion(tmp_path):
        assert_checkpoints_equal("model", convert("model", tmp_path), rtol=1e-6)
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from shardvar.extras import missing_extra
from shardvar.testing.compare import assert_checkpoints_equal, assert_matches_oracle, difference

# Asked before the imports below, whose error would name the module and not the extra to install.
if TYPE_CHECKING or find_spec("hypothesis") is not None:
    from shardvar.testing.arrays import (
        Policy,
        arrays,
        bits,
        checkpoints,
        counting,
        keys,
        layouts,
        partitioners,
        partitions,
        policies,
        regions,
        regions_in,
        shapes,
        sharded_checkpoints,
        string_arrays,
        tilings,
    )
    from shardvar.testing.operations import (
        ShardedVariableMachine,
        Snapshot,
        SparseIds,
        Update,
        clipped,
        every_refused_update,
        ids,
        max_norms,
        refused_updates,
        sharded_of,
        sharded_variables,
        slices,
        sparse_ids,
        update_sequences,
        updated,
        updates,
        variables_and_updates,
    )
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise missing_extra(
            f"shardvar.testing.{name} needs Hypothesis, which is not installed.", "testing"
        )


__all__ = [
    "Policy",
    "ShardedVariableMachine",
    "Snapshot",
    "SparseIds",
    "Update",
    "arrays",
    "assert_checkpoints_equal",
    "assert_matches_oracle",
    "bits",
    "checkpoints",
    "clipped",
    "counting",
    "difference",
    "every_refused_update",
    "ids",
    "keys",
    "layouts",
    "max_norms",
    "partitioners",
    "partitions",
    "policies",
    "refused_updates",
    "regions",
    "regions_in",
    "shapes",
    "sharded_checkpoints",
    "sharded_of",
    "sharded_variables",
    "slices",
    "sparse_ids",
    "string_arrays",
    "tilings",
    "update_sequences",
    "updated",
    "updates",
    "variables_and_updates",
]

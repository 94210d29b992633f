"""Plans of PyTorch 2.13 itself: the steps of its redistributions, the plans of its distributed
checkpoints.

These modules repeat choices inside one version of one framework, so they belong to the kit and not
to the geometry of ``shardvar.layout.meshes``. `shardvar.layouts` has their public names.
"""

from shardvar.conformance.torch_plans.save_plans import (
    ReadItem,
    SavedTensor,
    WriteItem,
    dcp_load_plan,
    dcp_save_plan,
    torchsnapshot_shards,
    torchsnapshot_tensor,
)
from shardvar.conformance.torch_plans.steps import DTensorStep, dtensor_steps

__all__ = [
    "DTensorStep",
    "ReadItem",
    "SavedTensor",
    "WriteItem",
    "dcp_load_plan",
    "dcp_save_plan",
    "dtensor_steps",
    "torchsnapshot_shards",
    "torchsnapshot_tensor",
]

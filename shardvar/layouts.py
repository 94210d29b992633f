"""The public names of layouts, ``sv.layouts``. Nothing in shardvar imports this module.

The geometry is in ``shardvar.layout.meshes``. The plans of PyTorch itself are in
``shardvar.conformance.torch_plans``.
"""

from shardvar.conformance import torch_plans
from shardvar.conformance.torch_plans import *  # noqa: F403
from shardvar.layout import meshes
from shardvar.layout.meshes import *  # noqa: F403

__all__ = []
__all__ += meshes.__all__
__all__ += torch_plans.__all__

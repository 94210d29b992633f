"""The public names of layouts, ``sv.layouts``. Nothing in shardvar imports this module."""

from shardvar.layout import meshes
from shardvar.layout.meshes import *  # noqa: F403

__all__ = []
__all__ += meshes.__all__

"""Objects with named children, and the frozen graph that they form. Nothing is collected globally."""

from shardvar.tracking.graph import ObjectGraph
from shardvar.tracking.stateful import Stateful
from shardvar.tracking.trackable import ChildHook, Trackable

__all__ = ["ChildHook", "ObjectGraph", "Stateful", "Trackable"]

"""Objects with named children, and the frozen graph that they form."""

from shardvar.reference.tracking.graph import SLOT, ObjectGraph, SlotEdge
from shardvar.reference.tracking.trackable import ChildHook, Slot, Stateful, Trackable

__all__ = ["SLOT", "ChildHook", "ObjectGraph", "Slot", "SlotEdge", "Stateful", "Trackable"]

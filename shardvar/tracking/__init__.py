"""Objects with named children, and the frozen graph that they form. Nothing is collected globally."""

from shardvar.tracking.graph import SLOT, ObjectGraph, SlotEdge
from shardvar.tracking.stateful import Stateful
from shardvar.tracking.trackable import ChildHook, Slot, Trackable

__all__ = ["SLOT", "ChildHook", "ObjectGraph", "Slot", "SlotEdge", "Stateful", "Trackable"]
